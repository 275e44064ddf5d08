"""The columns that a reader of Kafka yields, and how they are made of Kafka's own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from krishiv_spark.arrow.schemas import conform, pruned
from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.kafka.records.columns import SCHEMA
from krishiv_spark.messages.suggestions import did_you_mean
from krishiv_spark.sources.kafka.ddl import parse_fields
from krishiv_spark.sources.kafka.json_types import EVERY_TIME, JsonRules, form_of
from krishiv_spark.sources.kafka.options import KafkaSourceOptions
from krishiv_spark.sources.kafka.values import (
    ERROR_COLUMN,
    PLACE,
    RAW_COLUMN,
    UNKNOWN_COLUMN,
    ValueDecoder,
    ValuePolicies,
)

__all__ = ["KafkaRowSchema"]

_JSON_BYTES = 2**20
"""About how much is parsed at once: each copy that is made on the way is as large."""


@dataclass(frozen=True)
class KafkaRowSchema:
    """The columns that are yielded.

    Attributes:
        options: Say how values are read, and what becomes of those that cannot be.
        schema: All columns; Kafka's may be of other types than Kafka's, to which they are cast.
        fields: Those of them that are fields of JSON values.
        known: All fields of JSON values that were declared, also those that are not yielded.
    """

    options: KafkaSourceOptions
    schema: pa.Schema
    fields: tuple[pa.Field, ...]
    known: tuple[pa.Field, ...] = ()

    @classmethod
    def inferred(cls, options: KafkaSourceOptions) -> KafkaRowSchema:
        """The columns where the user gave no schema.

        Raises:
            OptionError: If JSON is to be read and its fields are not given, or the option
                'columns' names one that there is not.
        """
        fields = _fields(options)
        every = _every(options, fields)
        usual = [f for f in every if _is_usual(options, f, fields)]
        names = options.columns or [field.name for field in usual]
        schema = pruned(every, names, options.format_name)
        _check_readable(options, fields)
        chosen = tuple(field for field in fields if field.name in names)
        return cls(options, schema, chosen, fields)

    @classmethod
    def given(cls, options: KafkaSourceOptions, schema: pa.Schema) -> KafkaRowSchema:
        """The columns where the user gave a schema, or where Spark gives back what was inferred.

        Raises:
            SchemaError: If it has a column that there is not, or lacks `_raw` where it is needed.
            OptionError: If the fields in the options cannot be read.
        """
        if options.value_format == "raw":
            _check_known(schema)
            return cls(options, schema, ())
        _check_has(schema, options.bad_records == "divert", "badRecords", RAW_COLUMN, "BINARY")
        _check_has(
            schema, options.unknown_fields == "keep", "unknownFields", UNKNOWN_COLUMN, "STRING"
        )
        known = _fields(options) if options.value_schema else None
        others = {*SCHEMA.names, RAW_COLUMN, *(field.name for field in _companions(options))}
        named = {field.name: field.nullable for field in known} if known is not None else None
        fields = tuple(f for f in schema if _is_field(f.name, named, others))
        if named is not None:  # what Spark gives back may be nullable for the sake of bad values
            fields = tuple(f.with_nullable(named[f.name]) for f in fields)
        _check_readable(options, fields if known is None else known)
        return cls(options, schema, fields, fields if known is None else known)

    def check(self) -> None:
        """Refuse a type that Kafka's column of that name cannot become.

        Raises:
            SchemaError: If there is one.
        """
        own = {field.name for field in self.fields}
        wanted = [f for f in self.schema if f.name in SCHEMA.names and f.name not in own]
        conform(pa.RecordBatch.from_pylist([], SCHEMA), pa.schema(wanted))

    @property
    def kafka_columns(self) -> frozenset[str]:
        """The columns of Kafka's that are needed."""
        own = {field.name for field in self.fields}
        found = {name for name in self.schema.names if name not in own} & {*SCHEMA.names}
        return frozenset(found | {"value", *PLACE} if self._has_values else found)

    @property
    def _has_values(self) -> bool:
        return self.options.value_format == "json"

    @cached_property
    def _decoder(self) -> ValueDecoder:
        policies = ValuePolicies(
            self.options.bad_records,
            self.options.null_values,
            self.options.unknown_fields,
            _rules(self.options),
        )
        return ValueDecoder(self.schema, self.fields, self.known, policies)

    def report(self) -> None:
        """Log how many values were not as expected, after the last rows of a task. Executor."""
        if self._has_values:
            self._decoder.report()

    def shaped(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the columns for rows of Kafka. Executor.

        Raises:
            SchemaError: If a value is bad or has unknown fields, and that is to fail.
        """
        if not self._has_values:
            yield batch
            return
        rows = max(len(batch) * _JSON_BYTES // max(batch.nbytes, 1), 1)
        for begin in range(0, len(batch), rows):
            part = batch.slice(begin, rows)
            yield self._decoder.decode(part)


def _rules(options: KafkaSourceOptions) -> JsonRules:
    return JsonRules(options.time_zone, options.epoch_unit or {})


def _check_readable(options: KafkaSourceOptions, fields: Sequence[pa.Field]) -> None:
    """Refuse fields that cannot be read from JSON, and units of fields that there are not.

    Raises:
        SchemaError: If a field has a type that cannot be read.
        OptionError: If ``epochUnit`` names a field that is not there, or is no time.
    """
    form_of(pa.struct(list(fields)), _rules(options))
    times = dict(_paths_of_times("", pa.struct(list(fields))))
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
            raise OptionError(f"{option}: {path!r} is a {kind}; its unit can be {wanted}")


def _paths_of_times(path: str, kind: pa.DataType) -> Iterator[tuple[str, bool]]:
    """Yield the path of each timestamp and day, and whether it is a day."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        yield path, pa.types.is_date(kind)
    elif pa.types.is_struct(kind):
        for each in kind:
            yield from _paths_of_times(f"{path}.{each.name}" if path else each.name, each.type)
    elif pa.types.is_map(kind):
        yield from _paths_of_times(path, kind.item_type)
    elif pa.types.is_list(kind):
        yield from _paths_of_times(path, kind.value_type)


def _check_has(schema: pa.Schema, is_needed: bool, option: str, name: str, kind: str) -> None:
    if is_needed and name not in schema.names:
        value = "divert" if name == RAW_COLUMN else "keep"
        raise SchemaError(
            f"option {option!r} = {value!r} needs a column {name} {kind} in the schema"
        )


def _companions(options: KafkaSourceOptions) -> list[pa.Field]:
    """Return the columns that options add beside `_raw`."""
    found = []
    if options.bad_records == "divert":
        found.append(pa.field(ERROR_COLUMN, pa.string()))
    if options.unknown_fields == "keep":
        found.append(pa.field(UNKNOWN_COLUMN, pa.string()))
    return found


def _is_field(name: str, named: Collection[str] | None, others: set[str]) -> bool:
    return name in named if named is not None else name not in others


def _fields(options: KafkaSourceOptions) -> tuple[pa.Field, ...]:
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


def _every(options: KafkaSourceOptions, fields: tuple[pa.Field, ...]) -> pa.Schema:
    if options.value_format == "raw":
        return SCHEMA
    own = {field.name for field in fields}
    if RAW_COLUMN in own or (options.unknown_fields == "keep" and UNKNOWN_COLUMN in own):
        name = RAW_COLUMN if RAW_COLUMN in own else UNKNOWN_COLUMN
        raise SchemaError(
            f"{name!r} is among the fields of the JSON values, and is a column that options add: "
            "leave it out of the schema of the values"
        )
    if options.bad_records != "fail" or options.null_values == "keep":
        fields = tuple(field.with_nullable(nullable=True) for field in fields)
    # A field of the values takes precedence, so that a name that was one stays one.
    others = [pa.field(RAW_COLUMN, pa.binary()), *_companions(options), *SCHEMA]
    return pa.schema([*fields, *(each for each in others if each.name not in own)])


def _is_usual(options: KafkaSourceOptions, field: pa.Field, fields: tuple[pa.Field, ...]) -> bool:
    if field.name == "headers":
        return options.include_headers
    if options.value_format == "raw":
        return True
    own = {*(each.name for each in fields), *(each.name for each in _companions(options))}
    return field.name in own or (field.name == RAW_COLUMN and options.bad_records == "divert")


def _check_known(schema: pa.Schema) -> None:
    there_are = f"there are {', '.join(SCHEMA.names)}"
    for name in schema.names:
        if name not in SCHEMA.names:
            raise SchemaError(
                f"the schema has a column {name!r}, which Kafka has not; "
                f"{did_you_mean(name, SCHEMA.names, there_are)}. "
                "To read fields of JSON values, set the option 'valueFormat' to 'json'"
            )
