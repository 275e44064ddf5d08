"""Partition values as the texts that stand in names of folders, there and back.

The texts are those that Spark's reader takes (``PartitioningUtils.castPartValueToDesiredType``): a
timestamp carries its offset, so that it is the same instant in every session.
"""

from __future__ import annotations

import os
import re

import pyarrow as pa

from krishiv_spark.arrow.cast import UTC, is_tiny, localized
from krishiv_spark.errors import SchemaError
from krishiv_spark.parquet.names import DataFile

__all__ = ["NULL_VALUE", "text_of", "value_of"]

NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"

_SPECIAL = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN", "-0": "-0.0"}
"""Floats that Java's parser knows by other names, or would take for a whole number."""


def text_of(value: pa.Scalar) -> str:
    """The text of a value, not escaped; null and the empty string have one text, as in Spark.

    Raises:
        ValueError: If it is a day or time that has no usual text.
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


def value_of(text: str | None, field: pa.Field, path: str, zone: str | None = None) -> pa.Scalar:
    """The value of a partition column in the type of a field.

    Args:
        text: The text, not escaped; None for null.
        field: Name and type of the column that is wanted.
        path: A file in the folder. If our sink wrote it, a time without an offset is in UTC: so
            they were written before they carried one.
        zone: Zone of times without an offset in other files; None if they are refused.

    Raises:
        SchemaError: If the text does not fit the type, or a time's zone is not known.
    """
    try:
        return _parsed(text, field.type, UTC if _is_ours(path) else zone)
    except (pa.ArrowException, ValueError) as error:
        raise SchemaError(
            f"{path}: the folder name has {field.name}={text}, which is not a valid "
            f"{field.type}: {error}; set a schema in which {field.name!r} is a string"
        ) from error


def _is_ours(path: str) -> bool:
    return DataFile.parse(os.path.basename(path)) is not None


_OFFSET = re.compile(r".*[ T].*(Z|[+-]\d\d(:?\d\d)?)")


def _parsed(text: str | None, kind: pa.DataType, zone: str | None) -> pa.Scalar:
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
    return localized(texts.cast(pa.timestamp(kind.unit)), zone).cast(kind)[0]
