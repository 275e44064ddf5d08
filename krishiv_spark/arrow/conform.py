"""Batches converted to a schema: planned once for two schemas, and then applied to each batch.

Columns, and fields of structs, are found by name, ignoring case if necessary, as in Spark's
readers. A type becomes another, at any depth, only if that loses nothing. Spark's own Parquet
reader is the reference (``ParquetVectorUpdaterFactory`` of Spark 4.3): conversions that it makes
without loss are made here, and those that lose are refused. docs/formats.md describes where the two
differ.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from krishiv_spark.arrow.cast import is_uuid, localize, uuid_bytes, uuid_texts
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

__all__ = ["conform", "lacks_zone", "places", "reason", "twins", "widens"]


@dataclass(frozen=True)
class Conversions:
    """The conversions of types.

    Attributes:
        zone: Zone of times without one that become instants; None if that is an error.
    """

    zone: str | None = None

    def between(self, held: pa.DataType, wanted: pa.DataType, path: str) -> Convert | None:
        """Return the conversion from a type to another; None if they are equal.

        It raises a `SchemaError` at a value that does not fit.

        Args:
            held: The present type.
            wanted: The new type.
            path: Names from the column down with dots between them, for messages; ``element``,
                ``key`` and ``value`` inside of lists and maps.

        Raises:
            SchemaError: If the new type does not have every value (see `widens`).
        """
        if held.equals(wanted):
            return None
        if pa.types.is_dictionary(held) or isinstance(held, pa.BaseExtensionType):
            return self._unpack(held, wanted, path)
        if pa.types.is_dictionary(wanted) or isinstance(wanted, pa.BaseExtensionType):
            return self._pack(held, wanted, path)
        nested = (
            (pa.types.is_struct, self._struct),
            (is_list, self._list),
            (pa.types.is_map, self._map),
        )
        make = next((make for is_a, make in nested if is_a(held) and is_a(wanted)), self._leaf)
        return make(held, wanted, path)

    def _unpack(self, held: Any, wanted: pa.DataType, path: str) -> Convert | None:
        if pa.types.is_dictionary(held):
            values = self.between(held.value_type, wanted, path)
            return _chain(lambda array: array.dictionary_decode(), values)
        if is_uuid(held) and pa.types.is_string(wanted):
            return lambda array: uuid_texts(array.storage)
        return _chain(lambda array: array.storage, self.between(held.storage_type, wanted, path))

    def _pack(self, held: pa.DataType, wanted: Any, path: str) -> Convert | None:
        if pa.types.is_dictionary(wanted):
            encoded = _Cast(path, held, wanted)
            return _chain(self.between(held, wanted.value_type, path), encoded)
        is_bytes = pa.types.is_string(held) or pa.types.is_binary(held)
        if is_uuid(wanted) and is_bytes:
            return functools.partial(_parse_uuids, path=path, kind=wanted)
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
        element = self._element(held.value_type, wanted.value_field, f"{path}.element")
        made = functools.partial(list_with, convert=element, kind=plain)
        # Other representations of lists are cast from plain ones, whose elements fit.
        return made if wanted.equals(plain) else _chain(made, _Cast(path, held, wanted))

    def _map(self, held: Any, wanted: Any, path: str) -> Convert:
        key = self._element(held.key_type, wanted.key_field, f"{path}.key")
        item = self._element(held.item_type, wanted.item_field, f"{path}.value")
        return functools.partial(map_with, keys=key, items=item, kind=wanted)

    def _element(self, held: pa.DataType, field: pa.Field, path: str) -> Convert:
        """Return the conversion of the elements of lists, and of the keys and values of maps."""
        convert = self.between(held, field.type, path) or same
        return convert if field.nullable else functools.partial(_without_nulls, convert, path)

    def _leaf(self, held: pa.DataType, wanted: pa.DataType, path: str) -> Convert:
        if self.zone is not None and lacks_zone(held, wanted):
            instants = functools.partial(localize, zone=self.zone)
            return _Cast(path, held, wanted, instants)
        if not widens(held, wanted):
            raise SchemaError(_misfit(path, held, wanted, reason(held, wanted)))
        return _Cast(path, held, wanted)


def _parse_uuids(array: pa.Array, path: str, kind: pa.DataType) -> pa.Array:
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
    """Arrow's cast, which checks each value.

    Attributes:
        path: Of the column, for messages.
        held: The present type.
        wanted: The new type.
        before: Conversion before the cast.
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
    """The source and the conversion of one field of a struct; without a source it is null."""

    path: str
    place: int | None
    field: pa.Field
    convert: Convert | None

    def of(self, array: pa.StructArray, values: list[pa.Array]) -> pa.Array:
        if self.place is None:
            return pa.nulls(len(array), self.field.type)
        value = values[self.place]
        # The fields of a null struct are null: only further nulls are those of the field.
        if not self.field.nullable and value.null_count > array.null_count:
            raise SchemaError(_has_nulls(self.path))
        return value if self.convert is None else self.convert(value)


def _struct_of(array: pa.StructArray, parts: tuple[_Part, ...]) -> pa.StructArray:
    # Flattened fields are null where the struct is; unflattened ones have meaningless values.
    values = array.flatten()
    fields = [part.field for part in parts]
    return struct_with(array, [part.of(array, values) for part in parts], fields)


def _without_nulls(convert: Convert, path: str, array: pa.Array) -> pa.Array:
    if array.null_count:
        raise SchemaError(_has_nulls(path))
    return convert(array)


def _has_nulls(path: str) -> str:
    return f"column {path!r} has nulls, but is NOT NULL"


def conform(
    batch: pa.RecordBatch, schema: pa.Schema, *, fill: bool = False, zone: str | None = None
) -> pa.RecordBatch:
    """Convert a batch to a schema: columns by name (see `places`), and types to wider ones.

    No value overflows, is cut off or rounded. A missing field of a struct is null; a struct with
    none of the fields is not null, as in Spark 4.3.

    Args:
        batch: The rows. If they have the schema already, they are returned unchanged.
        schema: Of the result.
        fill: True if a missing column becomes nulls, where the schema allows nulls.
        zone: Zone of times without one, where the schema has instants; None if that is an error.

    Raises:
        SchemaError: If a column is missing or ambiguous, has nulls that the schema does not allow,
            or has a type or a value that does not fit.
    """
    if batch.schema.equals(schema):
        return batch
    return _fit(batch.schema, schema, (fill, zone)).of(batch)


@dataclass(frozen=True)
class _Column:
    """The source and the conversion of one column.

    Attributes:
        place: Index of the source; None for nulls.
        field: Of the result.
        convert: Conversion of its values; None if they stay unchanged.
    """

    place: int | None
    field: pa.Field
    convert: Convert | None

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        if self.place is None:
            return pa.nulls(batch.num_rows, self.field.type)
        column = batch.column(self.place)
        if not self.field.nullable and column.null_count:
            raise SchemaError(f"column {self.field.name!r} has nulls, but is NOT NULL")
        return column if self.convert is None else self.convert(column)


_Rules = tuple[bool, str | None]
"""The arguments `fill` and `zone` of `conform`."""


@dataclass(frozen=True)
class _Fit:
    """The conversion of batches of one schema to another."""

    held: pa.Schema
    wanted: pa.Schema
    rules: _Rules
    columns: tuple[_Column, ...]

    @classmethod
    def between(cls, held: pa.Schema, wanted: pa.Schema, rules: _Rules) -> _Fit:
        found = zip(wanted, places(wanted.names, held.names), strict=True)
        columns = (_column(held, place, field, rules) for field, place in found)
        return cls(held, wanted, rules, tuple(columns))

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [column.of(batch) for column in self.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.wanted)


_RECENT = 16
_recent: tuple[_Fit, ...] = ()


def _fit(held: pa.Schema, wanted: pa.Schema, rules: _Rules) -> _Fit:
    """Return the conversion between two schemas, cached: to compare them is cheaper than a hash."""
    global _recent  # noqa: PLW0603  replaced as a whole, so that threads need no lock
    for fit in _recent:
        if fit.held.equals(held) and fit.wanted.equals(wanted) and fit.rules == rules:
            return fit
    made = _Fit.between(held, wanted, rules)
    _recent = (made, *_recent[: _RECENT - 1])
    return made


def _column(held: pa.Schema, place: int | None, field: pa.Field, rules: _Rules) -> _Column:
    fill, zone = rules
    if place is not None:
        kind = held.field(place).type
        return _Column(place, field, Conversions(zone).between(kind, field.type, field.name))
    if fill and field.nullable:
        return _Column(None, field, None)
    raise SchemaError(_missing(field, held.names, fill=fill))


def _missing(field: pa.Field, names: Sequence[str], *, fill: bool) -> str:
    reason = ", and it is NOT NULL" if fill else ""
    return f"no column {field.name!r} among {', '.join(names)}{reason}"


# --- columns by name


def places(wanted: Sequence[str], held: Sequence[str], above: str = "") -> list[int | None]:
    """Return the index of the column of each name: the same name, or else one of another case.

    The session's ``spark.sql.caseSensitive`` is not known where rows are read. So case matters only
    where two names, of those to find or of those that exist, differ by nothing else.

    Args:
        wanted: The names to find.
        held: The existing names.
        above: Prefix of the names in messages, such as ``person.``.

    Returns:
        Indexes in `held`, in the order of `wanted`; None for a missing name.

    Raises:
        SchemaError: If a name exists twice, or only in several other spellings.
    """
    exact, folded = _index_by_name(held), _index_by_name(name.lower() for name in held)
    asked = _index_by_name(name.lower() for name in wanted)
    found: list[int | None] = []
    for name in wanted:
        is_exact = len(asked[name.lower()]) > 1
        near = exact.get(name) or ([] if is_exact else folded.get(name.lower(), []))
        if len(near) > 1:
            raise SchemaError(_ambiguous(above + name, [held[place] for place in near]))
        found.append(near[0] if near else None)
    return found


def twins(names: Iterable[str]) -> tuple[str, str] | None:
    """Return two names that differ only by case; None if there are none."""
    seen: dict[str, str] = {}
    for name in names:
        if name.lower() in seen:
            return seen[name.lower()], name
        seen[name.lower()] = name
    return None


def _index_by_name(names: Iterable[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        found.setdefault(name, []).append(place)
    return found


def _ambiguous(name: str, found: Sequence[str]) -> str:
    return (
        f"column {name!r} could be any of {' and '.join(map(repr, found))}: exclude it, or "
        "write the rows again with names that differ in more than case"
    )


# --- types that may be read as another


def widens(held: pa.DataType, wanted: pa.DataType) -> bool:
    """Return True if values of one type, not nested, may be read as another.

    The new type has every value, or else Arrow's cast checks each value: a finer unit of time as a
    coarser one, bytes as text, bytes as a fixed number of bytes.
    """
    if pa.types.is_null(held):
        return True
    rules = (_integer, _floating, _decimal, _time, _bytes)
    return held == wanted or any(rule(held, wanted) for rule in rules)


def _integer(held: pa.DataType, wanted: pa.DataType) -> bool:
    if not pa.types.is_integer(held):
        return False
    low, high = _range(held)
    if pa.types.is_integer(wanted):
        least, most = _range(wanted)
        return least <= low and high <= most
    if pa.types.is_decimal(wanted):
        return bool(wanted.precision - wanted.scale >= len(str(high)))
    return pa.types.is_float64(wanted) and high <= _EXACT_IN_DOUBLE


# Above it, a double does not have every whole number.
_EXACT_IN_DOUBLE = 2**53


def _range(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_unsigned_integer(kind):
        return 0, 2**kind.bit_width - 1
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1


def _floating(held: pa.DataType, wanted: pa.DataType) -> bool:
    both = pa.types.is_floating(held) and pa.types.is_floating(wanted)
    return bool(both and held.bit_width <= wanted.bit_width)


def _decimal(held: pa.DataType, wanted: pa.DataType) -> bool:
    """Return True if a decimal has as many digits before and after the point, or more."""
    if not (pa.types.is_decimal(held) and pa.types.is_decimal(wanted)):
        return False
    digits = wanted.precision - wanted.scale >= held.precision - held.scale
    return bool(wanted.scale >= held.scale and digits)


def _time(held: pa.DataType, wanted: pa.DataType) -> bool:
    """Return True for one kind of time in any unit, and for a date as midnight without a zone."""
    if pa.types.is_timestamp(wanted):
        if pa.types.is_date(held):
            return wanted.tz is None
        return pa.types.is_timestamp(held) and (held.tz is None) == (wanted.tz is None)
    same = (pa.types.is_date, pa.types.is_time, pa.types.is_duration)
    return any(is_a(held) and is_a(wanted) for is_a in same)


def _bytes(held: pa.DataType, wanted: pa.DataType) -> bool:
    if _is_text(wanted):
        return _is_text(held) or _is_binary(held)
    anything = _is_text(held) or _is_binary(held) or pa.types.is_fixed_size_binary(held)
    if pa.types.is_fixed_size_binary(wanted):
        return _is_binary(held)
    return _is_binary(wanted) and anything


def _is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(test(kind) for test in tests)


def _is_binary(kind: pa.DataType) -> bool:
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return any(test(kind) for test in tests)


def lacks_zone(held: pa.DataType, wanted: pa.DataType) -> bool:
    """Return True if a time without a zone would become an instant."""
    both = pa.types.is_timestamp(held) and pa.types.is_timestamp(wanted)
    return bool(both and held.tz is None and wanted.tz is not None)


def reason(held: pa.DataType, wanted: pa.DataType) -> str:
    """Return why one type is not read as another, and what to do."""
    what = f"not every {held} is a {wanted}"
    if pa.types.is_timestamp(held) and pa.types.is_timestamp(wanted):
        what = "a time with a zone and one without are different values"
    return f"{what}; read it with the type that it has, and cast it in the query"
