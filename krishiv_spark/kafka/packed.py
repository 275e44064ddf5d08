"""ListOffsets as kafka-python takes a message, but packed once and sent again and again.

From trigger to trigger only its number differs. What is relied on, that a message encodes itself
and that its header names who reads the answer, is in ``tests/unit/test_kafka_offset_messages.py``.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from krishiv_spark.kafka.offset_messages import (
    NEWEST_VERSION,
    OLDEST_VERSION,
    OffsetAnswer,
    decoded,
    packed_topics,
    parse,
    topics_at,
)
from krishiv_spark.kafka.partition_rows import PartitionRows
from krishiv_spark.kafka.topic_partition import MAX_TIMESTAMP

__all__ = ["KeptRequest"]

_FIRST_WITH_MAX_TIMESTAMP = 7
_SIZE = struct.Struct(">i")


class KeptRequest:
    """What one leader is asked.

    Args:
        rows: About which partitions.
        times: By row, what is looked up: a time in ms, or a word as `LATEST`.
        committed: Whether `LATEST` is the last stable offset.
    """

    def __init__(self, rows: PartitionRows, times: NDArray[np.int64], *, committed: bool) -> None:
        self.rows = rows
        self._times = times
        self._isolation = int(committed)
        self._is_newest = bool((times == MAX_TIMESTAMP).any())
        self._packed: dict[int, bytes] = {}
        self._placed: tuple[tuple[Any, ...], NDArray[np.int64], NDArray[np.int64]] | None = None

    def message(self) -> _PackedMessage:
        """A message, for one node, in whichever version that knows."""
        from kafka.protocol.consumer import ListOffsetsRequest

        # 7 knows the newest timestamp (KIP-734).
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

    def topics(self, version: int) -> bytes:
        """The part of the message that is kept, in a version."""
        if version not in self._packed:
            self._packed[version] = packed_topics(version, self.rows, self._times)
        return self._packed[version]

    def places(self, answer: OffsetAnswer) -> NDArray[np.int64]:
        """By partition of an answer, its row; -1 for one that was not asked about."""
        shape = (answer.names, answer.counts)
        kept = self._placed
        # A leader answers in one order for as long as it is asked the same.
        if kept is None or kept[0] != shape or not np.array_equal(kept[1], answer.numbers):
            kept = self._placed = shape, answer.numbers, answer.rows_in(self.rows)
        return kept[2]


class _PackedMessage:
    """kafka-python's message without topics, with those that were packed in their place."""

    def __init__(self, kept: KeptRequest, plain: Any) -> None:
        self._kept, self._plain = kept, plain

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    @property
    def API_VERSION(self) -> int | None:  # noqa: N802  kafka-python's name
        """The version that was agreed on with the node."""
        found: int | None = self._plain.API_VERSION
        return found

    @API_VERSION.setter
    def API_VERSION(self, version: int) -> None:  # noqa: N802
        self._plain.API_VERSION = version

    @property
    def header(self) -> _PackedHeader:
        """That of the plain message, which names who reads the answer."""
        return _PackedHeader(self._plain.header, self._plain.API_VERSION)

    def encode(self, **more: Any) -> bytes:
        """The bytes; asked for with header and size, as kafka-python's parser does."""
        plain: bytes = self._plain.encode(**more)
        version: int = self._plain.API_VERSION
        begin, end = topics_at(version, len(plain))
        body = plain[_SIZE.size : begin] + self._kept.topics(version) + plain[end:]
        return _SIZE.pack(len(body)) + body


class _PackedHeader:
    """kafka-python's header of a request, whose answer is read into arrays."""

    def __init__(self, plain: Any, version: int) -> None:
        self._plain, self._version = plain, version

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def get_response_class(self) -> Any:
        """What kafka-python's parser hands the bytes of the answer to."""
        return _AnswerReader(self._plain.get_response_class(), self._version)


class _AnswerReader:
    """In place of the class of an answer."""

    def __init__(self, plain: Any, version: int) -> None:
        self._plain, self._version = plain, version

    def parse_header(self, data: Any) -> Any:
        """As kafka-python has it."""
        return self._plain.parse_header(data)

    def decode(self, data: Any) -> OffsetAnswer:
        """Read what is left.

        Raises:
            ValueError: If it is damaged; kafka-python gives the connection up then.
        """
        rest = memoryview(data.read())
        return parse(rest, self._version) or decoded(self._plain.decode(rest))
