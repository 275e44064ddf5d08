"""Offsets of many partitions, looked up at once.

Ten thousand answers are arrays here, not objects. What has no good answer, for whatever reason, is
asked for again as single partitions are (`krishiv_spark.kafka.requests`): there it is decided what
follows, here nothing.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from krishiv_spark.kafka.client import KafkaClient
from krishiv_spark.kafka.lookups import ListOffsets
from krishiv_spark.kafka.offset_messages import OffsetAnswer
from krishiv_spark.kafka.packed import KeptRequest
from krishiv_spark.kafka.partition_rows import FoundOffsets, PartitionRows
from krishiv_spark.kafka.requests import PreviousAttempt, send_all
from krishiv_spark.kafka.topic_partition import FoundOffset, Topic, TopicPartition

__all__ = ["RepeatedLookup", "list_offsets"]


def list_offsets(
    client: KafkaClient, asked: Mapping[TopicPartition, int], *, committed: bool = True
) -> Mapping[TopicPartition, FoundOffset]:
    """Look offsets up, at the leaders, side by side.

    Args:
        client: Of this process.
        asked: By partition, a time in ms (the first record that is not older), or `EARLIEST`,
            `LATEST`, `MAX_TIMESTAMP` (KIP-734).
        committed: Whether `LATEST` is the last stable offset: after it transactions are open.

    Raises:
        KafkaFailedError: If a partition may not be read, or has no answer in time.
    """
    if not asked:
        return {}
    rows = PartitionRows(asked.keys())
    times = np.fromiter((asked[tp] for tp in rows.partitions), np.int64)
    return _OffsetQuestion(rows, times, committed=committed).demand(client)


class RepeatedLookup:
    """The same, of many partitions, again and again: what is asked is packed once.

    Args:
        time: As in `list_offsets`, of all partitions.
        committed: As in `list_offsets`.
    """

    def __init__(self, time: int, *, committed: bool) -> None:
        self._time, self._committed = time, committed
        self._asked: _OffsetQuestion | None = None

    def demand(self, client: KafkaClient, rows: PartitionRows) -> FoundOffsets:
        """Look up.

        Raises:
            KafkaFailedError: If a partition may not be read, or has no answer in time.
        """
        return self._of(rows).demand(client)

    def gather(
        self, client: KafkaClient, rows: PartitionRows, within_s: float
    ) -> tuple[FoundOffsets, NDArray[np.bool_]]:
        """Look up, as far as there are answers in time.

        Returns:
            What was found, and by row whether it was.
        """
        return self._of(rows).gather(client, within_s)

    def _of(self, rows: PartitionRows) -> _OffsetQuestion:
        if self._asked is None or self._asked.rows is not rows:
            times = np.full(len(rows), self._time, np.int64)
            self._asked = _OffsetQuestion(rows, times, committed=self._committed)
        return self._asked


class _LeaderShare(NamedTuple):
    """What one leader is asked.

    Attributes:
        node: The leader.
        rows: Which partitions, as rows of the whole.
        request: About them.
    """

    node: int
    rows: NDArray[np.int64]
    request: KeptRequest


class _OffsetQuestion:
    """What is looked up in some partitions, with the messages for it."""

    def __init__(self, rows: PartitionRows, times: NDArray[np.int64], *, committed: bool) -> None:
        self.rows = rows
        self._times = times
        self._committed = committed
        self._topics: list[Topic | None] | None = None
        self._parts: list[_LeaderShare] = []

    def demand(self, client: KafkaClient) -> FoundOffsets:
        """See `RepeatedLookup`."""
        begun_s = time.monotonic()
        answers = self._ask(client, client.config.api_timeout_s)
        if missing := answers.missing():
            kind, previous = self._kind(missing), PreviousAttempt(begun_s, answers.why)
            found = send_all(
                client, kind, missing, format_item=lambda tp: f" of {tp}", previous=previous
            )
            answers.fill(found)
        return answers.found

    def gather(
        self, client: KafkaClient, within_s: float
    ) -> tuple[FoundOffsets, NDArray[np.bool_]]:
        """See `RepeatedLookup`."""
        begun_s = time.monotonic()
        answers = self._ask(client, within_s)
        if missing := answers.missing():
            kind, previous = self._kind(missing), PreviousAttempt(begun_s, answers.why)
            found = send_all(
                client,
                kind,
                missing,
                on_error="return",
                on_timeout="skip",
                within_s=within_s,
                previous=previous,
            )
            answers.fill(found)
        return answers.found, answers.is_there

    def _kind(self, partitions: Collection[TopicPartition]) -> ListOffsets:
        wanted = dict(zip(self.rows.partitions, self._times.tolist(), strict=True))
        return ListOffsets({tp: wanted[tp] for tp in partitions}, committed=self._committed)

    def _ask(self, client: KafkaClient, within_s: float) -> _OffsetAnswers:
        """Ask each leader once."""
        from kafka.errors import KafkaError

        found = _OffsetAnswers(self.rows)
        parts = self._by_leader(client)
        messages = [(part.node, part.request.message()) for part in parts]
        for part, answer in zip(parts, client.ask(messages, within_s), strict=True):
            if isinstance(answer, KafkaError):
                found.why = answer
            else:
                found.put(part.rows, part.request.places(answer), answer)
        return found

    def _by_leader(self, client: KafkaClient) -> list[_LeaderShare]:
        """The messages, each with its node and the rows that it asks about."""
        if unknown := set(self.rows.topics) - client.list_cached_topics():
            client.fetch_topics(unknown)
        topics = [client.get_topic(name) for name in self.rows.topics]
        if topics != self._topics:
            self._topics = topics
            self._parts = list(self._made(self._leaders(topics)))
        return self._parts

    def _leaders(self, topics: list[Topic | None]) -> NDArray[np.int64]:
        """By row, the node that leads the partition; below 0 while there is none."""
        known = {topic.name: topic.leaders for topic in topics if topic is not None}
        leaders = (known.get(topic, {}).get(number, -1) for topic, number in self.rows.partitions)
        return np.fromiter(leaders, np.int64)

    def _made(self, leaders: NDArray[np.int64]) -> Iterator[_LeaderShare]:
        for node in np.unique(leaders[leaders >= 0]).tolist():
            at = np.flatnonzero(leaders == node)
            mine = self.rows
            if len(at) < len(mine):
                mine = PartitionRows([mine.partitions[row] for row in at.tolist()])
            yield _LeaderShare(
                node, at, KeptRequest(mine, self._times[at], committed=self._committed)
            )


class _OffsetAnswers:
    """What leaders have said so far.

    Attributes:
        found: What was found, by row.
        is_there: By row, whether it was.
        why: Why the rest has no answer, as far as it is known.
    """

    def __init__(self, rows: PartitionRows) -> None:
        columns = (np.full(len(rows), -1, np.int64) for _ in range(3))
        self.found = FoundOffsets(rows, *columns)
        self.is_there = np.zeros(len(rows), np.bool_)
        self.why: Exception | str = "it has no leader"

    def missing(self) -> list[TopicPartition]:
        """What is not there yet."""
        partitions = self.found.rows.partitions
        return [partitions[row] for row in np.flatnonzero(~self.is_there).tolist()]

    def put(self, rows: NDArray[np.int64], places: NDArray[np.int64], answer: OffsetAnswer) -> None:
        """Take in what one leader says of partitions without an error.

        Args:
            rows: Those that it was asked about.
            places: By partition of the answer, its place in them; -1 for none.
            answer: What it says.
        """
        from kafka.errors import for_code

        good = (answer.codes == 0) & (places >= 0)
        if codes := answer.codes[answer.codes != 0].tolist():
            self.why = for_code(codes[0])()
        at = rows[places[good]]
        self.found.offsets[at] = answer.offsets[good]
        self.found.timestamps[at] = answer.timestamps[good]
        self.found.epochs[at] = answer.epochs[good]
        self.is_there[at] = True

    def fill(self, found: Mapping[TopicPartition, FoundOffset | Exception]) -> None:
        """Take in what was found of single partitions, but for errors."""
        places = {tp: row for row, tp in enumerate(self.found.rows.partitions)}
        for tp, each in found.items():
            if isinstance(each, FoundOffset):
                row = places[tp]
                columns = self.found.offsets, self.found.timestamps, self.found.epochs
                for column, number in zip(columns, each, strict=True):
                    column[row] = number
                self.is_there[row] = True
