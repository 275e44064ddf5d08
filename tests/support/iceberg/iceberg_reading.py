"""A reader of ``krishiv-iceberg`` without Spark, played as Spark plays it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa

from krishiv_spark.arrow.conform import conform
from krishiv_spark.arrow.schemas import plain_schema
from krishiv_spark.sources.base import UNLIMITED, Limit
from krishiv_spark.sources.iceberg.reader import IcebergOffset, IcebergReader, IcebergSourceOptions


def reader(
    folder: Path, schema: pa.Schema | None = None, *, streaming: bool = True, **options: Any
) -> IcebergReader:
    """Return a reader of the table ``db.t``; options have ``_`` for ``-``."""
    given = {key.replace("_", "-"): str(value) for key, value in options.items()}
    given = {"warehouse": str(folder), "table": "db.t", **given}
    parsed = IcebergSourceOptions.parse(given, "krishiv-iceberg")
    probe = IcebergReader(parsed, None, streaming=True)
    return IcebergReader(parsed, schema or probe.infer_schema(), streaming=streaming)


def rows_of(source: IcebergReader, start: IcebergOffset, end: IcebergOffset) -> pa.Table:
    """Return the rows between two offsets, as Spark gets them from pickled copies."""
    assert source.schema is not None
    batches = []
    for part in source.plan(start, end):
        task: Any = pickle.loads(pickle.dumps((source, part)))
        batches += [conform(batch, source.schema) for batch in task[0].read(task[1])]
    return pa.Table.from_batches(batches, plain_schema(source.schema))


def batch(folder: Path, schema: pa.Schema | None = None, **options: Any) -> pa.Table:
    """Return the rows that ``spark.read`` returns."""
    source = reader(folder, schema, streaming=False, **options)
    start = source.initial()
    return rows_of(source, start, source.latest(start, UNLIMITED))


class Stream:
    """A stream, batch by batch; `ids` are sorted within each."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.options = folder, options
        self.source = reader(folder, **options)
        self.at = self.source.initial()
        self.last = (self.at, self.at)

    @property
    def limit(self) -> Limit:
        return self.source.options.limit()

    def trigger(self) -> list[int] | None:
        """Return the ids of the next batch; None if there is none."""
        end = self.source.latest(self.at, self.limit)
        if end == self.at:
            return None
        self.last, self.at = (self.at, end), IcebergOffset.from_json(end.to_json())
        return self.replay()

    def replay(self) -> list[int]:
        """Return the ids of the last batch again."""
        return sorted(rows_of(self.source, *self.last)["id"].to_pylist())

    def drain(self) -> list[list[int]]:
        """Return all remaining batches."""
        found = []
        while (ids := self.trigger()) is not None:
            found.append(ids)
        return found

    def restart(self, **more: Any) -> Stream:
        """Continue with another driver, at the same position."""
        other = Stream(self.folder, **{**self.options, **more})
        other.at, other.last = self.at, self.last
        return other
