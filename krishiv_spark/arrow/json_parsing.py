"""JSON objects, parsed into Arrow structs many at once. Executor.

Arrow's reader returns the fields that a schema names. It has no names of other fields, and no type
for an object whose names are data (a MAP). For both, the structure of the text is enough: brackets,
colons and commas outside of strings, which NumPy finds in many documents at once. All documents
must be valid JSON objects, which Arrow's reader checks first.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import json as arrow_json

from krishiv_spark.arrow.cast import has_tiny_decimal
from krishiv_spark.arrow.compute import children, pc, struct_with
from krishiv_spark.arrow.json_types import (
    JsonRules,
    build_form,
    cast_if_other,
    has_decimal,
    has_map,
)
from krishiv_spark.arrow.parsed_values import ParsedValues, UnknownFields

__all__ = [
    "JsonParser",
    "JsonStructure",
    "Members",
    "find_unknown",
    "have_field",
    "rewrite_maps",
]

_INFINITE = re.compile(rb"Inf\s*[,}\]]")
_STRING = r'(?s)"(?:[^"\\]|\\.)*"'

Unexpected: TypeAlias = Literal["ignore", "error", "infer"]


class JsonParser:
    """A parser of JSON objects with some fields.

    Args:
        kind: The fields to read. A field that an object lacks is null.
        rules: Time zone and units.
        above: Path of the object that has the fields, for the units.
        looks_for_more: Detect other fields. Otherwise they are ignored.

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
        self._form = build_form(self.kind, rules or JsonRules(), above)
        self._has_map = has_map(self.kind)
        self._has_decimal = has_decimal(self._form.read)
        self._looks_for_more = looks_for_more

    def parse(self, values: pa.Array) -> ParsedValues:
        """Parse values.

        Args:
            values: Binary values. Null becomes null, and is not bad.
        """
        texts = pc.fill_null(values, b"{}")
        parts: list[pa.Array] = []
        bad: list[int] = []
        more = False
        # Arrow does not report the row that cannot be read: halves are tried until one row is left.
        waiting = [(0, len(texts))]
        while waiting and len(texts):
            begin, end = waiting.pop()
            found, has_more = self._parse_part(texts.slice(begin, end - begin))
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

    def parse_all(
        self, values: pa.Array, watched: str | None = None
    ) -> tuple[pa.StructArray | None, frozenset[str]]:
        """Parse values without nulls, all of them or none.

        Args:
            values: Binary values.
            watched: The name of an object whose other fields are to be found; the empty text is the
                value itself, and None finds none.

        Returns:
            The objects, None if one of the values cannot be read; and the names of other fields.
        """
        if watched is None:
            return self._read_objects(values, "ignore"), frozenset()
        more: set[str] = set()
        return self._read_objects(values, "infer", watched, more), frozenset(more)

    def _parse_part(self, texts: pa.Array) -> tuple[pa.StructArray | None, bool]:
        """Return the objects, or None if a text is no such object; and `may_have_more`."""
        if self._looks_for_more:
            found = self._read_objects(texts, "error")
            if found is not None:
                return found, False
        return self._read_objects(texts, "ignore"), self._looks_for_more

    def _read_objects(
        self,
        texts: pa.Array,
        unexpected: Unexpected,
        watched: str = "",
        more: set[str] | None = None,
    ) -> pa.StructArray | None:
        """Return the objects, or None if one of the texts is no such object.

        `more` receives the names of other fields of the object `watched`, if they are inferred.

        Each object gets the number of its row as its first field, under a name that no writer of
        values can know. So a text that is half an object, or two objects, cannot become another
        number of rows, and an object has nothing around it.
        """
        numbers = pa.array(np.arange(len(texts)))
        try:
            key = f"n{secrets.token_hex(8)}"
            lines = _number_lines(_strip_objects(texts), numbers, key).buffers()[2]
            if _has_infinite_word(lines, texts):
                return None
            if self._has_decimal and has_tiny_decimal(lines, texts, self._form.read):
                return None
            if self._has_map:
                # Only a valid text may be rewritten.
                _check_numbers(_read_table(lines, key, pa.struct([]), "ignore"), key, numbers)
                lines = rewrite_maps(lines, self.kind)
            table = _read_table(lines, key, self._form.read, unexpected)
            _check_numbers(table, key, numbers)
            if more is not None:
                more.update(_list_other_fields(table.schema, key, self._form.read, watched))
            columns = [
                _select_fields(table.column(each.name).combine_chunks(), each.type)
                for each in self._form.read
            ]
            read = _build_struct(columns, self._form.read, len(texts))
            return cast_if_other(self._form.convert(read), self.kind)
        except pa.ArrowException:
            return None


def _strip_objects(texts: pa.Array) -> pa.Array:
    """Return the texts without blanks around them.

    Raises:
        ArrowInvalid: If the first character of one is not that of an object.
    """
    if not pc.all(pc.starts_with(texts, "{")).as_py():
        texts = pc.replace_substring_regex(texts, r"^[ \t\r\n]+|[ \t\r\n]+$", "")
        if not pc.all(pc.starts_with(texts, "{")).as_py():
            raise pa.ArrowInvalid("no object")
    return texts


def _number_lines(texts: pa.Array, numbers: pa.Array, key: str) -> pa.Array:
    """Return objects that contain the number of their row, one per line."""
    # Without the "{". The cast refuses invalid UTF-8, which Arrow's reader would accept.
    rests = pc.binary_replace_slice(texts, 0, 1, b"").cast(pa.string())
    comma: Any = ","
    if not pc.all(pc.starts_with(rests, '"')).as_py():
        # A comma separates the number from a field; an empty object has no field.
        is_empty = pc.match_substring_regex(rests, r"^[ \t\r\n]*\}")
        comma = pc.if_else(is_empty, "", ",")
    digits = pc.cast(numbers, pa.string())
    heads = pc.binary_join_element_wise(f'{{"{key}":', digits, comma, "")
    return pc.binary_join_element_wise(heads, rests, "\n", "")


def _has_infinite_word(lines: pa.Buffer, texts: pa.Array) -> bool:
    """Return True if a number is ``Inf``, which Arrow accepts, and neither JSON nor Spark does."""
    if _INFINITE.search(lines) is None:  # without a copy
        return False
    word = _INFINITE.pattern.decode()
    suspects = texts.filter(pc.match_substring_regex(texts, word))
    outside = pc.replace_substring_regex(suspects, _STRING, "")
    return bool(pc.any(pc.match_substring_regex(outside, word), min_count=0).as_py())


def _read_table(data: pa.Buffer, key: str, kind: pa.StructType, unexpected: Unexpected) -> pa.Table:
    schema = pa.schema([pa.field(key, pa.int64()), *kind])
    # One block: Arrow fails for a row that does not fit into a block.
    return arrow_json.read_json(
        pa.BufferReader(data),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=data.size + 1),
        parse_options=arrow_json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior=unexpected
        ),
    )


def _check_numbers(table: pa.Table, key: str, numbers: pa.Array) -> None:
    if not table.column(key).combine_chunks().equals(numbers):
        raise pa.ArrowInvalid("a text is not a single object")


def _list_other_fields(
    found: pa.Schema, key: str, kind: pa.StructType, watched: str
) -> Iterator[str]:
    """Yield the fields that Arrow inferred for an object, beside those of a type."""
    names, known = found.names, {key, *(each.name for each in kind)}
    if watched:
        names = [each.name for each in children(found.field(watched).type)]
        known = {each.name for each in children(kind.field(watched).type)}
    yield from (name for name in names if name not in known)


def _select_fields(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return structs with the fields of a type only; a list of such structs is refused later."""
    if array.type.equals(kind) or not pa.types.is_struct(kind) or not kind.num_fields:
        return array
    fields = children(kind)
    return struct_with(
        array, [_select_fields(array.field(each.name), each.type) for each in fields], fields
    )


def _build_struct(columns: Sequence[pa.Array], kind: pa.StructType, rows: int) -> pa.StructArray:
    # `from_arrays` returns no rows if there are no columns.
    return pa.Array.from_buffers(kind, rows, [None], children=list(columns))


def find_unknown(texts: pa.Array, kind: pa.StructType) -> UnknownFields:
    """Find the fields of objects that a type does not have.

    Args:
        texts: Values that can be read.
        kind: The known fields.
    """
    lines = pc.binary_join_element_wise(_strip_objects(texts).cast(pa.string()), "", "\n")
    found = JsonStructure(lines.buffers()[2], kind)
    top = found.find_members(found.documents)
    is_kept = np.zeros(len(top.colons), np.bool_)
    tokens, names = [np.empty(0, np.int64)], [pa.array([], pa.string())]
    for path, each, objects in found.walk(kind):
        if not pa.types.is_struct(each):
            continue
        members = found.find_members(objects)
        unknown = members.filter(~found.match_names(members, [one.name for one in each]))
        is_kept[np.searchsorted(top.colons, unknown.colons, side="right") - 1] = True
        tokens.append(unknown.colons)
        prefix = f"{path}." if path else ""
        names.append(pc.binary_join_element_wise(prefix, found.slice_names(unknown), ""))
    rows = found.find_rows(np.concatenate(tokens))
    return UnknownFields(
        rows, pa.concat_arrays(names), _build_rests(found, top.filter(is_kept), len(texts))
    )


def _build_rests(found: JsonStructure, kept: Members, rows: int) -> pa.Array:
    """Return an object of the members of each row, and null for a row without any."""
    counts = np.bincount(found.find_rows(kept.colons), minlength=rows)
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, found.slice_texts(kept)), ",")
    whole = pc.binary_join_element_wise("{", joined, "}", "")
    return pc.if_else(pa.array(counts > 0), whole, pa.scalar(None, pa.string()))


def have_field(texts: pa.Array, names: Sequence[str]) -> NDArray[np.bool_]:
    """Return True for each object that has a field with one of some names.

    Args:
        texts: Values that can be read.
        names: The exact names.
    """
    lines = pc.binary_join_element_wise(_strip_objects(texts).cast(pa.string()), "", "\n")
    found = JsonStructure(lines.buffers()[2], pa.struct([]))
    members = found.find_members(found.documents)
    result = np.zeros(len(texts), np.bool_)
    result[found.find_rows(members.colons[found.match_names(members, names)])] = True
    return result


Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

_QUOTE, _BACKSLASH, _COLON, _COMMA = b'"\\:,'
_OPENS, _CLOSES = b"{[", b"}]"
_OBJECT, _ARRAY = _OPENS


def _character_table(characters: bytes) -> Flags:
    found = np.zeros(256, np.bool_)
    found[list(characters)] = True
    return found


_IS_OPEN, _IS_CLOSE = _character_table(_OPENS), _character_table(_CLOSES)
_IS_STRUCTURAL = _character_table(_OPENS + _CLOSES + bytes([_COLON, _COMMA]))


@dataclass(frozen=True)
class Members:
    """Members of some objects, in the order of the text.

    Attributes:
        colons: The tokens between names and values.
        starts: Positions of the names, without the quote.
        sizes: Lengths of the names in bytes, with the escapes of the text.
    """

    colons: Ints
    starts: Ints
    sizes: Ints

    def filter(self, chosen: Flags) -> Members:
        """Return some of the members."""
        return Members(self.colons[chosen], self.starts[chosen], self.sizes[chosen])


class JsonStructure:
    """The structural characters (tokens) of valid JSON objects.

    Args:
        data: The text of all objects, one per line.
        kind: The type that is read from each object. Deeper levels are not examined.
    """

    def __init__(self, data: pa.Buffer, kind: pa.DataType) -> None:
        self.text: NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        self._quotes = _string_delimiters(self.text)
        at = np.flatnonzero(_IS_STRUCTURAL[self.text])
        self.at = at[np.searchsorted(self._quotes, at) % 2 == 0]
        """Positions of the tokens in the text."""
        self.signs = self.text[self.at]
        self._is_open, self._is_close = _IS_OPEN[self.signs], _IS_CLOSE[self.signs]
        depth = np.cumsum(self._is_open.astype(np.int32) - self._is_close.astype(np.int32))
        self._level = depth - self._is_open
        """Number of containers around each token, without its own."""
        self._containers = self._find_containers(_height(kind))
        self.documents = np.flatnonzero((self._level == 0) & self._is_open)

    def _find_containers(self, height: int) -> Ints:
        """Return the token that opens the container of each token; -1 where it is not examined."""
        found = np.full(len(self.at), -1, np.int64)
        opens = np.flatnonzero((self._level == 0) & self._is_open)
        for level in range(1, height + 1):
            here = np.flatnonzero(self._level == level)
            found[here] = opens[np.searchsorted(opens, here) - 1]
            opens = here[self._is_open[here]]
        return found

    def find_rows(self, tokens: Ints) -> Ints:
        """Return the number of the document in which each token is."""
        rows: Ints = np.searchsorted(self.documents, tokens, side="right") - 1
        return rows

    def find_members(self, objects: Ints) -> Members:
        """Return the members of objects, given by the tokens that open them."""
        colons = np.flatnonzero(self._are_in(objects) & (self.signs == _COLON))
        ends = np.searchsorted(self._quotes, self.at[colons]) - 1
        starts = self._quotes[ends - 1] + 1
        return Members(colons, starts, self._quotes[ends] - starts)

    def match_name(self, members: Members, name: str) -> Flags:
        """Return True for each member with a name; an escaped name never matches."""
        wanted = np.frombuffer(name.encode(), np.uint8)
        same: Flags = members.sizes == len(wanted)
        begins = members.starts[same]
        same[same] = (self.text[begins[:, None] + np.arange(len(wanted))] == wanted).all(axis=1)
        return same

    def match_names(self, members: Members, names: Sequence[str]) -> Flags:
        """Return True for each member with one of some names."""
        found = np.zeros(len(members.colons), np.bool_)
        for name in names:
            found |= self.match_name(members, name)
        return found

    def slice_names(self, members: Members) -> pa.Array:
        """Return the names of members, with the escapes of the text."""
        return self._slice_text(members.starts, members.sizes)

    def slice_texts(self, members: Members) -> pa.Array:
        """Return the text of members: their names and values."""
        ends = self.at[self._find_ends(members.colons)]
        return self._slice_text(members.starts - 1, ends - members.starts + 1)

    def _find_ends(self, colons: Ints) -> Ints:
        """Return the tokens after the members of documents: a comma, or the end of the document."""
        after = ((self._level == 1) & (self.signs == _COMMA)) | (
            (self._level == 0) & self._is_close
        )
        ends = np.flatnonzero(after)
        after_each: Ints = ends[np.searchsorted(ends, colons)]
        return after_each

    def _slice_text(self, starts: Ints, sizes: Ints) -> pa.Array:
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        positions = np.repeat(starts - offsets[:-1], sizes) + np.arange(offsets[-1])
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(self.text[positions])]
        return pa.Array.from_buffers(pa.string(), len(starts), buffers)

    def _are_in(self, containers: Ints) -> Flags:
        """Return True for each token that is directly in one of some containers."""
        chosen = np.zeros(
            len(self.at) + 1, np.bool_
        )  # the last entry is for tokens without a container
        chosen[containers] = True
        found: Flags = chosen[self._containers]
        return found

    def walk(self, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType, Ints]]:
        """Find the containers from which the nested parts of a type are read.

        Args:
            kind: A struct, which is read from each document.

        Yields:
            Path, type and containers of each struct, list and map, from the outside in. A container
            may have the wrong bracket; values that are no containers are left out.
        """
        yield from self._walk_type("", kind, self.documents)

    def _walk_type(
        self, path: str, kind: pa.DataType, containers: Ints
    ) -> Iterator[tuple[str, pa.DataType, Ints]]:
        yield path, kind, containers
        if pa.types.is_list(kind):
            inner = np.flatnonzero(self._are_in(containers) & self._is_open)
            yield from self._walk_nested(path, kind.value_type, inner)
            return
        members = self.find_members(containers[self.signs[containers] == _OBJECT])
        if pa.types.is_map(kind):
            yield from self._walk_nested(path, kind.item_type, self._container_values(members))
            return
        for each in children(kind):
            if pa.types.is_nested(each.type):
                found = members.filter(self.match_name(members, each.name))
                below = f"{path}.{each.name}" if path else each.name
                yield from self._walk_nested(below, each.type, self._container_values(found))

    def _walk_nested(
        self, path: str, kind: pa.DataType, containers: Ints
    ) -> Iterator[tuple[str, pa.DataType, Ints]]:
        if pa.types.is_nested(kind) and len(containers):
            yield from self._walk_type(path, kind, containers)

    def _container_values(self, members: Members) -> Ints:
        """Return the values of members that are objects or arrays."""
        after: Ints = members.colons + 1
        containers: Ints = after[self._is_open[after]]
        return containers

    def find_closes(self, containers: Ints) -> Ints:
        """Return the tokens that close containers of one level."""
        if not len(containers):
            return containers
        same = np.flatnonzero(self._is_close & (self._level == self._level[containers[0]]))
        found: Ints = same[np.searchsorted(same, containers)]
        return found

    def find_commas(self, containers: Ints) -> Ints:
        """Return the commas that are directly in some containers."""
        return np.flatnonzero(self._are_in(containers) & (self.signs == _COMMA))


def rewrite_maps(data: pa.Buffer, kind: pa.StructType) -> pa.Buffer:
    """Convert the objects that are maps to arrays of pairs, which Arrow can read.

    ``{"a":1}`` becomes ``[{"key":"a","value":1}]``; the rest of the text is unchanged.

    Args:
        data: Valid JSON objects, one per line.
        kind: The type that is read from each of them.

    Raises:
        ArrowInvalid: If the value of a map is an array.
    """
    found = JsonStructure(data, kind)
    texts: dict[bytes, Ints] = {}
    for _, each, objects in found.walk(kind):
        if not pa.types.is_map(each):
            continue
        if (found.signs[objects] == _ARRAY).any():
            raise pa.ArrowInvalid("an array instead of a map")
        closes = found.find_closes(objects)
        empty = closes == objects + 1
        for text, tokens in (
            (b"[", objects[empty]),
            (b"]", closes[empty]),
            (b'[{"key":', objects[~empty]),
            (b"}]", closes[~empty]),
            (b'},{"key":', found.find_commas(objects)),
            (b',"value":', found.find_members(objects).colons),
        ):
            positions = found.at[tokens]
            texts[text] = np.concatenate([texts[text], positions]) if text in texts else positions
    return _replace(found.text, texts)


def _replace(text: NDArray[np.uint8], replacements: dict[bytes, Ints]) -> pa.Buffer:
    """Replace single bytes, given by their positions, with texts."""
    sizes = np.ones(len(text), np.int64)
    for new, positions in replacements.items():
        sizes[positions] = len(new)
    begins = np.cumsum(sizes) - sizes
    found = np.empty(int(sizes.sum()), np.uint8)
    found[begins] = text
    for new, positions in replacements.items():
        found[begins[positions][:, None] + np.arange(len(new))] = np.frombuffer(new, np.uint8)
    return pa.py_buffer(found)


def _string_delimiters(text: NDArray[np.uint8]) -> Ints:
    """Return the positions of the quotes that begin and end strings."""
    quotes = np.flatnonzero(text == _QUOTE)
    slashes = np.flatnonzero(text == _BACKSLASH)
    if not len(slashes):
        return quotes
    breaks = np.diff(slashes) != 1
    firsts, lasts = slashes[np.r_[True, breaks]], slashes[np.r_[breaks, True]]
    escaped = lasts[(lasts - firsts) % 2 == 0] + 1  # after an odd number of backslashes
    return np.setdiff1d(quotes, escaped, assume_unique=True)


def _height(kind: pa.DataType) -> int:
    """Return the number of containers from the outermost to the innermost."""
    if not pa.types.is_nested(kind):
        return 0
    return 1 + max((_height(each.type) for each in _parts(kind)), default=0)


def _parts(kind: pa.DataType) -> list[pa.Field]:
    # A map is one container in JSON; its field of pairs is not another one.
    return [kind.item_field] if pa.types.is_map(kind) else children(kind)
