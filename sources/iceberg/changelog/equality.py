"""Which rows are the same, of whatever types their columns are. Executor.

Arrow groups by flat columns only, and takes 0.0 for -0.0: here rows are the same if all their
values are, bit for bit, as those of a row are that was copied from one file to another.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import pc

__all__ = ["Numbers", "numbered", "shares_of", "unmatched"]

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
"""Of shape (rows,)."""


def numbered(rows: pa.Table) -> Numbers:
    """A number for each row: rows have the same one if and only if they are the same.

    Numbers mean something within one call only.
    """
    return _of_tuples([_numbers(column) for column in rows.columns], rows.num_rows)


def unmatched(own: Numbers, others: Numbers) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows are left when each of the others takes one that is the same away.

    Args:
        own: Numbers of the rows, of one call of `numbered`.
        others: Those of the others, of the same call.

    Returns:
        Of the shape of `own`; among rows that are the same, the last ones are left.
    """
    most = int(max(own.max(initial=-1), others.max(initial=-1))) + 1
    order = np.argsort(own, kind="stable")
    rising = own[order]
    before = np.arange(len(own)) - np.searchsorted(rising, rising)
    left = np.empty(len(own), bool)
    left[order] = before >= np.bincount(others, minlength=most)[rising]
    return left


def _numbers(column: pa.ChunkedArray) -> Numbers:
    kind = column.type
    if pa.types.is_struct(kind):
        return _of_tuples([_valid(column), *map(_numbers, column.flatten())], len(column))
    if pa.types.is_map(kind):
        return _numbers(column.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))))
    if pa.types.is_list(kind):
        return _of_tuples([_valid(column), _of_lists(column)], len(column))
    if any(is_a(kind) for is_a in _PLAIN):
        column = _as_bits(column)
        if not column.null_count:
            values: Numbers = column.to_numpy().astype(np.int64)
            return values
    return _places(column)


_PLAIN = (pa.types.is_integer, pa.types.is_floating, pa.types.is_temporal)
_BITS = {32: pa.int32(), 64: pa.int64()}


def _as_bits(column: pa.ChunkedArray) -> pa.ChunkedArray:
    bits = _BITS[column.type.bit_width]
    return pa.chunked_array([chunk.view(bits) for chunk in column.chunks], bits)


def _valid(column: pa.ChunkedArray) -> Numbers:
    valid: Numbers = column.is_valid().to_numpy().astype(np.int64)
    return valid


def _of_lists(column: pa.ChunkedArray) -> Numbers:
    """Numbers of lists, by those of their elements, one after the other."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
    # Each element takes the eight bytes of its number.
    ends = np.concatenate([[0], np.cumsum(lengths)]) * 8
    inside = np.ascontiguousarray(_numbers(pc.list_flatten(column)))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(inside)]
    return _places(
        pa.chunked_array([pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)])
    )


def _of_tuples(parts: Sequence[Numbers], rows: int) -> Numbers:
    """Numbers of rows, by those of their parts; there are no more of them than rows."""
    if not parts:
        return np.zeros(rows, np.int64)
    together = pa.py_buffer(np.ascontiguousarray(np.stack(parts, axis=1)))
    kind = pa.binary(8 * len(parts))
    return _places(pa.chunked_array([pa.Array.from_buffers(kind, rows, [None, together])]))


def _places(column: pa.ChunkedArray) -> Numbers:
    """The place of each value among the distinct ones; nulls come first."""
    found = [pc.fill_null(chunk.indices, -1) for chunk in column.dictionary_encode().chunks]
    return np.concatenate([np.empty(0, np.int64), *found]).astype(np.int64) + 1


def shares_of(rows: pa.RecordBatch, shares: int) -> Numbers:
    """A share for each row, from 0: the same for rows that are the same, in whatever process."""
    hashes = np.zeros(rows.num_rows, np.uint64)
    for column in rows.columns:
        hashes = (hashes ^ (hashes >> np.uint64(29)) ^ _flat(column)) * _MIXER
    found: Numbers = ((hashes >> np.uint64(32)) % np.uint64(shares)).astype(np.int64)
    return found


_MIXER = np.uint64(0x9E3779B97F4A7C15)
"""An odd number that spreads what is near (Knuth, "The Art of Computer Programming", 6.4)."""


def _flat(column: pa.Array) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """A number for each value that says something of it; types of few values say nothing."""
    kind = column.type
    if pa.types.is_integer(kind):
        numbers = column.cast(pa.int64())
    elif pa.types.is_temporal(kind):
        numbers = column.view(_BITS[kind.bit_width])
    elif pa.types.is_string(kind) or pa.types.is_decimal(kind):
        numbers = _checksums(column.cast(pa.string()))
    else:
        numbers = pa.nulls(len(column), pa.int64())
    found: Numbers = pc.fill_null(numbers, 0).to_numpy().astype(np.int64)
    return found.view(np.uint64)


def _checksums(texts: pa.StringArray) -> pa.Array:
    distinct = texts.dictionary_encode()
    # Python's own hash of a text is another one in each process.
    sums = [zlib.crc32(text.encode()) for text in distinct.dictionary.to_pylist()]
    return pc.take(pa.array(sums, pa.int64()), distinct.indices)
