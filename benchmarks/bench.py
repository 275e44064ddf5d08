"""Benchmarks: their arguments, and their registration under a name."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.costs import Costs
from benchmarks.measure import Figure
from benchmarks.peer import Peer
from benchmarks.session import PRINTED
from benchmarks.stores import Bucket
from benchmarks.topics import Topics

__all__ = ["BENCHMARKS", "MEMORY", "Benchmark", "Run", "benchmark", "scratch"]

_SHARED_MEMORY = Path("/dev/shm")
MEMORY = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
"""A folder without a disk behind it, where the machine has one."""


@dataclass
class Run:
    """One call of the command.

    Attributes:
        quick: Smaller and fewer.
        profile: The process is watched: what is short repeats until there is something to see.
        told: Shows what is being done, in one line.
        folder: For everything that is written to a disk.
        spark: Starts the session that all benchmarks share, at the first call.
        kafka: Starts the broker that all benchmarks share, at the first call.
        bucket: Starts the S3 that all benchmarks share, at the first call.
        absent: The peers that cannot be had, and why.
        costs: What Spark uses meanwhile.
        sizes: Sizes that the user asks for, by name; see `size`.
        kept: A folder in which long benchmarks keep their state, to continue after an interrupt;
            None to keep none.
    """

    quick: bool
    profile: bool
    told: Callable[[str], None]
    folder: Path
    spark: Callable[[], Any]
    kafka: Callable[[], Topics]
    bucket: Callable[[], Bucket]
    absent: Mapping[Peer, str]
    costs: Costs
    sizes: Mapping[str, int] = field(default_factory=dict)
    kept: Path | None = None

    def size(self, name: str, usual: int, quick: int) -> int:
        """Return a size: the one that was asked for, or else the usual one or that of `quick`."""
        return self.sizes.get(name, quick if self.quick else usual)

    @contextmanager
    def workplace(self, name: str) -> Iterator[Path]:
        """Yield a folder on the disk: a new one, or one that later runs find again (`kept`)."""
        if self.kept is None:
            with scratch(self.folder) as folder:
                yield folder
        else:
            folder = self.kept / name
            folder.mkdir(parents=True, exist_ok=True)
            yield folder

    @property
    def printed(self) -> Path:
        """The file with what Spark and its workers print."""
        return self.folder / PRINTED


@dataclass(frozen=True)
class Benchmark:
    """A benchmark and its name.

    Attributes:
        name: As in ``--only``.
        run: Measures, and fails when the output is wrong.
        needs: Modules without which there is nothing to measure.
        peers: Connectors beside which ours are measured, except for those that Spark brings itself.
        alone: Whether there is something to measure without the peers.
        long: Whether it takes so many minutes that it runs only if it is asked for.
        sizes: Names of the sizes that ``--size`` can set.
    """

    name: str
    run: Callable[[Run], Iterator[Figure]]
    needs: tuple[str, ...] = field(default=())
    peers: tuple[Peer, ...] = field(default=())
    alone: bool = False
    long: bool = False
    sizes: tuple[str, ...] = field(default=())

    @property
    def about(self) -> str:
        """The first line of its description."""
        return (self.run.__doc__ or "").splitlines()[0]

    @property
    def missing(self) -> list[str]:
        """The modules that it needs and that are not there."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


BENCHMARKS: dict[str, Benchmark] = {}

Measure = Callable[[Run], Iterator[Figure]]


def benchmark(
    name: str,
    *needs: str,
    peers: tuple[Peer, ...] = (),
    alone: bool = False,
    long: bool = False,
    sizes: tuple[str, ...] = (),
) -> Callable[[Measure], Measure]:
    """Make a function known under a name; the rest as in `Benchmark`."""

    def known(run: Measure) -> Measure:
        BENCHMARKS[name] = Benchmark(name, run, needs, peers, alone, long, sizes)
        return run

    return known


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """Create a new folder, which is deleted afterwards."""
    with tempfile.TemporaryDirectory(dir=parent, prefix="krishiv-bench-") as folder:
        yield Path(folder)
