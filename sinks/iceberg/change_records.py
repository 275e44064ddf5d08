"""Records of change data as staged changes of a table. Executor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.changes.debezium import DebeziumDecoder, DebeziumRules
from krishiv_spark.sinks.iceberg.upsert_staging import (
    DELETES,
    KEPT,
    ORDER,
    PARTITION,
    POSITION,
    ChangeDecoder,
)

if TYPE_CHECKING:
    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

__all__ = ["create_decoder"]

_POSITION = ("topic", "partition", "offset")


def create_decoder(options: IcebergSinkOptions, columns: pa.Schema) -> ChangeDecoder:
    """Return the decoder of one task, by `changeFormat`, for a table with some columns."""
    rules = DebeziumRules(
        options.value_rules, options.unknown_fields, options.truncate_events, options.registry
    )
    decoder = DebeziumDecoder(columns, options.key_columns, rules)

    def decode(batch: pa.RecordBatch) -> pa.RecordBatch:
        found = decoder.decode(
            batch.column("value"), batch.column("key"), lambda row: _locate(batch, row)
        )
        further = {
            DELETES: found.deletes,
            KEPT: found.kept,
            POSITION: found.positions,
            PARTITION: _name_partitions(batch).take(pa.array(found.records)),
            ORDER: _number_records(batch, found.records),
        }
        rows = found.rows
        for name, values in further.items():
            rows = rows.append_column(name, values)
        return rows

    return decode


def _number_records(batch: pa.RecordBatch, records: np.ndarray[Any, Any]) -> pa.Array:
    """Return the offsets of records: of two changes of a key, the later one wins."""
    if "offset" not in batch.schema.names:
        return pa.nulls(len(records), pa.int64())
    return batch.column("offset").cast(pa.int64()).take(pa.array(records))


def _name_partitions(batch: pa.RecordBatch) -> pa.Array:
    """Return the partition of each record, as ``topic-0``; null if that is not known."""
    if not {"topic", "partition"} <= set(batch.schema.names):
        return pa.nulls(len(batch), pa.string())
    topics, numbers = batch.column("topic"), batch.column("partition").cast(pa.string())
    return pc.binary_join_element_wise(topics.cast(pa.string()), numbers, "-")


def _locate(batch: pa.RecordBatch, row: int) -> str:
    if not set(_POSITION) <= set(batch.schema.names):
        return f"row {row} of a batch"
    topic, partition, offset = (batch.column(name)[row] for name in _POSITION)
    return f"{topic}-{partition} at offset {offset}"
