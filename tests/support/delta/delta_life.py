"""Epochs of the Delta sink without Spark: each role has a writer of its own, as in Spark.

As a script it is one driver of several: ``python delta_life.py OPTIONS EPOCHS``.
"""

import itertools
import json
import pickle
import subprocess
import sys
from contextlib import suppress

import pyarrow as pa
from deltalake import DeltaTable
from patience import PATIENCE

from krishiv_spark.errors import CommitRejected, Fenced
from krishiv_spark.sinks.base import Epoch, OutputMode, Task
from krishiv_spark.sinks.delta.writer import DeltaWriter

_ATTEMPTS = itertools.count()


def numbered(first, count=10):
    """Return rows with ids from a number on."""
    return pa.table({"id": pa.array(range(first, first + count), pa.int64())})


def race(options, epochs):
    """Write epochs as one of several drivers of a query; in a process of its own."""
    life = DeltaLife(options["path"], **{k: v for k, v in options.items() if k != "path"})
    for epoch in range(epochs):
        with suppress(CommitRejected, Fenced):
            life.epoch(epoch, numbered(10 * epoch))


def rows_of(folder):
    """Return the rows of a table by the library."""
    return DeltaTable(str(folder)).to_pyarrow_table()


def ids(folder):
    """Return the ids in a table, sorted."""
    return sorted(rows_of(folder)["id"].to_pylist())


class DeltaLife:
    """One query, or one batch job."""

    def __init__(
        self, folder, *, query="query-1", output=OutputMode.APPEND, streaming=True, **given
    ):
        self.options = {"path": str(folder), "commitTimeout": "60 s", **given}  # a folder or a URL
        self.query, self.output, self.streaming = query, output, streaming

    def writer(self, rows):
        options = DeltaWriter.options_type.parse(self.options, "krishiv-delta")
        return DeltaWriter(options, rows.schema, self.output, streaming=self.streaming)

    def stage(self, epoch, rows, tasks=1):
        writer = self.writer(rows)
        planned, size = pickle.dumps((writer, writer.plan(None))), -(-rows.num_rows // tasks)
        staged = []
        for partition in range(tasks):
            task = Task(self.query, epoch, partition, next(_ATTEMPTS))
            part = rows.slice(partition * size, size).to_batches(max_chunksize=10_000)
            again, plan = pickle.loads(planned)
            staged.append(pickle.loads(pickle.dumps(again.stage(iter(part), task, plan))))
        return [item for item in staged if item is not None]

    def publish(self, epoch, staged, rows):
        committer = self.writer(rows).committer()
        mark = committer.last_committed(self.query) if self.streaming else None
        if mark is None or mark.epoch < epoch:
            committer.publish(Epoch(self.query, epoch), staged)

    def epoch(self, epoch, rows, tasks=1):
        self.publish(epoch, self.stage(epoch, rows, tasks), rows)


def race_of_three(options, epochs):
    """Let three drivers of one query, each a process, write the same epochs."""
    command = [sys.executable, __file__, json.dumps(options), str(epochs)]
    drivers = [subprocess.Popen(command) for _ in range(3)]
    assert [driver.wait(PATIENCE) for driver in drivers] == [0, 0, 0]


if __name__ == "__main__":
    race(json.loads(sys.argv[1]), int(sys.argv[2]))
