"""JSON values of records as columns: null, bad and unknown ones, and reasons for them. Executor.

A reason contains no data of the value.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.arrow.compute import pc
from krishiv_spark.errors import SchemaError
from krishiv_spark.sources.kafka.json_parsing import JsonParser, find_unknown, have_field
from krishiv_spark.sources.kafka.json_types import JsonRules

__all__ = [
    "ERROR_COLUMN",
    "POSITION_COLUMNS",
    "RAW_COLUMN",
    "UNKNOWN_COLUMN",
    "ValueDecoder",
    "ValuePolicies",
    "explain_mismatch",
]

RAW_COLUMN, ERROR_COLUMN, UNKNOWN_COLUMN = "_raw", "_error", "_unknown"

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
        rules: Time zone and units.
    """

    bad: Literal["fail", "null", "divert"] = "fail"
    null: Literal["keep", "drop", "bad"] | None = None
    unknown: Literal["ignore", "count", "fail", "keep"] = "ignore"
    rules: JsonRules = dataclasses.field(default_factory=JsonRules)


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


class ValueDecoder:
    """A decoder of the values of one task.

    Args:
        schema: The columns to return.
        fields: The columns that are fields of the values.
        known: All declared fields of the values.
        policies: The options about null values, bad values and unknown fields.

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
            batch: Rows of Kafka, with `value` and `POSITION_COLUMNS`.

        Raises:
            SchemaError: If a value is bad or has an unknown field, and the options make that an
                error; or if a column that is NOT NULL would contain a null.
        """
        batch = self._handle_nulls(batch)
        values = batch.column("value")
        parsed = self._parser.parse(values)
        is_bad = self._find_bad(values, parsed.objects, parsed.bad)
        columns = {name: batch.column(name) for name in batch.schema.names}
        columns.update(self._extra_columns(batch, is_bad))
        objects = parsed.objects
        if is_bad.any():
            self._handle_bad(batch, is_bad)
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
                f"{_locate(batch, pc.index(values.is_null(), True).as_py())}: the record has no "
                f"value (a tombstone), and the column {self._required!r} is NOT NULL: set the "
                "option 'nullValues' to 'drop' or 'bad'; or to 'keep', with a schema in which no "
                "field is NOT NULL"
            )
        if self._policies.null is None and not self._counts.null:
            _log.warning(
                "%s: %d of %d records have no value (tombstones) and become rows with nulls in "
                "the fields of the values; set the option 'nullValues' to 'keep' if that is "
                "intended, or to 'drop' or 'bad'. Later ones of this task are not logged",
                _locate(batch, pc.index(values.is_null(), True).as_py()),
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
                texts = values.take(pa.array(suspects))
                is_bad[suspects[~have_field(texts, self._names)]] = True
        return is_bad | is_null if self._policies.null == "bad" else is_bad

    def _handle_bad(self, batch: pa.RecordBatch, is_bad: NDArray[np.bool_]) -> None:
        bad = np.flatnonzero(is_bad)
        self._counts.bad += len(bad)
        text = (
            f"{_locate(batch, int(bad[0]))}: the JSON value "
            f"{self._explain(batch.column('value')[int(bad[0])].as_py())}; "
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
        self, batch: pa.RecordBatch, is_bad: NDArray[np.bool_]
    ) -> Iterator[tuple[str, pa.Array]]:
        """Yield the columns that describe bad values, if the schema has them."""
        values, names = batch.column("value"), self._schema.names
        if RAW_COLUMN in names:
            yield RAW_COLUMN, pc.if_else(pa.array(is_bad), values, pa.scalar(None, pa.binary()))
        if ERROR_COLUMN in names:
            bad = np.flatnonzero(is_bad)
            reasons = map(self._explain, values.take(pa.array(bad)).to_pylist())
            texts = pa.array([f"the JSON value {reason}" for reason in reasons], pa.string())
            where = np.full(len(values), -1)
            where[bad] = np.arange(len(bad))
            yield ERROR_COLUMN, texts.take(pa.array(where, mask=~is_bad))

    def _explain(self, value: bytes | None) -> str:
        return explain_mismatch(value, self._fields, self._names, self._can_read)

    def _can_read(self, value: bytes, fields: Sequence[pa.Field], above: str) -> bool:
        """Return True if fields of an object can be read. `above` is the path of the object."""
        parser = JsonParser(pa.struct(list(fields)), self._policies.rules, above)
        return not len(parser.parse(pa.array([value], pa.binary())).bad)

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
        found = find_unknown(values.take(pa.array(readable)), self._known)
        counted = _most_common(found.names)
        self._counts.add_unknown(counted)
        if counted and self._policies.unknown == "fail":
            raise SchemaError(
                f"{_locate(batch, int(readable[found.rows.min()]))}: the JSON value has fields "
                f"that the schema does not have: {', '.join(list(counted)[:_MOST_SHOWN])}. Add "
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


def _locate(batch: pa.RecordBatch, row: int) -> str:
    topic, partition, offset = (batch.column(name)[row] for name in POSITION_COLUMNS)
    return f"{topic}-{partition} at offset {offset}"


_KINDS = {dict: "an object", list: "an array", str: "a string", bool: "true or false"}
_NUMBERS = {int: "a whole number", float: "a number with a fraction or an exponent"}
_MOST_NAMES = 5
"""Maximum number of field names in a message."""

Reads: TypeAlias = "Callable[[bytes, Sequence[pa.Field], str], bool]"
"""A function that returns True if fields of an object with some path can be read."""


class _BadValueError(Exception):
    """A value is not a JSON object; the message is the reason."""


def explain_mismatch(
    value: bytes | None, fields: Sequence[pa.Field], known: Sequence[str], reads: Reads
) -> str:
    """Return the fault of a bad value: the field, its value's kind and the expected type.

    The text is a predicate whose subject is the value, such as "is missing".

    Args:
        value: A bad value.
        fields: The fields that are read.
        known: The names of all fields of the schema, including fields that are not read.
        reads: A function that tries to read fields.
    """
    try:
        found = _load_object(value)
    except _BadValueError as error:
        return str(error)
    for field in _find_suspects(found, fields, reads):
        if (
            text := _explain_field(found.get(field.name), field, "", field.name, reads)
        ) is not None:
            return text
    if not found.keys() & {*known}:
        return _explain_no_field(found, known)
    return "is interpreted differently by Arrow"


def _find_suspects(
    found: Mapping[str, Any], fields: Sequence[pa.Field], reads: Reads
) -> Iterator[pa.Field]:
    """Yield the first field that cannot be read, and the fields before it without a value.

    A binary search finds it, since one attempt takes as long as reading many fields.
    """
    missing = [field for field in fields if not field.nullable and found.get(field.name) is None]
    others = [field for field in fields if field not in missing]
    while len(others) > 1:
        half = others[: len(others) // 2]
        text = json.dumps({field.name: found.get(field.name) for field in half}).encode()
        others = others[len(half) :] if reads(text, half, "") else half
    yield from (field for field in fields if field in missing or field in others)


def _load_object(value: bytes | None) -> dict[str, Any]:
    if value is None:
        raise _BadValueError("is missing (a tombstone)")
    try:
        found = json.loads(
            value.decode(), object_pairs_hook=_refuse_duplicates, parse_float=_parse_finite
        )
    except UnicodeDecodeError as error:
        raise _BadValueError(f"is not valid UTF-8 from byte {error.start} on") from None
    except json.JSONDecodeError as error:
        raise _BadValueError(f"is not valid JSON: {error.msg}, at character {error.pos}") from None
    except RecursionError:
        raise _BadValueError("is nested too deeply") from None
    except ValueError:  # Python limits the number of digits of an integer
        raise _BadValueError("has a number with too many digits") from None
    if not isinstance(found, dict):
        raise _BadValueError(f"is {_describe_kind(found)} instead of an object")
    return found


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _BadValueError("has a field twice in an object")
    return found


def _parse_finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise _BadValueError("has a number that is too large for a DOUBLE")
    return number


def _explain_no_field(found: dict[str, Any], known: Sequence[str]) -> str:
    folded = {name.lower() for name in found}
    near = next((name for name in known if name.lower() in folded), None)
    if near is not None:
        return f"has none of the schema's fields, but {near!r} in another case"
    if found.keys() == {"schema", "payload"}:
        return (
            "has none of the schema's fields, but 'schema' and 'payload', as Kafka Connect "
            "writes with 'schemas.enable': turn that off, or declare payload as a STRUCT of "
            "the fields"
        )
    more = ", ..." if len(known) > _MOST_NAMES else ""
    return f"has none of the schema's fields ({', '.join(known[:_MOST_NAMES])}{more})"


def _explain_field(value: Any, field: pa.Field, above: str, path: str, reads: Reads) -> str | None:
    """Return the fault of a field or of a part of it; None if it can be read.

    Args:
        value: The value of the field.
        field: Its name and type.
        above: The path of the object that contains it, without numbers of elements.
        path: The path of the field, for the message.
        reads: A function that tries to read fields.
    """
    if value is None and not field.nullable:
        return f"has no value in field {path!r}, which is NOT NULL"
    if reads(json.dumps({field.name: value}).encode(), [field], above):
        return None
    inside = f"{above}.{field.name}" if above else field.name
    parts: list[tuple[Any, pa.Field, str, str]] = []
    if pa.types.is_struct(field.type) and isinstance(value, dict):
        parts = [(value.get(one.name), one, inside, f"{path}.{one.name}") for one in field.type]
    elif pa.types.is_list(field.type) and isinstance(value, list):
        item = field.type.value_field.with_name(field.name)
        parts = [(one, item, above, f"{path}[{number}]") for number, one in enumerate(value)]
    elif pa.types.is_map(field.type) and isinstance(value, dict):
        item = field.type.item_field.with_name(field.name)
        parts = [(one, item, above, f"{path}[...]") for one in value.values()]
    for part in parts:
        if (text := _explain_field(*part, reads)) is not None:
            return text
    text = (
        f"has {_describe_kind(value)} in field {path!r}, which cannot be read as "
        f"{_describe_type(field.type)}"
    )
    return f"{text}{_add_hint(value, field.type)}"


def _add_hint(value: Any, kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind) and type(value) in _NUMBERS:
        return " (the option 'epochUnit' declares the unit of such numbers)"
    if pa.types.is_timestamp(kind) and kind.tz is not None and isinstance(value, str):
        return " (the option 'timeZone' is the zone of texts without one)"
    return ""


def _describe_kind(value: Any) -> str:
    return "null" if value is None else {**_KINDS, **_NUMBERS}[type(value)]


def _describe_type(kind: pa.DataType) -> str:
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(kind, prefer_timestamp_ntz=True).simpleString().upper()
