"""Numbers for rows: the same for the same rows, in whatever order and batches. Anywhere.

The number of rows, and the sum of a hash of each, modulo 2**64. Sinks keep it with what they have
written, so neither hashes nor their sum can change between releases.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import pc

__all__ = ["Counted", "RowChecksum", "row_checksum"]

_Hashes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint64]]"
"""Of shape (values,)."""

_MODULUS = 2**64
_STEP = np.uint64(0x9E3779B97F4A7C15)
"""The distance of neighbouring places: odd, so that it reaches all numbers."""
_NULL = np.uint64(0x6E756C6C)
_INTEGERS = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


@dataclass(frozen=True)
class RowChecksum:
    """Of some rows.

    Attributes:
        rows: How many.
        checksum: From 0 to 2**64 - 1. Rows that differ have another one, but for one case in 2**32
            where a single text differs.
    """

    rows: int = 0
    checksum: int = 0

    def __add__(self, other: RowChecksum) -> RowChecksum:
        return RowChecksum(self.rows + other.rows, (self.checksum + other.checksum) % _MODULUS)


def row_checksum(batch: pa.RecordBatch) -> RowChecksum:
    """Of all rows of a batch, by the values of their columns bit for bit, whatever their names."""
    hashes = _of_tuples(map(_of_values, batch.columns), batch.num_rows)
    return RowChecksum(batch.num_rows, int(hashes.sum(dtype=np.uint64)))


class Counted:
    """Batches, whose rows are counted as they go by."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows = RowChecksum()

    def __iter__(self) -> Counted:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = next(self._batches)
        self.rows += row_checksum(batch)
        return batch


def _of_values(column: pa.Array) -> _Hashes:
    plain = _plain(column)
    hashes = _of_plain(plain)
    if plain.null_count:
        hashes[~plain.is_valid().to_numpy(zero_copy_only=False)] = _NULL
    return hashes


def _plain(column: pa.Array) -> pa.Array:
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(column.storage)
    if pa.types.is_dictionary(kind):
        return _plain(column.dictionary_decode())
    if pa.types.is_map(kind):
        return column.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
    return column


def _of_plain(column: pa.Array) -> _Hashes:
    kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.uint64)
    if pa.types.is_struct(kind):
        return _of_tuples(map(_of_values, column.flatten()), len(column))
    if hasattr(kind, "value_field"):
        return _of_lists(column)
    bits = _as_bits(column)
    if bits is None:
        return _of_bytes(column)
    values: _Hashes = pc.fill_null(bits, 0).to_numpy().astype(np.int64).view(np.uint64)
    return _mix(values)


def _as_bits(column: pa.Array) -> pa.Array | None:
    """Values of a fixed width as whole numbers of that width; None if there is none such."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8())
    if not pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return None
    whole = _INTEGERS.get(kind.bit_width)
    return None if whole is None else column.view(whole)


def _of_bytes(column: pa.Array) -> _Hashes:
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.string())
    values = pc.fill_null(column.cast(pa.large_binary()), b"")
    lengths: _Hashes = pc.binary_length(values).to_numpy().astype(np.uint64)
    # The interpreter takes 0.1 us for each; as many array operations as it takes are not faster.
    checksums = np.fromiter(map(zlib.crc32, values.to_pylist()), np.uint64, len(values))
    return _mix(checksums + (lengths << np.uint64(32)))


def _of_lists(column: pa.Array) -> _Hashes:
    """By the hash of each element at its place, and the length."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    places = np.arange(ends[-1]) - np.repeat(ends[:-1], lengths)
    elements = _mix(_of_values(pc.list_flatten(column)) + places.astype(np.uint64) * _STEP)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(elements, dtype=np.uint64)])
    return _mix(sums[ends[1:]] - sums[ends[:-1]] + lengths.astype(np.uint64))


def _of_tuples(parts: Iterable[_Hashes], size: int) -> _Hashes:
    hashes = np.full(size, _STEP)
    for part in parts:
        hashes = _mix(hashes * _STEP + part)
    return hashes


def _mix(hashes: _Hashes) -> _Hashes:
    """Spread over all bits, each by all others (the last step of SplitMix64)."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: _Hashes = hashes ^ (hashes >> np.uint64(31))
    return mixed
