"""The long lists of metadata files, of which each file repeats nearly all of the last one. Driver.

A commit adds one snapshot and one log entry, and an expiry removes the oldest ones. The text of the
others stays the same, byte for byte. So a list is known by its text (`ListText`): reading it
compares texts and parses only items whose text is new (`ListScan`), and writing it serializes only
items that are new (`ListText.replace_items`).

The bytes decide. Items of another writer with known ids and another text are parsed again.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, takewhile
from json import JSONDecoder
from operator import is_
from typing import Any

__all__ = ["NO_ITEMS", "ListScan", "ListText"]

_ID = "snapshot-id"
"""The key of each item by which an expiry or another order is recognized: a hint only."""

_SPACE = re.compile(rb"[ \t\n\r]*")
_BEFORE = re.compile(rb"[ \t\n\r]*:[ \t\n\r]*(?=\[)")
_END, _COMMA = b"]"[0], b","[0]

_decode = JSONDecoder().raw_decode
_ITEM_BYTES = 4096
"""Bytes that are decoded first to find the end of an item: more than most items have."""


@dataclass(frozen=True)
class ListText:
    """A list of models with their text.

    Attributes:
        text: The text, from the start of the first item to the end of the last one.
        starts: The position of each item in the text.
        ends: The position after each item.
        items: The models, each as its text defines it.
    """

    text: bytes = b""
    starts: Sequence[int] = ()
    ends: Sequence[int] = ()
    items: Sequence[Any] = ()

    @cached_property
    def indices(self) -> dict[object, int]:
        """The index of the last item with an id, by id."""
        return {item.snapshot_id: index for index, item in enumerate(self.items)}

    def count_equal(self, first: int, text: bytes, at: int) -> int:
        """Return the number of items from `first` on whose text is also at a position of another.

        Bytes are compared, separators included; each at most a few times.
        """
        own, start, most = memoryview(self.text), self.starts[first], len(self.items) - first
        if not text.startswith(own[start : self.ends[first]], at):
            return 0
        if text.startswith(own[start : self.ends[-1]], at):
            return most
        equal, shift = 1, at - start
        while equal < most:
            half = equal + (most - equal + 1) // 2
            begin, end = self.ends[first + equal - 1], self.ends[first + half - 1]
            if text.startswith(own[begin:end], begin + shift):
                equal = half
            else:
                most = half - 1
        return equal

    def replace_items(self, items: Sequence[Any], dump: Callable[[Any], str]) -> ListText:
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
                begin, end = self.starts[cursor], self.ends[cursor + count - 1]
                parts.append(memoryview(self.text)[begin:end])
                spans.add_run(self, cursor, count, at - begin)
                cursor += count
            else:
                parts.append(dump(items[index]).encode())
                spans.add(at, at + len(parts[-1]))
            index += count or 1
            at += len(parts[-1]) + 1
        return ListText(b",".join(parts), spans.starts, spans.ends, tuple(items))

    def _count_same(self, first: int, items: Sequence[Any], index: int) -> int:
        """Return the number of items from `first` on that `items` has too, from `index` on."""
        same = map(is_, islice(self.items, first, None), islice(items, index, None))
        return sum(takewhile(bool, same))


NO_ITEMS = ListText()


class _Spans:
    """The positions of items in a text."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        self.starts.append(start)
        self.ends.append(end)

    def add_run(self, known: ListText, first: int, count: int, shift: int) -> None:
        """Add consecutive items of a list, whose positions differ by `shift`."""
        starts, ends = (one[first : first + count] for one in (known.starts, known.ends))
        # Nearly always, the list only grows at its end.
        self.starts += [at + shift for at in starts] if shift else starts
        self.ends += [at + shift for at in ends] if shift else ends


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
        return ListText(self._text, self._spans.starts, self._spans.ends, tuple(self._items))

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
            self._items += known.items[first : first + count]
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
        return self._spans.ends[-1]


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
