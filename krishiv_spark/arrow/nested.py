"""Lists, maps and structs made anew around other values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import pyarrow as pa

from krishiv_spark.arrow.compute import pc

__all__ = ["Convert", "children", "is_list", "list_with", "map_with", "same", "struct_with"]

Convert: TypeAlias = Callable[[pa.Array], pa.Array]
"""Makes other values of an array, as many as there are, in their order."""


def same(array: pa.Array) -> pa.Array:
    """What makes no other values."""
    return array


def is_list(kind: pa.DataType) -> bool:
    """Whether values are lists, in whatever form."""
    names = ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")
    tests = (getattr(pa.types, f"is_{name}") for name in names)
    return any(test(kind) for test in tests)


def children(kind: pa.DataType) -> list[pa.Field]:
    """The fields of a struct, in their order; names may be there twice."""
    return [kind.field(index) for index in range(kind.num_fields)]


def struct_with(
    array: pa.StructArray, values: Sequence[pa.Array], fields: Sequence[pa.Field]
) -> pa.StructArray:
    """Structs that are null where others are, of other fields."""
    mask = array.is_null() if array.null_count or not fields else None  # or it has no length
    return pa.StructArray.from_arrays(list(values), fields=list(fields), mask=mask)


def list_with(array: pa.Array, convert: Convert, kind: pa.DataType | None = None) -> pa.ListArray:
    """Lists of other elements.

    Args:
        array: Lists in any form. By their lengths, since Arrow's cast of a list view loses
            elements after a null (26.0).
        convert: Makes the elements.
        kind: The type, where it says that no element is null.
    """
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum_checked(lengths)])
    values, mask = convert(array.flatten()), array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(offsets, values, type=kind, mask=mask)


def map_with(
    array: pa.MapArray, keys: Convert, items: Convert, kind: pa.DataType | None = None
) -> pa.MapArray:
    """Maps of other keys and items, of a type that may say that no item is null."""
    # Arrow takes no mask along with offsets of an array that is a slice: they begin at 0 again.
    first, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return pa.MapArray.from_arrays(
        pc.subtract(array.offsets, pa.scalar(first, pa.int32())),
        keys(array.keys.slice(first, end - first)),
        items(array.items.slice(first, end - first)),
        type=kind,
        mask=array.is_null() if array.null_count else None,
    )
