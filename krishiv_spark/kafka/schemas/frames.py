"""The header with which a serializer of a schema registry begins a value. Executor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["Framed", "read_frames"]

_HEADER_BYTES = 5
"""Confluent's wire format 0: a zero byte, the schema's id in four bytes (big-endian), the data.
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/"""
_NO_VALUE = -1
_BAD = -2


@dataclass(frozen=True)
class Framed:
    """Encoded records of some values.

    Attributes:
        data: The bytes of all values.
        starts: Where each record starts in them, after its header; -1 for one without a value, and
            for one whose header is not valid.
        ends: Where each record ends, exclusive.
        ids: The id of each record's schema; -1 without a value, -2 if the header is not valid.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    ids: NDArray[np.int64]

    def find_ids(self) -> list[int]:
        """Return the ids of the schemas, each once."""
        return [int(each) for each in np.unique(self.ids) if each >= 0]

    def find_invalid(self) -> NDArray[np.int64]:
        """Return the indices of the values whose header is not valid."""
        return np.flatnonzero(self.ids == _BAD)

    def select(self, schema_id: int) -> NDArray[np.int64]:
        """Return the indices of the records of a schema."""
        return np.flatnonzero(self.ids == schema_id)


def read_frames(values: pa.BinaryArray) -> Framed:
    """Read the headers of values, all at once."""
    offsets, data = _buffers(values)
    starts, ends = offsets[:-1].copy(), offsets[1:].copy()
    ids = np.full(len(values), _BAD, np.int64)
    fits = ends - starts >= _HEADER_BYTES
    at = starts[fits]
    parts = [data[at + n].astype(np.int64) for n in range(_HEADER_BYTES)]
    found = (parts[1] << 24) | (parts[2] << 16) | (parts[3] << 8) | parts[4]
    ids[fits] = np.where(parts[0] == 0, found, _BAD)
    if values.null_count:
        ids[values.is_null().to_numpy(zero_copy_only=False)] = _NO_VALUE
    starts += _HEADER_BYTES
    starts[ids < 0] = _NO_VALUE
    return Framed(data, starts, ends, ids)


def _buffers(values: pa.BinaryArray) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    kind = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    _, offsets, data = values.buffers()
    if offsets is None or not len(values):
        return np.zeros(1, np.int64), np.zeros(1, np.uint8)
    found = np.frombuffer(offsets, kind)[values.offset : values.offset + len(values) + 1]
    octets = np.frombuffer(data or b"\0", np.uint8)
    return found.astype(np.int64), octets if len(octets) else np.zeros(1, np.uint8)
