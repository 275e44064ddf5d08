"""Offsets of partitions by time (ListOffsets), and the ends of leader epochs, from the leaders.

Many partitions are looked up by one prepared request to each leader, and ten thousand results are
arrays, not objects. Partitions without a good result are requested again as single items
(`krishiv_spark.kafka.requests`), which handles all errors.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from krishiv_spark.arrow.compute import sort_distinct
from krishiv_spark.kafka.client import KafkaClient
from krishiv_spark.kafka.list_offsets_messages import OffsetResponse, PreparedListOffsets
from krishiv_spark.kafka.partition_table import FoundOffsets, PartitionTable
from krishiv_spark.kafka.requests import PreviousAttempt, Routing, send_all
from krishiv_spark.kafka.topic_partition import MAX_TIMESTAMP, FoundOffset, Topic, TopicPartition
from krishiv_spark.kafka.transport import Node

__all__ = ["ListOffsets", "RepeatedLookup", "fetch_epoch_ends", "list_offsets"]


def list_offsets(
    client: KafkaClient, asked: Mapping[TopicPartition, int], *, committed: bool = True
) -> Mapping[TopicPartition, FoundOffset]:
    """Look up offsets, by parallel requests to the leaders.

    Args:
        client: The client of this process.
        asked: By partition, a time in ms (the first record of that time or later), or `EARLIEST`,
            `LATEST`, `MAX_TIMESTAMP` (KIP-734).
        committed: True if `LATEST` is the last stable offset, which open transactions may follow.

    Raises:
        KafkaFailedError: If a partition may not be read, or has no response in time.
    """
    if not asked:
        return {}
    rows = PartitionTable(asked.keys())
    times = np.fromiter((asked[tp] for tp in rows.partitions), np.int64)
    return _OffsetLookup(rows, times, committed=committed).fetch(client)


class RepeatedLookup:
    """A look-up of many partitions that is repeated, with requests that are packed once.

    Args:
        time: The time for all partitions, as in `list_offsets`.
        committed: As in `list_offsets`.
    """

    def __init__(self, time: int, *, committed: bool) -> None:
        self._time, self._committed = time, committed
        self._asked: _OffsetLookup | None = None

    def fetch(self, client: KafkaClient, rows: PartitionTable) -> FoundOffsets:
        """Look up the offsets of partitions.

        Raises:
            KafkaFailedError: If a partition may not be read, or has no response in time.
        """
        return self._prepare(rows).fetch(client)

    def fetch_within(
        self, client: KafkaClient, rows: PartitionTable, within_s: float
    ) -> tuple[FoundOffsets, NDArray[np.bool_]]:
        """Look up the offsets of partitions, and omit those without a response in time.

        Returns:
            The offsets, and by row True if there is one.
        """
        return self._prepare(rows).fetch_within(client, within_s)

    def _prepare(self, rows: PartitionTable) -> _OffsetLookup:
        if self._asked is None or self._asked.rows is not rows:
            times = np.full(len(rows), self._time, np.int64)
            self._asked = _OffsetLookup(rows, times, committed=self._committed)
        return self._asked


class _LeaderShare(NamedTuple):
    """The part of a look-up that one leader answers.

    Attributes:
        node: The leader.
        rows: Rows of its partitions in the table of all partitions.
        request: The request about them.
    """

    node: int
    rows: NDArray[np.int64]
    request: PreparedListOffsets


class _OffsetLookup:
    """A look-up of some partitions, with the requests for it."""

    def __init__(self, rows: PartitionTable, times: NDArray[np.int64], *, committed: bool) -> None:
        self.rows = rows
        self._times = times
        self._committed = committed
        self._topics: list[Topic | None] | None = None
        self._shares: list[_LeaderShare] = []

    def fetch(self, client: KafkaClient) -> FoundOffsets:
        """Look up the offsets; see `RepeatedLookup.fetch`."""
        started_s = time.monotonic()
        table = self._send(client, client.config.api_timeout_s)
        if missing := table.list_missing():
            kind, previous = self._build_request(missing), PreviousAttempt(started_s, table.why)
            found = send_all(
                client, kind, missing, format_item=lambda tp: f" of {tp}", previous=previous
            )
            table.store_single(found)
        return table.found

    def fetch_within(
        self, client: KafkaClient, within_s: float
    ) -> tuple[FoundOffsets, NDArray[np.bool_]]:
        """Look up the offsets; see `RepeatedLookup.fetch_within`."""
        started_s = time.monotonic()
        table = self._send(client, within_s)
        if missing := table.list_missing():
            kind, previous = self._build_request(missing), PreviousAttempt(started_s, table.why)
            found = send_all(
                client,
                kind,
                missing,
                on_error="return",
                on_timeout="skip",
                within_s=within_s,
                previous=previous,
            )
            table.store_single(found)
        return table.found, table.is_found

    def _build_request(self, partitions: Collection[TopicPartition]) -> ListOffsets:
        wanted = dict(zip(self.rows.partitions, self._times.tolist(), strict=True))
        return ListOffsets({tp: wanted[tp] for tp in partitions}, committed=self._committed)

    def _send(self, client: KafkaClient, within_s: float) -> _OffsetTable:
        """Send one request to each leader."""
        from kafka.errors import KafkaError

        found = _OffsetTable(self.rows)
        shares = self._share_by_leader(client)
        messages = [(share.node, share.request.build_message()) for share in shares]
        for share, answer in zip(shares, client.ask(messages, within_s), strict=True):
            if isinstance(answer, KafkaError):
                found.why = answer
            else:
                found.store(share.rows, share.request.find_rows(answer), answer)
        return found

    def _share_by_leader(self, client: KafkaClient) -> list[_LeaderShare]:
        """Return the requests by leader; they are made again only if a leader has changed."""
        if unknown := set(self.rows.topics) - client.list_cached_topics():
            client.fetch_topics(unknown)
        topics = [client.get_topic(name) for name in self.rows.topics]
        if topics != self._topics:
            self._topics = topics
            self._shares = list(self._make_shares(self._find_leaders(topics)))
        return self._shares

    def _find_leaders(self, topics: list[Topic | None]) -> NDArray[np.int64]:
        """Return by row the node that leads the partition; below 0 while there is none."""
        known = {topic.name: topic.leaders for topic in topics if topic is not None}
        leaders = (known.get(topic, {}).get(number, -1) for topic, number in self.rows.partitions)
        return np.fromiter(leaders, np.int64)

    def _make_shares(self, leaders: NDArray[np.int64]) -> Iterator[_LeaderShare]:
        for node in sort_distinct(leaders[leaders >= 0]).tolist():
            at = np.flatnonzero(leaders == node)
            mine = self.rows
            if len(at) < len(mine):
                mine = PartitionTable([mine.partitions[row] for row in at.tolist()])
            yield _LeaderShare(
                node, at, PreparedListOffsets(mine, self._times[at], committed=self._committed)
            )


class _OffsetTable:
    """The results of a look-up so far.

    Attributes:
        found: The offsets by row.
        is_found: By row, True if there is a result.
        why: The reason why other rows have none, as far as it is known.
    """

    def __init__(self, rows: PartitionTable) -> None:
        columns = (np.full(len(rows), -1, np.int64) for _ in range(3))
        self.found = FoundOffsets(rows, *columns)
        self.is_found = np.zeros(len(rows), np.bool_)
        self.why: Exception | str = "it has no leader"

    def list_missing(self) -> list[TopicPartition]:
        """Return the partitions without a result."""
        partitions = self.found.rows.partitions
        return [partitions[row] for row in np.flatnonzero(~self.is_found).tolist()]

    def store(
        self, rows: NDArray[np.int64], positions: NDArray[np.int64], answer: OffsetResponse
    ) -> None:
        """Store the results of one leader, without the partitions that have an error.

        Args:
            rows: The rows of the request.
            positions: By partition of the response, its position in `rows`; -1 for none.
            answer: The response.
        """
        from kafka.errors import for_code

        good = (answer.codes == 0) & (positions >= 0)
        if codes := answer.codes[answer.codes != 0].tolist():
            self.why = for_code(codes[0])()
        at = rows[positions[good]]
        self.found.offsets[at] = answer.offsets[good]
        self.found.timestamps[at] = answer.timestamps[good]
        self.found.epochs[at] = answer.epochs[good]
        self.is_found[at] = True

    def store_single(self, found: Mapping[TopicPartition, FoundOffset | Exception]) -> None:
        """Store the results of single partitions, without errors."""
        positions = {tp: row for row, tp in enumerate(self.found.rows.partitions)}
        for tp, each in found.items():
            if isinstance(each, FoundOffset):
                row = positions[tp]
                columns = self.found.offsets, self.found.timestamps, self.found.epochs
                for column, number in zip(columns, each, strict=True):
                    column[row] = number
                self.is_found[row] = True


_CONSUMER = -1
"""The replica id of a client that is not a replica."""


def fetch_epoch_ends(
    client: KafkaClient, epochs: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the ends of leader epochs in the current logs (OffsetForLeaderEpoch, KIP-320).

    Args:
        client: The client of this process.
        epochs: By partition, the leader epoch.

    Returns:
        By partition an offset, exclusive: the records before it are from that leader epoch or
        earlier ones. -1 if the leader does not know it.

    Raises:
        KafkaFailedError: If a partition may not be read, or has no response in time.
    """
    kind = _EpochEnds(epochs)
    return send_all(client, kind, epochs, format_item=lambda tp: f" of {tp}")


class _SentToLeaders:
    """Base of requests that the leaders of partitions answer; see `BatchedRequest`."""

    def nodes_for(
        self, client: KafkaClient, items: Collection[TopicPartition], within_s: float
    ) -> Routing[TopicPartition]:
        """Group partitions by leader."""
        del within_s
        return list(_group_by_leader(client, items).items()), "it has no leader"

    def forget(self, client: KafkaClient, items: Collection[TopicPartition]) -> None:
        """Forget the leaders of partitions."""
        client.forget_leaders({tp.topic for tp in items})


@dataclass(frozen=True)
class ListOffsets(_SentToLeaders):
    """ListOffsets for single partitions, which a look-up of many had no result for.

    Attributes:
        asked: By partition, a time in ms, or `EARLIEST`, `LATEST` or `MAX_TIMESTAMP`.
        committed: True if the end is the last stable offset.
    """

    asked: Mapping[TopicPartition, int]
    committed: bool
    what: str = "look up offsets"

    def request(self, items: list[TopicPartition]) -> Any:
        """Return the message about some partitions."""
        from kafka.protocol.consumer import ListOffsetsRequest

        topic = ListOffsetsRequest.ListOffsetsTopic
        partition = topic.ListOffsetsPartition
        grouped = _group_by_topic(
            (tp, partition(partition_index=tp.partition, timestamp=self.asked[tp])) for tp in items
        )
        newest = MAX_TIMESTAMP in self.asked.values()
        return ListOffsetsRequest(
            isolation_level=int(self.committed),
            topics=[topic(name=name, partitions=parts) for name, parts in grouped.items()],
            # Version 2 introduced isolation levels, 7 the newest timestamp (KIP-734).
            min_version=7 if newest else 2,
        )

    def answers(
        self, response: Any, items: list[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, int, FoundOffset]]:
        """Yield partition, error code and result."""
        del items
        for topic in response.topics:
            for each in topic.partitions:
                found = FoundOffset(each.offset, each.timestamp, each.leader_epoch)
                yield TopicPartition(topic.name, each.partition_index), each.error_code, found


@dataclass(frozen=True)
class _EpochEnds(_SentToLeaders):
    """OffsetForLeaderEpoch.

    Attributes:
        epochs: By partition, the leader epoch.
    """

    epochs: Mapping[TopicPartition, int]
    what: str = "look up the ends of leader epochs"

    def request(self, items: list[TopicPartition]) -> Any:
        """Return the message about some partitions."""
        from kafka.protocol.consumer import OffsetForLeaderEpochRequest

        topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        partition = topic.OffsetForLeaderPartition
        grouped = _group_by_topic(
            (tp, partition(partition=tp.partition, leader_epoch=self.epochs[tp])) for tp in items
        )
        topics = [topic(topic=name, partitions=parts) for name, parts in grouped.items()]
        return OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=topics)

    def answers(
        self, response: Any, items: list[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, int, int]]:
        """Yield partition, error code and end."""
        del items
        for topic in response.topics:
            for each in topic.partitions:
                yield TopicPartition(topic.topic, each.partition), each.error_code, each.end_offset


def _group_by_leader(
    client: KafkaClient, partitions: Collection[TopicPartition]
) -> dict[Node, list[TopicPartition]]:
    """Group partitions by the node that leads them, without partitions that have no leader."""
    if unknown := {tp.topic for tp in partitions} - client.list_cached_topics():
        client.fetch_topics(unknown)
    found: dict[Node, list[TopicPartition]] = {}
    for tp in partitions:
        node = client.get_leader(tp)
        if node is not None:
            found.setdefault(node, []).append(tp)
    return found


def _group_by_topic(wanted: Iterable[tuple[TopicPartition, Any]]) -> dict[str, list[Any]]:
    grouped: dict[str, list[Any]] = {}
    for tp, partition in wanted:
        grouped.setdefault(tp.topic, []).append(partition)
    return grouped
