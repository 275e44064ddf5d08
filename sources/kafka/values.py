"""Decoded values of records as columns: null, bad and unknown ones. Executor.

A parser of their form (JSON, Avro) decodes values; the options about bad values are the same for
each form.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.arrow.compute import pc
from krishiv_spark.arrow.parsed_values import ParsedValues, UnknownFields
from krishiv_spark.errors import SchemaError

__all__ = [
    "ERROR_COLUMN",
    "POSITION_COLUMNS",
    "RAW_COLUMN",
    "RAW_KEY_COLUMN",
    "SOURCE_COLUMN",
    "SOURCE_PARTS",
    "UNKNOWN_COLUMN",
    "ParsedValues",
    "UnknownFields",
    "ValueDecoder",
    "ValueParser",
    "ValuePolicies",
    "locate",
]

RAW_COLUMN, ERROR_COLUMN, UNKNOWN_COLUMN = "_raw", "_error", "_unknown"
RAW_KEY_COLUMN = "_raw_key"
SOURCE_COLUMN = "_source"
SOURCE_PARTS = ("topic", "partition", "offset", "timestamp", "key")
"""Columns of Kafka that `SOURCE_COLUMN` contains."""

_log = logging.getLogger(__name__)
POSITION_COLUMNS = ("topic", "partition", "offset")
"""Columns that identify a record in messages."""
_MOST_SHOWN, _COUNTED, _LONGEST = 5, 100, 100
"""Maximum number of names of unknown fields in a message and in the counts, and of characters of
one."""


@dataclass(frozen=True)
class ValuePolicies:
    """The options about null values, bad values and unknown fields.

    Attributes:
        bad: ``badRecords``.
        null: ``nullValues``.
        unknown: ``unknownFields``.
    """

    bad: Literal["fail", "null", "divert"] = "fail"
    null: Literal["keep", "drop", "bad"] | None = None
    unknown: Literal["ignore", "count", "fail", "keep"] = "ignore"


@dataclass
class _Counts:
    """Counts of one task: values in total, bad and null ones, and unknown fields."""

    values: int = 0
    bad: int = 0
    null: int = 0
    unknown: Counter[str] = dataclasses.field(default_factory=Counter)

    def add_unknown(self, counted: Mapping[str, int]) -> None:
        """Add counts by name. Names may be data of producers, so only the most common are kept."""
        self.unknown.update(counted)
        if len(self.unknown) > 2 * _COUNTED:
            self.unknown = Counter(dict(self.unknown.most_common(_COUNTED)))


class ValueParser(Protocol):
    """A parser of values of one form, such as JSON."""

    form: str
    """The name of the form, for messages."""

    def frame(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the values of some rows of Kafka as the other methods take them."""
        ...

    def parse(self, values: pa.Array) -> ParsedValues:
        """Parse binary values; null becomes null, and is not bad."""
        ...

    def find_empty(self, values: pa.Array) -> NDArray[np.bool_]:
        """Return True for each value that has none of the fields, and is bad for that reason."""
        ...

    def explain(self, value: bytes | None) -> str:
        """Return the fault of a bad value: a predicate whose subject is the value."""
        ...

    def find_unknown(self, values: pa.Array) -> UnknownFields:
        """Return the fields of readable values that the schema does not have."""
        ...


class ValueDecoder:
    """A decoder of the values of one task.

    Args:
        schema: The columns to return.
        fields: The columns that are fields of the values.
        policies: The options about null values, bad values and unknown fields.
        parser: The parser of the form of the values.
        finds_all_unknown: True if the parser reports in `ParsedValues.may_have_more` whether values
            can have unknown fields.
    """

    def __init__(
        self,
        schema: pa.Schema,
        fields: Sequence[pa.Field],
        policies: ValuePolicies,
        parser: ValueParser,
        *,
        finds_all_unknown: bool = False,
    ) -> None:
        self._schema = schema
        self._fields = tuple(fields)
        required = (each.name for each in fields if not schema.field(each.name).nullable)
        self._required = next(required, None)
        self._policies = policies
        self._rejects_more = finds_all_unknown
        self._parser = parser
        self._counts = _Counts()

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Decode the values of some rows.

        Args:
            batch: Rows of Kafka, with `value` and `POSITION_COLUMNS`.

        Raises:
            SchemaError: If a value is bad or has an unknown field, and the options make that an
                error; or if a column that is NOT NULL would contain a null.
        """
        batch = self._handle_nulls(batch)
        values = self._parser.frame(batch)
        parsed = self._parser.parse(values)
        is_bad = self._find_bad(values, parsed.objects, parsed.bad)
        columns = {name: batch.column(name) for name in batch.schema.names}
        columns.update(self._extra_columns(batch, values, is_bad))
        objects = parsed.objects
        if is_bad.any():
            self._handle_bad(batch, values, is_bad)
            objects = pc.if_else(pa.array(~is_bad), objects, pa.scalar(None, objects.type))
        columns.update(zip((each.name for each in self._fields), objects.flatten(), strict=True))
        if self._policies.unknown != "ignore":
            more = parsed.may_have_more or not self._rejects_more
            rests = self._collect_unknown(batch, is_bad, more)
            if self._policies.unknown == "keep":
                columns[UNKNOWN_COLUMN] = rests
        self._counts.values += len(batch)
        chosen = [columns[name] for name in self._schema.names]
        return pa.RecordBatch.from_arrays(chosen, names=self._schema.names)

    def report(self) -> None:
        """Log the counts of the task in one line, if there are bad values or unknown fields."""
        found = self._counts
        if found.bad or found.unknown:
            named = ", ".join(f"{name} ({n})" for name, n in found.unknown.most_common(_MOST_SHOWN))
            _log.warning(
                "of %d values, %d were bad, and these fields unknown: %s; null values: %d",
                found.values,
                found.bad,
                named or "none",
                found.null,
                extra={"value_counts": found},
            )

    # --- null values

    def _handle_nulls(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = batch.column("value")
        if not values.null_count:
            return batch
        if self._policies.null in {None, "keep"} and self._required is not None:
            raise SchemaError(
                f"{locate(batch, pc.index(values.is_null(), True).as_py())}: the record has no "
                f"value (a tombstone), and the column {self._required!r} is NOT NULL: set the "
                "option 'nullValues' to 'drop' or 'bad'; or to 'keep', with a schema in which no "
                "field is NOT NULL"
            )
        if self._policies.null is None and not self._counts.null:
            _log.warning(
                "%s: %d of %d records have no value (tombstones) and become rows with nulls in "
                "the fields of the values; set the option 'nullValues' to 'keep' if that is "
                "intended, or to 'drop' or 'bad'. Later ones of this task are not logged",
                locate(batch, pc.index(values.is_null(), True).as_py()),
                values.null_count,
                len(batch),
            )
        self._counts.null += values.null_count
        return batch.filter(values.is_valid()) if self._policies.null == "drop" else batch

    # --- bad values

    def _find_bad(
        self, values: pa.Array, objects: pa.StructArray, unreadable: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return True for each bad value: it is unreadable, or lacks a required field."""
        is_bad = np.zeros(len(values), np.bool_)
        is_bad[unreadable] = True
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        columns = objects.flatten()
        for each, column in zip(self._fields, columns, strict=True):
            if not each.nullable and column.null_count:
                is_bad |= column.is_null().to_numpy(zero_copy_only=False) & ~is_null
        # In most batches a column has no null, so that no object lacks all fields.
        if all(column.null_count for column in columns):
            empty = ~is_null & ~is_bad
            for column in columns:
                empty &= column.is_null().to_numpy(zero_copy_only=False)
            suspects = np.flatnonzero(empty)
            if len(suspects):
                is_bad[suspects[self._parser.find_empty(values.take(pa.array(suspects)))]] = True
        return is_bad | is_null if self._policies.null == "bad" else is_bad

    def _handle_bad(
        self, batch: pa.RecordBatch, values: pa.Array, is_bad: NDArray[np.bool_]
    ) -> None:
        bad = np.flatnonzero(is_bad)
        self._counts.bad += len(bad)
        text = (
            f"{locate(batch, int(bad[0]))}: the {self._parser.form} value "
            f"{self._parser.explain(values[int(bad[0])].as_py())}; "
            f"{len(bad)} of the {len(batch)} values around it cannot be read"
        )
        if self._policies.bad == "fail":
            raise SchemaError(
                f"{text}. Correct the schema, or set the option 'badRecords' to 'null' or "
                "'divert': the fields of such values are then null, and 'divert' also keeps "
                "each value, with the reason"
            )
        if self._required is not None:
            raise SchemaError(
                f"{text}. The fields of such a value are null by the option 'badRecords', and the "
                f"column {self._required!r} is NOT NULL in the schema: declare it without that"
            )
        _log.warning("%s", text)

    def _extra_columns(
        self, batch: pa.RecordBatch, values: pa.Array, is_bad: NDArray[np.bool_]
    ) -> Iterator[tuple[str, pa.Array]]:
        """Yield the columns that describe bad values, if the schema has them."""
        names = self._schema.names
        if RAW_COLUMN in names:
            raw = batch.column("value")
            yield RAW_COLUMN, pc.if_else(pa.array(is_bad), raw, pa.scalar(None, pa.binary()))
        if ERROR_COLUMN in names:
            bad = np.flatnonzero(is_bad)
            reasons = map(self._parser.explain, values.take(pa.array(bad)).to_pylist())
            form = self._parser.form
            texts = pa.array([f"the {form} value {reason}" for reason in reasons], pa.string())
            where = np.full(len(values), -1)
            where[bad] = np.arange(len(bad))
            found = texts.take(pa.array(where, mask=~is_bad))
            of_keys = batch.schema.get_field_index(ERROR_COLUMN)
            yield ERROR_COLUMN, pc.coalesce(found, batch.column(of_keys)) if of_keys >= 0 else found

    # --- unknown fields

    def _collect_unknown(
        self, batch: pa.RecordBatch, is_bad: NDArray[np.bool_], may_have_more: bool
    ) -> pa.Array:
        """Return the unknown fields of each value as JSON, and count them.

        Raises:
            SchemaError: If there is one, and the options make that an error.
        """
        values = batch.column("value")
        readable = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False) & ~is_bad)
        if not may_have_more or not len(readable):
            return pa.nulls(len(batch), pa.string())
        found = self._parser.find_unknown(values.take(pa.array(readable)))
        counted = _most_common(found.names)
        self._counts.add_unknown(counted)
        if counted and self._policies.unknown == "fail":
            names = ", ".join(list(counted)[:_MOST_SHOWN])
            raise SchemaError(
                f"{locate(batch, int(readable[found.rows.min()]))}: the {self._parser.form} "
                f"value has fields that the schema does not have: {names}. Add "
                "them to the schema, or set the option 'unknownFields' to 'ignore', 'count' or "
                "'keep'"
            )
        where = np.full(len(values), -1)
        where[readable] = np.arange(len(readable))
        return found.rests.take(pa.array(where, mask=where < 0))


def _most_common(names: pa.Array) -> dict[str, int]:
    counts = pc.value_counts(names)
    order = np.argsort(-counts.field("counts").to_numpy(), kind="stable")[:_COUNTED]
    return {_shorten(each["values"].as_py()): each["counts"].as_py() for each in counts.take(order)}


def _shorten(name: str) -> str:
    """Return a name that a producer has chosen, shortened for a message."""
    return repr(name if len(name) <= _LONGEST else f"{name[:_LONGEST]}...")


def locate(batch: pa.RecordBatch, row: int) -> str:
    """Return the position of a row, for messages."""
    topic, partition, offset = (batch.column(name)[row] for name in POSITION_COLUMNS)
    return f"{topic}-{partition} at offset {offset}"
