"""Forms of records with schemas of a registry: what the sink needs of each. Planner, executor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar, Protocol, TypeAlias

import pyarrow as pa
from typing_extensions import override

from krishiv_spark.kafka.schemas.avro.avro_derive import derive_schema
from krishiv_spark.kafka.schemas.avro.avro_encode_program import compile_encoder
from krishiv_spark.kafka.schemas.avro.avro_types import AvroType, parse_avro_schema
from krishiv_spark.kafka.schemas.registered_schemas import RegisteredSchema

__all__ = ["FORMS", "RecordForm", "RowEncoder"]

Newest: TypeAlias = Callable[[], RegisteredSchema | None]
"""A request for the newest version of the subject; None if there is no such subject."""


class RowEncoder(Protocol):
    """An encoder of rows of one type."""

    def encode(self, column: pa.Array) -> pa.BinaryArray:
        """Encode a column; null stays null."""
        ...


class RecordForm(ABC):
    """A form of records.

    Attributes:
        warmed: The kernels that its tasks need, by the names of `warm_ahead`; None for none.
    """

    warmed: ClassVar[str | None] = None

    @abstractmethod
    def derive(self, kind: pa.DataType, name: str, path: str, newest: Newest) -> str:
        """Return a schema that holds all values of a type. Planner.

        Args:
            kind: The type of the whole value.
            name: The name of the record.
            path: The column of the value; empty if its fields are columns.
            newest: Called if the schema depends on the one before.

        Raises:
            SchemaError: If the form cannot hold a type. It names the column.
        """

    @abstractmethod
    def find_name(self, text: str, message: str | None) -> str:
        """Return the name of the record that a schema describes; empty without one. Planner."""

    @abstractmethod
    def check(
        self, schema: RegisteredSchema, message: str | None, kind: pa.DataType, path: str
    ) -> None:
        """Check that a schema can hold a type, without kernels, which load slowly. Planner.

        Args:
            schema: The schema.
            message: The name of the message, which only Protobuf has; None for the first.
            kind: The type of the whole value.
            path: The column of the value; empty if its fields are columns.

        Raises:
            SchemaError: If it cannot. It names the column.
        """

    @abstractmethod
    def create_encoder(
        self, schema: RegisteredSchema, message: str | None, kind: pa.DataType, path: str
    ) -> RowEncoder:
        """Return the encoder of one task, with the arguments of `check`. Executor."""


def _write_header(schema: RegisteredSchema) -> bytes:
    """Return the bytes before each record, in Confluent's wire format."""
    return b"\0" + schema.id.to_bytes(4, "big")


class _Avro(RecordForm):
    warmed = "avro writer"

    @override
    def derive(self, kind: pa.DataType, name: str, path: str, newest: Newest) -> str:
        return derive_schema(kind, name, path)

    @override
    def find_name(self, text: str, message: str | None) -> str:
        return parse_avro_schema(text).name

    @override
    def check(
        self, schema: RegisteredSchema, message: str | None, kind: pa.DataType, path: str
    ) -> None:
        compile_encoder(_parse_avro(schema), kind, path=path)

    @override
    def create_encoder(
        self, schema: RegisteredSchema, message: str | None, kind: pa.DataType, path: str
    ) -> RowEncoder:
        from krishiv_spark.kafka.schemas.avro.avro_encode import AvroEncoder

        return AvroEncoder(_parse_avro(schema), kind, _write_header(schema), path)


@lru_cache(maxsize=64)
def _parse_avro(schema: RegisteredSchema) -> AvroType:
    return parse_avro_schema(schema.text, dict(schema.references))


class _Protobuf(RecordForm):
    warmed = "protobuf writer"

    @override
    def derive(self, kind: pa.DataType, name: str, path: str, newest: Newest) -> str:
        from krishiv_spark.kafka.schemas.protobuf.protobuf_derive import derive_proto
        from krishiv_spark.kafka.schemas.protobuf.protobuf_files import compile_proto

        known = newest()
        return derive_proto(kind, name, None if known is None else compile_proto(known), path)

    @override
    def find_name(self, text: str, message: str | None) -> str:
        return str(_find_message(RegisteredSchema(0, "protobuf", text), message).full_name)

    @override
    def check(
        self, schema: RegisteredSchema, message: str | None, kind: pa.DataType, path: str
    ) -> None:
        from krishiv_spark.kafka.schemas.protobuf.protobuf_encode_program import (
            compile_proto_encoder,
        )
        from krishiv_spark.kafka.schemas.protobuf.protobuf_types import read_message

        compile_proto_encoder(read_message(_find_message(schema, message)), kind, path=path)

    @override
    def create_encoder(
        self, schema: RegisteredSchema, message: str | None, kind: pa.DataType, path: str
    ) -> RowEncoder:
        from krishiv_spark.kafka.schemas.protobuf.protobuf_encode import ProtobufEncoder
        from krishiv_spark.kafka.schemas.protobuf.protobuf_files import encode_index
        from krishiv_spark.kafka.schemas.protobuf.protobuf_types import read_message

        found = _find_message(schema, message)
        header = _write_header(schema) + encode_index(found)
        return ProtobufEncoder(read_message(found), kind, header, path)


def _find_message(schema: RegisteredSchema, message: str | None) -> Any:
    from krishiv_spark.kafka.schemas.protobuf.protobuf_files import compile_proto, find_message

    return find_message(compile_proto(schema), message)


class _JsonSchema(RecordForm):
    @override
    def derive(self, kind: pa.DataType, name: str, path: str, newest: Newest) -> str:
        from krishiv_spark.kafka.schemas.json_schema.json_schema_encode import derive_json_schema

        return derive_json_schema(kind, name, path)

    @override
    def find_name(self, text: str, message: str | None) -> str:
        from krishiv_spark.kafka.schemas.json_schema.json_schema_types import read_title

        return read_title(text)

    @override
    def check(
        self, schema: RegisteredSchema, message: str | None, kind: pa.DataType, path: str
    ) -> None:
        from krishiv_spark.kafka.schemas.json_schema.json_schema_encode import fit_json_columns

        fit_json_columns(schema, kind, path)

    @override
    def create_encoder(
        self, schema: RegisteredSchema, message: str | None, kind: pa.DataType, path: str
    ) -> RowEncoder:
        from krishiv_spark.kafka.schemas.json_schema.json_schema_encode import JsonSchemaEncoder

        return JsonSchemaEncoder(schema, kind, _write_header(schema), path)


FORMS: Mapping[str, RecordForm] = {
    "avro": _Avro(),
    "protobuf": _Protobuf(),
    "json-schema": _JsonSchema(),
}
"""The forms by the names of options."""
