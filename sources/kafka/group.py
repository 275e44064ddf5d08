"""The position of a query, committed to a consumer group for Kafka's own tools. Driver."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from krishiv_spark.errors import KrishivError
from krishiv_spark.kafka.client import KafkaClient, is_retriable, open_client
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.topic_partition import TopicPartition
from krishiv_spark.kafka.transport import LEAST_LOADED, Node
from krishiv_spark.runtime.retry import Backoff

__all__ = ["ConsumerGroupMirror"]

_log = logging.getLogger(__name__)
_NO_GENERATION = -1
_LAST_WITH_NAMES = 9
"""Later versions of OffsetCommit have ids of topics instead."""
_LAST_OF_ONE_GROUP = 7
"""Later versions of OffsetFetch have several groups."""
_FIRST_WITH_LISTS = 4
"""Earlier versions of FindCoordinator have a single key, and another response (KIP-699)."""
_METADATA_PREFIX = "krishiv-spark since "
"""Prefix of an offset's metadata; the start time of the driver that wrote it follows, in ms."""
_MOST_DIGITS = 19
_COMMIT_TIMEOUT_S, _PAUSE_AFTER_FAILURE_S = 5.0, 60.0
"""Maximum time that a commit may delay the query, and the pause after a failed one."""


class ConsumerGroupMirror:
    """A consumer group whose offsets follow the position of a query.

    The commits are those of a consumer outside of any generation. They only inform operators and
    their tools: after a failed commit, the query continues with a warning.

    Kafka has no conditional commit of this kind, and a driver that was frozen may wake after
    another driver has continued the query. So the group's offsets are fetched first, and each is
    replaced only by a greater one, or if this driver wrote it. A rewound checkpoint is the
    exception: the first position of a driver may be lower, if the driver started after the one that
    wrote the group's offset. The metadata of an offset contain that start time.

    Args:
        config: The settings of the cluster.
        group: Id of the group; it must have no other members.
        since_ms: Time at which the driver started to read the topics, in ms; now by default.
    """

    def __init__(self, config: KafkaConfig, group: str, since_ms: int | None = None) -> None:
        self._config = config
        self._group = group
        self._since_ms = time.time_ns() // 1_000_000 if since_ms is None else since_ms
        self._committed: Mapping[TopicPartition, int] | None = None
        self._written: dict[TopicPartition, int] = {}
        self._coordinator: Node | None = None
        self._paused_until_s = 0.0

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit the next offset of each partition, unless they were committed already.

        After a failure, nothing is committed for a minute.
        """
        if offsets == self._committed or time.monotonic() < self._paused_until_s:
            return
        try:
            self._commit_with_retry(open_client(self._config), offsets)
            self._committed = offsets
        except KrishivError as error:
            self._paused_until_s = time.monotonic() + _PAUSE_AFTER_FAILURE_S
            _log.warning("the position was not committed to group %r: %s", self._group, error)

    def _commit_with_retry(
        self, client: KafkaClient, offsets: Mapping[TopicPartition, int]
    ) -> None:
        backoff = Backoff(_COMMIT_TIMEOUT_S)
        while (error := self._try_to_commit(client, offsets)) is not None:
            self._coordinator = None  # another broker may be the coordinator by now
            failure = client.make_error(f"commit offsets to group {self._group!r}", error)
            if not is_retriable(error):
                raise failure
            backoff.pause_or_raise(lambda: failure)  # noqa: B023  raised within this round

    def _try_to_commit(
        self, client: KafkaClient, offsets: Mapping[TopicPartition, int]
    ) -> Exception | None:
        """Fetch the group's offsets, then commit those that may replace them; return an error."""
        known = self._coordinator
        node = _find_coordinator(client, self._group) if known is None else known
        if isinstance(node, Exception):
            return node
        current = _fetch(client, node, self._group, offsets)
        if isinstance(current, Exception):
            return current
        self._coordinator = node
        wanted = {
            tp: offset
            for tp, offset in offsets.items()
            if tp not in current or self._may_replace(tp, current[tp], offset)
        }
        if not wanted:
            return None
        request = _commit_request(self._group, wanted, f"{_METADATA_PREFIX}{self._since_ms}")
        answer = _send(client, node, request)
        error = answer if isinstance(answer, Exception) else _find_error(answer)
        if error is None:
            self._written |= wanted
        return error

    def _may_replace(self, tp: TopicPartition, current: _GroupOffset, offset: int) -> bool:
        if offset > current.offset or current.offset == self._written.get(tp):
            return True
        return self._committed is None and current.since_ms < self._since_ms


class _GroupOffset(NamedTuple):
    """The offset of a group in a partition, and the start time of the driver that wrote it."""

    offset: int
    since_ms: int


def _find_coordinator(client: KafkaClient, group: str) -> Node | Exception:
    """Return the id of the group's coordinator, or the error."""
    found = _send(client, LEAST_LOADED, _coordinator_request(group))
    if isinstance(found, Exception):
        return found
    coordinator = found.coordinators[0]
    if coordinator.error_code:
        return _error(coordinator.error_code)
    return int(coordinator.node_id)


def _fetch(
    client: KafkaClient, node: Node, group: str, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, _GroupOffset] | Exception:
    """Return the group's offsets in the partitions in which it has one, or the error."""
    answer = _send(client, node, _fetch_request(group, offsets))
    if isinstance(answer, Exception):
        return answer
    if answer.error_code:
        return _error(answer.error_code)
    return _find_error(answer) or {
        TopicPartition(topic.name, one.partition_index): _GroupOffset(
            one.committed_offset, _parse_since(one.metadata)
        )
        for topic in answer.topics
        for one in topic.partitions
        if one.committed_offset >= 0
    }


def _parse_since(metadata: str | None) -> int:
    """Return the start time in an offset's metadata; 0 if another program wrote them."""
    text = (metadata or "").removeprefix(_METADATA_PREFIX)
    return int(text) if text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS else 0


def _find_error(answer: Any) -> Exception | None:
    codes = {each.error_code for topic in answer.topics for each in topic.partitions} - {0}
    return _error(codes.pop()) if codes else None


def _send(client: KafkaClient, node: Node, message: Any) -> Any:
    return client.ask([(node, message)])[0]


def _error(code: int) -> Exception:
    from kafka.errors import for_code

    error: Exception = for_code(code)()
    return error


def _coordinator_request(group: str) -> Any:
    from kafka.protocol.metadata.find_coordinator import CoordinatorType, FindCoordinatorRequest

    return FindCoordinatorRequest(
        key_type=int(CoordinatorType.GROUP),
        coordinator_keys=[group],
        min_version=_FIRST_WITH_LISTS,
    )


def _fetch_request(group: str, offsets: Mapping[TopicPartition, int]) -> Any:
    from kafka.protocol.consumer import OffsetFetchRequest

    topic = OffsetFetchRequest.OffsetFetchRequestTopic
    grouped: dict[str, list[int]] = {}
    for tp in offsets:
        grouped.setdefault(tp.topic, []).append(tp.partition)
    return OffsetFetchRequest(
        group_id=group,
        topics=[topic(name=name, partition_indexes=parts) for name, parts in grouped.items()],
        max_version=_LAST_OF_ONE_GROUP,
    )


def _commit_request(group: str, offsets: Mapping[TopicPartition, int], metadata: str) -> Any:
    from kafka.protocol.consumer import OffsetCommitRequest

    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    partition = topic.OffsetCommitRequestPartition
    grouped: dict[str, list[Any]] = {}
    for tp, offset in offsets.items():
        grouped.setdefault(tp.topic, []).append(
            partition(
                partition_index=tp.partition,
                committed_offset=offset,
                committed_leader_epoch=-1,
                committed_metadata=metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=_NO_GENERATION,
        member_id="",
        group_instance_id=None,
        retention_time_ms=-1,
        topics=[topic(name=name, partitions=parts) for name, parts in grouped.items()],
        max_version=_LAST_WITH_NAMES,
    )
