"""Keys whose schemas are in a registry: the column `key` with the reader's type. Executor."""

from __future__ import annotations

import logging
from typing import Literal

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas.registry import Part, RegistrySettings
from krishiv_spark.sources.kafka.reader_schemas import ReaderSchema
from krishiv_spark.sources.kafka.registered_values import RegisteredValues
from krishiv_spark.sources.kafka.values import ERROR_COLUMN, RAW_KEY_COLUMN, locate

__all__ = ["KEY", "RegisteredKeys", "key_field"]

KEY: Part = "key"

_log = logging.getLogger(__name__)


def key_field(schema: ReaderSchema) -> pa.Field:
    """Return the column of the keys of a schema: a STRUCT for a record. It is always nullable."""
    fields = [each.with_nullable(nullable=True) for each in schema.fields]
    return pa.field(KEY, pa.struct(fields) if schema.is_record else fields[0].type)


class RegisteredKeys:
    """A decoder of the keys of one task.

    Args:
        settings: The registry.
        reader: The reader's schema of keys.
        kind: The type of the column.
        bad: The option ``badRecords``.
    """

    def __init__(
        self,
        settings: RegistrySettings,
        reader: ReaderSchema,
        kind: pa.DataType,
        bad: Literal["fail", "null", "divert"],
    ) -> None:
        self._is_record = reader.is_record
        if self._is_record and not pa.types.is_struct(kind):
            raise SchemaError(
                f"column 'key' is {kind} in the schema, and the keys are {reader.form} records: "
                "declare a STRUCT with their fields, or omit the option 'keyFormat'"
            )
        only = reader.fields[0].name
        fields = [*kind] if self._is_record else [pa.field(only, kind)]
        self._parser = RegisteredValues(settings, reader, fields, KEY)
        self._bad = bad

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Replace the column `key`; with ``divert``, add `_raw_key` and `_error`.

        Args:
            batch: Rows of Kafka, with `key` and the columns of their position.

        Raises:
            SchemaError: If a key is bad, and the options make that an error.
        """
        keys = batch.column(KEY)
        framed = self._parser.frame(batch)
        parsed = self._parser.parse(framed)
        if len(parsed.bad):
            self._report(batch, framed, int(parsed.bad[0]), len(parsed.bad))
        objects = parsed.objects
        columns = {name: batch.column(name) for name in batch.schema.names}
        columns[KEY] = objects if self._is_record else objects.field(0)
        if self._bad == "divert":
            columns.update(self._divert(keys, framed, parsed.bad))
        return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])

    def _divert(self, keys: pa.Array, framed: pa.Array, bad: np.ndarray) -> dict[str, pa.Array]:
        is_bad = np.zeros(len(keys), np.bool_)
        is_bad[bad] = True
        reasons = map(self._parser.explain, framed.take(pa.array(bad)).to_pylist())
        texts = pa.array(
            [f"the {self._parser.form} key {reason}" for reason in reasons], pa.string()
        )
        where = np.full(len(keys), -1)
        where[bad] = np.arange(len(bad))
        return {
            RAW_KEY_COLUMN: pc.if_else(pa.array(is_bad), keys, pa.scalar(None, pa.binary())),
            ERROR_COLUMN: texts.take(pa.array(where, mask=~is_bad)),
        }

    def _report(self, batch: pa.RecordBatch, keys: pa.Array, first: int, count: int) -> None:
        text = (
            f"{locate(batch, first)}: the {self._parser.form} key "
            f"{self._parser.explain(keys[first].as_py())}; "
            f"{count} of the {len(batch)} keys around it cannot be read"
        )
        if self._bad == "fail":
            raise SchemaError(
                f"{text}. Correct 'registry.key.subject', or set the option 'badRecords' to "
                "'null' or 'divert': such a key is then null, and 'divert' also keeps its bytes "
                "in a column _raw_key, with the reason"
            )
        _log.warning("%s", text)
