"""Conversions of whole columns, made of conversions of their leaves."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from krishiv_spark.arrow.compute import (
    Convert,
    children,
    is_list,
    list_with,
    map_with,
    same,
    struct_with,
)
from krishiv_spark.errors import SchemaError

__all__ = ["MAP_ENTRIES", "Leaf", "Leaves"]

MAP_ENTRIES = "krishiv_spark.map_entries"
"""The name of the elements of a list that was a map whose keys are not declared as required."""

Leaf: TypeAlias = Callable[[Any, str, str], "Convert | None"]
"""Returns the conversion of a leaf, from its Arrow type, its physical type and its path; None where
its values are right already."""


@dataclass(frozen=True)
class Leaves:
    """The leaf columns of a file, one after the other.

    Attributes:
        leaf: Converts one of them.
        physical: Physical types of the leaves that follow.
    """

    leaf: Leaf
    physical: Iterator[str]

    def of(self, kind: Any, path: str) -> Convert | None:
        """Return the conversion of values of a type; consumes as many leaves as the type has."""
        if isinstance(kind, pa.BaseExtensionType):
            return _after(lambda array: array.storage, self.of(kind.storage_type, path))
        if pa.types.is_struct(kind):
            return self._struct(kind, path)
        if pa.types.is_map(kind):
            key = self.of(kind.key_type, f"{path}.key")
            item = self.of(kind.item_type, f"{path}.value")
            both = {"keys": key or same, "items": item or same}
            return functools.partial(_map_of, **both) if key or item else None
        if is_list(kind):
            return self._list(kind, path)
        return self._leaf(kind, next(self.physical), path)

    def _struct(self, kind: pa.DataType, path: str) -> Convert | None:
        parts = [self.of(field.type, f"{path}.{field.name}") for field in children(kind)]
        return functools.partial(_struct_of, parts=parts) if any(parts) else None

    def _list(self, kind: Any, path: str) -> Convert | None:
        element = self.of(kind.value_type, f"{path}.element")
        if kind.value_field.name == MAP_ENTRIES:
            return functools.partial(_entries_to_map, element=element or same, path=path)
        return functools.partial(_list_of, element=element) if element else None

    def _leaf(self, kind: Any, physical: str, path: str) -> Convert | None:
        if pa.types.is_dictionary(kind):
            decoded = self._leaf(kind.value_type, physical, path)
            return _after(lambda array: array.dictionary_decode(), decoded)
        return self.leaf(kind, physical, path)


def _after(first: Convert, second: Convert | None) -> Convert | None:
    return None if second is None else lambda array: second(first(array))


def _struct_of(array: pa.StructArray, parts: Sequence[Convert | None]) -> pa.StructArray:
    values = [
        value if convert is None else convert(value)
        for value, convert in zip(array.flatten(), parts, strict=True)
    ]
    pairs = zip(children(array.type), values, strict=True)
    return struct_with(array, values, [field.with_type(value.type) for field, value in pairs])


# The types of fields follow from their values, since a conversion may leave values as they are; the
# fields keep their names and their ids.


def _list_of(array: pa.ListArray, element: Convert) -> pa.ListArray:
    kind: Any = array.type
    values = element(array.flatten())
    field = kind.value_field.with_type(values.type)
    return list_with(array, lambda _: values, pa.list_(field))


def _map_of(array: pa.MapArray, keys: Convert, items: Convert) -> pa.MapArray:
    kind: Any = array.type
    first, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
    key = keys(array.keys.slice(first, end - first))
    item = items(array.items.slice(first, end - first))
    fields = kind.key_field.with_type(key.type), kind.item_field.with_type(item.type)
    return map_with(array, lambda _: key, lambda _: item, pa.map_(*fields))


def _entries_to_map(array: pa.ListArray, element: Convert, path: str) -> pa.MapArray:
    lists = list_with(array, element)
    entries: Any = lists.values
    keys, items = entries.flatten()
    if keys.null_count:
        raise SchemaError(f"column {path!r} has a map with a null as a key")
    key, item = children(entries.type)
    return pa.MapArray.from_arrays(
        lists.offsets,
        keys,
        items,
        type=pa.map_(key.with_nullable(nullable=False), item),
        mask=lists.is_null() if lists.null_count else None,
    )
