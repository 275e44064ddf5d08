"""The cores and memory that Spark's processes use while something runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil

from benchmarks.measure import Figure, Goal, figure

__all__ = ["Costs", "Usage"]

_GIBIBYTE = 2**30
_MILLION = 1_000_000


@dataclass
class Usage:
    """Of Spark's JVM and of the Python processes below it, from begin to end of one run.

    Attributes:
        jvm: Most resident memory of the JVM at one look, in bytes.
        largest: Of the largest Python process.
        workers: Of all Python processes; pages that they share count for each, and workers that
            earlier runs have left idle count too.
        begun: Seconds of cores that each process had used at the first look, by its id.
        spent: At the last look that has seen it.
    """

    jvm: int = 0
    largest: int = 0
    workers: int = 0
    begun: dict[int, float] = field(default_factory=dict)
    spent: dict[int, float] = field(default_factory=dict)

    def begin(self, jvm: psutil.Process) -> None:
        """Take the first reading."""
        self.look(jvm)
        self.begun = dict(self.spent)

    def look(self, jvm: psutil.Process) -> None:
        """Take this moment into account."""
        self.jvm = max(self.jvm, self._seen(jvm))
        sizes = [self._seen(child) for child in jvm.children(recursive=True)]
        self.largest = max(self.largest, *sizes, 0)
        self.workers = max(self.workers, sum(sizes))

    def _seen(self, process: psutil.Process) -> int:
        """Resident bytes of a process."""
        try:
            times = process.cpu_times()
            self.spent[process.pid] = times.user + times.system
            return int(process.memory_info().rss)
        except psutil.Error:
            return 0  # it has ended meanwhile

    @property
    def cpu(self) -> float:
        """Seconds of cores, of all processes together."""
        return sum(spent - self.begun.get(pid, 0.0) for pid, spent in self.spent.items())


@dataclass
class Costs:
    """The resources that runs have used, by the name of what ran.

    Attributes:
        spark: The session, whose JVM and workers are looked at.
        used: Of each run, since the last `clear`.
    """

    spark: Callable[[], Any]
    used: dict[str, list[Usage]] = field(default_factory=dict)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Look twenty times a second while the block runs."""
        jvm, usage, over = self._jvm(), Usage(), threading.Event()
        watcher = threading.Thread(target=_watch, args=(jvm, usage, over))
        usage.begin(jvm)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
        usage.look(jvm)
        self.used.setdefault(name, []).append(usage)

    def clear(self) -> None:
        """Forget what warmed up."""
        self.used.clear()

    def figures(self, what: str, rows: int, largest: Goal | None = None) -> Iterator[Figure]:
        """Seconds of cores for a million rows, and memory.

        Args:
            what: After the name of each figure.
            rows: Of each run.
            largest: What the largest Python process of each run should stay below, in GiB; None
                not to show it.
        """
        for name, used in self.used.items():
            seconds = [each.cpu / rows * _MILLION for each in used]
            yield figure(f"{name}, CPU of a million rows{what}", "s", seconds)
            yield figure(f"{name}, memory of the JVM{what}", "GiB", _sizes(used, "jvm"))
            all_ = _sizes(used, "workers")
            yield figure(f"{name}, memory of all Python processes{what}", "GiB", all_)
            if largest is not None:
                most = _sizes(used, "largest")
                yield figure(f"{name}, largest Python process{what}", "GiB", most, largest)

    def _jvm(self) -> psutil.Process:
        return psutil.Process(self.spark().sparkContext._gateway.proc.pid)  # noqa: SLF001  no other way


def _sizes(used: Sequence[Usage], of: str) -> list[float]:
    return [getattr(each, of) / _GIBIBYTE for each in used]


def _watch(jvm: psutil.Process, usage: Usage, over: threading.Event) -> None:
    while not over.wait(0.05):
        usage.look(jvm)
