"""Events in JSON: their parsers by shape, and groups of records with one shape. Executor.

Records of one topic nearly always have one shape, so that one plan parses all of them at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.arrow.json_parsing import JsonParser
from krishiv_spark.changes.connect_schemas import is_wrapped, read_type, rewrap
from krishiv_spark.changes.connect_types import add_schema, find_contradiction, list_columns
from krishiv_spark.changes.decoded import Rows
from krishiv_spark.changes.encodings import Encoding, build_encoding
from krishiv_spark.changes.event_rows import (
    KNOWN_OPERATIONS,
    Encodings,
    convert_values,
    to_read_type,
)
from krishiv_spark.changes.options import ValueRules
from krishiv_spark.changes.shapes import Form, Shape, UnreadableRecord, examine, load_object
from krishiv_spark.errors import SchemaError

__all__ = ["JsonEvents", "JsonGroups", "JsonPlan", "list_key_values"]


@dataclass(frozen=True)
class JsonPlan:
    """The parser of one shape.

    Attributes:
        form: The form of the records.
        encodings: The encodings of the columns.
        columns: The columns of the table.
        keys: Its key columns.
        parser: Parses all records of the shape.
        decimals: Columns of decimals as numbers: Arrow would read texts as numbers, too.
    """

    form: Form
    encodings: Encodings
    columns: pa.Schema
    keys: tuple[str, ...]
    parser: JsonParser
    decimals: tuple[str, ...]

    def may_misread(self, texts: pa.Array) -> bool:
        """Return True if a record may have a text in one of `decimals`."""
        found = (pc.match_substring(texts, f'"{name}":"') for name in self.decimals)
        return any(pc.any(flags).as_py() for flags in found)

    def parse(
        self, texts: pa.Array, *, finds_unknown: bool
    ) -> tuple[pa.StructArray | None, Collection[str]]:
        """Return the parsed records and the names of unknown columns; None if one does not fit."""
        watched = "after" if self.form == "envelope" else ""
        objects, more = self.parser.parse_all(texts, watched if finds_unknown else None)
        if objects is None:
            # A field of several types cannot be inferred: without a search for other fields.
            objects, _ = self.parser.parse_all(texts)
            if objects is not None and finds_unknown:
                more = self._find_more(texts)
        if self.form == "row":  # `ExtractNewRecordState` adds some
            return objects, [name for name in more if not name.startswith("__")]
        return objects, more

    def _find_more(self, texts: pa.Array) -> frozenset[str]:
        found: set[str] = set()
        for text in texts.to_pylist():
            value = load_object(text)
            row = value.get("after") if isinstance(value.get("source"), dict) else value
            found.update(row or ())
        return frozenset(found - {*self.columns.names})

    def explain(self, text: bytes) -> str:
        """Return the fault of a bad record: a predicate without data of the record."""
        found: Any = load_object(text)
        if self.form == "envelope":
            operation = found["op"]
            if operation not in KNOWN_OPERATIONS:
                return "has an unknown operation in 'op'"
            found = found.get("before" if operation == "d" else "after")
            if not isinstance(found, dict):
                return f"has the operation {operation!r}, and no row"
        for name in self.keys:
            if found.get(name) is None:
                return f"has no value in the key column {name!r}"
        for name, encoding in self.encodings.items():
            if not _is_readable(name, encoding, found.get(name)):
                kind = self.columns.field(name).type
                return f"has a value in column {name!r} that cannot be read as {kind}"
        return "cannot be read"


def _is_readable(name: str, encoding: Encoding, value: object) -> bool:
    text = json.dumps({name: value}).encode()
    parser = JsonParser(pa.struct([(name, encoding.read)]))
    found, _ = parser.parse_all(pa.array([text], pa.binary()))
    if found is None:
        return False
    try:
        convert_values(encoding, found.field(name))
    except (pa.ArrowException, ValueError, SchemaError):
        return False
    return True


@dataclass(frozen=True)
class JsonGroups:
    """Records that were examined one by one.

    Attributes:
        shapes: The shapes, each with the indices of its records.
        wrapped: Records with a schema in another text form, by index, in the usual one.
        unreadable: Records that are no events, by index, with the reason.
        quoted: Records whose arrays have NaN beside numbers, by index, with these as texts.
    """

    shapes: list[tuple[Shape, Rows]]
    wrapped: dict[int, bytes]
    unreadable: dict[int, str]
    quoted: dict[int, bytes]


@dataclass(frozen=True)
class JsonEvents:
    """The rules for events in JSON.

    Attributes:
        columns: The columns of the table.
        keys: Its key columns.
        values: Rules for values that JSON does not determine.
        with_places: Parse the fields of positions.
    """

    columns: pa.Schema
    keys: tuple[str, ...]
    values: ValueRules
    with_places: bool = False

    def create_plan(self, shape: Shape, schema: bytes | None) -> JsonPlan:
        """Return the plan of a shape.

        Args:
            shape: The shape.
            schema: The schema that the records have; None for none.

        Raises:
            SchemaError: If a column cannot have values of this form.
        """
        described = list_columns(read_type(schema))
        if (contradiction := find_contradiction(described, self.columns)) is not None:
            raise SchemaError(contradiction)
        # A schema tells of each text whether it is a number in base64.
        rules = replace(self.values, decimals="string") if described else self.values
        encodings = {}
        for each in self.columns:
            form = shape.form_of(each.name, each.type)
            if each.name in described:
                form = add_schema(form, described[each.name])
            encodings[each.name] = build_encoding(each.type, form, each.name, rules)
        flags = {
            name: pa.bool_() for name, one in shape.flags.items() if one and one.kind == "bool"
        }
        given = (shape.form, encodings, self.keys, flags)
        read = to_read_type(*given, with_places=self.with_places)
        decimals = [name for name, one in encodings.items() if pa.types.is_decimal(one.read)]
        parser = JsonParser(read)
        return JsonPlan(shape.form, encodings, self.columns, self.keys, parser, tuple(decimals))

    def group(self, texts: pa.Array, *, are_bare: bool) -> JsonGroups:
        """Examine records one by one, and group them by shape.

        Args:
            texts: The records.
            are_bare: Whether they have had no schema, so that they may have one.
        """
        groups: list[tuple[Shape, list[int]]] = []
        wrapped: dict[int, bytes] = {}
        unreadable: dict[int, str] = {}
        quoted: dict[int, bytes] = {}
        for index, text in enumerate(texts.to_pylist()):
            try:
                found = load_object(text)
                if are_bare and is_wrapped(found):
                    wrapped[index] = rewrap(found)
                    continue
                shape = examine(found, self.columns, self.keys)
            except UnreadableRecord as error:
                unreadable[index] = str(error)
                continue
            if shape is None:
                continue
            _add_to_groups(groups, shape, index)
            row = found.get("after") if shape.form == "envelope" else found
            if mixed := self._find_mixed(row):
                quoted[index] = _quote_numbers(text, mixed)
        shapes = [(shape, np.array(members, np.int64)) for shape, members in groups]
        return JsonGroups(shapes, wrapped, unreadable, quoted)

    def _find_mixed(self, row: Any) -> list[str]:
        """Return the columns of numbers whose array has texts, too, such as NaN."""
        if not isinstance(row, dict):
            return []
        lists = (each for each in self.columns if pa.types.is_list(each.type))
        names = [each.name for each in lists if pa.types.is_floating(each.type.value_type)]
        arrays = ((name, row.get(name)) for name in names)
        return [
            name
            for name, array in arrays
            if isinstance(array, list) and any(isinstance(one, str) for one in array)
        ]


_BARE_NUMBER = re.compile(rb"(?<=[\[,])(\s*)(-?[0-9][0-9.eE+-]*)(?=\s*[,\]])")


def _quote_numbers(text: bytes, names: Collection[str]) -> bytes:
    """Return a record whose arrays of some columns have texts instead of numbers."""
    for name in names:
        array = re.compile(re.escape(json.dumps(name).encode()) + rb"\s*:\s*\[[^\[\]]*\]")
        text = array.sub(lambda found: _BARE_NUMBER.sub(rb'\1"\2"', found[0]), text)
    return text


def _add_to_groups(groups: list[tuple[Shape, list[int]]], shape: Shape, index: int) -> None:
    for number, (other, members) in enumerate(groups):
        if (both := other.merge(shape)) is not None:
            groups[number] = (both, members)
            members.append(index)
            return
    groups.append((shape, [index]))


def list_key_values(key: bytes | None) -> dict[str, bool] | None:
    """Return whether each field of a record's key has a value; None if it is no object."""
    try:
        found = load_object(key or b"")
    except UnreadableRecord:
        return None
    inner = found["payload"] if is_wrapped(found) else found
    if not isinstance(inner, dict):
        return None
    return {name: value is not None for name, value in inner.items()}
