"""The position of a query, shown to Kafka's own tools as that of a consumer group. Driver."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from krishiv_spark.errors import KrishivError
from krishiv_spark.kafka.client import Client, is_retriable, open_client
from krishiv_spark.kafka.connection import Connection
from krishiv_spark.kafka.network import LEAST_LOADED, Node
from krishiv_spark.kafka.topic_partition import TopicPartition
from krishiv_spark.retry import Backoff

__all__ = ["ShownPosition"]

_log = logging.getLogger(__name__)
_NO_GENERATION = -1
# Later versions have ids of topics instead.
_LAST_WITH_NAMES = 9
# Several keys in one message (KIP-699); before it the answer has another form.
_FIRST_WITH_LISTS = 4
_PATIENCE_S, _REST_S = 5.0, 60.0
"""How long the query waits for a position to be shown, and for how long then for none."""


class ShownPosition:
    """Shows where a query stands, as a consumer outside any generation does that commits offsets.

    It is for people and their tools: if it fails, there is a warning and the query goes on.

    Args:
        connection: How the cluster is reached.
        group: Id of the group; it must have no other members.
    """

    def __init__(self, connection: Connection, group: str) -> None:
        self._connection = connection
        self._group = group
        self._shown: Mapping[TopicPartition, int] | None = None
        self._until_s = 0.0

    def show(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these offsets, the next of each partition, if they are not shown yet.

        When that has failed, nothing is tried for a minute.
        """
        if offsets == self._shown or time.monotonic() < self._until_s:
            return
        try:
            _commit(open_client(self._connection), self._group, offsets)
            self._shown = offsets
        except KrishivError as error:
            self._until_s = time.monotonic() + _REST_S
            _log.warning("the position is not shown to group %r: %s", self._group, error)


def _commit(client: Client, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    backoff = Backoff(_PATIENCE_S)
    while (error := _tried(client, group, offsets)) is not None:
        failure = client.failed(f"commit offsets to group {group!r}", error)
        if not is_retriable(error):
            raise failure
        backoff.pause_or_raise(lambda: failure)  # noqa: B023  raised within this round


def _tried(client: Client, group: str, offsets: Mapping[TopicPartition, int]) -> Exception | None:
    """Commit once; what went wrong."""
    found = _answer(client, LEAST_LOADED, _find(group))
    if isinstance(found, Exception):
        return found
    coordinator = found.coordinators[0]
    if coordinator.error_code:
        return _error(coordinator.error_code)
    answer = _answer(client, coordinator.node_id, _request(group, offsets))
    if isinstance(answer, Exception):
        return answer
    codes = {each.error_code for topic in answer.topics for each in topic.partitions} - {0}
    return _error(codes.pop()) if codes else None


def _answer(client: Client, node: Node, message: Any) -> Any:
    return client.ask([(node, message)])[0]


def _error(code: int) -> Exception:
    from kafka.errors import for_code

    error: Exception = for_code(code)()
    return error


def _find(group: str) -> Any:
    from kafka.protocol.metadata.find_coordinator import CoordinatorType, FindCoordinatorRequest

    return FindCoordinatorRequest(
        key_type=int(CoordinatorType.GROUP),
        coordinator_keys=[group],
        min_version=_FIRST_WITH_LISTS,
    )


def _request(group: str, offsets: Mapping[TopicPartition, int]) -> Any:
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
                committed_metadata="",
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
