"""JSON objects into structs of Arrow, and which of them cannot be read. Executor."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import json as arrow_json

from krishiv_spark.arrow.compute import pc
from krishiv_spark.arrow.tiny_numbers import has_tiny_decimal
from krishiv_spark.sources.kafka.json_structure import JsonStructure, Members, pairs_of_maps
from krishiv_spark.sources.kafka.json_types import (
    JsonRules,
    cast_if_other,
    form_of,
    has_decimal,
    has_map,
)

__all__ = ["JsonParser", "ParsedValues", "UnknownFields", "find_unknown", "have_field"]

_INFINITE = re.compile(rb"Inf\s*[,}\]]")
_STRING = r'(?s)"(?:[^"\\]|\\.)*"'

Unexpected: TypeAlias = Literal["ignore", "error"]


@dataclass(frozen=True)
class ParsedValues:
    """Values of some rows.

    Attributes:
        objects: The objects; null for a null value, and for one that cannot be read.
        bad: The positions of values that cannot be read, in order.
        may_have_more: True if a value may have a field that is not wanted. Known only to a parser
            that `looks_for_more`.
    """

    objects: pa.StructArray
    bad: NDArray[np.int64]
    may_have_more: bool = False


@dataclass(frozen=True)
class UnknownFields:
    """Fields of values that are not wanted.

    Attributes:
        rows: The row of each field.
        names: The path of each, as ``order.remark``.
        rests: For each row a JSON object of the fields, and null for a row without one. A wanted
            field that has an unknown one in it is there as a whole.
    """

    rows: NDArray[np.int64]
    names: pa.Array
    rests: pa.Array


class JsonParser:
    """A parser of JSON objects with some fields.

    Args:
        kind: The fields that are wanted. One that an object lacks is null.
        rules: Zone and units.
        above: Path of the object that has the fields, for the units.
        looks_for_more: Find out whether values have other fields. Otherwise they are ignored.

    Raises:
        SchemaError: If a field has a type that cannot be read from JSON.
    """

    def __init__(
        self,
        kind: pa.StructType,
        rules: JsonRules | None = None,
        above: str = "",
        *,
        looks_for_more: bool = False,
    ) -> None:
        nullable = [each.with_nullable(nullable=True) for each in kind]
        self.kind: pa.StructType = pa.struct(nullable)
        self._form = form_of(self.kind, rules or JsonRules(), above)
        self._has_map = has_map(self.kind)
        self._has_decimal = has_decimal(self._form.read)
        self._looks_for_more = looks_for_more

    def parse(self, values: pa.Array) -> ParsedValues:
        """Parse values.

        Args:
            values: Binary; null is no object and not bad.
        """
        texts = pc.fill_null(values, b"{}")
        parts: list[pa.Array] = []
        bad: list[int] = []
        more = False
        # Arrow does not report which row cannot be read: halves are tried until one row is left.
        waiting = [(0, len(texts))]
        while waiting and len(texts):
            begin, end = waiting.pop()
            found, has_more = self._parse(texts.slice(begin, end - begin))
            if found is not None:
                parts.append(found)
                more |= has_more
            elif end - begin == 1:
                parts.append(pa.nulls(1, self.kind))
                bad.append(begin)
            else:
                middle = (begin + end) // 2
                waiting.extend([(middle, end), (begin, middle)])  # the first half is taken first
        objects = pa.concat_arrays(parts) if parts else pa.array([], self.kind)
        if values.null_count:
            objects = pc.if_else(values.is_valid(), objects, pa.scalar(None, self.kind))
        return ParsedValues(objects, np.array(bad, np.int64), more)

    def _parse(self, texts: pa.Array) -> tuple[pa.StructArray | None, bool]:
        """Return the objects, or None if a text is no such object; then if there may be more."""
        if self._looks_for_more:
            found = self._parsed(texts, "error")
            if found is not None:
                return found, False
        return self._parsed(texts, "ignore"), self._looks_for_more

    def _parsed(self, texts: pa.Array, unexpected: Unexpected) -> pa.StructArray | None:
        """Return the objects, or None if one of the texts is no such object.

        The number of its row is put into each object, as its first field, under a name that no
        writer of values can know. So a text that is half an object, or two of them, cannot become
        another number of rows; and nothing can follow an object, since nothing is around it.
        """
        numbers = pa.array(np.arange(len(texts)))
        try:
            key = f"n{secrets.token_hex(8)}"
            lines = _lines(_objects(texts), numbers, key).buffers()[2]
            if _has_infinite_word(lines, texts):
                return None
            if self._has_decimal and has_tiny_decimal(lines, texts, self._form.read):
                return None
            if self._has_map:
                # Only a text that is valid may be written differently.
                _check_numbers(_table(lines, key, pa.struct([]), "ignore"), key, numbers)
                lines = pairs_of_maps(lines, self.kind)
            table = _table(lines, key, self._form.read, unexpected)
            _check_numbers(table, key, numbers)
            columns = [table.column(each.name).combine_chunks() for each in self.kind]
            read = _struct(columns, self._form.read, len(texts))
            return cast_if_other(self._form.convert(read), self.kind)
        except pa.ArrowException:
            return None


def _objects(texts: pa.Array) -> pa.Array:
    """Return the texts without blanks around them.

    Raises:
        ArrowInvalid: If one is no object, by its first character.
    """
    if not pc.all(pc.starts_with(texts, "{")).as_py():
        texts = pc.replace_substring_regex(texts, r"^[ \t\r\n]+|[ \t\r\n]+$", "")
        if not pc.all(pc.starts_with(texts, "{")).as_py():
            raise pa.ArrowInvalid("no object")
    return texts


def _lines(texts: pa.Array, numbers: pa.Array, key: str) -> pa.Array:
    """Return objects, each with its number in it, a line each."""
    # Without the "{". The cast refuses a text that is no UTF-8, which Arrow's reader would take.
    rests = pc.binary_replace_slice(texts, 0, 1, b"").cast(pa.string())
    comma: Any = ","
    if not pc.all(pc.starts_with(rests, '"')).as_py():
        # Between the number and a field there is a comma; an empty object has no field.
        is_empty = pc.match_substring_regex(rests, r"^[ \t\r\n]*\}")
        comma = pc.if_else(is_empty, "", ",")
    digits = pc.cast(numbers, pa.string())
    heads = pc.binary_join_element_wise(f'{{"{key}":', digits, comma, "")
    return pc.binary_join_element_wise(heads, rests, "\n", "")


def _has_infinite_word(lines: pa.Buffer, texts: pa.Array) -> bool:
    """Return True if a number is ``Inf``, which Arrow reads and neither JSON nor Spark knows."""
    if _INFINITE.search(lines) is None:  # without a copy
        return False
    word = _INFINITE.pattern.decode()
    suspects = texts.filter(pc.match_substring_regex(texts, word))
    outside = pc.replace_substring_regex(suspects, _STRING, "")
    return bool(pc.any(pc.match_substring_regex(outside, word), min_count=0).as_py())


def _table(data: pa.Buffer, key: str, kind: pa.StructType, unexpected: Unexpected) -> pa.Table:
    schema = pa.schema([pa.field(key, pa.int64()), *kind])
    # In one block: a row that does not fit into a block is an error.
    return arrow_json.read_json(
        pa.BufferReader(data),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=data.size + 1),
        parse_options=arrow_json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior=unexpected
        ),
    )


def _check_numbers(table: pa.Table, key: str, numbers: pa.Array) -> None:
    if not table.column(key).combine_chunks().equals(numbers):
        raise pa.ArrowInvalid("a text is not one object")


def _struct(columns: Sequence[pa.Array], kind: pa.StructType, rows: int) -> pa.StructArray:
    # Not `from_arrays`, which makes no rows of no columns.
    return pa.Array.from_buffers(kind, rows, [None], children=list(columns))


def find_unknown(texts: pa.Array, kind: pa.StructType) -> UnknownFields:
    """Find the fields of objects that a type does not have.

    Args:
        texts: Values that could be read.
        kind: The fields that are known.
    """
    lines = pc.binary_join_element_wise(_objects(texts).cast(pa.string()), "", "\n")
    found = JsonStructure(lines.buffers()[2], kind)
    top = found.members(found.documents)
    is_kept = np.zeros(len(top.colons), np.bool_)
    tokens, names = [np.empty(0, np.int64)], [pa.array([], pa.string())]
    for path, each, objects in found.walk(kind):
        if not pa.types.is_struct(each):
            continue
        members = found.members(objects)
        unknown = members.where(~found.have_name_of(members, [one.name for one in each]))
        is_kept[np.searchsorted(top.colons, unknown.colons, side="right") - 1] = True
        tokens.append(unknown.colons)
        prefix = f"{path}." if path else ""
        names.append(pc.binary_join_element_wise(prefix, found.names(unknown), ""))
    rows = found.rows_of(np.concatenate(tokens))
    return UnknownFields(
        rows, pa.concat_arrays(names), _rests(found, top.where(is_kept), len(texts))
    )


def _rests(found: JsonStructure, kept: Members, rows: int) -> pa.Array:
    """Return an object of the members for each row, and null for a row without any."""
    counts = np.bincount(found.rows_of(kept.colons), minlength=rows)
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, found.texts(kept)), ",")
    whole = pc.binary_join_element_wise("{", joined, "}", "")
    return pc.if_else(pa.array(counts > 0), whole, pa.scalar(None, pa.string()))


def have_field(texts: pa.Array, names: Sequence[str]) -> NDArray[np.bool_]:
    """Return which of the objects have a field of one of some names, by the exact name.

    Args:
        texts: Values that could be read.
        names: The names.
    """
    lines = pc.binary_join_element_wise(_objects(texts).cast(pa.string()), "", "\n")
    found = JsonStructure(lines.buffers()[2], pa.struct([]))
    members = found.members(found.documents)
    result = np.zeros(len(texts), np.bool_)
    result[found.rows_of(members.colons[found.have_name_of(members, names)])] = True
    return result
