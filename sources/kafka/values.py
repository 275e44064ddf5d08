"""JSON values into columns. Executor."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import json as arrow_json

from krishiv_spark.compute import pc
from krishiv_spark.errors import SchemaError
from krishiv_spark.sources.kafka.mismatches import mismatch

__all__ = ["PLACE", "RAW_COLUMN", "BadRecords", "decode_values", "parse_values"]

RAW_COLUMN = "_raw"
BadRecords = Literal["fail", "null", "divert"]

_log = logging.getLogger(__name__)
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
    """Return the objects, or None if one of the texts is neither an object nor null.

    The number of its row is put into each object, as its first field, under a name that no writer
    of values can know. So a text that is half an object, or two of them, cannot take the place of
    another number of rows; and nothing can follow an object, since nothing is around it.
    """
    numbers = np.arange(len(texts))
    try:
        texts, is_null = _objects(texts)
        key = f"n{secrets.token_hex(8)}"
        table = _table(_lines(texts, numbers, key), key, _readable(kind))
        if not table.column(key).combine_chunks().equals(pa.array(numbers)):
            return None
        columns = [table.column(field.name).combine_chunks() for field in kind]
        found = _struct(columns, _readable(kind), is_null)
        return found.cast(kind)
    except pa.ArrowException:
        return None


def _objects(texts: pa.Array) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return the texts without blanks around them, with an empty object for each null.

    Raises:
        ArrowInvalid: If one is no object, by its first character.
    """
    if not pc.all(pc.starts_with(texts, "{")).as_py():
        texts = pc.replace_substring_regex(texts, r"^[ \t\r\n]+|[ \t\r\n]+$", "")
    is_null = pc.equal(texts, b"null").to_numpy(zero_copy_only=False)
    if is_null.any():
        texts = pc.if_else(pa.array(is_null), b"{}", texts)
    if not pc.all(pc.starts_with(texts, "{")).as_py():
        raise pa.ArrowInvalid("no object")
    return texts, is_null


def _lines(texts: pa.Array, numbers: NDArray[np.int64], key: str) -> pa.Buffer:
    """Return objects, each with its number in it, a line each."""
    # Without the "{". The cast refuses a text that is no UTF-8, which Arrow's reader would take.
    rests = pc.binary_replace_slice(texts, 0, 1, b"").cast(pa.string())
    comma: Any = ","
    if not pc.all(pc.starts_with(rests, '"')).as_py():
        # Between the number and a field there is a comma; an empty object has no field.
        is_empty = pc.match_substring_regex(rests, r"^[ \t\r\n]*\}")
        comma = pc.if_else(is_empty, "", ",")
    digits = pc.cast(pa.array(numbers), pa.string())
    heads = pc.binary_join_element_wise(f'{{"{key}":', digits, comma, "")
    return pc.binary_join_element_wise(heads, rests, "\n", "").buffers()[2]


def _table(data: pa.Buffer, key: str, kind: pa.StructType) -> pa.Table:
    schema = pa.schema([pa.field(key, pa.int64()), *kind])
    # In one block: a row that does not fit into a block is an error.
    return arrow_json.read_json(
        pa.BufferReader(data),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=arrow_json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="ignore"
        ),
    )


def _struct(
    columns: list[pa.Array], kind: pa.StructType, is_null: NDArray[np.bool_]
) -> pa.StructArray:
    valid = pa.py_buffer(np.packbits(~is_null, bitorder="little")) if is_null.any() else None
    return pa.Array.from_buffers(kind, len(is_null), [valid], children=columns)


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
