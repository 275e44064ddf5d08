"""The members of JSON objects, found in many documents at once with numpy. Executor.

Arrow's reader gives the fields that a schema names. It has no names of other fields, and no type
for an object whose names are data (a MAP). For both, the structure of the text is enough: its
brackets, colons and commas outside of strings. All documents must be valid JSON objects, which
Arrow's reader checks first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from krishiv_spark.arrow.nested import children

__all__ = ["JsonStructure", "Members", "pairs_of_maps"]

Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

_QUOTE, _BACKSLASH, _COLON, _COMMA = b'"\\:,'
_OPENS, _CLOSES = b"{[", b"}]"
_OBJECT, _ARRAY = _OPENS


def _table(characters: bytes) -> Flags:
    found = np.zeros(256, np.bool_)
    found[list(characters)] = True
    return found


_IS_OPEN, _IS_CLOSE = _table(_OPENS), _table(_CLOSES)
_IS_STRUCTURAL = _table(_OPENS + _CLOSES + bytes([_COLON, _COMMA]))


@dataclass(frozen=True)
class Members:
    """Members of some objects, in the order of the text.

    Attributes:
        colons: The tokens between names and values.
        starts: Positions of the names, without the quote.
        sizes: Lengths of the names in bytes, with escapes as they are in the text.
    """

    colons: Ints
    starts: Ints
    sizes: Ints

    def where(self, chosen: Flags) -> Members:
        """Return some of the members."""
        return Members(self.colons[chosen], self.starts[chosen], self.sizes[chosen])


class JsonStructure:
    """The structural characters (tokens) of valid JSON objects, each in a line of its own.

    Args:
        data: The text of all objects.
        kind: The type that is read from each object. Nothing deeper than it is examined.
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
        """Number of containers around each token, of which its own is none."""
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

    def rows_of(self, tokens: Ints) -> Ints:
        """Return the number of the document in which each token is."""
        rows: Ints = np.searchsorted(self.documents, tokens, side="right") - 1
        return rows

    def members(self, objects: Ints) -> Members:
        """Return the members of objects, given by the tokens that open them."""
        colons = np.flatnonzero(self._in(objects) & (self.signs == _COLON))
        ends = np.searchsorted(self._quotes, self.at[colons]) - 1
        starts = self._quotes[ends - 1] + 1
        return Members(colons, starts, self._quotes[ends] - starts)

    def have_name(self, members: Members, name: str) -> Flags:
        """Return which of the members have a name; an escaped name is never the same."""
        wanted = np.frombuffer(name.encode(), np.uint8)
        same: Flags = members.sizes == len(wanted)
        begins = members.starts[same]
        same[same] = (self.text[begins[:, None] + np.arange(len(wanted))] == wanted).all(axis=1)
        return same

    def have_name_of(self, members: Members, names: Sequence[str]) -> Flags:
        """Return which of the members have one of some names."""
        found = np.zeros(len(members.colons), np.bool_)
        for name in names:
            found |= self.have_name(members, name)
        return found

    def names(self, members: Members) -> pa.Array:
        """Return the names of members, as they are in the text."""
        return self._slices(members.starts, members.sizes)

    def texts(self, members: Members) -> pa.Array:
        """Return members with their names and values, as they are in the text."""
        ends = self.at[self._ends(members.colons)]
        return self._slices(members.starts - 1, ends - members.starts + 1)

    def _ends(self, colons: Ints) -> Ints:
        """Return the tokens after the members of documents: a comma, or the end of the document."""
        after = ((self._level == 1) & (self.signs == _COMMA)) | (
            (self._level == 0) & self._is_close
        )
        ends = np.flatnonzero(after)
        after_each: Ints = ends[np.searchsorted(ends, colons)]
        return after_each

    def _slices(self, starts: Ints, sizes: Ints) -> pa.Array:
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        places = np.repeat(starts - offsets[:-1], sizes) + np.arange(offsets[-1])
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(self.text[places])]
        return pa.Array.from_buffers(pa.string(), len(starts), buffers)

    def _in(self, containers: Ints) -> Flags:
        """Return which tokens are directly in one of some containers."""
        chosen = np.zeros(len(self.at) + 1, np.bool_)  # the last one for tokens without a container
        chosen[containers] = True
        found: Flags = chosen[self._containers]
        return found

    def walk(self, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType, Ints]]:
        """Find the containers from which the nested parts of a type are read.

        Args:
            kind: A struct, which is read from each document.

        Yields:
            Path, type and containers of each struct, list and map, from the outside in. A container
            may have the wrong bracket; a value that is none is not among them.
        """
        yield from self._walk("", kind, self.documents)

    def _walk(
        self, path: str, kind: pa.DataType, containers: Ints
    ) -> Iterator[tuple[str, pa.DataType, Ints]]:
        yield path, kind, containers
        if pa.types.is_list(kind):
            inner = np.flatnonzero(self._in(containers) & self._is_open)
            yield from self._nested(path, kind.value_type, inner)
            return
        members = self.members(containers[self.signs[containers] == _OBJECT])
        if pa.types.is_map(kind):
            yield from self._nested(path, kind.item_type, self._values(members))
            return
        for each in children(kind):
            if pa.types.is_nested(each.type):
                found = members.where(self.have_name(members, each.name))
                below = f"{path}.{each.name}" if path else each.name
                yield from self._nested(below, each.type, self._values(found))

    def _nested(
        self, path: str, kind: pa.DataType, containers: Ints
    ) -> Iterator[tuple[str, pa.DataType, Ints]]:
        if pa.types.is_nested(kind) and len(containers):
            yield from self._walk(path, kind, containers)

    def _values(self, members: Members) -> Ints:
        """Return the values of members that are objects or arrays."""
        after: Ints = members.colons + 1
        containers: Ints = after[self._is_open[after]]
        return containers

    def closes(self, containers: Ints) -> Ints:
        """Return the tokens that close containers of one level."""
        if not len(containers):
            return containers
        same = np.flatnonzero(self._is_close & (self._level == self._level[containers[0]]))
        found: Ints = same[np.searchsorted(same, containers)]
        return found

    def commas(self, containers: Ints) -> Ints:
        """Return the commas that are directly in some containers."""
        return np.flatnonzero(self._in(containers) & (self.signs == _COMMA))


def pairs_of_maps(data: pa.Buffer, kind: pa.StructType) -> pa.Buffer:
    """Write the objects that are maps as arrays of pairs, which Arrow can read.

    ``{"a":1}`` becomes ``[{"key":"a","value":1}]``; all else stays as it is.

    Args:
        data: Valid JSON objects, a line each.
        kind: The type that is read from each of them.

    Raises:
        ArrowInvalid: If there is an array where a map is wanted.
    """
    found = JsonStructure(data, kind)
    texts: dict[bytes, Ints] = {}
    for _, each, objects in found.walk(kind):
        if not pa.types.is_map(each):
            continue
        if (found.signs[objects] == _ARRAY).any():
            raise pa.ArrowInvalid("an array where a map is wanted")
        closes = found.closes(objects)
        empty = closes == objects + 1
        for text, tokens in (
            (b"[", objects[empty]),
            (b"]", closes[empty]),
            (b'[{"key":', objects[~empty]),
            (b"}]", closes[~empty]),
            (b'},{"key":', found.commas(objects)),
            (b',"value":', found.members(objects).colons),
        ):
            places = found.at[tokens]
            texts[text] = np.concatenate([texts[text], places]) if text in texts else places
    return _replace(found.text, texts)


def _replace(text: NDArray[np.uint8], replacements: dict[bytes, Ints]) -> pa.Buffer:
    """Put texts in the place of single bytes, given by their positions."""
    sizes = np.ones(len(text), np.int64)
    for new, places in replacements.items():
        sizes[places] = len(new)
    begins = np.cumsum(sizes) - sizes
    found = np.empty(int(sizes.sum()), np.uint8)
    found[begins] = text
    for new, places in replacements.items():
        found[begins[places][:, None] + np.arange(len(new))] = np.frombuffer(new, np.uint8)
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
    # A map is one container in JSON, and its field of pairs is none.
    return [kind.item_field] if pa.types.is_map(kind) else children(kind)
