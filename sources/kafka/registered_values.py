"""Values of records whose schemas are in a registry: the parser of their frames, and pinning.

The *reader's schema* defines the columns. It is a version of the subject in the registry, and the
query stays with it: Spark asks for columns before it shows a position, so the position records the
version, and a restart at which the subject has a newer one stops until the user has decided.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.arrow.conform import conform
from krishiv_spark.arrow.json_types import JsonRules
from krishiv_spark.arrow.parsed_values import ParsedValues, UnknownFields
from krishiv_spark.errors import OffsetError, OptionError, SchemaError
from krishiv_spark.kafka.schemas.frames import (
    Framed,
    WireFormat,
    find_glue_version,
    join_headers,
    read_frames,
)
from krishiv_spark.kafka.schemas.registered_schemas import RegisteredSchema
from krishiv_spark.kafka.schemas.registry import (
    Part,
    RegistrySettings,
    SchemaRegistry,
    open_registry,
)
from krishiv_spark.sources.kafka.offset import ValueSchema
from krishiv_spark.sources.kafka.options import KafkaSourceOptions
from krishiv_spark.sources.kafka.reader_schemas import (
    AvroSchema,
    ProtobufSchema,
    ReaderSchema,
    RecordDecoder,
)

__all__ = ["RegisteredValues", "check_pinned", "find_schema", "make_reader_schema", "pin"]

_PREFIXES = {"value": "", "key": "key."}
_BEGINNINGS: dict[WireFormat, str] = {
    "confluent": "does not begin as a serializer of a schema registry writes it (a zero byte and "
    "the schema's id in four bytes); 'registry.wire.format' names other forms",
    "headers": "has no schema: no header names it, and the bytes do not begin with its id",
    "apicurio": "does not begin with a zero byte and the schema's id in eight bytes: compare "
    "'registry.wire.format' with the settings of the writer",
    "glue": "does not begin as a serializer of AWS Glue's schema registry writes it (a byte of 3, "
    "0 or 5 for the compression, and a UUID), or its compression is damaged",
}
"""By the form of headers: the fault of a value that does not begin with one."""
_OF_GLUE = (
    "begins as a serializer of AWS Glue's schema registry writes it (with the schema version {}): "
    "set 'registry.wire.format' = 'glue'"
)


def find_schema(options: KafkaSourceOptions, part: Part = "value") -> ReaderSchema:
    """Return the reader's schema of values or keys, which the registry has. Driver.

    Raises:
        OptionError: If the options do not determine the subject.
        SchemaError: If the registry does not have it, or it has another form.
    """
    settings, subject = _settings(options, part), _subject(options, part)
    found = open_registry(settings).find_version(subject, settings.choose(part)[1])
    form = options.form_of(part)
    if found.kind != form:
        raise SchemaError(
            f"the subject {subject!r} has a schema of the form {found.kind}, "
            f"and '{part}Format' is {form!r}"
        )
    return make_reader_schema(found, settings, part, options.rules_of(part))


def make_reader_schema(
    registered: RegisteredSchema,
    settings: RegistrySettings,
    part: Part,
    rules: JsonRules | None = None,
) -> ReaderSchema:
    """Return a schema of a registry as the reader's of values or keys.

    Args:
        registered: The schema.
        settings: The registry.
        part: The part of records.
        rules: Time zone and units of JSON; None for none.
    """
    if registered.kind == "avro":
        return AvroSchema(registered)
    if registered.kind == "protobuf":
        message = settings.key_message if part == "key" else settings.message
        return ProtobufSchema(registered, message)
    from krishiv_spark.sources.kafka.json_schemas import JsonSchema

    return JsonSchema(registered, rules=rules or JsonRules())


def _settings(options: KafkaSourceOptions, part: Part) -> RegistrySettings:
    if options.registry is None:
        raise OptionError(
            f"{options.format_name}: '{part}Format' = {options.form_of(part)!r} needs the option "
            "'registry.url', the address of the schema registry"
        )
    return options.registry


def _subject(options: KafkaSourceOptions, part: Part) -> str:
    topics = {*(options.subscribe or ()), *(tp.topic for tp in options.assign or ())}
    subject, _ = _settings(options, part).choose(part)
    if subject is not None:
        return subject
    if len(topics) != 1:
        raise OptionError(
            f"{options.format_name}: name the subject of the reader's schema by the option "
            f"'registry.{_PREFIXES[part]}subject'; only for a single topic it is '<topic>-{part}' "
            "by default"
        )
    return f"{next(iter(topics))}-{part}"


def pin(reader: ReaderSchema, options: KafkaSourceOptions, part: Part = "value") -> ValueSchema:
    """Return what a position records of the reader's schema."""
    found = reader.registered
    return ValueSchema(
        subject=_subject(options, part),
        version=found.version,
        id=found.id,
        fingerprint=found.fingerprint,
    )


def check_pinned(
    known: ValueSchema | None,
    now: ValueSchema,
    options: KafkaSourceOptions,
    part: Part = "value",
) -> None:
    """Check that a query goes on with its reader's schema, unless the user names another version.

    Raises:
        OffsetError: If the newest version is another one, or the registry has changed a version.
    """
    if known is None or known.fingerprint == now.fingerprint:
        return
    if known.subject == now.subject and known.version == now.version:
        raise OffsetError(
            f"version {now.version} of the subject {now.subject!r} is another schema than when the "
            "query began: a version never changes, so this is another registry, or one that was "
            "restored from an older copy"
        )
    if _settings(options, part).choose(part)[1] is None:
        raise OffsetError(
            f"the query reads {known.subject!r} with version {known.version} of its schema, and "
            f"the newest is version {now.version} of {now.subject!r}: set "
            f"'registry.{_PREFIXES[part]}version' = "
            f"'{known.version}' to continue with the columns of before, or "
            f"'{now.version}' to continue with the new ones"
        )


class RegisteredValues:
    """The parser of values, or keys, whose schemas are in a registry. Executor.

    Args:
        settings: The registry.
        reader: The reader's schema.
        fields: The fields to read, with the types of their columns.
        part: The part of records.
    """

    def __init__(
        self,
        settings: RegistrySettings,
        reader: ReaderSchema,
        fields: Sequence[pa.Field],
        part: Part = "value",
    ) -> None:
        self.form = reader.form
        self._registry: SchemaRegistry = open_registry(settings)
        self._reader, self._part = reader, part
        self._names = frozenset(each.name for each in fields)
        self._schema = pa.schema([each.with_nullable(nullable=True) for each in fields])
        self._wire: WireFormat = settings.wire
        self._decoders: dict[int | str, RecordDecoder | str] = {}

    def frame(self, batch: pa.RecordBatch) -> pa.Array:
        """Return values with the headers that name their schemas; see `ValueParser`."""
        values = batch.column(self._part)
        if self._wire != "headers":
            return values
        return join_headers(values, batch.column("headers"), self._part)

    def parse(self, values: pa.Array) -> ParsedValues:
        """Decode values; see `ValueParser`."""
        frames = read_frames(values, self._wire)
        parts: list[pa.Array] = []
        rows: list[NDArray[np.int64]] = []
        bad = [frames.find_invalid()]
        for schema_id in frames.find_ids():
            decoder = self._decoder(frames.guids.get(schema_id, schema_id))
            selected = frames.select(schema_id)
            if isinstance(decoder, str):
                bad.append(selected)
                continue
            found = decoder.decode(frames.data, frames.starts[selected], frames.ends[selected])
            parts.append(found.values)
            rows.append(selected)
            bad.append(selected[sorted(found.errors)])
        return ParsedValues(self._gather(parts, rows, len(values)), np.sort(np.concatenate(bad)))

    def find_empty(self, values: pa.Array) -> NDArray[np.bool_]:
        """Return False for each value: a record without any value is a valid one."""
        return np.zeros(len(values), np.bool_)

    def explain(self, value: bytes | None) -> str:
        """Return the fault of a bad value."""
        if value is None:
            return "is missing (a tombstone)"
        frames = read_frames(pa.array([value], pa.binary()), self._wire)
        if not frames.find_ids():
            version = None if self._wire == "glue" else find_glue_version(value)
            return _BEGINNINGS[self._wire] if version is None else _OF_GLUE.format(version)
        (number,) = frames.find_ids()
        decoder = self._decoder(frames.guids.get(number, number))
        if isinstance(decoder, str):
            return decoder
        return f"is not valid for its schema: {_decode_errors(decoder, frames)}"

    def find_unknown(self, values: pa.Array) -> UnknownFields:
        """Return the fields of JSON that the schema does not have; other forms have no names."""
        frames = read_frames(values, self._wire)
        number = frames.find_ids()[0]  # the values are readable, and JSON of all ids is read alike
        decoder = self._decoder(frames.guids.get(number, number))
        found: UnknownFields = decoder.find_unknown(  # type: ignore[union-attr]  # of JSON only
            frames.data, frames.starts, frames.ends
        )
        return found

    def _decoder(self, schema_id: int | str) -> RecordDecoder | str:
        """Return the decoder of a writer's schema, or why its records cannot be read."""
        found = self._decoders.get(schema_id)
        if found is None:
            try:
                writer = (
                    self._registry.find_guid(schema_id)
                    if isinstance(schema_id, str)
                    else self._registry.find(schema_id)
                )
                if writer.kind != self._reader.registered.kind:
                    raise SchemaError(f"it is of the form {writer.kind}")
                found = self._reader.make_decoder(writer, self._names)
            except SchemaError as error:
                found = f"has the schema {schema_id}: {error}"
            self._decoders[schema_id] = found
        return found

    def _gather(
        self, parts: list[pa.Array], rows: list[NDArray[np.int64]], count: int
    ) -> pa.StructArray:
        """Return the values in the order of their rows, in the types of the columns."""
        kind = pa.struct(list(self._schema))
        if not parts:
            return pa.nulls(count, kind)
        where = np.full(count, -1, np.int64)
        order = np.concatenate(rows)
        where[order] = np.arange(len(order))
        found = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        if len(order) < count or len(parts) > 1:
            found = found.take(pa.array(where, mask=where < 0))
        columns, names = [found], self._schema.names
        if self._reader.is_record:
            columns, names = found.flatten(), [each.name for each in found.type]
        batch = conform(pa.RecordBatch.from_arrays(columns, names=names), self._schema)
        return pa.StructArray.from_arrays(
            batch.columns,
            fields=list(self._schema),
            mask=found.is_null() if found.null_count else None,
        )


def _decode_errors(decoder: RecordDecoder, frames: Framed) -> str:
    errors = decoder.decode(frames.data, frames.starts, frames.ends).errors
    return next(iter(errors.values()), "a value that is required is missing")
