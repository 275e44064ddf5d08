"""What Spark's processes use while something runs: cores and memory."""

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
        cpu: Seconds of cores, of all of them together.
        jvm: Most resident memory of the JVM at one look, in bytes.
        largest: Of the largest Python process.
        workers: Of all Python processes; pages that they share count for each, and workers that
            earlier runs have left idle count too.
    """

    cpu: float = 0.0
    jvm: int = 0
    largest: int = 0
    workers: int = 0

    def look(self, jvm: psutil.Process) -> None:
        """Take the memory of this moment into account."""
        sizes = [_resident(child) for child in jvm.children(recursive=True)]
        self.jvm = max(self.jvm, _resident(jvm))
        self.largest = max(self.largest, *sizes, 0)
        self.workers = max(self.workers, sum(sizes))


@dataclass
class Costs:
    """What runs have used, by the name of what ran.

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
        begin = _seconds(jvm)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
        usage.cpu = _seconds(jvm) - begin
        self.used.setdefault(name, []).append(usage)

    def clear(self) -> None:
        """Forget what warmed up."""
        self.used.clear()

    def figures(self, what: str, rows: int, largest: Goal | None = None) -> Iterator[Figure]:
        """Seconds of cores for a million rows, and memory.

        Args:
            what: Behind the name of each figure.
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


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0  # it has ended meanwhile


def _seconds(jvm: psutil.Process) -> float:
    """Of the JVM and all below it; those of a process that has ended are with its parent."""
    return sum(_spent(process) for process in (jvm, *jvm.children(recursive=True)))


def _spent(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)
