"""Which columns a reader of Kafka yields, and how they are made of Kafka's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from krishiv_spark.arrow import conform, pruned
from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.kafka.records.columns import SCHEMA
from krishiv_spark.sources.kafka.ddl import parse_fields
from krishiv_spark.sources.kafka.options import KafkaSourceOptions
from krishiv_spark.sources.kafka.values import PLACE, RAW_COLUMN, decode_values
from krishiv_spark.suggestions import did_you_mean

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
    """

    options: KafkaSourceOptions
    schema: pa.Schema
    fields: tuple[pa.Field, ...]

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
        _check_readable(pa.struct(list(fields)))
        return cls(options, schema, tuple(field for field in fields if field.name in names))

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
        if options.bad_records == "divert" and RAW_COLUMN not in schema.names:
            raise SchemaError(
                f"option 'badRecords' = 'divert' needs a column {RAW_COLUMN} BINARY in the schema"
            )
        named = {field.name for field in _fields(options)} if options.value_schema else None
        others = {*SCHEMA.names, RAW_COLUMN}
        fields = tuple(f for f in schema if _is_field(f.name, named, others))
        _check_readable(pa.struct(list(fields)))
        return cls(options, schema, fields)

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

    def shaped(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The columns for rows of Kafka. Executor.

        Raises:
            SchemaError: If a bad value is to fail.
        """
        if not self._has_values:
            yield batch
            return
        rows = max(len(batch) * _JSON_BYTES // max(batch.nbytes, 1), 1)
        for begin in range(0, len(batch), rows):
            part = batch.slice(begin, rows)
            yield decode_values(part, self.schema, self.fields, self.options.bad_records)


def _check_readable(kind: pa.DataType) -> None:
    if pa.types.is_map(kind):
        raise SchemaError(
            f"a MAP cannot be read from JSON here ({kind}): use a STRUCT of the keys that are "
            "wanted, or read raw values and Spark's from_json"
        )
    if pa.types.is_nested(kind):
        for number in range(kind.num_fields):
            _check_readable(kind.field(number).type)


def _is_field(name: str, named: set[str] | None, others: set[str]) -> bool:
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
    kafka = [field for field in SCHEMA if field.name not in own]
    return pa.schema([*fields, pa.field(RAW_COLUMN, pa.binary()), *kafka])


def _is_usual(options: KafkaSourceOptions, field: pa.Field, fields: tuple[pa.Field, ...]) -> bool:
    if field.name == "headers":
        return options.include_headers
    if options.value_format == "raw":
        return True
    return field in fields or (field.name == RAW_COLUMN and options.bad_records == "divert")


def _check_known(schema: pa.Schema) -> None:
    there_are = f"there are {', '.join(SCHEMA.names)}"
    for name in schema.names:
        if name not in SCHEMA.names:
            raise SchemaError(
                f"the schema has a column {name!r}, which Kafka has not; "
                f"{did_you_mean(name, SCHEMA.names, there_are)}. "
                "To read fields of JSON values, set the option 'valueFormat' to 'json'"
            )
