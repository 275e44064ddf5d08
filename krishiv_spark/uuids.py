"""UUIDs as text, which is how Spark holds them (``TypeToSparkType`` of Iceberg)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from krishiv_spark.compute import pc

__all__ = ["uuid_texts"]

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
