"""A query that lands topics in a table, without Spark: the package's source and sink.

Each epoch is recorded in a checkpoint of Spark's form, as Spark does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from iceberg_life import IcebergLife
from iceberg_tables import NAME, make_table, table_in

from krishiv_spark.arrow.conform import conform
from krishiv_spark.iceberg.property_keys import EPOCH_KEY, EPOCH_PREFIX, OFFSETS_PREFIX, QUERY_KEY
from krishiv_spark.sources.base import UNLIMITED, Limit
from krishiv_spark.sources.kafka.reader import KafkaReader, KafkaSourceOptions

QUERY = "landing-1"
ROWS = pa.schema([("id", pa.int64()), ("text", pa.string())])


class Landing:
    """One such query.

    Args:
        folder: The warehouse, and in it the checkpoint.
        schema: Of the rows of the table.
        query: Its id.
        kafka: Options of its source.
    """

    def __init__(
        self, folder: Path, schema: pa.Schema, *, query: str = QUERY, **kafka: str
    ) -> None:
        self.checkpoint = folder / query
        (self.checkpoint / "offsets").mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": query}))
        self._schema = schema
        given = {"startingOffsets": "earliest", **kafka}
        options = KafkaSourceOptions.parse(given, "krishiv-kafka")
        self._reader = KafkaReader(options, schema, streaming=True)
        self._life = IcebergLife(
            folder, path=NAME, query=query, checkpointLocation=str(self.checkpoint)
        )
        self.position, self.number = self._reader.initial(), 0

    def epoch(self, limit: Limit = UNLIMITED) -> None:
        """Land all available rows, or a part of them."""
        end = self._reader.latest(self.position, limit)
        if end == self.position:
            return
        entry = self.checkpoint / "offsets" / str(self.number)
        entry.write_text(f'v1\n{{"batchWatermarkMs":0}}\n{end.to_json()}')
        parts = self._reader.plan(self.position, end)
        batches = (batch for part in parts for batch in self._reader.read(part))
        found = [conform(batch, self._schema) for batch in batches]
        self._life.epoch(self.number, pa.Table.from_batches(found, self._schema))
        self.position, self.number = end, self.number + 1


def make_landing_properties(
    query: str, epoch: int, *offsets: dict[str, Any] | None
) -> dict[str, str]:
    """Return the properties that record the sources' positions of a query at an epoch."""
    kept = json.dumps({"epoch": epoch, "offsets": list(offsets)})
    return {f"{EPOCH_PREFIX}{query}": str(epoch)} | (
        {f"{OFFSETS_PREFIX}{query}": kept} if offsets else {}
    )


def land(
    folder: Path,
    epoch: int,
    *offsets: dict[str, Any],
    query: str = QUERY,
    ids: range = range(3),
    rows: pa.Table | None = None,
    properties: dict[str, str] | None = None,
) -> int:
    """Append a snapshot of an epoch, with the sink's summary and properties; return its id."""
    if rows is None:
        rows = pa.table({"id": list(ids), "text": [str(n) for n in ids]}, schema=ROWS)
    table = table_in(folder)
    with table.transaction() as transaction:
        transaction.append(rows, {QUERY_KEY: query, EPOCH_KEY: str(epoch)})
        transaction.set_properties(
            make_landing_properties(query, epoch, *offsets) if properties is None else properties
        )
    snapshot = table_in(folder).current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def make_empty_table(folder: Path) -> Path:
    """Return a folder with an empty table."""
    make_table(folder, ROWS)
    return folder
