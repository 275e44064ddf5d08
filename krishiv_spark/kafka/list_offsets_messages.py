"""ListOffsets as bytes: requests that are packed once, and responses that are read into arrays.

The entry of a partition has a fixed size, so NumPy reads and writes all entries of a topic at once.
kafka-python encodes the rest of a message, and decodes responses with tagged fields, which no
broker sends so far. A request is sent again with another correlation id at each trigger. It relies
on two properties of kafka-python: a message encodes itself, and its header returns the decoder of
the response (``tests/unit/test_kafka_list_offsets_messages.py``).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from krishiv_spark.kafka.partition_table import PartitionTable, compute_keys
from krishiv_spark.kafka.topic_partition import MAX_TIMESTAMP

__all__ = [
    "NEWEST_VERSION",
    "OLDEST_VERSION",
    "OffsetResponse",
    "PreparedListOffsets",
    "convert_response",
    "locate_topics",
    "pack_topics",
    "parse_response",
]

OLDEST_VERSION, NEWEST_VERSION = 2, 11
"""The versions that this module supports; 2 is the first one with isolation levels."""

_FIRST_WITH_EPOCHS, _FIRST_FLEXIBLE, _FIRST_WITH_TIMEOUT = 4, 6, 10
_MORE = 0x80
"""The bit in a byte of a varint that announces another byte."""

_MAX_VARINT_BITS = 35
"""Maximum number of bits of a length."""


class OffsetResponse(NamedTuple):
    """The response of a leader about partitions, in the order of its message.

    Attributes:
        names: Names of topics, as bytes.
        counts: Number of consecutive partitions of each topic.
        numbers: Numbers of the partitions.
        codes: Error codes; 0 for none.
        offsets: `FoundOffset.offset` of each partition.
        timestamps: `FoundOffset.timestamp` of each partition.
        epochs: `FoundOffset.epoch` of each partition.
        throttle_time_ms: Time for which kafka-python must wait before its next message.
    """

    names: tuple[bytes, ...]
    counts: tuple[int, ...]
    numbers: NDArray[np.int64]
    codes: NDArray[np.int64]
    offsets: NDArray[np.int64]
    timestamps: NDArray[np.int64]
    epochs: NDArray[np.int64]
    throttle_time_ms: int = 0

    def match_rows(self, rows: PartitionTable) -> NDArray[np.int64]:
        """Return by partition of the response its row in a table; -1 for one without a row."""
        known = {name.encode(): number for number, name in enumerate(rows.topics)}
        topics = np.array([known.get(name, -1) for name in self.names], np.int64)
        asked = compute_keys(rows.topic_numbers, rows.numbers)
        keys = compute_keys(np.repeat(topics, self.counts), self.numbers)
        found = np.searchsorted(asked, keys)
        found[found == len(asked)] = 0
        return np.where(asked[found] == keys, found, -1) if len(asked) else found - 1


# --- requests


def _request_dtype(version: int) -> np.dtype[Any]:
    fields = [("number", ">i4"), ("time", ">i8")]
    if version >= _FIRST_WITH_EPOCHS:
        fields.insert(1, ("epoch", ">i4"))
    if version >= _FIRST_FLEXIBLE:
        fields.append(("tags", "u1"))
    return np.dtype(fields)


def pack_topics(version: int, rows: PartitionTable, times: NDArray[np.int64]) -> bytes:
    """Return the topics of a request as bytes.

    Args:
        version: Version of the message.
        rows: The partitions.
        times: By row, a time in ms, or a name such as `LATEST`.
    """
    found = np.zeros(len(rows), _request_dtype(version))
    found["number"], found["time"] = rows.numbers, times
    if version >= _FIRST_WITH_EPOCHS:
        found["epoch"] = -1  # any leader
    is_flexible = version >= _FIRST_FLEXIBLE
    pieces = [_pack_length(len(rows.topics), is_flexible)]
    at = 0
    for name, count in zip(rows.topics, rows.counts.tolist(), strict=True):
        text = name.encode()
        size = _pack_varint(len(text) + 1) if is_flexible else struct.pack(">h", len(text))
        pieces += [size, text, _pack_length(count, is_flexible), found[at : at + count].tobytes()]
        if is_flexible:
            pieces.append(b"\0")  # no tagged fields
        at += count
    return b"".join(pieces)


def locate_topics(version: int, size: int) -> tuple[int, int]:
    """Return start and end of the list of topics in a request without topics.

    Args:
        version: Version of the message.
        size: Size of the message in bytes.
    """
    after = (4 if version >= _FIRST_WITH_TIMEOUT else 0) + (version >= _FIRST_FLEXIBLE)
    end = size - after
    return end - len(_pack_length(0, version >= _FIRST_FLEXIBLE)), end


def _pack_length(count: int, is_flexible: bool) -> bytes:
    return _pack_varint(count + 1) if is_flexible else struct.pack(">i", count)


def _pack_varint(number: int) -> bytes:
    pieces = []
    while number >= _MORE:
        pieces.append(number % _MORE + _MORE)
        number //= _MORE
    return bytes([*pieces, number])


# --- responses


def _response_dtype(version: int) -> np.dtype[Any]:
    fields = [("number", ">i4"), ("code", ">i2"), ("time", ">i8"), ("offset", ">i8")]
    if version >= _FIRST_WITH_EPOCHS:
        fields.append(("epoch", ">i4"))
    if version >= _FIRST_FLEXIBLE:
        fields.append(("tags", "u1"))
    return np.dtype(fields)


def parse_response(data: memoryview, version: int) -> OffsetResponse | None:
    """Parse a response without its header.

    Returns:
        The response; None if it has tagged fields, which have no fixed size.

    Raises:
        ValueError: If it ends too early, or has an impossible length.
    """
    reader = _ResponseReader(data, version >= _FIRST_FLEXIBLE)
    (throttle_ms,) = struct.unpack(">i", reader.read(4))
    form = _response_dtype(version)
    names, counts, pieces = [], [], []
    for _ in range(reader.read_length()):
        names.append(bytes(reader.read(reader.read_text_size())))
        counts.append(reader.read_length())
        pieces.append(reader.read(counts[-1] * form.itemsize))
        if not reader.has_no_tags():
            return None
    found = np.frombuffer(b"".join(pieces), form)
    if version >= _FIRST_FLEXIBLE and (found["tags"].any() or not reader.has_no_tags()):
        return None
    numbers, codes, offsets, times = (
        found[name].astype(np.int64) for name in ("number", "code", "offset", "time")
    )
    has_epochs = version >= _FIRST_WITH_EPOCHS
    epochs = found["epoch"].astype(np.int64) if has_epochs else np.full(len(found), -1, np.int64)
    shape = tuple(names), tuple(counts)
    return OffsetResponse(*shape, numbers, codes, offsets, times, epochs, throttle_ms)


class _ResponseReader:
    """A reader of bytes; reading beyond their end is an error."""

    def __init__(self, data: memoryview, is_flexible: bool) -> None:
        self._data, self._is_flexible, self._at = data, is_flexible, 0

    def read(self, size: int) -> memoryview:
        """Return the next bytes."""
        begin, self._at = self._at, self._at + size
        if size < 0 or self._at > len(self._data):
            raise ValueError(f"{size} bytes at {begin} of {len(self._data)}")
        return self._data[begin : self._at]

    def read_length(self) -> int:
        """Read the length of a list."""
        return self._read_varint() - 1 if self._is_flexible else self._read_fixed(">i", 4)

    def read_text_size(self) -> int:
        """Read the size of a text."""
        return self._read_varint() - 1 if self._is_flexible else self._read_fixed(">h", 2)

    def has_no_tags(self) -> bool:
        """Return True if no tagged fields follow; read nothing in versions without them."""
        return not self._is_flexible or self._read_varint() == 0

    def _read_fixed(self, form: str, size: int) -> int:
        (found,) = struct.unpack(form, self.read(size))
        return int(found)

    def _read_varint(self) -> int:
        found = shift = 0
        while shift < _MAX_VARINT_BITS:
            (byte,) = self.read(1)
            found |= byte % _MORE << shift
            if byte < _MORE:
                return found
            shift += 7
        raise ValueError(f"a number of more than {_MAX_VARINT_BITS} bits at {self._at}")


def convert_response(response: Any) -> OffsetResponse:
    """Convert a response that kafka-python has decoded."""
    topics: Sequence[Any] = response.topics
    each = [
        (one.partition_index, one.error_code, one.offset, one.timestamp, one.leader_epoch)
        for topic in topics
        for one in topic.partitions
    ]
    shape = tuple(t.name.encode() for t in topics), tuple(len(t.partitions) for t in topics)
    numbers, codes, offsets, times, epochs = np.array(each, np.int64).reshape(-1, 5).T
    return OffsetResponse(*shape, numbers, codes, offsets, times, epochs, response.throttle_time_ms)


_FIRST_WITH_MAX_TIMESTAMP = 7
_SIZE = struct.Struct(">i")


class PreparedListOffsets:
    """A request to one leader, which is packed once for each version.

    Args:
        rows: The partitions.
        times: By row, a time in ms, or a name such as `LATEST`.
        committed: True if `LATEST` is the last stable offset.
    """

    def __init__(self, rows: PartitionTable, times: NDArray[np.int64], *, committed: bool) -> None:
        self.rows = rows
        self._times = times
        self._isolation = int(committed)
        self._is_newest = bool((times == MAX_TIMESTAMP).any())
        self._packed: dict[int, bytes] = {}
        self._cached_rows: tuple[tuple[Any, ...], NDArray[np.int64], NDArray[np.int64]] | None = (
            None
        )

    def build_message(self) -> _PackedMessage:
        """Return a message for kafka-python, which chooses a version that the node supports."""
        from kafka.protocol.consumer import ListOffsetsRequest

        # Version 7 introduced the newest timestamp (KIP-734).
        oldest = _FIRST_WITH_MAX_TIMESTAMP if self._is_newest else OLDEST_VERSION
        return _PackedMessage(
            self,
            ListOffsetsRequest(
                isolation_level=self._isolation,
                topics=[],
                min_version=oldest,
                max_version=NEWEST_VERSION,
            ),
        )

    def packed_topics(self, version: int) -> bytes:
        """Return the topics of the message in a version; they are packed only once."""
        if version not in self._packed:
            self._packed[version] = pack_topics(version, self.rows, self._times)
        return self._packed[version]

    def find_rows(self, answer: OffsetResponse) -> NDArray[np.int64]:
        """Return by partition of a response its row; -1 for one that was not requested."""
        shape = (answer.names, answer.counts)
        cached = self._cached_rows
        # A leader answers equal requests in the same order.
        if cached is None or cached[0] != shape or not np.array_equal(cached[1], answer.numbers):
            cached = self._cached_rows = shape, answer.numbers, answer.match_rows(self.rows)
        return cached[2]


class _PackedMessage:
    """A message of kafka-python without topics, to which the packed topics are added."""

    def __init__(self, prepared: PreparedListOffsets, plain: Any) -> None:
        self._prepared, self._plain = prepared, plain

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    @property
    def API_VERSION(self) -> int | None:  # noqa: N802  kafka-python's name
        """The version that was negotiated with the node."""
        found: int | None = self._plain.API_VERSION
        return found

    @API_VERSION.setter
    def API_VERSION(self, version: int) -> None:  # noqa: N802
        self._plain.API_VERSION = version

    @property
    def header(self) -> _PackedHeader:
        """The header of the plain message, with another decoder of the response."""
        return _PackedHeader(self._plain.header, self._plain.API_VERSION)

    def encode(self, **more: Any) -> bytes:
        """Return the bytes, with header and size, as kafka-python's parser requests them."""
        plain: bytes = self._plain.encode(**more)
        version: int = self._plain.API_VERSION
        begin, end = locate_topics(version, len(plain))
        body = plain[_SIZE.size : begin] + self._prepared.packed_topics(version) + plain[end:]
        return _SIZE.pack(len(body)) + body


class _PackedHeader:
    """A header of kafka-python's whose response is read into arrays."""

    def __init__(self, plain: Any, version: int) -> None:
        self._plain, self._version = plain, version

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def get_response_class(self) -> Any:
        """Return the decoder that kafka-python's parser gives the bytes of the response to."""
        return _ResponseDecoder(self._plain.get_response_class(), self._version)


class _ResponseDecoder:
    """A substitute for the class of a response."""

    def __init__(self, plain: Any, version: int) -> None:
        self._plain, self._version = plain, version

    def parse_header(self, data: Any) -> Any:
        """Parse the header as kafka-python does."""
        return self._plain.parse_header(data)

    def decode(self, data: Any) -> OffsetResponse:
        """Read the response after its header.

        Raises:
            ValueError: If it is damaged; kafka-python then closes the connection.
        """
        rest = memoryview(data.read())
        return parse_response(rest, self._version) or convert_response(self._plain.decode(rest))
