"""The shapes of Debezium's records: the envelope or the row alone, and the kinds of their values.

Records of one topic nearly always have one shape, so that all are parsed at once. Only records that
do not fit the last shape are examined one by one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from krishiv_spark.changes.encodings import JsonKind, default_kind, find_kind

__all__ = ["Shape", "UnreadableRecord", "examine", "load_object"]

Form: TypeAlias = Literal["envelope", "row"]

_CLOCKS = frozenset({"ts_ms", "ts_us", "ts_ns"})
"""The fields of a heartbeat."""
_OF_DDL = {"ddl", "databaseName"}
_OF_TRANSACTION = {"status", "id", "event_count"}

DELETED, OPERATION = "__deleted", "__op"
"""Fields that ``ExtractNewRecordState`` adds to a row."""


class UnreadableRecord(ValueError):  # noqa: N818  a reason, not an error of the program
    """A record is no change event; the message is a predicate, without data of the record."""


@dataclass(frozen=True)
class Shape:
    """The structure of some records.

    Attributes:
        form: An envelope with the rows before and after a change, or the row alone.
        kinds: By name of a column, the kind of its values and of their elements; None for a column
            that has had no value.
        flags: Fields that `ExtractNewRecordState` adds, and the kinds of their values.
    """

    form: Form
    kinds: Mapping[str, tuple[JsonKind, JsonKind | None] | None]
    flags: Mapping[str, JsonKind]

    def kind_of(self, name: str, kind: pa.DataType) -> tuple[JsonKind, JsonKind | None]:
        """Return the kind of a column's values and of their elements, or the usual ones."""
        return self.kinds.get(name) or (default_kind(kind), None)

    def merge(self, other: Shape) -> Shape | None:
        """Return the shape of the records of both; None if one parser cannot read both."""
        if self.form != other.form:
            return None
        if any(self.flags.get(name, kind) != kind for name, kind in other.flags.items()):
            return None
        kinds = dict(self.kinds)
        for name, found in other.kinds.items():
            mine = kinds.get(name)
            if mine is not None and found is not None and not _fit(mine, found):
                return None
            if mine is None or (found is not None and mine[1] is None):
                kinds[name] = found
        return Shape(self.form, kinds, {**self.flags, **other.flags})


def _fit(one: tuple[JsonKind, JsonKind | None], other: tuple[JsonKind, JsonKind | None]) -> bool:
    return one[0] == other[0] and (None in {one[1], other[1]} or one[1] == other[1])


def load_object(value: bytes) -> dict[str, Any]:
    """Load a JSON object.

    Raises:
        UnreadableRecord: If the value is something else.
    """
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        raise UnreadableRecord("is not valid JSON") from None
    if not isinstance(found, dict):
        raise UnreadableRecord("is not a JSON object")
    return found


def examine(found: Mapping[str, Any], columns: pa.Schema, keys: Sequence[str]) -> Shape | None:
    """Return the shape of one record.

    Args:
        found: The record.
        columns: The columns of the table.
        keys: Its key columns.

    Returns:
        None for a record that changes no row: a heartbeat, a boundary of a transaction, a change of
        a schema.

    Raises:
        UnreadableRecord: If the record is no change event.
    """
    operation = found.get("op")
    if isinstance(operation, str) and isinstance(found.get("source"), Mapping):
        before, after = (found.get(name) or {} for name in ("before", "after"))
        if not isinstance(before, Mapping) or not isinstance(after, Mapping):
            raise UnreadableRecord("has a field 'before' or 'after' that is not an object")
        # A delete has its key in 'before' only; other values there may be null for unknown ones.
        row = {**{name: before.get(name) for name in keys}, **after}
        return Shape("envelope", _find_kinds(row, columns), {})
    if {"ts_ms"} <= found.keys() <= _CLOCKS or (found.keys() >= _OF_DDL and "source" in found):
        return None
    if found.keys() >= _OF_TRANSACTION and found["status"] in ("BEGIN", "END"):
        return None
    if not all(name in found for name in keys):
        raise UnreadableRecord(
            "is neither an event of Debezium (with 'op' and 'source') nor a row with the columns "
            f"{', '.join(keys)}"
        )
    flags: dict[str, JsonKind] = {}
    for name in (DELETED, OPERATION):
        if (kind := find_kind(found.get(name))) is not None:
            flags[name] = kind
    return Shape("row", _find_kinds(found, columns), flags)


def _find_kinds(
    row: Mapping[str, Any], columns: pa.Schema
) -> dict[str, tuple[JsonKind, JsonKind | None] | None]:
    found: dict[str, tuple[JsonKind, JsonKind | None] | None] = {}
    for name in columns.names:
        value = row.get(name)
        kind = find_kind(value)
        element: JsonKind | None = None
        if isinstance(value, list):
            element = next((find_kind(one) for one in value if one is not None), None)
        found[name] = None if kind is None else (kind, element)
    return found
