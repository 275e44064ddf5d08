"""The processes and jobs that Spark starts for a query of each format."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import session
from benchmarks.check import consumed, memory_totals, table_totals, totals
from benchmarks.counts.case import Given, case
from benchmarks.counts.count import Count
from benchmarks.measure import each_once, expect
from benchmarks.writers import Life, keyed, numbered

__all__ = ["spark"]

_TRIGGERS = 4
"""After the first one."""

_ROWS = 100
_STARTED = "KRISHIV_STARTED"
_NOTES = f"""
import os, sys

def note(how):
    line = " ".join([how, *sys.orig_argv[1:3]])
    file = os.open(os.environ["{_STARTED}"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{{line}}\\n".encode())
    os.close(file)

if "{_STARTED}" in os.environ:
    note("new")
    os.register_at_fork(after_in_child=lambda: note("fork"))
"""
"""A `sitecustomize`: each interpreter that finds it says that it starts, and when it forks."""

_Totals = tuple[int, int]


@dataclass(frozen=True)
class Copy:
    """A query from a source into a sink of one format.

    Attributes:
        name: Of the format.
        source: Options of the source.
        sink: Options of the sink.
        bring: Brings the rows of a number to the source.
        found: What is in the sink.
        columns: What is taken of the source.
    """

    name: str
    source: Mapping[str, str]
    sink: Mapping[str, str]
    bring: Callable[[int], object]
    found: Callable[[], _Totals]
    columns: Sequence[str] = ("*",)


@dataclass
class _Started:
    """Interpreters that were started by a JVM whose environment this has changed."""

    file: Path
    _before: Counter[str] = field(default_factory=Counter)

    def take(self) -> int:
        """Return the number of calls since the last time."""
        now = Counter(self.file.read_text().splitlines() if self.file.exists() else ())
        new, self._before = now - self._before, now
        return new.total()


@case("spark", "kafka")
def spark(given: Given) -> Iterator[Count]:
    """Count a copy by each format under Spark: its first trigger, and those after it."""
    started = _watched(given.folder)
    running = session.start(given.folder)
    try:
        for copy in _copies(given):
            yield from _copied(running, given.folder, copy, started)
    finally:
        running.stop()


def _watched(folder: Path) -> _Started:
    """Have the interpreters noted that the JVM will start."""
    notes = folder / "notes"
    notes.mkdir()
    (notes / "sitecustomize.py").write_text(_NOTES)
    known = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{notes}{os.pathsep}{known}" if known else str(notes)
    os.environ[_STARTED] = str(folder / "started.txt")
    return _Started(folder / "started.txt")


def _copied(running: Any, folder: Path, copy: Copy, started: _Started) -> Iterator[Count]:
    started.take()
    copy.bring(0)
    rows = running.readStream.format(f"krishiv-{copy.name}").options(**copy.source).load()
    rows = rows.select(*copy.columns)
    writer = rows.writeStream.format(f"krishiv-{copy.name}").options(**copy.sink)
    place = f"{folder}/checkpoint-{copy.name}"
    query = writer.option("checkpointLocation", place).trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
        yield Count(
            f"{copy.name}: started until the first trigger is over", "processes", started.take()
        )
        jobs = _jobs(running, query)
        for number in range(1, _TRIGGERS + 1):
            copy.bring(number)
            query.processAllAvailable()
        more = _jobs(running, query) - jobs
        yield Count(
            f"{copy.name}: started in {_TRIGGERS} triggers more", "processes", started.take()
        )
        yield Count(f"{copy.name}: jobs of {_TRIGGERS} triggers more", "jobs", more)
    finally:
        query.stop()
    expect(f"{copy.name}: rows and sum", copy.found(), each_once((_TRIGGERS + 1) * _ROWS))


def _jobs(running: Any, query: Any) -> int:
    """Of a query so far: Spark puts them into a group of its run's name."""
    tracker = running.sparkContext.statusTracker()
    return len(tracker.getJobIdsForGroup(str(query.runId)))


# --- by format


def _copies(given: Given) -> Iterator[Copy]:
    yield _memory()
    yield _parquet(given.folder)
    yield _iceberg(given.folder)
    with given.topics.topic(1) as come, given.topics.topic(1) as go:
        yield _kafka(given, come, go)


def _numbered(number: int) -> pa.Table:
    rows = numbered((number + 1) * _ROWS)[number * _ROWS :]
    return pa.Table.from_batches([rows])


def _memory() -> Copy:
    from krishiv_spark.sources.memory.handle import memory_source

    pushed = memory_source("come", _numbered(0).schema)
    return Copy(
        "memory",
        {"path": "come"},
        {"name": "go"},
        lambda number: pushed.add(_numbered(number)),
        partial(memory_totals, "go", "id"),
    )


def _parquet(folder: Path) -> Copy:
    come, go = folder / "come", folder / "go"
    come.mkdir()

    def bring(number: int) -> None:
        pq.write_table(_numbered(number), come / f".{number}")
        (come / f".{number}").rename(come / f"{number}.parquet")

    return Copy("parquet", {"path": str(come)}, {"path": str(go)}, bring, partial(totals, go, "id"))


def _iceberg(folder: Path) -> Copy:
    from krishiv_spark.sinks.iceberg.writer import IcebergWriter

    named = {"warehouse": f"{folder}/warehouse-of-iceberg"}
    Path(named["warehouse"]).mkdir()
    life = Life(IcebergWriter, {**named, "path": "db.come"})

    def bring(number: int) -> None:
        (life.batch,) = _numbered(number).combine_chunks().to_batches()
        life.commit()

    found = partial(table_totals, Path(named["warehouse"]), "id", "db.go")
    return Copy("iceberg", {**named, "path": "db.come"}, {**named, "path": "db.go"}, bring, found)


def _kafka(given: Given, come: str, go: str) -> Copy:
    from kafka import KafkaProducer

    source = {**given.topics.cluster, "subscribe": come, "startingOffsets": "earliest"}
    sink = {**given.topics.cluster, "topic": go}

    def bring(number: int) -> None:
        """In one transaction, so that one trigger has all of them."""
        producer = KafkaProducer(
            bootstrap_servers=given.topics.bootstrap, transactional_id=uuid.uuid4().hex
        )
        producer.init_transactions()
        producer.begin_transaction()
        rows = keyed((number + 1) * _ROWS)[number * _ROWS :]
        for row in rows.to_pylist():
            producer.send(come, key=row["key"].encode(), value=row["value"].encode())
        producer.commit_transaction()
        producer.close()

    found = partial(consumed, given.topics, go)
    return Copy("kafka", source, sink, bring, found, ("key", "value"))
