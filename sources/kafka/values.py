"""JSON values into columns. Executor."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
from pyarrow import json as arrow_json

from krishiv_spark.compute import pc
from krishiv_spark.errors import SchemaError
from krishiv_spark.sources.kafka.mismatches import mismatch

__all__ = ["PLACE", "RAW_COLUMN", "BadRecords", "decode_values", "parse_values"]

RAW_COLUMN = "_raw"
BadRecords = Literal["fail", "null", "divert"]

_log = logging.getLogger(__name__)
_ROW, _VALUE = "n", "v"
PLACE = ("topic", "partition", "offset")
"""Columns by which a value is found again."""


def decode_values(
    batch: pa.RecordBatch, schema: pa.Schema, fields: Sequence[pa.Field], policy: BadRecords
) -> pa.RecordBatch:
    """The fields of JSON values, beside columns of Kafka's own.

    A null value has null in each field; so has a bad one, unless it is to fail.

    Args:
        batch: Rows of Kafka, with their values and where they are (`PLACE`).
        schema: Columns that are wanted.
        fields: Those of them that are fields of the values.
        policy: What happens to values that are bad.

    Raises:
        SchemaError: If a value is no JSON object with such fields and ``badRecords`` is "fail".
    """
    values = batch.column("value")
    parsed, bad = parse_values(values, pa.struct(list(fields)))
    if len(bad):
        _treat(batch, bad, pa.struct(list(fields)), policy)
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns.update(zip((field.name for field in fields), parsed.flatten(), strict=True))
    is_bad = np.zeros(len(batch), np.bool_)
    is_bad[bad] = True
    columns[RAW_COLUMN] = pc.if_else(pa.array(is_bad), values, pa.scalar(None, pa.binary()))
    chosen = [columns[name] for name in schema.names]
    return pa.RecordBatch.from_arrays(chosen, names=schema.names)


def parse_values(values: pa.Array, kind: pa.StructType) -> tuple[pa.StructArray, list[int]]:
    """Parse JSON objects.

    Args:
        values: Binary; null is no object and not bad.
        kind: Fields that are wanted; others are ignored, and one that an object lacks is null.

    Returns:
        The objects, null where there is none, and the positions of those that cannot be read.
    """
    texts = pc.fill_null(values, b"null")
    nullable = _nullable(kind)
    parts: list[pa.Array] = []
    bad: list[int] = []
    # Arrow does not say which row cannot be read: halves are tried until one is alone.
    waiting = [(0, len(texts))]
    while waiting and len(texts):
        begin, end = waiting.pop()
        found = _parsed(texts.slice(begin, end - begin), nullable)
        if found is not None:
            parts.append(found)
        elif end - begin == 1:
            parts.append(pa.nulls(1, nullable))
            bad.append(begin)
        else:
            middle = (begin + end) // 2
            waiting.extend([(middle, end), (begin, middle)])  # the first half is taken first
    return pa.concat_arrays(parts) if parts else pa.array([], nullable), bad


def _nullable(kind: pa.DataType) -> pa.DataType:
    return pa.struct([field.with_nullable(nullable=True) for field in kind])


def _parsed(texts: pa.Array, kind: pa.StructType) -> pa.StructArray | None:
    """The objects, or None if one of them cannot be read.

    Each is wrapped with its number: a text that is half an object, or two of them, then cannot be
    taken for another number of rows.
    """
    numbers = pa.array(np.arange(len(texts)))
    try:
        strings = texts.cast(pa.string())  # Arrow's reader would take what is no UTF-8
        prefix = pc.binary_join_element_wise('{"n":', pc.cast(numbers, pa.string()), ',"v":', "")
        lines = pc.binary_join_element_wise(prefix, strings, "}\n", "")
        table = _table(lines.buffers()[2], _readable(kind))
        if not table.column(_ROW).combine_chunks().equals(numbers):
            return None
        return table.column(_VALUE).combine_chunks().cast(kind)
    except pa.ArrowException:
        return None


def _table(data: pa.Buffer, kind: pa.StructType) -> pa.Table:
    schema = pa.schema([pa.field(_ROW, pa.int64()), pa.field(_VALUE, kind)])
    # In one block: a row that does not fit into a block is an error.
    return arrow_json.read_json(
        pa.BufferReader(data),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=arrow_json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="ignore"
        ),
    )


def _readable(kind: pa.DataType) -> pa.DataType:
    """A type that Arrow reads from JSON and casts to the one that is wanted."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _readable(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_readable(kind.value_type))
    # Arrow reads no date from a text, but a time, which may be a date alone.
    return pa.timestamp("s") if pa.types.is_date(kind) else kind


def _treat(batch: pa.RecordBatch, bad: list[int], kind: pa.StructType, policy: BadRecords) -> None:
    topic, partition, offset = (batch.column(name)[bad[0]] for name in PLACE)
    wrong = mismatch(batch.column("value")[bad[0]].as_py(), kind, _reads)
    text = (
        f"{topic}-{partition} at offset {offset}: the JSON value {wrong}; "
        f"{len(bad)} of the {len(batch)} values around it cannot be read"
    )
    if policy == "fail":
        raise SchemaError(
            f"{text}. Correct the schema, or set the option 'badRecords' to 'null' or 'divert': "
            "the fields of such values are null then, and 'divert' keeps each value beside them"
        )
    _log.warning("%s", text)


def _reads(values: pa.Array, kind: pa.StructType) -> bool:
    return not parse_values(values, kind)[1]
