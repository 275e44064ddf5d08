"""Events in Avro whose schemas are in a registry: one plan for each schema. Executor.

A record is read with the schema with which it was written, so that it has every column that the
database had at that time. The schema contains Connect's types, with scales and units.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import (
    children,
    list_with,
    map_with,
    pc,
    same,
    sort_distinct,
    struct_with,
)
from krishiv_spark.changes.avro_connect import parse_stored_types, read_connect_type
from krishiv_spark.changes.connect_schemas import Unwrapped
from krishiv_spark.changes.connect_types import (
    ConnectType,
    find_contradiction,
    find_form,
    list_columns,
    to_form,
)
from krishiv_spark.changes.decimal_forms import from_decimal_texts
from krishiv_spark.changes.decoded import Rows
from krishiv_spark.changes.encodings import build_encoding
from krishiv_spark.changes.event_rows import (
    KNOWN_OPERATIONS,
    Encodings,
    convert_values,
    to_read_type,
)
from krishiv_spark.changes.options import ValueRules
from krishiv_spark.changes.shapes import Form
from krishiv_spark.changes.value_forms import ValueForm, default_form
from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.records import await_warm
from krishiv_spark.kafka.schemas.avro.avro_decode import AvroDecoder
from krishiv_spark.kafka.schemas.avro.avro_types import AvroType
from krishiv_spark.kafka.schemas.frames import read_frames
from krishiv_spark.kafka.schemas.registry import RegistrySettings, open_registry

__all__ = ["AvroEvents", "AvroPlan"]


@dataclass(frozen=True)
class AvroPlan:
    """The decoder of one schema.

    Attributes:
        form: The form of the records.
        encodings: The encodings of the columns.
        columns: The columns of the table.
        keys: Its key columns.
        read: The type of parsed records.
        decoder: Decodes the records.
        unknown: Columns of the records that the table does not have.
    """

    form: Form
    encodings: Encodings
    columns: pa.Schema
    keys: tuple[str, ...]
    read: pa.StructType
    decoder: AvroDecoder
    unknown: Collection[str]

    def parse(
        self, texts: pa.Array, *, finds_unknown: bool
    ) -> tuple[pa.StructArray | None, Collection[str]]:
        """Return the parsed records and the names of unknown columns; None if one does not fit."""
        del finds_unknown  # the schema names them
        frames = read_frames(texts)
        found = self.decoder.decode(frames.data, frames.starts, frames.ends)
        if found.errors:
            return None, ()
        try:
            return _fit_values(found.values, self.read), self.unknown
        except pa.ArrowException:
            return None, ()

    def explain(self, text: bytes) -> str:
        """Return the fault of a bad record: a predicate without data of the record."""
        frames = read_frames(pa.array([text], pa.binary()))
        found = self.decoder.decode(frames.data, frames.starts, frames.ends)
        if found.errors:
            return f"is not valid for its schema: {next(iter(found.errors.values()))}"
        row, fields = found.values, self.read
        if self.form == "envelope":
            operation = row.field("op")[0].as_py()
            if operation not in KNOWN_OPERATIONS:
                return "has an unknown operation in 'op'"
            name = "before" if operation == "d" else "after"
            names = [each.name for each in row.type]
            row, fields = row.field(name) if name in names else None, fields.field(name).type
            if row is None or row.null_count:
                return f"has the operation {operation!r}, and no row"
        return self._explain_row(row, fields)

    def _explain_row(self, row: pa.StructArray, fields: pa.StructType) -> str:
        given = {each.name: values for each, values in zip(row.type, row.flatten(), strict=True)}
        for name in self.keys:
            if name not in given or given[name].null_count:
                return f"has no value in the key column {name!r}"
        for each in fields:
            if each.name not in given or each.name not in self.encodings:
                continue
            try:
                convert_values(self.encodings[each.name], _fit_values(given[each.name], each.type))
            except (pa.ArrowException, ValueError, SchemaError):
                kind = self.columns.field(each.name).type
                return f"has a value in column {each.name!r} that cannot be read as {kind}"
        return "cannot be read"


class AvroEvents:
    """The plans of the schemas of a registry.

    Args:
        columns: The columns of the table.
        keys: Its key columns.
        values: Rules for values that a schema does not determine.
        settings: The registry.
        with_places: Parse the fields of positions.
    """

    def __init__(
        self,
        columns: pa.Schema,
        keys: Sequence[str],
        values: ValueRules,
        settings: RegistrySettings,
        *,
        with_places: bool = False,
    ) -> None:
        self._columns, self._keys = columns, tuple(keys)
        self._values, self._with_places = values, with_places
        self._registry = open_registry(settings)
        self._types: dict[int, ConnectType] = {}
        self._plans: dict[int, AvroPlan | None] = {}

    def plan(self, schema_id: int) -> AvroPlan | None:
        """Return the plan of a schema; None if its records change no row.

        Raises:
            SchemaError: If the registry does not have it, or its records are no events.
            KrishivError: If the registry does not answer.
        """
        if schema_id not in self._plans:
            self._plans[schema_id] = self._create_plan(schema_id)
        return self._plans[schema_id]

    def split(self, values: pa.Array, rows: Rows) -> Iterator[Unwrapped]:
        """Yield values by the schemas that they name; last those that name none.

        Args:
            values: Binary values without nulls.
            rows: Their numbers.
        """
        is_framed = np.asarray(pc.starts_with(values, b"\0"))
        framed = np.flatnonzero(is_framed)
        ids = read_frames(values.take(pa.array(framed))).ids if len(framed) else framed
        for schema_id in sort_distinct(ids):
            own = framed[ids == schema_id]
            yield Unwrapped(int(schema_id), values.take(pa.array(own)), rows[own])
        others = np.flatnonzero(~is_framed)
        yield Unwrapped(None, values.take(pa.array(others)), rows[others])

    def read_key(self, key: bytes) -> dict[str, bool] | None:
        """Return the fields of the schema of a record's key; None if it has none.

        Raises:
            KrishivError: If the registry does not answer.
        """
        (schema_id,) = read_frames(pa.array([key], pa.binary())).ids
        try:
            found = self.find_type(int(schema_id)).get("fields", ())
        except SchemaError:
            return None
        # A key column with null is found when the key is decoded.
        return {each["field"]: True for each in found}

    def find_type(self, schema_id: int) -> ConnectType:
        """Return the type of Connect that a schema was made of.

        Raises:
            SchemaError, KrishivError: As `plan`.
        """
        if schema_id < 0:
            raise SchemaError("begins with a zero byte, and not with the id of a schema")
        if schema_id not in self._types:
            found = self._registry.find(schema_id)
            if found.kind != "avro":
                raise SchemaError(
                    f"has the schema {schema_id}, which is {found.kind}: events are read in Avro "
                    "and in JSON"
                )
            self._types[schema_id] = read_connect_type(found)
        return self._types[schema_id]

    def _create_plan(self, schema_id: int) -> AvroPlan | None:
        of = self.find_type(schema_id)
        form = find_form(of, self._keys)
        if form is None:
            return None
        described = list_columns(of)
        if (contradiction := find_contradiction(described, self._columns)) is not None:
            raise SchemaError(contradiction)
        encodings = {
            each.name: build_encoding(each.type, form_of, each.name, self._rules)
            for each, form_of in self._iter_forms(described)
        }
        flags = {
            name: pa.bool_() for name, each in described.items() if each.get("type") == "boolean"
        }
        given = (form, encodings, self._keys, flags)
        read = to_read_type(*given, with_places=self._with_places)
        unknown = described.keys() - {*self._columns.names}
        if form == "row":  # `ExtractNewRecordState` adds some
            unknown = {name for name in unknown if not name.startswith("__")}
        await_warm("avro reader")
        writer = parse_stored_types(self._registry.find(schema_id))
        decoder = AvroDecoder(writer, _select_fields(writer, read))
        return AvroPlan(form, encodings, self._columns, self._keys, read, decoder, unknown)

    @property
    def _rules(self) -> ValueRules:
        # A schema tells of each decimal whether it is a text.
        return replace(self._values, decimals="string")

    def _iter_forms(
        self, described: Mapping[str, ConnectType]
    ) -> Iterator[tuple[pa.Field, ValueForm]]:
        for each in self._columns:
            if each.name not in described:
                yield each, default_form(each.type)
                continue
            form = to_form(described[each.name])
            self._check_unit(each, form)
            yield each, form

    def _check_unit(self, column: pa.Field, form: ValueForm) -> None:
        """Refuse a number whose unit neither the schema nor an option contains.

        Raises:
            SchemaError: If it is one.
        """
        kind = column.type
        if pa.types.is_list(kind):
            kind, form = kind.value_type, form.element or form
        is_time = pa.types.is_timestamp(kind) or pa.types.is_time(kind)
        units = self._values.units
        if (
            is_time
            and form.kind == "number"
            and form.unit is None
            and not {column.name, ""} & {*units}
        ):
            raise SchemaError(
                f"has no unit for the numbers of column {column.name!r} in its schema: name it "
                f'with \'timeUnits\', as {{"{column.name}": "us"}}'
            )


def _select_fields(of: AvroType, read: pa.DataType) -> AvroType:
    """Return a type with the fields that are read: the decoder skips the others."""
    if of.kind == "union":
        return replace(of, items=tuple(_select_fields(each, read) for each in of.items))
    if of.kind != "record" or not pa.types.is_struct(read):
        return of
    wanted = {each.name: each.type for each in children(read)}
    fields = tuple(
        replace(each, type=_select_fields(each.type, wanted[each.name]))
        for each in of.fields
        if each.name in wanted
    )
    return replace(of, fields=fields)


def _fit_values(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert decoded values to the type that an encoding reads; fields are found by name.

    Raises:
        pyarrow.ArrowException: If a value does not fit.
    """
    if values.type.equals(kind):
        return values
    if pa.types.is_struct(kind) and pa.types.is_struct(values.type):
        # The parts of a null have values, such as zeros, which `flatten` makes nulls.
        given = dict(zip((each.name for each in values.type), values.flatten(), strict=True))
        parts = [
            _fit_values(given[each.name], each.type)
            if each.name in given
            else pa.nulls(len(values), each.type)
            for each in kind
        ]
        return struct_with(values, parts, list(kind))
    if pa.types.is_list(kind) and pa.types.is_list(values.type):
        return list_with(values, lambda inner: _fit_values(inner, kind.value_type))
    if pa.types.is_map(kind) and pa.types.is_map(values.type):
        return map_with(values, same, lambda inner: _fit_values(inner, kind.item_type))
    if pa.types.is_floating(values.type):
        if pa.types.is_integer(kind):
            raise pa.ArrowInvalid("a number with a fraction")
        if pa.types.is_decimal(kind):
            return from_decimal_texts(values.cast(pa.string()), kind)
    return values.cast(kind)
