"""The memory, the processes and the idle processor time of queries."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.apart import apart
from benchmarks.bench import Run, benchmark, scratch
from benchmarks.listing import small_files
from benchmarks.measure import Figure, Goal, expect, figure
from benchmarks.resident_spark import count_epochs
from benchmarks.session import start

__all__ = ["count_memory", "footprint", "start_query"]

_OURS, _THEIRS = "krishiv-parquet", "parquet"
_TRIGGER_S = 2
_EPOCHS = 3
"""Epochs with rows before the first look: by then every kind of process has worked."""

_IDLE_S = 30
_ENDED_S = 70
"""Spark ends a worker that has been idle for a minute (``PythonWorkerFactory``)."""

_MEGABYTE = 1_000_000


@dataclass(frozen=True)
class _Look:
    """The Python processes at one moment.

    Attributes:
        pss: Memory of all Python processes below the JVM, shared pages in proportion, MB.
        processes: How many there are.
    """

    pss: float
    processes: int


@dataclass(frozen=True)
class _Seen:
    """The measurements of one driver with some queries.

    Attributes:
        at_work: Just after epochs with rows.
        idle: After more than a minute without rows.
        cpu: Seconds per minute that the idle Python processes take.
        jvm: Resident memory of the JVM, MB.
        epochs: Of all queries, that had rows.
    """

    at_work: _Look
    idle: _Look
    cpu: float
    jvm: float
    epochs: int


@benchmark("footprint", long=True)
def footprint(run: Run) -> Iterator[Figure]:
    """Memory, processes and idle CPU of queries from folder to folder, beside Spark's connectors.

    The memory of the driver program itself is not counted, and the JVM's is stated apart.
    """
    many = 4 if run.quick else 20
    for name, kind, queries, fast in (
        (f"{_OURS}, fast_start", _OURS, many, True),
        (_OURS, _OURS, 1 if run.quick else 4, False),
        (_THEIRS, _THEIRS, many, False),
    ):
        run.told(f"{queries} queries of {name}")
        with scratch(run.folder) as folder:
            seen = apart(_measure, folder, kind, queries, fast)
        expect(f"{name}: epochs", seen.epochs, queries * _EPOCHS)
        yield from _figures(f"{name}, {queries} queries", seen, queries, fast=fast)


def _figures(name: str, seen: _Seen, queries: int, *, fast: bool) -> Iterator[Figure]:
    bound = Goal(60.0 if fast else 200.0)
    for when, look in (("at work", seen.at_work), ("idle", seen.idle)):
        yield figure(f"{name}, {when}", "MB a query", [look.pss / queries], bound, smaller=True)
    count = seen.at_work.processes / queries
    most = Goal(5.0) if fast else None
    yield figure(f"{name}, at work", "processes a query", [count], most, smaller=True)
    cpu = seen.cpu / queries
    yield figure(f"{name}, idle", "CPU s a minute and query", [cpu], Goal(0.5), smaller=True)
    yield figure(f"{name}, the JVM", "MB", [seen.jvm], smaller=True)


def _measure(folder: Path, kind: str, queries: int, fast: bool) -> _Seen:
    """Run queries in a driver of this process, and look at the processes below its JVM."""
    session = start(folder, fast=None if not fast else ["parquet", "kafka", "iceberg"])
    small_files(folder / "source", _EPOCHS)
    running = [start_query(session, folder, kind, number) for number in range(queries)]
    for query in running:
        query.processAllAvailable()
    jvm = psutil.Process(session.sparkContext._gateway.proc.pid)  # noqa: SLF001  as `Costs` has it
    at_work = count_memory(jvm)
    time.sleep(_ENDED_S)
    idle, before = count_memory(jvm), _cpu(jvm)
    time.sleep(_IDLE_S)
    cpu = sum(max(now - before.get(pid, now), 0) for pid, now in _cpu(jvm).items())
    epochs = sum(count_epochs(query) for query in running)
    resident = jvm.memory_info().rss / _MEGABYTE
    for query in running:
        query.stop()
    session.stop()
    return _Seen(at_work, idle, cpu * 60 / _IDLE_S, resident, epochs)


def start_query(
    session: Any, folder: Path, kind: str, number: int, trigger_s: int = _TRIGGER_S
) -> Any:
    """Start a query from the folder ``source`` to one of its own, a file an epoch."""
    reader = session.readStream.format(kind).option("maxFilesPerTrigger", 1)
    if kind == _THEIRS:
        reader = reader.schema(session.read.parquet(str(folder / "source")).schema)
    writer = reader.load(str(folder / "source")).writeStream.format(kind)
    places = {"path": f"{folder}/table-{number}", "checkpointLocation": f"{folder}/at-{number}"}
    return writer.options(**places).trigger(processingTime=f"{trigger_s} seconds").start()


def count_memory(jvm: psutil.Process) -> _Look:
    """Return the memory and the number of the Python processes below a JVM."""
    held = []
    for process in jvm.children(recursive=True):
        try:
            held.append(process.memory_full_info().pss / _MEGABYTE)
        except psutil.Error:
            continue  # it has ended meanwhile
    return _Look(sum(held), len(held))


def _cpu(jvm: psutil.Process) -> dict[int, float]:
    """Return the processor seconds of each Python process, by its id."""
    found = {}
    for process in jvm.children(recursive=True):
        try:
            found[process.pid] = sum(process.cpu_times()[:2])
        except psutil.Error:
            continue
    return found
