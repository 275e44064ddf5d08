"""ListOffsets as bytes: many partitions to and from arrays.

What there is of a partition has one size, so NumPy reads and writes all of a topic at once. What
surrounds the topics is kafka-python's, and so is the reading of an answer with tagged fields, which
no broker sends so far.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from krishiv_spark.kafka.partition_rows import PartitionRows, keys_of

__all__ = [
    "NEWEST_VERSION",
    "OLDEST_VERSION",
    "OffsetAnswer",
    "decoded",
    "packed_topics",
    "parse",
    "topics_at",
]

OLDEST_VERSION, NEWEST_VERSION = 2, 11
"""Those whose form is known here; 2 is the first one with isolation levels."""

_FIRST_WITH_EPOCHS, _FIRST_FLEXIBLE, _FIRST_WITH_TIMEOUT = 4, 6, 10
_MORE = 0x80
_TOO_LONG = 35
"""Bits after which a length can be none."""


class OffsetAnswer(NamedTuple):
    """What a leader says of partitions, in the order of its message.

    Attributes:
        names: Of topics, as bytes.
        counts: By topic, how many partitions of it follow one another.
        numbers: Of the partitions.
        codes: Numbers of errors; 0 for none.
        offsets: As `FoundOffset` has them.
        timestamps: As `FoundOffset` has them.
        epochs: As `FoundOffset` has them.
        throttle_time_ms: How long kafka-python is to wait before its next message.
    """

    names: tuple[bytes, ...]
    counts: tuple[int, ...]
    numbers: NDArray[np.int64]
    codes: NDArray[np.int64]
    offsets: NDArray[np.int64]
    timestamps: NDArray[np.int64]
    epochs: NDArray[np.int64]
    throttle_time_ms: int = 0

    def rows_in(self, rows: PartitionRows) -> NDArray[np.int64]:
        """By partition of the answer, its row; -1 for one that is in none."""
        known = {name.encode(): number for number, name in enumerate(rows.topics)}
        topics = np.array([known.get(name, -1) for name in self.names], np.int64)
        asked = keys_of(rows.topic_numbers, rows.numbers)
        keys = keys_of(np.repeat(topics, self.counts), self.numbers)
        found = np.searchsorted(asked, keys)
        found[found == len(asked)] = 0
        return np.where(asked[found] == keys, found, -1) if len(asked) else found - 1


# --- requests


def _request_form(version: int) -> np.dtype[Any]:
    fields = [("number", ">i4"), ("time", ">i8")]
    if version >= _FIRST_WITH_EPOCHS:
        fields.insert(1, ("epoch", ">i4"))
    if version >= _FIRST_FLEXIBLE:
        fields.append(("tags", "u1"))
    return np.dtype(fields)


def packed_topics(version: int, rows: PartitionRows, times: NDArray[np.int64]) -> bytes:
    """The topics of a request.

    Args:
        version: Of the message.
        rows: What is asked about.
        times: By row, what is looked up: a time in ms, or a word as `LATEST`.
    """
    found = np.zeros(len(rows), _request_form(version))
    found["number"], found["time"] = rows.numbers, times
    if version >= _FIRST_WITH_EPOCHS:
        found["epoch"] = -1  # of any leader
    is_flexible = version >= _FIRST_FLEXIBLE
    pieces = [_length(len(rows.topics), is_flexible)]
    at = 0
    for name, count in zip(rows.topics, rows.counts.tolist(), strict=True):
        text = name.encode()
        size = _varint(len(text) + 1) if is_flexible else struct.pack(">h", len(text))
        pieces += [size, text, _length(count, is_flexible), found[at : at + count].tobytes()]
        if is_flexible:
            pieces.append(b"\0")  # no tagged fields
        at += count
    return b"".join(pieces)


def topics_at(version: int, size: int) -> tuple[int, int]:
    """Where the list of topics begins and ends in a request that has none.

    Args:
        version: Of the message.
        size: Of the message, in bytes.
    """
    after = (4 if version >= _FIRST_WITH_TIMEOUT else 0) + (version >= _FIRST_FLEXIBLE)
    end = size - after
    return end - len(_length(0, version >= _FIRST_FLEXIBLE)), end


def _length(count: int, is_flexible: bool) -> bytes:
    return _varint(count + 1) if is_flexible else struct.pack(">i", count)


def _varint(number: int) -> bytes:
    pieces = []
    while number >= _MORE:
        pieces.append(number % _MORE + _MORE)
        number //= _MORE
    return bytes([*pieces, number])


# --- answers


def _answer_form(version: int) -> np.dtype[Any]:
    fields = [("number", ">i4"), ("code", ">i2"), ("time", ">i8"), ("offset", ">i8")]
    if version >= _FIRST_WITH_EPOCHS:
        fields.append(("epoch", ">i4"))
    if version >= _FIRST_FLEXIBLE:
        fields.append(("tags", "u1"))
    return np.dtype(fields)


def parse(data: memoryview, version: int) -> OffsetAnswer | None:
    """Read an answer, from after its header on.

    Returns:
        None if it has tagged fields, whose sizes are their own.

    Raises:
        ValueError: If it ends too early, or has a length that cannot be.
    """
    reader = _AnswerBytes(data, version >= _FIRST_FLEXIBLE)
    (throttle_ms,) = struct.unpack(">i", reader.take(4))
    form = _answer_form(version)
    names, counts, pieces = [], [], []
    for _ in range(reader.length()):
        names.append(bytes(reader.take(reader.text_size())))
        counts.append(reader.length())
        pieces.append(reader.take(counts[-1] * form.itemsize))
        if not reader.is_plain():
            return None
    found = np.frombuffer(b"".join(pieces), form)
    if version >= _FIRST_FLEXIBLE and (found["tags"].any() or not reader.is_plain()):
        return None
    numbers, codes, offsets, times = (
        found[name].astype(np.int64) for name in ("number", "code", "offset", "time")
    )
    has_epochs = version >= _FIRST_WITH_EPOCHS
    epochs = found["epoch"].astype(np.int64) if has_epochs else np.full(len(found), -1, np.int64)
    shape = tuple(names), tuple(counts)
    return OffsetAnswer(*shape, numbers, codes, offsets, times, epochs, throttle_ms)


class _AnswerBytes:
    """Reads from bytes; what lies after their end is an error."""

    def __init__(self, data: memoryview, is_flexible: bool) -> None:
        self._data, self._is_flexible, self._at = data, is_flexible, 0

    def take(self, size: int) -> memoryview:
        """The next bytes."""
        begin, self._at = self._at, self._at + size
        if size < 0 or self._at > len(self._data):
            raise ValueError(f"{size} bytes at {begin} of {len(self._data)}")
        return self._data[begin : self._at]

    def length(self) -> int:
        """Of a list."""
        return self._varint() - 1 if self._is_flexible else self._fixed(">i", 4)

    def text_size(self) -> int:
        """Of a text."""
        return self._varint() - 1 if self._is_flexible else self._fixed(">h", 2)

    def is_plain(self) -> bool:
        """Whether no tagged fields follow; where there may be none, nothing is read."""
        return not self._is_flexible or self._varint() == 0

    def _fixed(self, form: str, size: int) -> int:
        (found,) = struct.unpack(form, self.take(size))
        return int(found)

    def _varint(self) -> int:
        found = shift = 0
        while shift < _TOO_LONG:
            (byte,) = self.take(1)
            found |= byte % _MORE << shift
            if byte < _MORE:
                return found
            shift += 7
        raise ValueError(f"a number of more than {_TOO_LONG} bits at {self._at}")


def decoded(response: Any) -> OffsetAnswer:
    """What kafka-python has read itself."""
    topics: Sequence[Any] = response.topics
    each = [
        (one.partition_index, one.error_code, one.offset, one.timestamp, one.leader_epoch)
        for topic in topics
        for one in topic.partitions
    ]
    shape = tuple(t.name.encode() for t in topics), tuple(len(t.partitions) for t in topics)
    numbers, codes, offsets, times, epochs = np.array(each, np.int64).reshape(-1, 5).T
    return OffsetAnswer(*shape, numbers, codes, offsets, times, epochs, response.throttle_time_ms)
