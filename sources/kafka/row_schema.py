"""The columns of a Kafka reader, from its options or a schema."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from krishiv_spark.arrow.column_text import parse_fields
from krishiv_spark.arrow.conform import conform
from krishiv_spark.arrow.json_types import EVERY_TIME, build_form
from krishiv_spark.arrow.schemas import select_columns
from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.kafka.records.scanner import SCHEMA
from krishiv_spark.messages.suggestions import did_you_mean
from krishiv_spark.sources.kafka.json_values import JsonValues
from krishiv_spark.sources.kafka.options import KafkaSourceOptions
from krishiv_spark.sources.kafka.values import (
    ERROR_COLUMN,
    POSITION_COLUMNS,
    RAW_COLUMN,
    RAW_KEY_COLUMN,
    SOURCE_COLUMN,
    SOURCE_PARTS,
    UNKNOWN_COLUMN,
    ValueDecoder,
    ValuePolicies,
)

if TYPE_CHECKING:
    from krishiv_spark.sources.kafka.reader_schemas import ReaderSchema
    from krishiv_spark.sources.kafka.registered_keys import RegisteredKeys

__all__ = ["KafkaRowSchema"]

_SOURCE = pa.field(SOURCE_COLUMN, pa.struct([SCHEMA.field(name) for name in SOURCE_PARTS]))

_JSON_BYTES = 2**20
"""Approximate number of bytes that are parsed at once: the parser makes several copies of them."""


@dataclass(frozen=True)
class KafkaRowSchema:
    """The columns of a reader.

    Attributes:
        options: They specify how values are decoded, and the action for bad values.
        schema: All columns. Kafka's columns may have other types, to which they are cast.
        fields: The columns that are fields of JSON values.
        known: All declared fields of JSON values, including fields that are not read.
        value_schema: The reader's schema of values in a registry.
        key_schema: The reader's schema of keys in a registry.
    """

    options: KafkaSourceOptions
    schema: pa.Schema
    fields: tuple[pa.Field, ...]
    known: tuple[pa.Field, ...] = ()
    value_schema: ReaderSchema | None = None
    key_schema: ReaderSchema | None = None

    @classmethod
    def from_options(
        cls,
        options: KafkaSourceOptions,
        value_schema: ReaderSchema | None = None,
        key_schema: ReaderSchema | None = None,
    ) -> KafkaRowSchema:
        """Return the columns for a read without a schema.

        Args:
            options: The options of the source.
            value_schema: The reader's schema of values in a registry.
            key_schema: The reader's schema of keys in a registry.

        Raises:
            OptionError: If the fields of JSON values are not given, or the option 'columns' names
                a column that does not exist.
        """
        fields = _value_fields(options, value_schema)
        every = _all_columns(options, fields, key_schema)
        usual = [f for f in every if _is_default(options, f, fields)]
        names = options.columns or [field.name for field in usual]
        schema = select_columns(every, names, options.format_name)
        _check_readable(options, fields)
        chosen = tuple(field for field in fields if field.name in names)
        return cls(options, schema, chosen, fields, value_schema, key_schema)

    @classmethod
    def from_schema(
        cls,
        options: KafkaSourceOptions,
        schema: pa.Schema,
        value_schema: ReaderSchema | None = None,
        key_schema: ReaderSchema | None = None,
    ) -> KafkaRowSchema:
        """Return the columns for a schema: the user's, or the inferred one that Spark returns.

        Args:
            options: The options of the source.
            schema: All columns.
            value_schema: The reader's schema of values in a registry.
            key_schema: The reader's schema of keys in a registry.

        Raises:
            SchemaError: If it has a column that does not exist, or lacks `_raw` although the
                options need it.
            OptionError: If the fields in the options cannot be read.
        """
        _check_has_column(
            schema,
            options.bad_records == "divert" and options.key_format != "raw",
            "badRecords",
            RAW_KEY_COLUMN,
            "BINARY",
        )
        if options.value_format == "raw":
            _check_kafka_columns(schema, [each.name for each in _added_columns(options)])
            return cls(options, schema, (), key_schema=key_schema)
        _check_has_column(
            schema, options.bad_records == "divert", "badRecords", RAW_COLUMN, "BINARY"
        )
        _check_has_column(
            schema, options.unknown_fields == "keep", "unknownFields", UNKNOWN_COLUMN, "STRING"
        )
        has_declared = options.value_schema is not None or value_schema is not None
        known = _value_fields(options, value_schema) if has_declared else None
        others = {*SCHEMA.names, RAW_COLUMN, *(field.name for field in _added_columns(options))}
        # Values may have a field of this name, which has another type.
        if options.bad_records == "divert" and _SOURCE in list(schema):
            others.add(SOURCE_COLUMN)
        named = {field.name: field.nullable for field in known} if known is not None else None
        fields = tuple(f for f in schema if _is_field(f.name, named, others))
        if named is not None:  # Spark may return them as nullable, because of bad values
            fields = tuple(f.with_nullable(named[f.name]) for f in fields)
        _check_readable(options, fields if known is None else known)
        every = fields if known is None else known
        return cls(options, schema, fields, every, value_schema, key_schema)

    def check(self) -> None:
        """Check that Kafka's columns can be cast to the types of the schema.

        Raises:
            SchemaError: If one cannot.
        """
        own = {field.name for field in self.fields}
        if self.key_schema is not None:
            own.add("key")
        wanted = [f for f in self.schema if f.name in SCHEMA.names and f.name not in own]
        conform(pa.RecordBatch.from_pylist([], SCHEMA), pa.schema(wanted))

    @property
    def kafka_columns(self) -> frozenset[str]:
        """The columns of Kafka to decode."""
        own = {field.name for field in self.fields}
        found = {name for name in self.schema.names if name not in own} & {*SCHEMA.names}
        if self._reads_keys:
            found |= {"key", *POSITION_COLUMNS}
        if self._has_source:
            found |= {*SOURCE_PARTS}
        if self._reads_headers:
            found.add("headers")
        return frozenset(found | {"value", *POSITION_COLUMNS} if self._has_form else found)

    @property
    def _has_source(self) -> bool:
        is_field = any(field.name == SOURCE_COLUMN for field in self.fields)
        return SOURCE_COLUMN in self.schema.names and not is_field

    @property
    def _reads_headers(self) -> bool:
        registry = self.options.registry
        return registry is not None and registry.wire == "headers"

    @property
    def _has_form(self) -> bool:
        return self.options.value_format != "raw"

    @property
    def _reads_keys(self) -> bool:
        names = {"key", *(each.name for each in _added_columns(self.options))}
        return self.key_schema is not None and not names.isdisjoint(self.schema.names)

    @cached_property
    def _keys(self) -> RegisteredKeys | None:
        if self.key_schema is None or self.options.registry is None or not self._reads_keys:
            return None
        from krishiv_spark.sources.kafka.registered_keys import RegisteredKeys, key_field

        at = self.schema.get_field_index("key")
        kind = self.schema.field(at).type if at >= 0 else key_field(self.key_schema).type
        return RegisteredKeys(
            self.options.registry, self.key_schema, kind, self.options.bad_records
        )

    @cached_property
    def _decoder(self) -> ValueDecoder:
        options = self.options
        policies = ValuePolicies(options.bad_records, options.null_values, options.unknown_fields)
        if self.value_schema is not None and options.registry is not None:
            from krishiv_spark.sources.kafka.registered_values import RegisteredValues

            values = RegisteredValues(options.registry, self.value_schema, self.fields)
            return ValueDecoder(self.schema, self.fields, policies, values)
        finds_all = policies.unknown != "ignore" and len(self.fields) == len(self.known)
        rules = options.rules_of("value")
        parser = JsonValues(self.fields, self.known, rules, looks_for_more=finds_all)
        return ValueDecoder(self.schema, self.fields, policies, parser, finds_all_unknown=finds_all)

    def report(self) -> None:
        """Log the counts of bad and unknown values, after the last rows of a task. Executor."""
        if self._has_form:
            self._decoder.report()

    def convert(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Convert rows of Kafka to the columns. Executor.

        Raises:
            SchemaError: If a value is bad or has unknown fields, or a key is bad, and the options
                make that an error.
        """
        keys = self._keys
        if keys is None and not self._has_form:
            yield batch
            return
        rows = max(len(batch) * _JSON_BYTES // max(batch.nbytes, 1), 1)
        for begin in range(0, len(batch), rows):
            part = batch.slice(begin, rows)
            if self._has_source:  # with the bytes of the key
                parts = [part.column(name) for name in SOURCE_PARTS]
                source = pa.StructArray.from_arrays(parts, fields=list(_SOURCE.type))
                part = part.append_column(_SOURCE, source)
            if keys is not None:
                part = keys.decode(part)
            yield self._decoder.decode(part) if self._has_form else part.select(self.schema.names)


def _check_readable(options: KafkaSourceOptions, fields: Sequence[pa.Field]) -> None:
    """Refuse fields that cannot be read from JSON, and units of fields that do not exist.

    Raises:
        SchemaError: If a field has a type that cannot be read.
        OptionError: If ``epochUnit`` names a field that does not exist or has no time.
    """
    if options.value_format not in {"json", "json-schema"}:
        return
    build_form(pa.struct(list(fields)), options.rules_of("value"))
    times = dict(_iter_times("", pa.struct(list(fields))))
    for path, unit in (options.epoch_unit or {}).items():
        if path == EVERY_TIME:
            continue
        option = f"{options.format_name}: option 'epochUnit'"
        if path not in times:
            there_are = f"the fields with a time are {', '.join(times) or 'none'}"
            raise OptionError(f"{option} names {path!r}; {did_you_mean(path, times, there_are)}")
        if times[path] != (unit == "d"):
            wanted = "'d'" if times[path] else "one of 's', 'ms', 'us' and 'ns'"
            kind = "DATE" if times[path] else "time"
            raise OptionError(f"{option}: {path!r} is a {kind}; its unit must be {wanted}")


def _iter_times(path: str, kind: pa.DataType) -> Iterator[tuple[str, bool]]:
    """Yield the path of each timestamp and DATE, and True if it is a DATE."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        yield path, pa.types.is_date(kind)
    elif pa.types.is_struct(kind):
        for each in kind:
            yield from _iter_times(f"{path}.{each.name}" if path else each.name, each.type)
    elif pa.types.is_map(kind):
        yield from _iter_times(path, kind.item_type)
    elif pa.types.is_list(kind):
        yield from _iter_times(path, kind.value_type)


def _check_has_column(
    schema: pa.Schema, is_needed: bool, option: str, name: str, kind: str
) -> None:
    if is_needed and name not in schema.names:
        value = "keep" if name == UNKNOWN_COLUMN else "divert"
        raise SchemaError(
            f"option {option!r} = {value!r} needs a column {name} {kind} in the schema"
        )


def _added_columns(options: KafkaSourceOptions) -> list[pa.Field]:
    """Return the columns that options add besides `_raw`."""
    found = []
    if options.bad_records == "divert":
        found.append(pa.field(ERROR_COLUMN, pa.string()))
        if options.key_format != "raw":
            found.append(pa.field(RAW_KEY_COLUMN, pa.binary()))
    if options.unknown_fields == "keep":
        found.append(pa.field(UNKNOWN_COLUMN, pa.string()))
    return found


def _is_field(name: str, named: Collection[str] | None, others: set[str]) -> bool:
    return name in named if named is not None else name not in others


def _value_fields(
    options: KafkaSourceOptions, value_schema: ReaderSchema | None
) -> tuple[pa.Field, ...]:
    if value_schema is not None:
        return value_schema.fields
    if options.value_format == "raw":
        return ()
    if options.value_schema is None:
        raise OptionError(
            f"{options.format_name}: the fields of the JSON values must be given, with "
            ".schema(...) or the option 'valueSchema', such as 'id BIGINT, name STRING'"
        )
    try:
        return parse_fields(options.value_schema)
    except ValueError as error:
        raise OptionError(f"{options.format_name}: option 'valueSchema': {error}") from None


def _all_columns(
    options: KafkaSourceOptions,
    fields: tuple[pa.Field, ...],
    key_schema: ReaderSchema | None,
) -> pa.Schema:
    kafka = _kafka_columns(key_schema)
    if options.value_format == "raw":
        return pa.schema([*kafka, *_added_columns(options)])
    own = {field.name for field in fields}
    if key_schema is not None and "key" in own:
        raise SchemaError(
            "'key' is among the fields of the values, and is the column of the keys: omit the "
            "option 'keyFormat'"
        )
    if RAW_COLUMN in own or (options.unknown_fields == "keep" and UNKNOWN_COLUMN in own):
        name = RAW_COLUMN if RAW_COLUMN in own else UNKNOWN_COLUMN
        raise SchemaError(
            f"{name!r} is among the fields of the values, and is a column that options "
            "add: remove it from the schema of the values"
        )
    if options.bad_records != "fail" or options.null_values == "keep":
        fields = tuple(field.with_nullable(nullable=True) for field in fields)
    # Fields of the values take precedence, so that a column name keeps its meaning.
    source = [_SOURCE] if options.bad_records == "divert" else []
    others = [pa.field(RAW_COLUMN, pa.binary()), *_added_columns(options), *source, *kafka]
    return pa.schema([*fields, *(each for each in others if each.name not in own)])


def _kafka_columns(key_schema: ReaderSchema | None) -> list[pa.Field]:
    if key_schema is None:
        return [*SCHEMA]
    from krishiv_spark.sources.kafka.registered_keys import key_field

    return [key_field(key_schema) if each.name == "key" else each for each in SCHEMA]


def _is_default(options: KafkaSourceOptions, field: pa.Field, fields: tuple[pa.Field, ...]) -> bool:
    if field.name == "headers":
        return options.include_headers
    if options.value_format == "raw":
        return True
    own = {*(each.name for each in fields), *(each.name for each in _added_columns(options))}
    if options.key_format != "raw":
        own.add("key")
    return field.name in own or (field.name == RAW_COLUMN and options.bad_records == "divert")


def _check_kafka_columns(schema: pa.Schema, added: Collection[str]) -> None:
    there_are = f"there are {', '.join(SCHEMA.names)}"
    for name in schema.names:
        if name not in SCHEMA.names and name not in added:
            raise SchemaError(
                f"the schema has a column {name!r}, which Kafka does not have; "
                f"{did_you_mean(name, SCHEMA.names, there_are)}. To read fields of JSON values, "
                "set the option 'valueFormat' to 'json'"
            )
