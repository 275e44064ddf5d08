"""The cost of an epoch of each sink apart from Spark: plan, stage a tiny batch, commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks.bare_commits import Loop, synced_files
from benchmarks.check import consumed, memory_totals, table_totals, totals
from benchmarks.counts.case import Given, case
from benchmarks.counts.count import Count, Seen, least, per
from benchmarks.counts.effort import effort
from benchmarks.counts.watch import calls, calls_beside_broker, outside, requests
from benchmarks.lives import iceberg_life, kafka_life, memory_life, parquet_life
from benchmarks.measure import expect
from benchmarks.requests import counting
from benchmarks.writers import Life, SeparateLogs

__all__ = ["bare", "bucket", "iceberg", "kafka", "memory", "parquet"]

_FOLD = 32
"""Epochs from one fold of the log to the next; what is counted has whole ones of them."""

_WARM, _COUNTED = _FOLD, 2 * _FOLD
_LATER = 400
"""Epochs after which the same is counted again: what grows with the history shows."""

_BROKER_EPOCHS = 31
_TIMED = 20


@case("sink.none")
def bare(given: Given) -> Iterator[Count]:
    """Count a loop that writes and syncs a file and a mark, without this package's code."""
    yield from _epochs(synced_files(given.folder), partial(totals, given.folder, "id"))


@case("sink.memory")
def memory(given: Given) -> Iterator[Count]:
    """Count an epoch of the memory sink."""
    del given
    yield from _epochs(memory_life("counts"), partial(memory_totals, "counts", "id"), later=_LATER)


@case("sink.parquet")
def parquet(given: Given) -> Iterator[Count]:
    """Count an epoch of the Parquet sink with one task."""
    yield from _parquet(given, 1)


@case("sink.parquet.tasks")
def tasks(given: Given) -> Iterator[Count]:
    """Count an epoch of the Parquet sink with eight tasks."""
    yield from _parquet(given, 8)


def _parquet(given: Given, tasks: int) -> Iterator[Count]:
    table = given.folder / "table"
    life = parquet_life(table, tasks)
    yield from _epochs(life, partial(totals, table, "id"), later=_LATER // tasks)


@case("sink.iceberg")
def iceberg(given: Given) -> Iterator[Count]:
    """Count an epoch of the Iceberg sink with one task, into an embedded catalog."""
    life = iceberg_life(given.folder)
    yield from _epochs(life, partial(table_totals, given.folder, "id"), later=_LATER // 2)


@case("sink.kafka", "kafka")
def kafka(given: Given) -> Iterator[Count]:
    """Count an epoch of the exactly-once Kafka sink: one task, a topic of four partitions.

    A broker may be busy, and is asked again then: of each count, the least of all epochs.
    """
    with given.topics.topic() as topic:
        life = kafka_life(given.topics.cluster, topic, given.folder)
        life.commits(10)
        yield from _each(life, requests)
        yield from _each(life, calls_beside_broker)
        expect("rows and sum of numbers", consumed(given.topics, topic), life.rows)


def _each(life: Life, counted: Callable[[Seen], object]) -> Iterator[Count]:
    """Yield the minimum of each count over some epochs."""
    epochs: list[Seen] = []
    for _ in range(_BROKER_EPOCHS):
        epochs.append(Seen())
        with counted(epochs[-1]):  # type: ignore[attr-defined]
            life.commit()
    yield from per(least(epochs), 1)


@case("sink.parquet.store", "bucket")
def bucket(given: Given) -> Iterator[Count]:
    """Count an epoch of the Parquet sink with two tasks in a bucket, and a checkpoint on a disk."""
    place = given.bucket.place()
    with counting(given.bucket.endpoint) as counted:
        options = {"path": place.url, "checkpointLocation": str(given.folder)}
        life = Life(SeparateLogs, {**options, **given.bucket.options(counted.endpoint)}, 2)
        life.commits(2 * _FOLD)  # folds remove entries from then on
        counted.take()
        life.commits(_FOLD)
        seen: Seen = Seen()
        for request in counted.take():
            seen[request.kind, "requests"] += 1
            seen["bytes sent", "bytes"] += len(request.body)
            seen["bytes received", "bytes"] += request.received
    yield from per(seen, _FOLD)
    expect("rows and sum of ids", place.totals("id"), life.rows)


# --- what all of those on a disk have in common


def _epochs(
    life: Life | Loop, found: Callable[[], tuple[int, int]], later: int = 0
) -> Iterator[Count]:
    """Yield calls and requests to the system, each over whole folds of the log; and the effort."""
    life.commits(_WARM)
    yield from per(_over(life, calls), _COUNTED)
    yield from per(_over(life, outside), _COUNTED)
    yield effort(f"processor time of {_TIMED} epochs", lambda: life.commits(_TIMED))
    if later:
        life.commits(later)
        yield from per(_over(life, calls), _COUNTED, "later")
        yield from per(_over(life, _files_only), _COUNTED, "later")
    expect("rows and sum of ids", found(), life.rows)


def _over(life: Life | Loop, counted: Callable[[Seen], object]) -> Seen:
    seen: Seen = Seen()
    with counted(seen):  # type: ignore[attr-defined]
        life.commits(_COUNTED)
    return seen


@contextmanager
def _files_only(seen: Seen) -> Iterator[None]:
    every: Seen = Seen()
    with outside(every):
        yield
    files = sum(number for (_, unit), number in every.items() if unit == "files")
    seen["files", "files"] += files
