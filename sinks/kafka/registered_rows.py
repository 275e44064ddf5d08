"""Rows as records of a schema registry: which columns, which schema, and their encoding.

The planner finds the schemas and registers them, once in its process and before a task starts.
Schemas and ids travel in the plan, so tasks need no registry. The ids are in the epoch log too: an
epoch that is visible in part is completed with them, also after newer schemas were registered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.kafka.schemas.avro.avro_derive import to_avro_name
from krishiv_spark.kafka.schemas.registered_schemas import RegisteredSchema
from krishiv_spark.kafka.schemas.registry import Part, RegistrySettings, open_registry
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions, SinkRegistry
from krishiv_spark.sinks.kafka.record_forms import FORMS, RowEncoder

__all__ = ["PlannedSchemas", "RegisteredColumns", "RegisteredRows", "check_schemas", "plan_schemas"]

_OTHERS = ("key", "headers", "topic", "partition", "timestamp")
"""Kafka's columns; without a column `value`, all others are its fields."""

PlannedSchemas = Mapping[Part, RegisteredSchema]
"""The schema of each part of a record that has one, with its id."""


@dataclass(frozen=True)
class RegisteredColumns:
    """The columns of rows that are encoded.

    Attributes:
        fields: The columns that are the fields of the value; None for a column `value`.
        kinds: The type of each part that is encoded.
        schema: The columns after the encoding.
    """

    fields: tuple[str, ...] | None
    kinds: Mapping[Part, pa.DataType]
    schema: pa.Schema

    @classmethod
    def from_schema(cls, options: KafkaSinkOptions, schema: pa.Schema) -> RegisteredColumns:
        """Return the columns of rows.

        Raises:
            SchemaError: If a column that is to be encoded is missing, or one of Kafka's columns is
                spelled in another case.
        """
        kinds: dict[Part, pa.DataType] = {}
        fields, left = None, list(schema)
        if "value" in options.registered_parts and "value" not in schema.names:
            of_value = [each for each in schema if each.name not in _OTHERS]
            if not of_value:
                raise SchemaError(
                    "there are no columns for the value: all of them are columns of a record of "
                    "Kafka. Put the fields into a STRUCT 'value'"
                )
            _check_case(of_value)
            fields, kinds["value"] = tuple(each.name for each in of_value), pa.struct(of_value)
            left = [each for each in schema if each.name in _OTHERS]
            left.append(pa.field("value", pa.binary()))
        for part in options.registered_parts:
            if part not in kinds:
                if part not in schema.names:
                    form = options.form_of(part)
                    raise SchemaError(f"'{part}Format' = {form!r} needs a column {part!r}: add it")
                kinds[part] = schema.field(part).type
        written = [pa.field(f.name, pa.binary()) if f.name in kinds else f for f in left]
        return cls(fields, kinds, pa.schema(written))

    def path(self, part: Part) -> str:
        """Return the column of a part, for messages; empty if its fields are columns."""
        return "" if part == "value" and self.fields is not None else part

    def select(self, batch: pa.RecordBatch, part: Part) -> pa.Array:
        """Return the column to encode."""
        if part != "value" or self.fields is None:
            return batch.column(part)
        columns = [batch.column(name) for name in self.fields]
        fields = [batch.schema.field(name) for name in self.fields]
        return pa.StructArray.from_arrays(columns, fields=fields)


def _check_case(of_value: Iterable[pa.Field]) -> None:
    """Refuse one of Kafka's columns in another case: as a field, no record would have it."""
    for each in of_value:
        name = each.name.lower()
        if name in {*_OTHERS, "value"}:
            raise SchemaError(
                f"column {each.name!r} would be a field of the value, and Kafka's column is "
                f"{name!r}: rename it to {name!r}, or put the fields into a STRUCT 'value'"
            )


# --- planner


def check_schemas(options: KafkaSinkOptions, schema: pa.Schema) -> None:
    """Check that rows can be written, and register nothing. Planner.

    Raises:
        SchemaError: If the form, or a given schema, cannot hold a column. It names the column.
        OptionError: If the options do not determine the subject.
    """
    _find(options, schema, may_register=False)


def plan_schemas(
    options: KafkaSinkOptions, schema: pa.Schema, known: Mapping[str, int] | None = None
) -> PlannedSchemas:
    """Return the schemas with which tasks write; register them if the options allow it. Planner.

    Args:
        options: Options of the sink.
        schema: The columns of the rows.
        known: The ids with which a part of the epoch was written; None for a new epoch.

    Raises:
        SchemaError: As for `check_schemas`; or if the registry refuses the schema.
        OptionError: If a part of the epoch was written in other forms.
    """
    if known is None or not options.registered_parts:
        return _find(options, schema, may_register=True)
    settings = options.registry
    if settings is None or known.keys() != {*options.registered_parts}:
        raise OptionError(
            "krishiv-kafka: a part of this epoch is visible, and was written with schemas for "
            f"{' and '.join(known)}: continue with 'valueFormat' and 'keyFormat' of before"
        )
    registry = open_registry(settings.registry)
    found: dict[Part, RegisteredSchema] = {
        part: registry.find(known[part]) for part in options.registered_parts
    }
    for part, each in found.items():
        _check_form(options, part, each)
    return found


def _find(
    options: KafkaSinkOptions, schema: pa.Schema, *, may_register: bool
) -> dict[Part, RegisteredSchema]:
    found: dict[Part, RegisteredSchema] = {}
    settings = options.registry
    if not options.registered_parts or settings is None:
        return found
    columns = RegisteredColumns.from_schema(options, schema)
    for part in options.registered_parts:
        if part in settings.versioned:
            subject = _name_subject(options, settings, part, "")
            found[part] = _find_version(settings.registry, subject, part)
            _check_fits(options, columns, part, found[part])
            continue
        subject, text = _make_schema(options, settings, columns, part)
        _check_fits(options, columns, part, RegisteredSchema(0, options.form_of(part), text))
        if may_register or not settings.registers:
            found[part] = _place(settings, subject, text, options.form_of(part))
    return found


def _make_schema(
    options: KafkaSinkOptions, settings: SinkRegistry, columns: RegisteredColumns, part: Part
) -> tuple[str, str]:
    """Return the subject, and the schema that is given or derived."""
    form, given = FORMS[options.form_of(part)], options.given_schema(part)
    if given is not None:
        name = form.find_name(given, settings.registry.choose_message(part))
        return _name_subject(options, settings, part, name), given
    kind = columns.kinds[part]
    name = to_avro_name(f"{options.topic}_{part}" if options.topic else part)
    subject = _name_subject(options, settings, part, name if pa.types.is_struct(kind) else "")

    def find_newest() -> RegisteredSchema | None:
        return open_registry(settings.registry).find_newest(subject)

    return subject, form.derive(kind, name, columns.path(part), find_newest)


@lru_cache(maxsize=64)
def _find_version(settings: RegistrySettings, subject: str, part: Part) -> RegisteredSchema:
    """Return a version of a subject; the newest one is that of this process's first request."""
    return open_registry(settings).find_version(subject, settings.choose(part)[1])


def _place(settings: SinkRegistry, subject: str, text: str, form: str) -> RegisteredSchema:
    registry = open_registry(settings.registry)
    if settings.registers:
        return registry.register(subject, text, form)
    try:
        return registry.look_up(subject, text, form)
    except SchemaError as error:
        why = str(error)
    raise SchemaError(
        f"{why}: register it, or set 'registry.auto.register' = 'true'; or write with a schema "
        "that the subject has, by 'registry.version'"
    )


def _name_subject(options: KafkaSinkOptions, settings: SinkRegistry, part: Part, name: str) -> str:
    """Return the subject of a schema, by the strategy of the options.

    Args:
        options: Options of the sink.
        settings: Those of the registry.
        part: Value or key.
        name: The name of the record; empty without one.

    Raises:
        OptionError: If the strategy needs a topic or a record, and there is none.
    """
    subject, _ = settings.registry.choose(part)
    if subject is not None:
        return subject
    prefix = "registry." if part == "value" else "registry.key."
    if settings.strategy != "topic" and not name:
        raise OptionError(
            f"krishiv-kafka: 'registry.subject.name.strategy' = {settings.strategy!r} needs the "
            f"name of a record: name the subject by '{prefix}subject'"
        )
    if settings.strategy != "record" and options.topic is None:
        raise OptionError(
            "krishiv-kafka: the subject is named after the topic, which is in a column: name it by "
            f"'{prefix}subject', or set 'registry.subject.name.strategy' = 'record'"
        )
    return {
        "topic": f"{options.topic}-{part}",
        "record": name,
        "topic-record": f"{options.topic}-{name}",
    }[settings.strategy]


def _check_fits(
    options: KafkaSinkOptions, columns: RegisteredColumns, part: Part, schema: RegisteredSchema
) -> None:
    """Check that a schema can hold a part of the rows."""
    _check_form(options, part, schema)
    form, message = FORMS[schema.kind], _find_message(options, part)
    form.check(schema, message, columns.kinds[part], columns.path(part))


def _check_form(options: KafkaSinkOptions, part: Part, schema: RegisteredSchema) -> None:
    if schema.kind != options.form_of(part):
        raise SchemaError(
            f"the schema {schema.id} of the registry has the form {schema.kind}, and "
            f"'{part}Format' is {options.form_of(part)!r}"
        )


def _find_message(options: KafkaSinkOptions, part: Part) -> str | None:
    """Return the name of the message of values or keys that the user has chosen."""
    return None if options.registry is None else options.registry.registry.choose_message(part)


# --- executor


class RegisteredRows:
    """An encoder of the rows of one task.

    Args:
        options: Options of the sink.
        schema: The columns of the rows.
        planned: The schemas of the plan.
    """

    def __init__(
        self, options: KafkaSinkOptions, schema: pa.Schema, planned: PlannedSchemas
    ) -> None:
        from krishiv_spark.kafka.records import warm_ahead

        forms = {part: FORMS[each.kind] for part, each in planned.items()}
        self._warmed = sorted({each.warmed for each in forms.values() if each.warmed is not None})
        warm_ahead(*self._warmed)
        columns = self._columns = RegisteredColumns.from_schema(options, schema)
        self._encoders: dict[Part, RowEncoder] = {
            part: forms[part].create_encoder(
                each, _find_message(options, part), columns.kinds[part], columns.path(part)
            )
            for part, each in planned.items()
        }

    def encode(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Encode values and keys of rows.

        Raises:
            SchemaError: If a row does not fit the schema. It names the column.
        """
        from krishiv_spark.kafka.records import await_warm

        if self._warmed:
            await_warm(*self._warmed)
        for batch in batches:
            encoded: dict[str, pa.Array] = {
                part: encoder.encode(self._columns.select(batch, part))
                for part, encoder in self._encoders.items()
            }
            columns: Sequence[pa.Array] = [
                encoded[name] if name in encoded else batch.column(name)
                for name in self._columns.schema.names
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._columns.schema)
