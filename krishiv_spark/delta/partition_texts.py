"""Values of partition columns: the texts in the log, the folders of files, and rows by partition.

The texts are those of the protocol ("Partition Value Serialization"). The folders are for people:
readers take the values from the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias
from urllib.parse import quote

import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.delta.options import FORMAT
from krishiv_spark.errors import SchemaError
from krishiv_spark.parquet.partition_folders import group_starts, to_partition_text

__all__ = ["PartitionKey", "check_partition_type", "folder_of", "from_text", "split_rows"]

PartitionKey: TypeAlias = "tuple[tuple[str, str | None], ...]"
"""Name and text of each partition column, in the table's order."""

_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_MOST_FOLDER_BYTES = 200
"""Of one folder's name. A longer one is cut, since the log has the value."""


def check_partition_type(field: pa.Field) -> None:
    """Refuse a partition column whose values have no text.

    Raises:
        SchemaError: If it is nested or binary.
    """
    if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
        raise SchemaError(
            f"{FORMAT}: column {field.name!r} of type {field.type} cannot be in 'partitionBy': "
            "choose a column with numbers, texts or times"
        )


def split_rows(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[PartitionKey, pa.Table]]:
    """Split rows by partition, in one pass for any number of partitions.

    Yields:
        Pairs of a key, and its rows without the partition columns; none without rows.

    Raises:
        SchemaError: If a value has no text, before any pair.
    """
    if not rows.num_rows:
        return
    if not columns:
        yield (), rows
        return
    keys = rows.select(list(columns))
    numbered = keys.rename_columns([str(number) for number in range(len(columns))])
    order = pc.sort_indices(numbered, [(name, "ascending") for name in numbered.column_names])
    ordered, keys = rows.take(order), keys.take(order)
    data = ordered.drop_columns(list(columns))
    starts = group_starts(keys)
    found = [_read_key(keys.slice(start, 1)) for start in starts]
    ends = [*starts[1:], rows.num_rows]
    for key, start, end in zip(found, starts, ends, strict=True):
        yield key, data.slice(start, end - start)


def _read_key(row: pa.Table) -> PartitionKey:
    return tuple((name, _to_text(name, row.column(name)[0])) for name in row.column_names)


def _to_text(name: str, value: pa.Scalar) -> str | None:
    """Return the text of a value; None for null, and for the empty text, which readers take for it.

    Raises:
        SchemaError: If it has none.
    """
    if not value.is_valid or (pa.types.is_string(value.type) and not value.as_py()):
        return None
    try:
        text = to_partition_text(value)
    except ValueError as error:
        shown = str(value.cast(pa.string()))
        raise SchemaError(
            f"{FORMAT}: column {name!r} has the value {shown}, which cannot be a partition: "
            f"{error}. Change it before it is written, or remove the column from 'partitionBy'"
        ) from error
    return text.replace(" ", "T") if pa.types.is_timestamp(value.type) and value.type.tz else text


def folder_of(key: PartitionKey) -> str:
    """Return the folder for files of a partition, relative to the table; empty without columns."""
    return "/".join(_name_folder(name, text) for name, text in key)


def _name_folder(name: str, text: str | None) -> str:
    found = f"{_escape(name)}={_HIVE_NULL if text is None else _escape(text)}"
    # A cut escape would be another character, which is harmless: nothing parses it.
    return found[:_MOST_FOLDER_BYTES]


def _escape(text: str) -> str:
    return quote(text, safe=" ()+,-.@_!$&;~")


def from_text(text: str | None, field: pa.Field, path: str) -> pa.Scalar:
    """Return the value of a partition column in the log of a table.

    Args:
        text: Its text; empty or None for null.
        field: Name and type of the column.
        path: The file, for messages.

    Raises:
        SchemaError: If the text is not valid for the type.
    """
    kind = field.type
    if not text:
        return pa.scalar(None, kind)
    try:
        if pa.types.is_timestamp(kind):
            return _parse_time(text, kind)
        if pa.types.is_binary(kind):
            return pa.scalar(text.encode("latin-1"), kind)
        return pa.array([text]).cast(kind)[0]
    except (pa.ArrowException, ValueError) as error:
        raise SchemaError(
            f"{FORMAT}: {path}: the log has {field.name}={text}, which is not a valid {kind}: "
            f"{error}"
        ) from error


def _parse_time(text: str, kind: pa.DataType) -> pa.Scalar:
    """Return a time; one without an offset is in UTC, as writers of the older form intend it."""
    plain = text.removesuffix("Z").replace("T", " ")
    return pa.array([plain]).cast(pa.timestamp("us")).cast(kind)[0]
