"""Spark's rows as records: the columns that the sink accepts, and the partition of each row."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.arrow.compute import pc
from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.client import KafkaClient
from krishiv_spark.kafka.records import RecordColumns, partition_rows
from krishiv_spark.sinks.kafka.target_topics import PlannedTopic, count_partitions

__all__ = ["Partitioner", "TopicRows", "check_columns", "split_by_topic"]

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
_TYPE_NAMES = {
    "value": "string or binary",
    "key": "string or binary",
    "headers": "array<struct<key: string, value: binary>>",
    "topic": "string",
    "partition": "int",
    "timestamp": "timestamp",
}


# --- columns


def check_columns(schema: pa.Schema, topic: str | None) -> None:
    """Refuse rows that cannot be records.

    Args:
        schema: Schema of the rows.
        topic: The option ``topic``, for all of them.

    Raises:
        SchemaError: If a column is missing, unknown, or has another type.
    """
    for field in schema:
        _check_column(field)
    if "value" not in schema.names:
        raise SchemaError("there is no column 'value': create it with to_json(struct(*)) AS value")
    if topic is None and "topic" not in schema.names:
        raise SchemaError("no topic is given: use the option 'topic', or a column 'topic'")


def _check_column(field: pa.Field) -> None:
    if field.name not in _TYPES:
        raise SchemaError(
            f"column {field.name!r} cannot be part of a record: select {', '.join(_TYPES)} "
            "only, and put the rest into 'value', as with to_json(struct(*))"
        )
    if not any(_is_same_type(field.type, kind) for kind in _TYPES[field.name]):
        raise SchemaError(
            f"column {field.name!r} is {field.type}, but must be {_TYPE_NAMES[field.name]}: cast it"
        )


def _is_same_type(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Return True if types are the same, with or without nulls inside."""
    if pa.types.is_list(wanted):
        return pa.types.is_list(kind) and _is_same_type(kind.value_type, wanted.value_type)
    if pa.types.is_struct(wanted):
        return pa.types.is_struct(kind) and [(f.name, f.type) for f in kind] == [
            (f.name, f.type) for f in wanted
        ]
    return bool(kind == wanted)


@dataclass(frozen=True)
class TopicRows:
    """The rows for one topic.

    Attributes:
        topic: The topic of all of the rows.
        columns: Columns of the records.
        partition: The partition that each row names, with nulls; None if no row names one.
    """

    topic: str
    columns: RecordColumns
    partition: pa.Array | None


def split_by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[TopicRows]:
    """Split the rows of a batch by their topic.

    Args:
        batch: Rows that passed `check_columns`.
        topic: The option ``topic``; it takes precedence over the column.

    Raises:
        SchemaError: If a row has no topic, or a time before 1970.
    """
    if topic is not None:
        yield _to_topic_rows(topic, batch)
        return
    names = batch.column("topic")
    if names.null_count:
        raise SchemaError("a row has null as its topic: set the topic, or use the option 'topic'")
    for name in names.unique().to_pylist():
        yield _to_topic_rows(name, batch.filter(pc.equal(names, name)))


def _to_topic_rows(topic: str, batch: pa.RecordBatch) -> TopicRows:
    columns = RecordColumns(
        batch.column("value"),
        _get_column(batch, "key"),
        _get_column(batch, "headers"),
        _to_millis(_get_column(batch, "timestamp")),
    )
    return TopicRows(topic, columns, _get_column(batch, "partition"))


def _get_column(batch: pa.RecordBatch, name: str) -> Any:
    """Return a column; None if it is absent or has only nulls."""
    index = batch.schema.get_field_index(name)
    column = None if index < 0 else batch.column(index)
    return None if column is None or column.null_count == len(column) else column


_NO_TIMESTAMP = -1
"""Records of producers without timestamps have it, and their copies too."""


def _to_millis(times: pa.Array | None) -> Any:
    """Return milliseconds; rows without a time get this machine's, as in Java's producer.

    Raises:
        SchemaError: If a time is before 1970.
    """
    now = time.time_ns() // 1_000_000
    if times is None:
        return now
    filled = times.cast(pa.int64()).fill_null(now * 1000)
    millis = np.floor_divide(filled.to_numpy(), 1000)  # down, as Spark does
    # Java's producer refuses them too. A broker writes them, but cannot compact or recompress the
    # partition afterwards (`MemoryRecordsBuilder`, Kafka 4.3).
    early = millis < _NO_TIMESTAMP
    if early.any():
        row = times[int(early.argmax())]
        raise SchemaError(
            f"a row has the timestamp {row}: Kafka has no times before 1970; set null for the time "
            "of writing, or drop the column 'timestamp'"
        )
    return millis


# --- partitions


class Partitioner:
    """A partitioner of one task's rows.

    Keys are distributed over a number of partitions on which all tasks of an epoch agree, or
    records of one key would get into two partitions. For the topic of the option ``topic``, the
    planner determines it. For a topic that only rows name, each task requests it when it first
    meets the topic; the number may be as old as ``metadata.max.age.ms``, as in Java's producer.

    Args:
        client: The client of this process.
        planned: The topic of the option ``topic``; None to look it up.
        first: First partition of rows without a key; `rotate` selects the next one.
    """

    def __init__(self, client: KafkaClient, planned: PlannedTopic | None, first: int) -> None:
        self._client = client
        self._next = first
        self._counts: dict[str, int] = {}
        if planned is not None:
            self._counts[planned.name] = planned.partitions

    def rotate(self) -> None:
        """Assign later rows without a key to the next partition."""
        self._next += 1

    def assign(self, rows: TopicRows) -> NDArray[np.int32]:
        """Return the partition of each row.

        Raises:
            SchemaError: If a row names one that the topic does not have.
            KafkaFailedError: If there is no such topic, or it may not be seen.
        """
        count = self._count(rows.topic)
        columns: RecordColumns = rows.columns
        if columns.key is None and rows.partition is None:
            return np.full(len(columns.value), self._next % count, np.int32)
        given = (columns.key, rows.partition, count, self._next % count)
        try:
            return partition_rows(*given)
        except SchemaError:  # a partition may have been added
            newest = count_partitions(self._client, rows.topic, 0)
            return partition_rows(*given, nameable=newest)

    def _count(self, topic: str) -> int:
        if topic not in self._counts:
            age_s = self._client.config.metadata_age_s
            self._counts[topic] = count_partitions(self._client, topic, age_s)
        return self._counts[topic]
