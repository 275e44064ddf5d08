"""Runs the benchmarks that are asked for, each on its own: none takes the others with it."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.bench import MEMORY, Benchmark, Run, scratch
from benchmarks.costs import Costs
from benchmarks.flames import Unseen, watched
from benchmarks.measure import Figure, Wrong
from benchmarks.peer import Peer, gather
from benchmarks.progress import Shown
from benchmarks.report.results import Outcome
from benchmarks.stores import open_bucket
from benchmarks.topics import open_topics
from servers.programs import NotInstalledError

__all__ = ["Start", "Suite"]

Start = Callable[[Path, Sequence[Path], Mapping[str, str]], Any]
"""Starts Spark in a folder, with jars and a configuration."""

_INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Suite:
    """The benchmarks of a run, and its settings.

    Attributes:
        chosen: The benchmarks.
        quick: Smaller and fewer.
        profiles: Where flame graphs are written, None for none.
        folder: For everything that is written to a disk.
        start: Starts Spark, when the first benchmark asks for it.
        taken: What results call this run.
        repeat: The command that repeats a benchmark.
        console: For what goes wrong.
        sizes: As those of `Run`.
        kept: As that of `Run`.
    """

    chosen: Sequence[Benchmark]
    quick: bool
    profiles: Path | None
    folder: Path
    start: Start
    taken: str
    repeat: Callable[[str], str]
    console: Console
    sizes: Mapping[str, int] = field(default_factory=dict)
    kept: Path | None = None

    def outcomes(self, shown: Shown) -> dict[str, Outcome]:
        """Run them, one after the other; an interrupt leaves out the rest."""
        found: dict[str, Outcome] = {}
        with ExitStack() as stack:
            run = self._prepared(stack, shown)
            stack.enter_context(shown.shown())
            for item in self.chosen:
                found[item.name] = self._outcome(item, run, shown)
                if found[item.name].failed == _INTERRUPTED:
                    break
        return found

    def _prepared(self, stack: ExitStack, shown: Shown) -> Run:
        """Create the shared environment; Spark and the broker start on first use."""
        place, store = (stack.enter_context(scratch(parent)) for parent in (self.folder, MEMORY))
        os.environ["KRISHIV_MEMORY_DIR"] = str(store)  # seen by workers that start later
        peers, absent = gather(p for item in self.chosen for p in item.peers)
        kafka = functools.cache(lambda: stack.enter_context(open_topics(place)))
        spark = functools.cache(lambda: self._session(stack, place, peers))
        bucket = functools.cache(lambda: stack.enter_context(open_bucket(store)))
        profile = self.profiles is not None
        told, costs = shown.told, Costs(spark)
        given = (told, place, spark, kafka, bucket, absent, costs, self.sizes, self.kept)
        return Run(self.quick, profile, *given)

    def _session(self, stack: ExitStack, folder: Path, peers: Mapping[Peer, Sequence[Path]]) -> Any:
        """Spark, with the connectors beside which ours are measured."""
        jars = [jar for of_one in peers.values() for jar in of_one]
        conf = {key: text for peer in peers for key, text in peer.conf.items()}
        spark = self.start(folder, jars, conf)
        stack.callback(spark.stop)
        return spark

    def _outcome(self, item: Benchmark, run: Run, shown: Shown) -> Outcome:
        missing = _missing(item, run)
        figures: list[Figure] = []
        failed, begin = "", time.monotonic()
        with shown.during(item.name):
            try:
                if item.alone or not missing:
                    figures = self._figures(item, run)
            except KeyboardInterrupt:
                failed = _INTERRUPTED
            except NotInstalledError as error:
                missing |= {"its server": str(error).splitlines()[0]}
            except Wrong as error:
                failed = f"wrong output: {error}"
            except Exception as error:  # noqa: BLE001  whatever it is, the others still run
                self.console.print_exception()
                failed = f"{type(error).__name__}: {error}"
        return Outcome(
            about=item.about,
            command=self.repeat(item.name),
            taken=self.taken,
            seconds=round(time.monotonic() - begin, 1),
            figures=tuple(figures),
            missing=missing,
            failed=failed,
        )

    def _figures(self, item: Benchmark, run: Run) -> list[Figure]:
        with self._profiled(item.name):
            return list(item.run(run))

    @contextmanager
    def _profiled(self, name: str) -> Iterator[None]:
        """With a flame graph, if one is wanted and to be had."""
        if self.profiles is None:
            yield
            return
        file = self.profiles / f"{name}.svg"
        with ExitStack() as stack:
            try:
                stack.enter_context(watched(file))
            except Unseen as error:
                self.console.print(f"{name}: no flame graph: {error}", style="yellow")
            yield
        if file.exists():
            self.console.print(f"{name}: flame graph in {file}")


def _missing(item: Benchmark, run: Run) -> dict[str, str]:
    """Return the missing requirements of a benchmark, with the reasons."""
    modules = dict.fromkeys(item.missing, "there is no such module")
    peers = {peer.name: run.absent[peer] for peer in item.peers if peer in run.absent}
    return {**modules, **peers}
