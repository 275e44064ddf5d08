"""UUIDs as text, which is how Spark holds them (``TypeToSparkType`` of Iceberg), and as bytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import pc

__all__ = ["is_uuid", "uuid_bytes", "uuid_texts"]

_SIZE = 16
_CANONICAL = r"\A[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\z"
_NIL = "00000000-0000-0000-0000-000000000000"
_MOST_SHOWN = 100

_HEX = np.frombuffer(bytes(range(256)).hex().encode(), np.uint8).reshape(256, 2)
# All but the four hyphens.
_DIGITS = [place for place in range(36) if place not in {8, 13, 18, 23}]


def uuid_texts(array: pa.FixedSizeBinaryArray) -> pa.StringArray:
    """UUIDs of 16 bytes as `00000000-0000-0000-0000-000000000000`."""
    raw = np.frombuffer(array.buffers()[1], np.uint8).reshape(-1, 16)
    digits = _HEX[raw[array.offset : array.offset + len(array)]].reshape(-1, 32)
    text = np.full((len(array), 36), ord("-"), np.uint8)
    text[:, _DIGITS] = digits
    offsets = pa.array(np.arange(len(array) + 1, dtype=np.int32) * 36)
    whole = pa.StringArray.from_buffers(len(array), offsets.buffers()[1], pa.py_buffer(text))
    return pc.if_else(array.is_valid(), whole, pa.scalar(None, pa.string()))


def is_uuid(kind: pa.DataType) -> bool:
    """Return True for Arrow's type of UUIDs."""
    return str(kind) == "extension<arrow.uuid>"


def uuid_bytes(array: pa.Array) -> pa.FixedSizeBinaryArray:
    """Return UUIDs of 16 bytes: of texts in the canonical form, in any case, or of such bytes.

    Raises:
        ValueError: If a value is no UUID; it is the first one that the error shows.
    """
    if pa.types.is_fixed_size_binary(array.type) and array.type.byte_width == _SIZE:
        return array
    if not pa.types.is_string(array.type):
        _refuse(array, pc.not_equal(pc.binary_length(array), _SIZE), "it must have 16 bytes")
        return array.cast(pa.binary(_SIZE))
    strange = pc.invert(pc.match_substring_regex(array, _CANONICAL))
    _refuse(array, strange, f"write it as {_NIL}")
    texts = pc.fill_null(array, _NIL)
    ends = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    text = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[ends[0] : ends[-1]].reshape(-1, 36)
    digits = _NUMBERS[text[:, _DIGITS]]
    raw = np.ascontiguousarray(digits[:, 0::2] << 4 | digits[:, 1::2])
    kind = pa.binary(_SIZE)
    whole = pa.FixedSizeBinaryArray.from_buffers(kind, len(texts), [None, pa.py_buffer(raw)])
    return pc.if_else(array.is_valid(), whole, pa.scalar(None, kind))


_NUMBERS = np.zeros(256, np.uint8)
"""The numbers of hexadecimal digits, by their ASCII codes."""
for _digit in "0123456789abcdefABCDEF":
    _NUMBERS[ord(_digit)] = int(_digit, 16)


def _refuse(array: pa.Array, strange: pa.BooleanArray, advice: str) -> None:
    wrong = array.filter(strange)
    if len(wrong):
        shown = repr(wrong[0].as_py())[:_MOST_SHOWN]
        raise ValueError(f"{shown} is no UUID: {advice}")
