"""Rows of Spark as records: which columns a sink takes, and what becomes of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.records import RecordColumns

__all__ = ["TopicRows", "by_topic", "check_columns"]

_BYTES = (pa.string(), pa.binary())
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TYPES: dict[str, tuple[pa.DataType, ...]] = {
    "value": _BYTES,
    "key": _BYTES,
    "headers": (_HEADERS,),
    "topic": (pa.string(),),
    "partition": (pa.int32(),),
    "timestamp": (pa.timestamp("us", "UTC"),),
}
_WORDS = {
    "value": "string or binary",
    "key": "string or binary",
    "headers": "array<struct<key: string, value: binary>>",
    "topic": "string",
    "partition": "int",
    "timestamp": "timestamp",
}


def check_columns(schema: pa.Schema, topic: str | None) -> None:
    """Refuse rows that cannot be records.

    Args:
        schema: Of the rows.
        topic: The option ``topic``, for all of them.

    Raises:
        SchemaError: If a column is missing, is not known, or has another type.
    """
    for field in schema:
        _check_column(field)
    if "value" not in schema.names:
        raise SchemaError("there is no column 'value': to_json(struct(*)) AS value makes one")
    if topic is None and "topic" not in schema.names:
        raise SchemaError("no topic is given: use the option 'topic', or a column 'topic'")


def _check_column(field: pa.Field) -> None:
    if field.name not in _TYPES:
        raise SchemaError(
            f"column {field.name!r} has no place in a record: select {', '.join(_TYPES)} only, and "
            "put the rest into 'value', as with to_json(struct(*))"
        )
    if not any(_same(field.type, kind) for kind in _TYPES[field.name]):
        raise SchemaError(
            f"column {field.name!r} is {field.type}, but has to be {_WORDS[field.name]}: cast it"
        )


def _same(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether types are the same, with or without nulls inside."""
    if pa.types.is_list(wanted):
        return pa.types.is_list(kind) and _same(kind.value_type, wanted.value_type)
    if pa.types.is_struct(wanted):
        return pa.types.is_struct(kind) and [(f.name, f.type) for f in kind] == [
            (f.name, f.type) for f in wanted
        ]
    return bool(kind == wanted)


@dataclass(frozen=True)
class TopicRows:
    """Rows for one topic.

    Attributes:
        topic: Where all of the rows go.
        columns: What becomes the records.
        partition: Which partition each is for, with nulls; None where no row says.
    """

    topic: str
    columns: RecordColumns
    partition: pa.Array | None


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[TopicRows]:
    """The rows of a batch, for each topic that they are for.

    Args:
        batch: Rows that passed `check_columns`.
        topic: The option ``topic``; it goes before the column.

    Raises:
        SchemaError: If a row has no topic.
    """
    if topic is not None:
        yield _rows(topic, batch)
        return
    names = batch.column("topic")
    if names.null_count:
        raise SchemaError("a row has null as its topic: fill it, or use the option 'topic'")
    for name in names.unique().to_pylist():
        yield _rows(name, batch.filter(pc.equal(names, name)))


def _rows(topic: str, batch: pa.RecordBatch) -> TopicRows:
    columns = RecordColumns(
        batch.column("value"),
        _column(batch, "key"),
        _column(batch, "headers"),
        _times(_column(batch, "timestamp")),
    )
    return TopicRows(topic, columns, _column(batch, "partition"))


def _column(batch: pa.RecordBatch, name: str) -> Any:
    """A column that has something to say, or None."""
    index = batch.schema.get_field_index(name)
    column = None if index < 0 else batch.column(index)
    return None if column is None or column.null_count == len(column) else column


def _times(times: pa.Array | None) -> Any:
    """Milliseconds; rows without a time have that of this machine, as in Java's producer."""
    now = time.time_ns() // 1_000_000
    if times is None:
        return now
    filled = times.cast(pa.int64()).fill_null(now * 1000)
    # Down, also before 1970, as Spark does.
    return np.floor_divide(filled.to_numpy(), 1000)
