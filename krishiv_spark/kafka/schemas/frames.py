"""The header with which a serializer of a schema registry begins a value. Executor."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias
from uuid import UUID

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.arrow.compute import pc, sort_distinct

__all__ = ["Framed", "WireFormat", "find_glue_version", "join_headers", "read_frames"]

WireFormat: TypeAlias = Literal["confluent", "headers", "apicurio", "glue"]
"""The location of the schema's id: before the data in four bytes (``confluent``), in a header of
the record (``headers``), before the data in eight bytes (``apicurio``), before the data as a UUID
(``glue``)."""

_ID_BYTES: Mapping[WireFormat, int] = {"confluent": 4, "headers": 4, "apicurio": 8}
_GUID_BYTES = 16
"""Confluent's wire formats: a zero byte and the id (big-endian), or a byte of 1 and the GUID.
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/"""
_FIRST_GUID = 2**62
"""Number of the first GUID of a batch, where ids of schemas end."""
_ZLIB = 5
_GLUE_VERSION, _GLUE_COMPRESSIONS, _GLUE_BYTES = 3, (0, _ZLIB), 18
"""The header of AWS Glue's serializers: a version, the compression (0 none, 5 zlib), and a UUID."""
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
        ids: The id of each record's schema; -1 without a value, -2 if the header is not valid. For
            a GUID, a number of this batch.
        guids: The GUIDs by their numbers.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    ids: NDArray[np.int64]
    guids: Mapping[int, str] = field(default_factory=dict)

    def find_ids(self) -> list[int]:
        """Return the ids of the schemas, and the numbers of GUIDs, each once."""
        return [int(each) for each in sort_distinct(self.ids) if each >= 0]

    def find_invalid(self) -> NDArray[np.int64]:
        """Return the indices of the values whose header is not valid."""
        return np.flatnonzero(self.ids == _BAD)

    def select(self, schema_id: int) -> NDArray[np.int64]:
        """Return the indices of the records of a schema."""
        return np.flatnonzero(self.ids == schema_id)


def read_frames(values: pa.BinaryArray, wire: WireFormat = "confluent") -> Framed:
    """Read the headers of values, all at once.

    Args:
        values: Records after their headers; null for none.
        wire: The form of the headers; for ``headers`` see `join_headers`.
    """
    if wire == "glue":
        return _read_glue(values)
    id_bytes = _ID_BYTES[wire]
    offsets, data = _buffers(values)
    starts, ends = offsets[:-1].copy(), offsets[1:].copy()
    ids = np.full(len(values), _BAD, np.int64)
    fits = ends - starts > id_bytes
    at = starts[fits]
    found = np.zeros(len(at), np.int64)
    for n in range(id_bytes):
        found = (found << 8) | data[at + 1 + n]
    is_id = (data[at] == 0) & (found >= 0) & (found < _FIRST_GUID)
    ids[fits] = np.where(is_id, found, _BAD)
    sizes = np.full(len(values), 1 + id_bytes)
    guids = _read_guids(data, starts, ends, ids, sizes) if wire == "headers" else {}
    if values.null_count:
        ids[values.is_null().to_numpy(zero_copy_only=False)] = _NO_VALUE
    starts += sizes
    starts[ids < 0] = _NO_VALUE
    return Framed(data, starts, ends, ids, guids)


def _read_guids(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    ids: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> dict[int, str]:
    """Return GUIDs by numbers; set the ids and sizes of headers of values that begin with one."""
    rows = np.flatnonzero(ends - starts > _GUID_BYTES)
    rows = rows[data[starts[rows]] == 1]
    if not len(rows):
        return {}
    ids[rows], guids = _number_guids(data, starts[rows] + 1)
    sizes[rows] = 1 + _GUID_BYTES
    return guids


def _number_guids(
    data: NDArray[np.uint8], at: NDArray[np.int64]
) -> tuple[NDArray[np.int64], dict[int, str]]:
    """Return a number for each GUID, and the GUIDs by their numbers."""
    octets = data[at[:, None] + np.arange(_GUID_BYTES)]
    found, numbers = np.unique(octets, axis=0, return_inverse=True)
    guids = {_FIRST_GUID + n: str(UUID(bytes=each.tobytes())) for n, each in enumerate(found)}
    return _FIRST_GUID + numbers.reshape(-1), guids


def _read_glue(values: pa.BinaryArray) -> Framed:
    """Read the headers of AWS Glue's serializers, and decompress the records after them."""
    offsets, data = _buffers(values)
    starts, ends = offsets[:-1].copy(), offsets[1:].copy()
    ids = np.full(len(values), _BAD, np.int64)
    rows = np.flatnonzero(ends - starts >= _GLUE_BYTES)
    rows = rows[data[starts[rows]] == _GLUE_VERSION]
    rows = rows[np.isin(data[starts[rows] + 1], _GLUE_COMPRESSIONS)]
    ids[rows], guids = _number_guids(data, starts[rows] + 2)
    packed = rows[data[starts[rows] + 1] == _ZLIB]
    starts += _GLUE_BYTES
    parts, size = [data], len(data)
    for row in packed:
        found = _inflate(data[starts[row] : ends[row]].tobytes())
        if found is None:
            ids[row] = _BAD
            continue
        parts.append(np.frombuffer(found, np.uint8))
        starts[row], ends[row] = size, size + len(found)
        size += len(found)
    if values.null_count:
        ids[values.is_null().to_numpy(zero_copy_only=False)] = _NO_VALUE
    starts[ids < 0] = _NO_VALUE
    return Framed(np.concatenate(parts) if len(parts) > 1 else data, starts, ends, ids, guids)


def _inflate(packed: bytes) -> bytes | None:
    """Return a record without its compression; None if it is damaged, or too large."""
    # Tasks of other sinks read the options of a registry, and need no codecs of Kafka.
    from krishiv_spark.kafka.records.scanner import INFLATED_BYTES

    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(packed, INFLATED_BYTES)
    except zlib.error:
        return None
    return found if inflater.eof else None


def join_headers(values: pa.BinaryArray, headers: pa.ListArray, part: str) -> pa.Array:
    """Return values after the header that names their schema; a value without one is unchanged.

    Confluent's serializers write ``__value_schema_id`` or ``__key_schema_id``: a byte of 1 and a
    GUID, or a zero byte and an id, and for Protobuf the numbers of the message.

    Args:
        values: Keys or values.
        headers: The headers of each record: lists of structs of ``key`` and ``value``.
        part: "key" or "value".
    """
    flat = headers.flatten()
    is_id = pc.equal(flat.field("key"), f"__{part}_schema_id").to_numpy(zero_copy_only=False)
    rows = headers.value_parent_indices().to_numpy(zero_copy_only=False)[is_id]
    if not len(rows):
        return values
    which = np.full(len(values), -1, np.int64)
    which[rows[::-1]] = np.flatnonzero(is_id)[::-1]  # of several headers, the first one counts
    before = flat.field("value").take(pa.array(which, mask=which < 0))
    before = pc.coalesce(before, pa.scalar(b"", before.type))
    return pc.binary_join_element_wise(before, values, b"")


def find_glue_version(value: bytes) -> str | None:
    """Return the schema version that a header of AWS Glue's registry names; None without one."""
    if len(value) < _GLUE_BYTES or value[0] != _GLUE_VERSION:
        return None
    if value[1] not in _GLUE_COMPRESSIONS:
        return None
    return str(UUID(bytes=value[2:_GLUE_BYTES]))


def _buffers(values: pa.BinaryArray) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    kind = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    _, offsets, data = values.buffers()
    if offsets is None or not len(values):
        return np.zeros(1, np.int64), np.zeros(1, np.uint8)
    found = np.frombuffer(offsets, kind)[values.offset : values.offset + len(values) + 1]
    octets = np.frombuffer(data or b"\0", np.uint8)
    return found.astype(np.int64), octets if len(octets) else np.zeros(1, np.uint8)
