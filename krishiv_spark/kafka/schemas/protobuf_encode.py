"""Arrow columns as encoded Protobuf records. Executor."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas.encode_columns import KernelColumns, build_records, to_flags
from krishiv_spark.kafka.schemas.protobuf_encode_kernel import encode_messages
from krishiv_spark.kafka.schemas.protobuf_encode_program import compile_proto_encoder
from krishiv_spark.kafka.schemas.protobuf_types import ProtoMessage

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
        self._program = compile_proto_encoder(message, kind, header, path)
        self._constants = np.frombuffer(self._program.constants or b"\0", np.uint8)

    def encode(self, column: pa.Array) -> pa.BinaryArray:
        """Encode a column; null stays null.

        Raises:
            SchemaError: If a value is null where a record cannot say that, is no symbol of its
                enum, is beyond its type, or is one of several in a oneof. It names the column.
        """
        program = self._program
        columns = KernelColumns(len(program.nodes))
        columns.add(program.root, column)
        sizes = {-1: len(column), **columns.elements}
        most = sum(sizes[of] * each for of, each in program.bytes_each.items() if of in sizes)
        out = np.empty(max(most + columns.octet_count, 1), np.uint8)
        ends = np.zeros(len(column), np.int64)
        present = np.ones(len(column), np.uint8)
        if column.null_count:
            present = to_flags(column)
        stack = np.zeros(max(program.depth, 1), np.int64)
        bad = encode_messages(
            present, self._constants, program.code, *columns.join(), stack, out, ends
        )
        if bad >= 0:
            raise SchemaError(
                f"column {program.paths[bad]!r}: a row has null, and the Protobuf field cannot "
                "say that: filter such rows, fill them with coalesce(), or declare the field "
                "'optional'"
            )
        return build_records(out, ends, column)
