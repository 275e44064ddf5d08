"""Partition columns as folders, as in Hive: ``day=2013-01-01/hour=7``; their values as texts.

The texts are those that Spark's reader accepts (``PartitioningUtils.castPartValueToDesiredType``):
a timestamp contains its offset, so that it is the same instant in every session.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

import pyarrow as pa

from krishiv_spark.arrow.cast import UTC, is_tiny, localize
from krishiv_spark.arrow.compute import pc
from krishiv_spark.errors import SchemaError
from krishiv_spark.parquet.layout import DataFile

__all__ = [
    "NULL_VALUE",
    "from_partition_text",
    "group_starts",
    "split_by_partition",
    "to_partition_text",
]

NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"

_SPECIAL = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN", "-0": "-0.0"}
"""Floats that Java's parser knows by other names, or would take for a whole number."""


def to_partition_text(value: pa.Scalar) -> str:
    """Return the text of a value, not escaped.

    Null and the empty string have the same text, as in Spark.

    Raises:
        ValueError: If it is a day or time without a usual text.
    """
    if not value.is_valid:
        return NULL_VALUE
    kind = value.type
    if pa.types.is_floating(kind):
        text = str(value.cast(pa.string()))
        return _SPECIAL.get(text, text)
    if pa.types.is_decimal(kind):
        return format(value.as_py(), "f")  # Arrow and Python would write 0E-18
    if pa.types.is_temporal(kind):
        return _time_text(value)
    return str(value.cast(pa.string())) or NULL_VALUE


def _time_text(value: pa.Scalar) -> str:
    kind = value.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        times = pa.array([value]).cast(pa.timestamp("us"))
        if not _FIRST <= times.cast(pa.int64())[0].as_py() < _END:
            raise ValueError("it is before year 1 or after year 9999")
        value = value if pa.types.is_date(kind) else times[0]
    text = str(value.cast(pa.string()))
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return f"{text}Z" if pa.types.is_timestamp(kind) and kind.tz else text


_FIRST, _END = -62_135_596_800_000_000, 253_402_300_800_000_000
"""Years 1 to 9999 in microseconds since 1970, the end exclusive."""


def from_partition_text(
    text: str | None, field: pa.Field, path: str, zone: str | None = None
) -> pa.Scalar:
    """Return the value of a partition column in the type of a field.

    Args:
        text: The text, not escaped; None for null.
        field: Name and type of the column.
        path: A file in the folder. If the Parquet sink wrote it, a time without an offset is in
            UTC: earlier versions wrote times without one.
        zone: Zone of times without an offset in other files; None if they are refused.

    Raises:
        SchemaError: If the text does not fit the type, or a time's zone is not known.
    """
    try:
        return _parse(text, field.type, UTC if _is_of_sink(path) else zone)
    except (pa.ArrowException, ValueError) as error:
        raise SchemaError(
            f"{path}: the folder name has {field.name}={text}, which is not a valid "
            f"{field.type}: {error}; set a schema in which {field.name!r} is a string"
        ) from error


def _is_of_sink(path: str) -> bool:
    return DataFile.parse(os.path.basename(path)) is not None


_OFFSET = re.compile(r".*[ T].*(Z|[+-]\d\d(:?\d\d)?)")


def _parse(text: str | None, kind: pa.DataType, zone: str | None) -> pa.Scalar:
    if text is None:
        return pa.nulls(1, kind)[0]
    texts = pa.array([text])
    if pa.types.is_time(kind):  # Arrow reads times of day only after a day
        moment = pa.array([f"1970-01-01 {text}"]).cast(pa.timestamp("ns"))
        return moment.cast(pa.time64("ns")).cast(kind)[0]
    if not pa.types.is_timestamp(kind) or kind.tz is None or _OFFSET.fullmatch(text):
        if pa.types.is_decimal(kind) and is_tiny(text):
            raise ValueError("its exponent is below -38")
        return texts.cast(kind)[0]
    if zone is None:
        raise ValueError("a time without an offset; set its zone with the option 'timeZone'")
    return localize(texts.cast(pa.timestamp(kind.unit)), zone).cast(kind)[0]


# --- rows by partition

# What Spark escapes in a partition's folder name (ExternalCatalogUtils.escapePathName).
_UNSAFE = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(32)}


def split_by_partition(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Split rows by partition, in one pass for any number of partitions.

    Returns:
        Pairs of a folder, relative to the table and empty without partition columns, and its rows
        without these columns; none without rows.

    Raises:
        SchemaError: If a value cannot be the name of a folder.
    """
    if not rows.num_rows:
        return
    if not columns:
        yield "", rows
        return
    keys = rows.select(list(columns))
    numbered = keys.rename_columns(list(map(str, range(len(columns)))))  # names may look like paths
    order = pc.sort_indices(numbered, [(name, "ascending") for name in numbered.column_names])
    ordered, keys = rows.take(order), keys.take(order)
    data = ordered.drop_columns(list(columns))
    starts = group_starts(keys)
    # All folders are computed before the first row: an error must not leave some of the rows
    # written.
    folders = [_folder(keys.slice(start, 1)) for start in starts]
    ends = [*starts[1:], rows.num_rows]
    for folder, start, end in zip(folders, starts, ends, strict=True):
        yield folder, data.slice(start, end - start)


def group_starts(keys: pa.Table) -> list[int]:
    """Return the indexes at which the key changes in sorted rows, starting with 0."""
    changed = None
    for column in keys.columns:
        # Codes instead of values: as codes, null equals null, and NaN equals NaN.
        values = column.combine_chunks().dictionary_encode(null_encoding="encode")
        codes = _combine(values).indices
        differs = pc.not_equal(codes.slice(1), codes.slice(0, len(codes) - 1))
        changed = differs if changed is None else pc.or_(changed, differs)
    return [0, *(index.as_py() + 1 for index in pc.indices_nonzero(changed))]


def _combine(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _folder(key: pa.Table) -> str:
    return "/".join(
        _name(name, column[0]) for name, column in zip(key.column_names, key.columns, strict=True)
    )


def _name(column: str, value: pa.Scalar) -> str:
    """Return the name of one folder.

    Raises:
        SchemaError: If a value cannot be a name.
    """
    try:
        name = f"{_escape(column)}={_escape(to_partition_text(value))}"
        size = len(name.encode())
        if size > _MAX_NAME_BYTES:
            raise ValueError(f"its folder's name has {size} bytes, and file systems take 255")
    except ValueError as error:
        raise SchemaError(
            f"column {column!r} has the value {_shorten(value)}, which cannot be a partition: "
            f"{error}. Change it before it is written, or remove the column from 'partitionBy'; "
            "the query then continues from its position"
        ) from error
    return name


_MAX_NAME_BYTES = 255
"""Maximum length of a name in the usual file systems."""


def _shorten(value: pa.Scalar) -> str:
    # Python has no dates of some years, and Arrow no text for some bytes.
    text = str(value if pa.types.is_binary(value.type) else value.cast(pa.string()))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


_SHOWN = 40


def _escape(text: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in _UNSAFE else char for char in text)
