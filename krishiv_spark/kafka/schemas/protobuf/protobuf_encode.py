"""Arrow columns as encoded Protobuf records. Executor."""

from __future__ import annotations

import pyarrow as pa

from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas.encode_columns import ProgramRunner
from krishiv_spark.kafka.schemas.protobuf.protobuf_encode_kernel import encode_messages
from krishiv_spark.kafka.schemas.protobuf.protobuf_encode_program import compile_proto_encoder
from krishiv_spark.kafka.schemas.protobuf.protobuf_types import ProtoMessage

__all__ = ["ProtobufEncoder"]


class ProtobufEncoder:
    """Encodes rows of one type as one message. Fields are written by number, as Google's do.

    Args:
        message: The message.
        kind: The type of the whole value. Its nulls are rows without a value.
        header: Bytes before each record.
        path: The column of the value, for messages; empty if its fields are columns.

    Raises:
        SchemaError: If the message cannot hold the type. It names the column.
    """

    def __init__(
        self, message: ProtoMessage, kind: pa.DataType, header: bytes = b"", path: str = ""
    ) -> None:
        program = self._program = compile_proto_encoder(message, kind, header, path)
        self._runner = ProgramRunner(program, encode_messages, program.depth, self._explain)

    def encode(self, column: pa.Array) -> pa.BinaryArray:
        """Encode a column; null stays null.

        Raises:
            SchemaError: If a value is null where a record cannot say that, is no symbol of its
                enum, is beyond its type, or is one of several in a oneof. It names the column.
        """
        return self._runner.encode(column)

    def _explain(self, at: int) -> SchemaError:
        return SchemaError(
            f"column {self._program.paths[at]!r}: a row has null, and the Protobuf field cannot "
            "say that: filter such rows, fill them with coalesce(), or declare the field 'optional'"
        )
