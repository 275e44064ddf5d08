"""The requests of an epoch to a bucket, under Spark."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.bench import MEMORY, Run, benchmark, scratch
from benchmarks.measure import Figure, Goal, each_once, expect, figure
from benchmarks.peer import S3A
from benchmarks.requests import LIST, Counted, Request, counting
from benchmarks.stores import Bucket, Place

__all__ = ["requests"]

_TASKS, _ROWS = 2, 100
_ALL = "all requests"
_BYTES = "bytes of listings"
_GOAL = Goal(12)
_FOLDS = 32
"""Epochs from one fold of the log to the next; in a quarter of them it removes entries."""


@dataclass
class Stream:
    """One query into a bucket, whose epochs are counted.

    Attributes:
        name: Where its checkpoint is.
        place: Of the table.
        counted: The proxy before the bucket.
        epochs: What each of them has asked.
        query: Of Spark, once it was started.
    """

    name: str
    place: Place
    counted: Counted
    epochs: list[list[Request]] = field(default_factory=list)
    query: Any = None

    def start(self, rows: Any, bucket: Bucket, checkpoint: str) -> None:
        """Start the query; ours goes to the bucket by the proxy."""
        given = {"path": self.place.url, "checkpointLocation": checkpoint}
        given |= bucket.options(self.counted.endpoint)
        writer = rows.repartition(_TASKS).writeStream.format("krishiv-parquet")
        self.query = writer.options(**given).start()

    def epoch(self) -> None:
        """Wait until everything that is there has been written, which is one epoch."""
        self.query.processAllAvailable()
        self.epochs.append(self.counted.take())


@benchmark("store.requests", peers=(S3A,), long=True)
def requests(run: Run) -> Iterator[Figure]:
    """Count the requests of an epoch of 2 tasks, by kind: with the checkpoint in S3, and on a disk.

    A proxy counts ours: Spark's own client goes to the bucket past it. The tenth epochs, the last
    ones, and the most of any from the second on, so that what grows with the history shows.
    """
    last = 30 if run.quick else 200
    with scratch(MEMORY) as folder, ExitStack() as stack:
        streams = _streams(run, folder, stack)
        for number in range(last + 1):
            run.told(f"epoch {number} of {last}")
            _bring(folder / "in", number)
            for stream in streams:
                stream.epoch()
        for stream in streams:
            stream.query.stop()
            expect("rows and sum of ids", stream.place.totals("id"), each_once((last + 1) * _ROWS))
    for stream in streams:
        yield from _figures(stream, last)


def _streams(run: Run, folder: Path, stack: ExitStack) -> list[Stream]:
    (folder / "in").mkdir()
    bucket = run.bucket()
    bucket.tell(run.spark())
    rows = run.spark().readStream.schema("id LONG, name STRING").parquet(f"{folder}/in")
    streams = []
    for where, checkpoint in {"in S3": bucket.place().url, "on a disk": f"{folder}/own"}.items():
        counted = stack.enter_context(counting(bucket.endpoint))
        stream = Stream(f"checkpoint {where}", bucket.place(), counted)
        stream.start(rows, bucket, checkpoint)
        stack.callback(stream.query.stop)
        streams.append(stream)
    return streams


def _bring(folder: Path, number: int) -> None:
    """Write a file with the next rows."""
    ids = range(number * _ROWS, (number + 1) * _ROWS)
    rows = pa.table({"id": pa.array(ids, pa.int64()), "name": [f"name {i}" for i in ids]})
    pq.write_table(rows, folder / f".{number}")
    os.rename(folder / f".{number}", folder / f"{number}.parquet")


def _figures(stream: Stream, last: int) -> Iterator[Figure]:
    counts = [_counts(epoch) for epoch in stream.epochs]
    for kind in sorted({kind for count in counts for kind in count}):
        unit = "bytes" if kind == _BYTES else "requests"
        goal = _GOAL if kind == _ALL else None
        windows = {"epoch 10": counts[8:13], f"epoch {last}": counts[-_FOLDS:]}
        for when, seen in windows.items():
            values = [float(count[kind]) for count in seen]
            if any(values):
                yield figure(f"{kind}, {when}, {stream.name}", unit, values, goal, smaller=True)
        most = max(float(count[kind]) for count in counts[1:])
        yield figure(f"{kind}, most of an epoch, {stream.name}", unit, [most], smaller=True)


def _counts(epoch: Sequence[Request]) -> Counter[str]:
    counts = Counter(request.kind for request in epoch)
    counts[_ALL] = len(epoch)
    counts[_BYTES] = sum(request.received for request in epoch if request.kind == LIST)
    return counts
