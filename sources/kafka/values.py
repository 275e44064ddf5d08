"""JSON values of records as columns, and what becomes of those that cannot be read. Executor."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.arrow.compute import pc
from krishiv_spark.errors import SchemaError
from krishiv_spark.sources.kafka.json_parsing import JsonParser, find_unknown, have_field
from krishiv_spark.sources.kafka.json_types import JsonRules
from krishiv_spark.sources.kafka.mismatches import mismatch

__all__ = [
    "ERROR_COLUMN",
    "PLACE",
    "RAW_COLUMN",
    "UNKNOWN_COLUMN",
    "ValueDecoder",
    "ValuePolicies",
]

RAW_COLUMN, ERROR_COLUMN, UNKNOWN_COLUMN = "_raw", "_error", "_unknown"

_log = logging.getLogger(__name__)
PLACE = ("topic", "partition", "offset")
"""Columns by which a value is found again."""
_SHOWN, _COUNTED, _LONGEST = 5, 100, 100
"""Most names of unknown fields in a message and in the counts, and most characters of one."""


@dataclass(frozen=True)
class ValuePolicies:
    """The options that decide about values that are not as expected.

    Attributes:
        bad: ``badRecords``.
        null: ``nullValues``.
        unknown: ``unknownFields``.
        rules: Zone and units.
    """

    bad: Literal["fail", "null", "divert"] = "fail"
    null: Literal["keep", "drop", "bad"] | None = None
    unknown: Literal["ignore", "count", "fail", "keep"] = "ignore"
    rules: JsonRules = field(default_factory=JsonRules)


@dataclass
class _Counts:
    """Values of one task that were not as expected."""

    values: int = 0
    bad: int = 0
    null: int = 0
    unknown: Counter[str] = field(default_factory=Counter)

    def add_unknown(self, counted: Mapping[str, int]) -> None:
        """Add counts by name. Names may be data of producers, so only the most common are kept."""
        self.unknown.update(counted)
        if len(self.unknown) > 2 * _COUNTED:
            self.unknown = Counter(dict(self.unknown.most_common(_COUNTED)))


class ValueDecoder:
    """Decodes the values of one task.

    Args:
        schema: Columns that are wanted.
        fields: Those of them that are fields of the values.
        known: All fields of the values that the user has declared.
        policies: The options about values that are not as expected.

    Raises:
        SchemaError: If a field has a type that cannot be read from JSON.
    """

    def __init__(
        self,
        schema: pa.Schema,
        fields: Sequence[pa.Field],
        known: Sequence[pa.Field],
        policies: ValuePolicies,
    ) -> None:
        self._schema = schema
        self._fields = tuple(fields)
        self._known = pa.struct(list(known))
        self._names = [each.name for each in known]
        required = (each.name for each in fields if not schema.field(each.name).nullable)
        self._required = next(required, None)
        self._policies = policies
        self._rejects_more = policies.unknown != "ignore" and len(self._fields) == len(self._names)
        self._parser = JsonParser(
            pa.struct(list(fields)), policies.rules, looks_for_more=self._rejects_more
        )
        self._counts = _Counts()

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Decode the values of some rows.

        Args:
            batch: Rows of Kafka, with their values and where they are (`PLACE`).

        Raises:
            SchemaError: If a value is bad or has an unknown field, and that is to fail; or if a
                column that is NOT NULL would have a null.
        """
        batch = self._without_nulls(batch)
        values = batch.column("value")
        parsed = self._parser.parse(values)
        is_bad = self._judge(values, parsed.objects, parsed.bad)
        columns = {name: batch.column(name) for name in batch.schema.names}
        columns.update(self._extra_columns(batch, is_bad))
        objects = parsed.objects
        if is_bad.any():
            self._treat(batch, is_bad)
            objects = pc.if_else(pa.array(~is_bad), objects, pa.scalar(None, objects.type))
        columns.update(zip((each.name for each in self._fields), objects.flatten(), strict=True))
        if self._policies.unknown != "ignore":
            more = parsed.may_have_more or not self._rejects_more
            rests = self._unknown(batch, is_bad, more)
            if self._policies.unknown == "keep":
                columns[UNKNOWN_COLUMN] = rests
        self._counts.values += len(batch)
        chosen = [columns[name] for name in self._schema.names]
        return pa.RecordBatch.from_arrays(chosen, names=self._schema.names)

    def report(self) -> None:
        """Log how many values of the task were not as expected, in one line."""
        found = self._counts
        if found.bad or found.unknown:
            named = ", ".join(f"{name} ({n})" for name, n in found.unknown.most_common(_SHOWN))
            _log.warning(
                "of %d values, %d were bad, and these fields unknown: %s; null values: %d",
                found.values,
                found.bad,
                named or "none",
                found.null,
                extra={"value_counts": found},
            )

    # --- null values

    def _without_nulls(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = batch.column("value")
        if not values.null_count:
            return batch
        if self._policies.null in {None, "keep"} and self._required is not None:
            raise SchemaError(
                f"{_place(batch, pc.index(values.is_null(), True).as_py())}: the record has no "
                f"value (a tombstone), and the column {self._required!r} is NOT NULL: set the "
                "option 'nullValues' to 'drop' or 'bad'; or to 'keep', with a schema in which no "
                "field is NOT NULL"
            )
        if self._policies.null is None and not self._counts.null:
            _log.warning(
                "%s: %d of %d records have no value (tombstones) and become rows with nulls in "
                "the fields of the values; set the option 'nullValues' to 'keep' if that is right, "
                "or to 'drop' or 'bad'. Later ones of this task are not logged",
                _place(batch, pc.index(values.is_null(), True).as_py()),
                values.null_count,
                len(batch),
            )
        self._counts.null += values.null_count
        return batch.filter(values.is_valid()) if self._policies.null == "drop" else batch

    # --- bad values

    def _judge(
        self, values: pa.Array, objects: pa.StructArray, unreadable: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return which values are bad: unreadable, or without a field that must be there."""
        is_bad = np.zeros(len(values), np.bool_)
        is_bad[unreadable] = True
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        columns = objects.flatten()
        for each, column in zip(self._fields, columns, strict=True):
            if not each.nullable and column.null_count:
                is_bad |= column.is_null().to_numpy(zero_copy_only=False) & ~is_null
        # Most batches have a column without a null, and so no object without all of the fields.
        if all(column.null_count for column in columns):
            empty = ~is_null & ~is_bad
            for column in columns:
                empty &= column.is_null().to_numpy(zero_copy_only=False)
            suspects = np.flatnonzero(empty)
            if len(suspects):
                texts = values.take(pa.array(suspects))
                is_bad[suspects[~have_field(texts, self._names)]] = True
        return is_bad | is_null if self._policies.null == "bad" else is_bad

    def _treat(self, batch: pa.RecordBatch, is_bad: NDArray[np.bool_]) -> None:
        bad = np.flatnonzero(is_bad)
        self._counts.bad += len(bad)
        text = (
            f"{_place(batch, int(bad[0]))}: the JSON value "
            f"{self._reason(batch.column('value')[int(bad[0])].as_py())}; "
            f"{len(bad)} of the {len(batch)} values around it cannot be read"
        )
        if self._policies.bad == "fail":
            raise SchemaError(
                f"{text}. Correct the schema, or set the option 'badRecords' to 'null' or "
                "'divert': the fields of such values are null then, and 'divert' keeps each value "
                "beside them, with the reason"
            )
        if self._required is not None:
            raise SchemaError(
                f"{text}. The fields of such a value are null by the option 'badRecords', and the "
                f"column {self._required!r} is NOT NULL in the schema: declare it without that"
            )
        _log.warning("%s", text)

    def _extra_columns(
        self, batch: pa.RecordBatch, is_bad: NDArray[np.bool_]
    ) -> Iterator[tuple[str, pa.Array]]:
        """Yield the columns that only a bad value has, where they are wanted."""
        values, names = batch.column("value"), self._schema.names
        if RAW_COLUMN in names:
            yield RAW_COLUMN, pc.if_else(pa.array(is_bad), values, pa.scalar(None, pa.binary()))
        if ERROR_COLUMN in names:
            bad = np.flatnonzero(is_bad)
            reasons = map(self._reason, values.take(pa.array(bad)).to_pylist())
            texts = pa.array([f"the JSON value {reason}" for reason in reasons], pa.string())
            where = np.full(len(values), -1)
            where[bad] = np.arange(len(bad))
            yield ERROR_COLUMN, texts.take(pa.array(where, mask=~is_bad))

    def _reason(self, value: bytes | None) -> str:
        return mismatch(value, self._fields, self._names, self._reads)

    def _reads(self, value: bytes, fields: Sequence[pa.Field], above: str) -> bool:
        """Return True if some fields of an object can be read; `above` is the object's path."""
        parser = JsonParser(pa.struct(list(fields)), self._policies.rules, above)
        return not len(parser.parse(pa.array([value], pa.binary())).bad)

    # --- unknown fields

    def _unknown(
        self, batch: pa.RecordBatch, is_bad: NDArray[np.bool_], may_have_more: bool
    ) -> pa.Array:
        """Return the unknown fields of each value as JSON, and count them.

        Raises:
            SchemaError: If there is one and that is to fail.
        """
        values = batch.column("value")
        readable = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False) & ~is_bad)
        if not may_have_more or not len(readable):
            return pa.nulls(len(batch), pa.string())
        found = find_unknown(values.take(pa.array(readable)), self._known)
        counted = _most_common(found.names)
        self._counts.add_unknown(counted)
        if counted and self._policies.unknown == "fail":
            raise SchemaError(
                f"{_place(batch, int(readable[found.rows.min()]))}: the JSON value has fields that "
                f"the schema does not have: {', '.join(list(counted)[:_SHOWN])}. Add them to the "
                "schema, or set the option 'unknownFields' to 'ignore', 'count' or 'keep'"
            )
        where = np.full(len(values), -1)
        where[readable] = np.arange(len(readable))
        return found.rests.take(pa.array(where, mask=where < 0))


def _most_common(names: pa.Array) -> dict[str, int]:
    counts = pc.value_counts(names)
    order = np.argsort(-counts.field("counts").to_numpy(), kind="stable")[:_COUNTED]
    return {_shown(each["values"].as_py()): each["counts"].as_py() for each in counts.take(order)}


def _shown(name: str) -> str:
    """A name that a producer has chosen, for a message."""
    return repr(name if len(name) <= _LONGEST else f"{name[:_LONGEST]}...")


def _place(batch: pa.RecordBatch, row: int) -> str:
    topic, partition, offset = (batch.column(name)[row] for name in PLACE)
    return f"{topic}-{partition} at offset {offset}"
