"""Arrow columns as encoded Avro records. Executor."""

from __future__ import annotations

import pyarrow as pa

from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas.avro.avro_encode_kernel import encode_records
from krishiv_spark.kafka.schemas.avro.avro_encode_program import EncodeOp, compile_encoder
from krishiv_spark.kafka.schemas.avro.avro_types import AvroType
from krishiv_spark.kafka.schemas.encode_columns import ProgramRunner

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
        program = self._program = compile_encoder(schema, kind, header, path)
        slots = 2 * program.depth
        self._runner = ProgramRunner(program, encode_records, slots, self._explain)

    def encode(self, column: pa.Array) -> pa.BinaryArray:
        """Encode a column; null stays null.

        Raises:
            SchemaError: If a value is null where the schema does not allow it, is no symbol of its
                enum, or has another size than its fixed. It names the column.
        """
        return self._runner.encode(column)

    def _explain(self, at: int) -> SchemaError:
        path = self._program.paths[at]
        if self._program.code[4 * at] == EncodeOp.NO_MEMBER:
            return SchemaError(
                f"column {path or 'value'!r}: in a row all members are null, and the Avro union "
                "does not have null: filter such rows, or add null to the union"
            )
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
