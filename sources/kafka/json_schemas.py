"""JSON Schemas of a registry as reader's schemas, and their records as columns. Executor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.arrow.compute import pc, sort_distinct
from krishiv_spark.arrow.json_types import JsonRules, build_form
from krishiv_spark.arrow.parsed_values import UnknownFields
from krishiv_spark.kafka.schemas.buffers import DecodedRecords, sum_lengths
from krishiv_spark.kafka.schemas.json_schema.json_schema_types import parse_json_schema
from krishiv_spark.kafka.schemas.registered_schemas import RegisteredSchema
from krishiv_spark.sources.kafka.json_values import JsonValues
from krishiv_spark.sources.kafka.reader_schemas import ReaderSchema

__all__ = ["JsonSchema"]

_PREFIX, _SUFFIX = b'{"value":', b"}"
"""The bytes around a value that is no object."""


@dataclass(frozen=True)
class JsonSchema(ReaderSchema):
    """A schema of JSON.

    Attributes:
        rules: Time zone and units of times.
    """

    rules: JsonRules = field(default_factory=JsonRules)

    form = "JSON"

    @cached_property
    def _value(self) -> pa.Field:
        found = parse_json_schema(self.registered.text, self.registered.references)
        build_form(pa.struct([found]), self.rules)
        return found

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """The properties of an object, or the column `value`."""
        return tuple(self._value.type) if self.is_record else (self._value,)

    @property
    def is_record(self) -> bool:
        """True for an object with properties."""
        return bool(pa.types.is_struct(self._value.type))

    def make_decoder(self, writer: RegisteredSchema, names: Collection[str]) -> JsonRecords:
        """Return the decoder of records: JSON has names, so each writer's are read alike."""
        del writer
        fields = [each for each in self.fields if each.name in names]
        return JsonRecords(fields, self.fields, self.rules, is_record=self.is_record)


class JsonRecords:
    """A decoder of JSON records after the id of their schema.

    Args:
        fields: The fields to read.
        known: All fields of the schema.
        rules: Time zone and units of times.
        is_record: True if records are objects with these fields.
    """

    def __init__(
        self,
        fields: Collection[pa.Field],
        known: Collection[pa.Field],
        rules: JsonRules,
        *,
        is_record: bool,
    ) -> None:
        self._is_record = is_record
        self._parser = JsonValues([*fields], [*known], rules, looks_for_more=not is_record)

    def decode(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> DecodedRecords:
        """Decode records; see `RecordDecoder`."""
        values = self._to_texts(data, starts, ends)
        parsed = self._parser.parse(values)
        bad = parsed.bad
        if not self._is_record and parsed.may_have_more:
            bad = sort_distinct(np.concatenate([bad, self._parser.find_unknown(values).rows]))
        objects = parsed.objects if self._is_record else parsed.objects.field(0)
        return DecodedRecords(objects, _Reasons(bad, values, self._parser.explain))

    def find_unknown(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> UnknownFields:
        """Return the fields of readable records that the schema does not have."""
        return self._parser.find_unknown(self._to_texts(data, starts, ends))

    def _to_texts(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> pa.Array:
        """Return records as JSON objects: a value that is none is the field `value` of one."""
        from krishiv_spark.kafka.schemas.octets import copy_octets

        sizes = ends - starts
        out = np.empty(max(int(sizes.sum()), 1), np.uint8)
        copy_octets(data, np.zeros(1, np.uint8), starts, sizes, out)
        buffers = [None, sum_lengths(sizes), pa.py_buffer(out)]
        values = pa.Array.from_buffers(pa.binary(), len(starts), buffers)
        if self._is_record:
            return values
        return pc.binary_join_element_wise(_PREFIX, values, _SUFFIX, b"")


class _Reasons(Mapping[int, str]):
    """The faults of bad records by their rows, each found when it is read.

    To find the reason takes much longer than to find the bad record.
    """

    def __init__(
        self, rows: NDArray[np.int64], values: pa.Array, explain: Callable[[bytes | None], str]
    ) -> None:
        self._rows = [int(row) for row in rows]
        self._values, self._explain = values, explain

    def __getitem__(self, row: int) -> str:
        if row not in self._rows:
            raise KeyError(row)
        return f"it {self._explain(self._values[row].as_py())}"

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)
