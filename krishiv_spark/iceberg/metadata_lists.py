"""The long lists of metadata files, of which each file repeats nearly all of the last one. Driver.

A commit adds one snapshot and one log entry, and an expiry removes the oldest ones. The text of the
others stays the same, byte for byte. So a list is known by its text (`ListText`): reading it
compares texts and parses only items whose text is new (`ListScan`), and writing it serializes only
items that are new (`ListText.replace_items`).

The bytes decide. Items of another writer with known ids and another text are parsed again.

To touch thousands of models costs as much as a small commit, since they are scattered in memory. So
positions are arrays, lists are shared and not copied, a list that only grew is recognized by its
pointers (`is_extension`), and an integer of each of its models is read once (`ListIntegers`).
"""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, takewhile
from json import JSONDecoder
from operator import is_
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from krishiv_spark.runtime.caches import LruCache

__all__ = ["CACHED_TABLES", "NO_ITEMS", "ListIntegers", "ListScan", "ListText", "is_extension"]

CACHED_TABLES = 8
"""The tables whose lists a process keeps."""

_ID = "snapshot-id"
"""The key of each item by which an expiry or another order is recognized: a hint only."""

_SPACE = re.compile(rb"[ \t\n\r]*")
_BEFORE = re.compile(rb"[ \t\n\r]*:[ \t\n\r]*(?=\[)")
_END, _COMMA = b"]"[0], b","[0]


def _share_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object with interned keys.

    Each summary of a snapshot repeats those of the others: they are a quarter of its memory.
    """
    return {sys.intern(key): value for key, value in pairs}


_decode = JSONDecoder(object_pairs_hook=_share_keys).raw_decode
_ITEM_BYTES = 4096
"""Bytes that are decoded first to find the end of an item: more than most items have."""


Positions: TypeAlias = npt.NDArray[np.int64]

_NO_POSITIONS: Positions = np.empty(0, np.int64)


def is_extension(items: list[Any], known: list[Any]) -> bool:
    """Return True if a list starts with all items of another one, and has more.

    False if there are none, or the first is another model, even an equal one.
    """
    if not (known and items and known[0] is items[0]):
        return False
    try:
        # Lists are compared up to the first difference; equal pointers are not followed.
        return bool(known < items)
    except TypeError:  # that item is another one: models have no order
        return False


class ListIntegers:
    """An integer of each model in the lists of the latest tables. Any thread.

    Args:
        read: Returns the integer of a model.
    """

    def __init__(self, read: Callable[[Any], int]) -> None:
        self._read = read
        self._known: LruCache[str, tuple[list[Any], npt.NDArray[Any]]] = LruCache(CACHED_TABLES)

    def get(self, table: str, items: list[Any]) -> npt.NDArray[Any]:
        """Return the integers of a list, in its order; only those of new models are read.

        They are Python's if one has more than 64 bits.

        Args:
            table: The table's location.
            items: The list, which is never changed.
        """
        known, integers = self._known.get(table) or ([], _NO_POSITIONS)
        if items is known:
            return integers
        count = len(known) if is_extension(items, known) else 0
        new = [*map(self._read, items[count:])]
        try:
            found: npt.NDArray[Any] = np.array(new, np.int64)
        except OverflowError:  # in damaged metadata
            found = np.array(new, object)
        integers = np.concatenate([integers[:count], found])
        self._known.put(table, (items, integers))
        return integers


@dataclass(frozen=True, eq=False)
class ListText:
    """A list of models with their text.

    Attributes:
        text: The text, from the start of the first item to the end of the last one.
        starts: The position of each item in the text.
        ends: The position after each item.
        items: The models, each as its text defines it. The list is never changed.
    """

    text: bytes
    starts: Positions
    ends: Positions
    items: list[Any]

    @cached_property
    def indices(self) -> dict[object, int]:
        """The index of the last item with an id, by id."""
        return {item.snapshot_id: index for index, item in enumerate(self.items)}

    def count_equal(self, first: int, text: bytes, at: int) -> int:
        """Return the number of items from `first` on whose text is also at a position of another.

        Bytes are compared, separators included; each at most a few times.
        """
        own, most = memoryview(self.text), len(self.items) - first
        start = int(self.starts[first])
        if not text.startswith(own[start : self.ends[first]], at):
            return 0
        if text.startswith(own[start : self.ends[-1]], at):
            return most
        equal, shift = 1, at - start
        while equal < most:
            half = equal + (most - equal + 1) // 2
            begin, end = int(self.ends[first + equal - 1]), int(self.ends[first + half - 1])
            if text.startswith(own[begin:end], begin + shift):
                equal = half
            else:
                most = half - 1
        return equal

    def replace_items(self, items: list[Any], dump: Callable[[Any], str]) -> ListText:
        """Return the text of a list that shares items with this one.

        Args:
            items: The models of the new list.
            dump: Returns the text of a model. It is called for models that this list lacks.
        """
        parts: list[bytes | memoryview] = []
        spans, at, index, cursor = _Spans(), 0, 0, 0
        while index < len(items):
            if cursor < len(self.items) and items[index] is not self.items[cursor]:
                cursor = self.indices.get(items[index].snapshot_id, cursor)
            count = self._count_same(cursor, items, index)
            if count:
                begin, end = int(self.starts[cursor]), int(self.ends[cursor + count - 1])
                parts.append(memoryview(self.text)[begin:end])
                spans.add_run(self, cursor, count, at - begin)
                cursor += count
            else:
                parts.append(dump(items[index]).encode())
                spans.add(at, at + len(parts[-1]))
            index += count or 1
            at += len(parts[-1]) + 1
        return ListText(b",".join(parts), *spans.to_arrays(), items)

    def _count_same(self, first: int, items: list[Any], index: int) -> int:
        """Return the number of items from `first` on that `items` has too, from `index` on."""
        if not (first or index) and is_extension(items, self.items):
            return len(self.items)  # the usual case
        same = map(is_, islice(self.items, first, None), islice(items, index, None))
        return sum(takewhile(bool, same))


NO_ITEMS = ListText(b"", _NO_POSITIONS, _NO_POSITIONS, [])


class _Spans:
    """The positions of items in a text."""

    def __init__(self) -> None:
        self._starts: list[Positions] = []
        self._ends: list[Positions] = []
        self._new: list[tuple[int, int]] = []
        self.end = 0

    def add(self, start: int, end: int) -> None:
        self._new.append((start, end))
        self.end = end

    def add_run(self, known: ListText, first: int, count: int, shift: int) -> None:
        """Add consecutive items of a list, whose positions differ by `shift`."""
        self._flush()
        self._starts.append(known.starts[first : first + count] + shift)
        self._ends.append(known.ends[first : first + count] + shift)
        self.end = int(self._ends[-1][-1])

    def to_arrays(self) -> tuple[Positions, Positions]:
        """Return the starts and the ends of all items."""
        self._flush()
        if not self._starts:
            return _NO_POSITIONS, _NO_POSITIONS
        return np.concatenate(self._starts), np.concatenate(self._ends)

    def _flush(self) -> None:
        if self._new:
            starts, ends = np.array(self._new, np.int64).T
            self._starts.append(starts)
            self._ends.append(ends)
            self._new = []


class ListScan:
    """One list in the text of a metadata file.

    Args:
        text: The text of the file.
        start: The position of the list's opening bracket.
        known: The list in an earlier text.

    Attributes:
        start: The position of the list.
        end: The position after it.
        new: The decoded items that are not known.

    Raises:
        ValueError: If it is not a list in JSON.
    """

    def __init__(self, text: bytes, start: int, known: ListText) -> None:
        self.start = start
        self.new: list[Any] = []
        self._items: list[Any] = []
        self._positions: list[int] = []
        self._spans = _Spans()
        self._known = known
        self._cursor = 0
        self._text = text
        first = _skip_space(text, start + 1)
        self.end = first + 1 if text[first] == _END else self._scan(first)

    @classmethod
    def find(cls, text: bytes, key: str, since: int, known: ListText) -> ListScan | None:
        """Scan the value of a key, if it is a list; None if there is no such key.

        The key may be one of another object, and the value may be repeated: the caller checks that.

        Args:
            text: The text of the file.
            key: The key.
            since: The position from which the key is searched first.
            known: The list in an earlier text.
        """
        name = f'"{key}"'.encode()
        at = text.find(name, since)
        if at < 0:
            at = text.find(name)
        before = None if at < 0 else _BEFORE.match(text, at + len(name))
        return None if before is None else cls(text, before.end(), known)

    def complete(self, models: Sequence[Any]) -> ListText:
        """Return the list with models in the place of new items.

        Args:
            models: The models of `new`, in the same order.

        Raises:
            ValueError: If their number differs.
        """
        for position, model in zip(self._positions, models, strict=True):
            self._items[position] = model
        # The text of the file, since a copy of the list takes longer than to compare it.
        return ListText(self._text, *self._spans.to_arrays(), self._items)

    def _scan(self, at: int) -> int:
        text = self._text
        while True:
            at = _skip_space(text, self._take(at))
            if text[at] == _END:
                return at + 1
            if text[at] != _COMMA:
                raise ValueError(f"no comma at {at}")
            at = _skip_space(text, at + 1)

    def _take(self, at: int) -> int:
        """Add the known items at a position, or else the one item that is there; return its end."""
        known, first = self._known, self._cursor
        count = known.count_equal(first, self._text, at) if first < len(known.items) else 0
        if count:
            is_all = not self._items and count == len(known.items)
            self._items += known.items if is_all else known.items[first : first + count]
            self._spans.add_run(known, first, count, at - known.starts[first])
            self._cursor += count
        else:
            item, end = _decode_at(self._text, at)
            if first < len(known.items) and isinstance(item, dict):
                self._cursor = known.indices.get(item.get(_ID), first - 1) + 1
            self._positions.append(len(self._items))
            self._items.append(None)
            self.new.append(item)
            self._spans.add(at, end)
        return self._spans.end


def _decode_at(text: bytes, at: int) -> tuple[Any, int]:
    """Return the JSON value at a position, and the position after it.

    Raises:
        ValueError: If there is none, or the text is not UTF-8.
    """
    size = _ITEM_BYTES
    while True:
        # Incremental, since a piece may end inside a character.
        piece = codecs.getincrementaldecoder("utf-8")().decode(text[at : at + size])
        try:
            item, end = _decode(piece)
        except ValueError:
            if at + size >= len(text):
                raise
            size *= 8
        else:
            return item, at + len(piece[:end].encode())


def _skip_space(text: bytes, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()
