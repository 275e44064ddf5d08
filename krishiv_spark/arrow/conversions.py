"""What makes values of one type from those of another, at any depth."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from krishiv_spark.arrow.column_names import places
from krishiv_spark.arrow.nested import (
    Convert,
    children,
    is_list,
    list_with,
    map_with,
    same,
    struct_with,
)
from krishiv_spark.arrow.time_zones import localized
from krishiv_spark.arrow.uuids import is_uuid, uuid_bytes, uuid_texts
from krishiv_spark.arrow.widening import lacks_zone, reason, widens
from krishiv_spark.errors import SchemaError

__all__ = ["Conversions"]


@dataclass(frozen=True)
class Conversions:
    """How values are converted.

    Attributes:
        zone: Zone of times without one, where an instant is wanted; None if that is an error.
    """

    zone: str | None = None

    def between(self, held: pa.DataType, wanted: pa.DataType, path: str) -> Convert | None:
        """What converts values of a type; None where there is nothing to do.

        It raises a `SchemaError` at a value that does not fit.

        Args:
            held: The type that values have.
            wanted: The type that they get.
            path: Names from the column down with dots between them, for messages; ``element``,
                ``key`` and ``value`` inside of lists and maps.

        Raises:
            SchemaError: If the wanted type does not hold every value (see `widens`).
        """
        if held.equals(wanted):
            return None
        if pa.types.is_dictionary(held) or isinstance(held, pa.BaseExtensionType):
            return self._unpacked(held, wanted, path)
        if pa.types.is_dictionary(wanted) or isinstance(wanted, pa.BaseExtensionType):
            return self._packed(held, wanted, path)
        nested = (
            (pa.types.is_struct, self._struct),
            (is_list, self._list),
            (pa.types.is_map, self._map),
        )
        make = next((make for is_a, make in nested if is_a(held) and is_a(wanted)), self._leaf)
        return make(held, wanted, path)

    def _unpacked(self, held: Any, wanted: pa.DataType, path: str) -> Convert | None:
        if pa.types.is_dictionary(held):
            values = self.between(held.value_type, wanted, path)
            return _chain(lambda array: array.dictionary_decode(), values)
        if is_uuid(held) and pa.types.is_string(wanted):
            return lambda array: uuid_texts(array.storage)
        return _chain(lambda array: array.storage, self.between(held.storage_type, wanted, path))

    def _packed(self, held: pa.DataType, wanted: Any, path: str) -> Convert | None:
        if pa.types.is_dictionary(wanted):
            encoded = _Cast(path, held, wanted)
            return _chain(self.between(held, wanted.value_type, path), encoded)
        is_bytes = pa.types.is_string(held) or pa.types.is_binary(held)
        if is_uuid(wanted) and is_bytes:
            return functools.partial(_uuids_of, path=path, kind=wanted)
        stored = self.between(held, wanted.storage_type, path)
        return _chain(stored, functools.partial(pa.ExtensionArray.from_storage, wanted))

    def _struct(self, held: pa.DataType, wanted: pa.DataType, path: str) -> Convert:
        ours, theirs = children(wanted), children(held)
        names = [field.name for field in ours], [field.name for field in theirs]
        parts = []
        for field, place in zip(ours, places(*names, f"{path}."), strict=True):
            below = f"{path}.{field.name}"
            if place is None and not field.nullable:
                raise SchemaError(f"column {below!r} is missing, and it is NOT NULL")
            kind = None if place is None else theirs[place].type
            convert = None if kind is None else self.between(kind, field.type, below)
            parts.append(_Part(below, place, field, convert))
        return functools.partial(_struct_of, parts=tuple(parts))

    def _list(self, held: Any, wanted: Any, path: str) -> Convert | None:
        plain = pa.list_(wanted.value_field)
        element = self._inside(held.value_type, wanted.value_field, f"{path}.element")
        made = functools.partial(list_with, convert=element, kind=plain)
        # Lists of any other kind are made of plain ones, once their elements fit.
        return made if wanted.equals(plain) else _chain(made, _Cast(path, held, wanted))

    def _map(self, held: Any, wanted: Any, path: str) -> Convert:
        key = self._inside(held.key_type, wanted.key_field, f"{path}.key")
        item = self._inside(held.item_type, wanted.item_field, f"{path}.value")
        return functools.partial(map_with, keys=key, items=item, kind=wanted)

    def _inside(self, held: pa.DataType, field: pa.Field, path: str) -> Convert:
        """For elements, keys and values of maps."""
        convert = self.between(held, field.type, path) or same
        return convert if field.nullable else functools.partial(_without_nulls, convert, path)

    def _leaf(self, held: pa.DataType, wanted: pa.DataType, path: str) -> Convert:
        if self.zone is not None and lacks_zone(held, wanted):
            instants = functools.partial(localized, zone=self.zone)
            return _Cast(path, held, wanted, instants)
        if not widens(held, wanted):
            raise SchemaError(_misfit(path, held, wanted, reason(held, wanted)))
        return _Cast(path, held, wanted)


def _uuids_of(array: pa.Array, path: str, kind: pa.DataType) -> pa.Array:
    try:
        return pa.ExtensionArray.from_storage(kind, uuid_bytes(array))
    except ValueError as error:
        raise SchemaError(_misfit(path, array.type, "a uuid", error)) from error


def _misfit(path: str, held: pa.DataType, wanted: object, why: object) -> str:
    return f"column {path!r} of type {held} does not fit {wanted}: {why}"


def _chain(first: Convert | None, second: Convert | None) -> Convert | None:
    if first is None or second is None:
        return first or second
    return lambda array: second(first(array))


@dataclass(frozen=True)
class _Cast:
    """Arrow's cast, which looks at each value.

    Attributes:
        path: Of the column, for messages.
        held: The type that values have.
        wanted: The type that they get.
        before: What is done before the cast.
    """

    path: str
    held: pa.DataType
    wanted: pa.DataType
    before: Convert = same

    def __call__(self, array: pa.Array) -> pa.Array:
        try:
            return self.before(array).cast(self.wanted)
        except pa.ArrowException as error:
            raise SchemaError(_misfit(self.path, self.held, self.wanted, error)) from error


@dataclass(frozen=True)
class _Part:
    """How one field of a struct comes about; without a place it is one of nulls."""

    path: str
    place: int | None
    field: pa.Field
    convert: Convert | None

    def of(self, array: pa.StructArray, values: list[pa.Array]) -> pa.Array:
        if self.place is None:
            return pa.nulls(len(array), self.field.type)
        value = values[self.place]
        # Where the struct is null its fields are: a field has nulls of its own only if it has more.
        if not self.field.nullable and value.null_count > array.null_count:
            raise SchemaError(_has_nulls(self.path))
        return value if self.convert is None else self.convert(value)


def _struct_of(array: pa.StructArray, parts: tuple[_Part, ...]) -> pa.StructArray:
    # Flattened, fields are null where the struct is: what stands there else is no value.
    values = array.flatten()
    fields = [part.field for part in parts]
    return struct_with(array, [part.of(array, values) for part in parts], fields)


def _without_nulls(convert: Convert, path: str, array: pa.Array) -> pa.Array:
    if array.null_count:
        raise SchemaError(_has_nulls(path))
    return convert(array)


def _has_nulls(path: str) -> str:
    return f"column {path!r} has nulls, but is NOT NULL"
