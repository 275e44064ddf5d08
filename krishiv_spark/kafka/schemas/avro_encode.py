"""Arrow columns as encoded Avro records. Executor."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas.avro_encode_kernel import encode_records
from krishiv_spark.kafka.schemas.avro_encode_program import EncodeOp, compile_encoder
from krishiv_spark.kafka.schemas.avro_types import AvroType
from krishiv_spark.kafka.schemas.encode_columns import KernelColumns, build_records, to_flags

__all__ = ["AvroEncoder"]


class AvroEncoder:
    """Encodes rows of one type with one schema.

    Args:
        schema: The schema.
        kind: The type of the whole value. Its nulls are rows without a value.
        header: Bytes before each record.
        path: The column of the value, for messages; empty if its fields are columns.

    Raises:
        SchemaError: If the schema cannot hold the type. It names the column.
    """

    def __init__(
        self, schema: AvroType, kind: pa.DataType, header: bytes = b"", path: str = ""
    ) -> None:
        self._program = compile_encoder(schema, kind, header, path)
        self._constants = np.frombuffer(self._program.constants or b"\0", np.uint8)

    def encode(self, column: pa.Array) -> pa.BinaryArray:
        """Encode a column; null stays null.

        Raises:
            SchemaError: If a value is null where the schema does not allow it, is no symbol of its
                enum, or has another size than its fixed. It names the column.
        """
        program = self._program
        columns = KernelColumns(len(program.nodes))
        columns.add(program.root, column)
        sizes = {-1: len(column), **columns.elements}
        most = sum(sizes[of] * each for of, each in program.bytes_each.items())
        out = np.empty(max(most + columns.octet_count, 1), np.uint8)
        ends = np.zeros(len(column), np.int64)
        present = np.ones(len(column), np.uint8)
        if column.null_count:
            present = to_flags(column)
        stack = np.zeros(2 * max(program.depth, 1), np.int64)
        bad = encode_records(
            present, self._constants, program.code, *columns.join(), stack, out, ends
        )
        if bad >= 0:
            raise self._explain(bad)
        return build_records(out, ends, column)

    def _explain(self, at: int) -> SchemaError:
        path = self._program.paths[at]
        if self._program.code[4 * at] == EncodeOp.FIXED:
            size = self._program.code[4 * at + 2]
            return SchemaError(
                f"column {path!r}: a row has a value of another size than the {size} bytes of its "
                "Avro type"
            )
        return SchemaError(
            f"column {path!r}: a row has null, and the Avro schema does not allow that: filter "
            'such rows, or write ["null", ...] as the type of the field'
        )
