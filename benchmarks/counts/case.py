"""Cases: their arguments, and their registration under a name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.counts.count import Count
from benchmarks.stores import Bucket
from benchmarks.topics import Topics
from servers.stores import Store

__all__ = ["CASES", "Case", "Given", "Server", "case"]

Server = str
"""``kafka``, ``bucket`` or ``strace``: what a case needs and a machine may not have."""


@dataclass(frozen=True)
class Given:
    """The arguments of a case.

    Attributes:
        folder: New and empty, without a disk behind it where the machine has such a place.
        servers: By name, how a server is reached that the case needs.
    """

    folder: Path
    servers: Mapping[str, Mapping[str, str]]

    @property
    def topics(self) -> Topics:
        """Of the broker."""
        return Topics(self.servers["kafka"]["bootstrap"])

    @property
    def bucket(self) -> Bucket:
        """Of the S3 on loopback."""
        options = dict(self.servers["bucket"])
        return Bucket(Store(options.pop("url"), options))


@dataclass(frozen=True)
class Case:
    """A case and its name.

    Attributes:
        name: As in ``--only``.
        run: Does a fixed amount of work, checks what came of it, and returns what it has counted.
        needs: The servers that it needs.
    """

    name: str
    run: Callable[[Given], Iterator[Count]]
    needs: tuple[Server, ...]

    @property
    def about(self) -> str:
        """The first line of its description."""
        return (self.run.__doc__ or "").splitlines()[0]


CASES: dict[str, Case] = {}

_Counting = Callable[[Given], Iterator[Count]]


def case(name: str, *needs: Server) -> Callable[[_Counting], _Counting]:
    """Make a function known under a name."""

    def known(run: _Counting) -> _Counting:
        CASES[name] = Case(name, run, needs)
        return run

    return known
