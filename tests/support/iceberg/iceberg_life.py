"""Epochs of the Iceberg sink without Spark: each role has a writer of its own, as in Spark.

As a script it is one driver of several: ``python iceberg_life.py FOLDER EPOCHS ROWS OPTIONS``.
"""

import itertools
import json
import pickle
import subprocess
import sys

import pyarrow as pa
from patience import PATIENCE
from pyiceberg.catalog.sql import SqlCatalog

from krishiv_spark.errors import CommitRejected, CommitUnknown, Fenced
from krishiv_spark.sinks.base import Epoch, OutputMode, Task
from krishiv_spark.sinks.iceberg.writer import IcebergWriter

TABLE = "db.rows"
_ATTEMPTS = itertools.count()


def catalog_of(folder):
    return SqlCatalog("krishiv", uri=f"sqlite:///{folder}/catalog.db", warehouse=str(folder))


def table_of(folder, name=TABLE):
    return catalog_of(folder).load_table(name)


def ids(folder, name=TABLE):
    return sorted(table_of(folder, name).scan().to_arrow()["id"].to_pylist())


STREAM = "0d1f6c52-63a7-4f6e-9d5c-2a2b8c1c9e11"
"""Id of a stream without a name, whose staged files a vacuum never takes for those of a route."""


class IcebergLife:
    """One query, or one batch job."""

    def __init__(
        self, folder, *, query="query-1", output=OutputMode.APPEND, streaming=True, **given
    ):
        self.options = {"path": TABLE, "warehouse": str(folder), "commitTimeout": "60 s", **given}
        self.query, self.output, self.streaming = query, output, streaming

    def writer(self, rows):
        options = IcebergWriter.options_type.parse(self.options, "krishiv-iceberg")
        return IcebergWriter(options, rows.schema, self.output, streaming=self.streaming)

    def plan(self, rows):
        """The planner's writer and plan, as tasks get them, and the epoch that the table holds."""
        writer = self.writer(rows)
        return pickle.dumps((writer, writer.plan(None))), self.held(writer.committer())

    def held(self, committer):
        """The newest epoch that the table holds; the id of a batch job is new."""
        if not self.streaming:
            return None
        mark = committer.last_committed(self.query)
        return None if mark is None else mark.epoch

    def stage(self, epoch, rows, tasks=1):
        planned, _ = self.plan(rows)
        return [self._staged(planned, *given) for given in self._tasks(epoch, rows, tasks)]

    def _staged(self, planned, task, part):
        writer, plan = pickle.loads(planned)
        return pickle.loads(pickle.dumps(writer.stage(part, task, plan)))

    def _tasks(self, epoch, rows, tasks):
        size = -(-rows.num_rows // tasks)
        for partition in range(tasks):
            part = rows.slice(partition * size, size).to_batches(max_chunksize=10_000)
            yield Task(self.query, epoch, partition, next(_ATTEMPTS)), iter(part)

    def publish(self, epoch, staged, rows):
        committer = self.writer(rows).committer()
        held = self.held(committer)
        if held is None or held < epoch:
            committer.publish(
                Epoch(self.query, epoch), [item for item in staged if item is not None]
            )

    def epoch(self, epoch, rows, tasks=1):
        self.publish(epoch, self.stage(epoch, rows, tasks), rows)


def at_next_commit(monkeypatch, happens):
    """Once, have something happen in the place of a commit; it is given what commits."""
    real = SqlCatalog.commit_table

    def commit_table(*arguments):
        monkeypatch.setattr(SqlCatalog, "commit_table", real)
        return happens(lambda: real(*arguments))

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)


def numbered(epoch, rows=10):
    """The rows of an epoch: the same in every driver."""
    first = epoch * rows
    return pa.table({"id": range(first, first + rows), "text": [str(n) for n in range(rows)]})


def assert_appends(place):
    """Epochs, one of them twice, into a new table of a place: each row is there once."""
    life = place.life(partitionBy="bucket(2, id)")
    for epoch in (0, 1, 1, 2):
        life.epoch(epoch, numbered(epoch), tasks=2)
    assert place.ids() == list(range(30))


def assert_upserts(place):
    """An epoch that replaces a row and adds one, twice."""
    life = place.life(mode="upsert", keyColumns="id")
    life.epoch(0, numbered(0))
    for _ in range(2):
        life.epoch(1, pa.table({"id": [3, 30], "text": ["new", "new"]}))
    rows = {row["id"]: row["text"] for row in place.rows().to_pylist()}
    assert len(rows) == place.rows().num_rows == 11
    assert rows[3] == rows[30] == "new"


def race_of_three(folder, epochs, rows, **given):
    """Three drivers at once, each of which believes to be the only one of the query."""
    orders = (str(folder), str(epochs), str(rows), json.dumps(given))
    drivers = [subprocess.Popen([sys.executable, __file__, *orders]) for _ in range(3)]
    assert [driver.wait(timeout=PATIENCE) for driver in drivers] == [0, 0, 0]


def race_drivers(folder, epochs, rows, **given):
    """Run a query to its end beside others of its id, as often as it is stopped by them."""
    life = IcebergLife(folder, commitTimeout="60 s", **given)
    while True:
        _, held = life.plan(numbered(0, rows))
        epoch = 0 if held is None else held + 1
        if epoch >= epochs:
            return
        try:
            life.epoch(epoch, numbered(epoch, rows), tasks=2)
        except (Fenced, CommitRejected, CommitUnknown) as error:
            print(type(error).__name__, epoch, flush=True)


if __name__ == "__main__":
    race_drivers(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), **json.loads(sys.argv[4]))
