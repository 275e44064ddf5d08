"""The shapes of Debezium's records: the envelope or the row alone, and the kinds of their values.

Records of one topic nearly always have one shape, so that all are parsed at once. Only records that
do not fit the last shape are examined one by one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from krishiv_spark.changes.value_forms import ValueForm, default_form, find_form, merge_forms

__all__ = [
    "DELETED",
    "OPERATION",
    "Form",
    "Shape",
    "UnreadableRecord",
    "changes_no_row",
    "describe_strange",
    "examine",
    "load_object",
]

Form: TypeAlias = Literal["envelope", "row"]
"""An envelope with the rows before and after a change, or the row alone."""

_CLOCKS = frozenset({"ts_ms", "ts_us", "ts_ns"})
"""The fields of a heartbeat."""
_OF_DDL = {"ddl", "databaseName", "source"}
_ALSO_OF_DDL = _OF_DDL | _CLOCKS | {"position", "schemaName", "tableChanges"}
_OF_TRANSACTION = {"status", "id", "event_count"}
_ALSO_OF_TRANSACTION = _CLOCKS | {"data_collections"}
"""One of them is in each boundary, and no other field: a table may have columns of these names."""

DELETED, OPERATION = "__deleted", "__op"
"""Fields that ``ExtractNewRecordState`` adds to a row."""


class UnreadableRecord(ValueError):  # noqa: N818  a reason, not an error of the program
    """A record is no change event; the message is a predicate, without data of the record."""


@dataclass(frozen=True)
class Shape:
    """The structure of some records.

    Attributes:
        form: An envelope with the rows before and after a change, or the row alone.
        values: By name of a column, the form of its values; None for a column that has had none.
        flags: Fields that `ExtractNewRecordState` adds, and the forms of their values.
    """

    form: Form
    values: Mapping[str, ValueForm | None]
    flags: Mapping[str, ValueForm | None]

    def form_of(self, name: str, kind: pa.DataType) -> ValueForm:
        """Return the form of a column's values, or the usual one."""
        return self.values.get(name) or default_form(kind)

    def merge(self, other: Shape) -> Shape | None:
        """Return the shape of the records of both; None if one parser cannot read both."""
        if self.form != other.form:
            return None
        try:
            return Shape(
                self.form, _merge(self.values, other.values), _merge(self.flags, other.flags)
            )
        except ValueError:
            return None


_Forms: TypeAlias = "Mapping[str, ValueForm | None]"


def _merge(one: _Forms, other: _Forms) -> _Forms:
    names = {**one, **other}
    return {name: merge_forms(one.get(name), other.get(name)) for name in names}


def load_object(value: bytes) -> dict[str, Any]:
    """Load a JSON object.

    Raises:
        UnreadableRecord: If the value is something else.
    """
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        if value.startswith(b"\0"):
            raise UnreadableRecord(
                "begins as a serializer of a schema registry writes it: set 'registry.url'"
            ) from None
        raise UnreadableRecord("is not valid JSON") from None
    if not isinstance(found, dict):
        raise UnreadableRecord("is not a JSON object")
    return found


def changes_no_row(names: AbstractSet[str]) -> bool:
    """Return True if fields are those of a heartbeat, or of a change of a schema."""
    return {"ts_ms"} <= names <= _CLOCKS or _OF_DDL <= names <= _ALSO_OF_DDL


def _is_boundary(found: Mapping[str, Any]) -> bool:
    """Return True if a record is a boundary of a transaction."""
    if not found.keys() >= _OF_TRANSACTION or found["status"] not in ("BEGIN", "END"):
        return False
    others = found.keys() - _OF_TRANSACTION
    return bool(others) and others <= _ALSO_OF_TRANSACTION


def describe_strange(keys: Sequence[str]) -> str:
    """Return why a record without the key columns is no event: a predicate."""
    return (
        "is neither an event of Debezium (with 'op' and 'source') nor a row with the columns "
        f"{', '.join(keys)}"
    )


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
        return Shape("envelope", _find_forms(row, columns), {})
    if changes_no_row(found.keys()) or _is_boundary(found):
        return None
    if not all(name in found for name in keys):
        raise UnreadableRecord(describe_strange(keys))
    flags = {name: find_form(found.get(name), pa.null()) for name in (DELETED, OPERATION)}
    return Shape("row", _find_forms(found, columns), flags)


def _find_forms(row: Mapping[str, Any], columns: pa.Schema) -> dict[str, ValueForm | None]:
    return {each.name: find_form(row.get(each.name), each.type) for each in columns}
