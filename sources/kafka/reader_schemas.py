"""Reader's schemas of a registry, by their form: their columns, and decoders of records.

The *writer's schema* is named by each record, and resolved to the reader's by the rules of their
form.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas.avro.avro_types import AvroType, parse_avro_schema
from krishiv_spark.kafka.schemas.buffers import DecodedRecords
from krishiv_spark.kafka.schemas.registered_schemas import RegisteredSchema

__all__ = ["AvroSchema", "ProtobufSchema", "ReaderSchema", "RecordDecoder"]

_ONLY_FIELD = "value"
"""The column of values that are no records."""


class RecordDecoder(Protocol):
    """A decoder of the records of one writer's schema."""

    def decode(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> DecodedRecords:
        """Decode records.

        Args:
            data: The bytes of all records.
            starts: Where each record starts in them, after the id of its schema.
            ends: Where each record ends, exclusive.
        """
        ...


@dataclass(frozen=True)
class ReaderSchema(ABC):
    """The schema that defines the columns.

    Attributes:
        registered: The schema.
        message: The message of the schema, if it has several forms of records and the user has
            named one; otherwise None.
    """

    registered: RegisteredSchema
    message: str | None = None

    form: ClassVar[str]
    """The name of the form, for messages."""

    @property
    @abstractmethod
    def fields(self) -> tuple[pa.Field, ...]:
        """The columns: the fields of a record, or `value` if it is none.

        Raises:
            SchemaError: If the schema has a type that no column can hold. It names the type.
        """

    @property
    def is_record(self) -> bool:
        """True if values have fields."""
        return True

    @abstractmethod
    def make_decoder(self, writer: RegisteredSchema, names: Collection[str]) -> RecordDecoder:
        """Return the decoder of a writer's records. Executor.

        Args:
            writer: The writer's schema, which has the form of this one.
            names: The fields to read.

        Raises:
            SchemaError: If the writer's records cannot be read with this schema.
        """


@lru_cache(maxsize=64)
def _parse_avro(schema: RegisteredSchema) -> AvroType:
    return parse_avro_schema(schema.text, dict(schema.references))


class AvroSchema(ReaderSchema):
    """A schema of Avro."""

    form = "Avro"

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """The fields of a record, or the column `value`."""
        kind = _parse_avro(self.registered)
        if self.is_record:
            return tuple(kind.arrow)
        return (pa.field(_ONLY_FIELD, kind.arrow, nullable=kind.is_nullable),)

    @property
    def is_record(self) -> bool:
        """True for a record, and for a union that becomes a struct."""
        return bool(pa.types.is_struct(_parse_avro(self.registered).arrow))

    def make_decoder(self, writer: RegisteredSchema, names: Collection[str]) -> RecordDecoder:
        """Return the decoder of a pair of schemas."""
        from krishiv_spark.kafka.records import await_warm
        from krishiv_spark.kafka.schemas.avro.avro_decode import AvroDecoder

        await_warm("avro reader")
        reader = _select(_parse_avro(self.registered), names)
        return AvroDecoder(_parse_avro(writer), reader)


def _select(reader: AvroType, names: Collection[str]) -> AvroType:
    """Return the reader's schema with some of its fields: the decoder skips the others."""
    if reader.kind == "union":  # null and a record
        return replace(reader, items=tuple(_select(each, names) for each in reader.items))
    if reader.kind != "record":
        return reader
    return replace(reader, fields=tuple(each for each in reader.fields if each.name in names))


class ProtobufSchema(ReaderSchema):
    """A schema of Protobuf: a .proto file, of which one message is read."""

    form = "Protobuf"

    @cached_property
    def _descriptor(self) -> Any:
        from krishiv_spark.kafka.schemas.protobuf.protobuf_files import compile_proto, find_message

        return find_message(compile_proto(self.registered), self.message)

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """The fields of the message."""
        return self._columns

    @cached_property
    def _columns(self) -> tuple[pa.Field, ...]:
        from krishiv_spark.kafka.schemas.protobuf.protobuf_types import read_message

        message = read_message(self._descriptor)
        if not message.fields:
            raise SchemaError(f"the Protobuf message {message.name} has no field")
        return tuple(each.arrow_field for each in message.fields)

    def make_decoder(self, writer: RegisteredSchema, names: Collection[str]) -> RecordDecoder:
        """Return the decoder of a pair of files."""
        from krishiv_spark.kafka.records import await_warm
        from krishiv_spark.kafka.schemas.protobuf.protobuf_decode import ProtobufDecoder
        from krishiv_spark.kafka.schemas.protobuf.protobuf_files import compile_proto

        await_warm("protobuf reader")
        return ProtobufDecoder(compile_proto(writer), self._descriptor, names)
