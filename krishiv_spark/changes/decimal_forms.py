"""Decimals in the forms of Debezium and Connect: unscaled digits, objects with a scale. Executor.

A form is bytes, big-endian in two's complement (Connect's ``Decimal``), or base64 of them in JSON.
"""

from __future__ import annotations

import base64
import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.arrow.compute import Convert, pc, sort_distinct
from krishiv_spark.arrow.json_types import JsonRules, build_form

__all__ = [
    "SCALED",
    "SCALED_BYTES",
    "decode_base64",
    "format_scaled_objects",
    "format_unscaled",
    "from_decimal_texts",
    "from_scaled_objects",
    "from_unscaled",
]

_MOST_BYTES = 16
_MOST_SCALE = 16_383  # of PostgreSQL
_MOST_DIGITS = 76
"""Digits of the widest decimal, and the power of ten at the end of Arrow's table."""
_MAY_BE_LONG = r"[eE]-|\.[0-9]{38}"
_NUMBER = re.compile(r"^[+-]?[0-9]*(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?$")
SCALED = pa.struct([("scale", pa.int32()), ("value", pa.string())])
"""Debezium's ``VariableScaleDecimal`` in JSON, with base64."""
SCALED_BYTES = pa.struct([("scale", pa.int32()), ("value", pa.binary())])
"""The same in Avro."""

decode_base64: Convert = build_form(pa.binary(), JsonRules()).convert


def _to_bytes(values: pa.Array) -> pa.Array:
    return values if pa.types.is_binary(values.type) else decode_base64(values)


def from_decimal_texts(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert texts of numbers to decimals of a type.

    Raises:
        ArrowInvalid: If one is no number, or has digits that the type does not have.
    """
    suspects = texts.filter(pc.match_substring_regex(texts, _MAY_BE_LONG))
    if any(_has_long_fraction(text) for text in suspects.to_pylist()):
        raise pa.ArrowInvalid("a number with digits that no decimal has")
    wide = pa.decimal256(_MOST_DIGITS, kind.scale)
    return texts.cast(wide).cast(kind)


def _has_long_fraction(text: str) -> bool:
    """Return True if Arrow would look a power of ten up after the end of its table.

    It uses the bytes there as the power, or the process ends.
    """
    found = _NUMBER.search(text)
    if found is None:
        return False  # Arrow refuses it
    fraction, exponent = len(found[1] or ""), found[2] or "0"
    return len(exponent) > _MOST_DIGITS or fraction - int(exponent) > _MOST_DIGITS


def from_unscaled(values: pa.Array, scale: int, kind: pa.DataType) -> pa.Array:
    """Convert unscaled digits, as bytes or base64, to decimals of a type.

    Raises:
        ArrowInvalid: If one has digits that the type does not have.
    """
    return _rescale(_read_unscaled(_to_bytes(values)), scale, kind)


def from_scaled_objects(objects: pa.StructArray, kind: pa.DataType) -> pa.Array:
    """Convert objects of `SCALED` or `SCALED_BYTES` to decimals of a type."""
    values, scales = objects.field("value"), objects.field("scale")
    valid = objects.is_valid()
    if pc.any(pc.and_(valid, pc.or_(values.is_null(), scales.is_null()))).as_py():
        raise pa.ArrowInvalid("an object without scale and value")
    unscaled = _read_unscaled(_to_bytes(pc.if_else(valid, values, None)))
    found = np.where(valid, pc.fill_null(scales, 0), 0)
    rows: list[NDArray[np.int64]] = []
    parts: list[pa.Array] = []
    for scale in sort_distinct(found):
        rows.append(np.flatnonzero(found == scale))
        parts.append(_rescale(unscaled.take(pa.array(rows[-1])), int(scale), kind))
    order = np.argsort(np.concatenate(rows)) if rows else np.empty(0, np.int64)
    return pa.concat_arrays(parts or [pa.array([], kind)]).take(pa.array(order))


def format_scaled_objects(objects: pa.StructArray) -> pa.Array:
    """Format objects with a scale each as texts of all digits, as the database shows them.

    They may have thousands of digits, so that only Python has the numbers.
    """
    pairs = zip(objects.field("scale").to_pylist(), objects.field("value").to_pylist(), strict=True)
    valid = objects.is_valid().to_pylist()
    found = [
        _format_scaled(*pair) if is_there else None
        for pair, is_there in zip(pairs, valid, strict=True)
    ]
    return pa.array(found, pa.string())


def format_unscaled(values: pa.Array, scale: int) -> pa.Array:
    """Format unscaled digits, as bytes or base64, as texts."""
    return pa.array(
        [None if value is None else _format_scaled(scale, value) for value in values.to_pylist()],
        pa.string(),
    )


def _format_scaled(scale: int | None, value: str | bytes | None) -> str:
    if scale is None or value is None or abs(scale) > _MOST_SCALE:
        raise pa.ArrowInvalid("an object without a scale and a value")
    data = value if isinstance(value, bytes) else base64.b64decode(value, validate=True)
    number = int.from_bytes(data, "big", signed=True)
    if scale <= 0:
        return _format_whole(number * 10**-scale)
    digits = _format_whole(abs(number)).rjust(scale + 1, "0")
    return f"{'-' if number < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


def _format_whole(number: int) -> str:
    """Return all digits: `str` refuses more than 4 300, and a decimal is exact for any number."""
    return format(Decimal(number), "f")


def _rescale(unscaled: pa.Array, scale: int, kind: pa.DataType) -> pa.Array:
    """Return decimals of a type; digits that it does not have are an error."""
    if not -_MOST_BYTES <= scale <= 38:  # noqa: PLR2004  digits of a decimal of 16 bytes
        raise pa.ArrowInvalid("a scale that no decimal has")
    whole = pa.Array.from_buffers(pa.decimal128(38, scale), len(unscaled), unscaled.buffers())
    return whole.cast(pa.decimal256(_MOST_DIGITS, max(scale, kind.scale))).cast(kind)


def _read_unscaled(numbers: pa.Array) -> pa.Array:
    """Return big-endian numbers of 1 to 16 bytes as decimals with scale 0.

    Raises:
        ArrowInvalid: If a number is empty or longer.
    """
    lengths = pc.fill_null(pc.binary_length(numbers), 0).to_numpy().astype(np.int64)
    valid = numbers.is_valid().to_numpy(zero_copy_only=False)
    if (lengths > _MOST_BYTES).any() or (lengths[valid] == 0).any():
        raise pa.ArrowInvalid("a number without digits, or with too many")
    joined = pc.binary_join(
        pa.ListArray.from_arrays([0, len(numbers)], pc.fill_null(numbers, b"")), b""
    )[0].as_py()
    data = np.frombuffer(joined, np.uint8)
    starts = np.cumsum(lengths) - lengths
    found = np.zeros((len(numbers), _MOST_BYTES), np.uint8)
    filled = np.flatnonzero(lengths)
    found[filled[data[starts[filled]] >= 0x80]] = 0xFF  # noqa: PLR2004  the sign
    rows = np.repeat(np.arange(len(numbers)), lengths)
    within = np.arange(len(data)) - np.repeat(starts, lengths)
    found[rows, lengths[rows] - 1 - within] = data
    mask = None if valid.all() else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(
        pa.decimal128(38, 0), len(numbers), [mask, pa.py_buffer(found.reshape(-1))]
    )
