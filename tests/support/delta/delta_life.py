"""Epochs of the Delta sink without Spark: each role has a writer of its own, as in Spark."""

import itertools
import pickle

import pyarrow as pa
from deltalake import DeltaTable

from krishiv_spark.sinks.base import Epoch, OutputMode, Task
from krishiv_spark.sinks.delta.writer import DeltaWriter

_ATTEMPTS = itertools.count()


def numbered(first, count=10):
    """Return rows with ids from a number on."""
    return pa.table({"id": pa.array(range(first, first + count), pa.int64())})


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
        self.options = {"path": str(folder), "commitTimeout": "5 s", **given}
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
