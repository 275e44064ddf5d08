"""Rows that are equal in all columns, also in lists and structs, which Arrow does not compare."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import pc

__all__ = ["find_equal_rows"]

_Flags: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"


def find_equal_rows(one: pa.Table, other: pa.Table) -> _Flags:
    """Return for each row whether it equals the row of the other table at its place.

    Null equals null, and NaN equals NaN.

    Args:
        one: Rows.
        other: As many rows with the same columns.
    """
    found = np.ones(one.num_rows, np.bool_)
    for name in one.column_names:
        pair = (table[name].combine_chunks() for table in (one, other))
        found &= _find_equal(*map(_join, pair))
    return found


def _join(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column


def _find_equal(one: pa.Array, other: pa.Array) -> _Flags:
    if isinstance(one, pa.ExtensionArray):
        one, other = one.storage, other.storage
    valid, both = (_are_valid(each) for each in (one, other))
    kind = one.type
    if pa.types.is_struct(kind):
        equal = np.ones(len(one), np.bool_)
        for name in range(kind.num_fields):
            equal &= _find_equal(*(pc.struct_field(each, [name]) for each in (one, other)))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        equal = _compare_lists(one, other)
    elif pa.types.is_floating(kind):
        equal = _to_flags(pc.equal(one, other)) | _to_flags(
            pc.and_(pc.is_nan(one), pc.is_nan(other))
        )
    else:
        equal = _to_flags(pc.equal(one, other))
    found: _Flags = (valid == both) & (equal | ~valid)
    return found


def _compare_lists(one: pa.Array, other: pa.Array) -> _Flags:
    if pa.types.is_map(one.type):
        one, other = (_to_list(each) for each in (one, other))
    sizes, others = (
        pc.fill_null(pc.list_value_length(each), 0).to_numpy() for each in (one, other)
    )
    equal: _Flags = sizes == others
    same = pa.array(equal)
    values = [each.filter(same).flatten() for each in (one, other)]
    differs = ~_find_equal(*values)
    rows = np.repeat(np.flatnonzero(equal), sizes[equal])
    equal[rows[differs]] = False
    return equal


def _to_list(found: pa.MapArray) -> pa.ListArray:
    """Return maps as lists of their entries."""
    entries = pa.StructArray.from_arrays([found.keys, found.items], ["key", "value"])
    mask = found.is_null() if found.null_count else None
    return pa.ListArray.from_arrays(found.offsets, entries, mask=mask)


def _are_valid(values: pa.Array) -> _Flags:
    return np.asarray(values.is_valid())


def _to_flags(values: pa.Array) -> _Flags:
    return np.asarray(pc.fill_null(values, fill_value=False))
