"""Functions of arrays: Arrow's own, distinct integers, and nested arrays around other values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

__all__ = [
    "Convert",
    "children",
    "is_list",
    "list_with",
    "map_with",
    "pc",
    "same",
    "sort_distinct",
    "struct_with",
]


class _Functions:
    """``pyarrow.compute``, imported when its first function is used.

    The import makes the functions, so that checkers do not find them there. It takes longer than
    all others of a format, and most processes use none of them.
    """

    def __getattr__(self, name: str) -> Any:
        import pyarrow.compute

        function = getattr(pyarrow.compute, name)
        setattr(self, name, function)  # the next access finds it without this call
        return function


pc: Any = _Functions()

_Integers: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


def sort_distinct(values: _Integers) -> _Integers:
    """Return each value of an array once, ascending.

    ``numpy.unique`` does the same, but hashes the values since NumPy 2.3: of a million different
    ones it needs 2.5 s, and this 0.04 s.

    Args:
        values: Integers of one dimension.
    """
    ordered = np.sort(values)
    is_first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    found: _Integers = ordered[is_first]
    return found


# --- nested arrays

Convert: TypeAlias = Callable[[pa.Array], pa.Array]
"""Converts an array to another one of the same length."""


def same(array: pa.Array) -> pa.Array:
    """Return the array: a conversion that changes nothing."""
    return array


def is_list(kind: pa.DataType) -> bool:
    """Return True for lists of any representation."""
    names = ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")
    tests = (getattr(pa.types, f"is_{name}") for name in names)
    return any(test(kind) for test in tests)


def children(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields of a struct, in their order; names may repeat."""
    return [kind.field(index) for index in range(kind.num_fields)]


def struct_with(
    array: pa.StructArray, values: Sequence[pa.Array], fields: Sequence[pa.Field]
) -> pa.StructArray:
    """Return structs of other fields that are null where the given ones are."""
    mask = array.is_null() if array.null_count or not fields else None  # or it has no length
    return pa.StructArray.from_arrays(list(values), fields=list(fields), mask=mask)


def list_with(array: pa.Array, convert: Convert, kind: pa.DataType | None = None) -> pa.ListArray:
    """Return lists of other elements.

    Args:
        array: Lists of any representation. They are rebuilt by their lengths, since Arrow's cast of
            a list view loses elements after a null (26.0).
        convert: Converts the elements.
        kind: The type, if its elements are not nullable.
    """
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum_checked(lengths)])
    values, mask = convert(array.flatten()), array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(offsets, values, type=kind, mask=mask)


def map_with(
    array: pa.MapArray, keys: Convert, items: Convert, kind: pa.DataType | None = None
) -> pa.MapArray:
    """Return maps of other keys and items, of a type whose items may be not nullable."""
    # Arrow takes no mask with the offsets of a slice, so they are shifted to start at 0.
    first, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return pa.MapArray.from_arrays(
        pc.subtract(array.offsets, pa.scalar(first, pa.int32())),
        keys(array.keys.slice(first, end - first)),
        items(array.items.slice(first, end - first)),
        type=kind,
        mask=array.is_null() if array.null_count else None,
    )
