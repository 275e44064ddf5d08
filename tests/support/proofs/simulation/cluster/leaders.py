"""Leaders of partitions: what they answer, and the markers that they write."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from krishiv_spark.kafka.topic_partition import TopicPartition
from simulation.cluster.coordinator import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_EPOCH,
    NONE,
    PRODUCER_FENCED,
    Coordinator,
    Ended,
    KafkaRefusal,
)
from simulation.cluster.partitions import Arrived, Partition, parse_batch_header
from simulation.cluster.words import Said as Answer

__all__ = ["UNKNOWN_TOPIC", "Leaders", "rows_of", "version_of"]

UNKNOWN_TOPIC = 3
_NOT_LEADER, _OUT_OF_RANGE, _NOT_ENOUGH = 6, 1, 19
_NEW_RULES_FROM = 12


class Leaders:
    """All of them.

    Args:
        nodes: Brokers.
        partitions: By name.
        coordinator: Whom they ask.
        verify: TV1: whether they ask.
        shown: Called with batches that readers of committed records see from now on.
    """

    def __init__(
        self,
        nodes: list[int],
        partitions: dict[TopicPartition, Partition],
        coordinator: Coordinator,
        *,
        verify: bool,
        shown: Callable[[list[Arrived]], None],
    ) -> None:
        self.nodes = nodes
        self.partitions = partitions
        self.coordinator = coordinator
        self._verify = verify
        self._shown = shown
        self._led: dict[TopicPartition, int] = {}

    def leader_of(self, tp: TopicPartition) -> int:
        """The broker that leads a partition."""
        return self._led.get(tp, self.nodes[tp.partition % len(self.nodes)])

    def lead(self, tp: TopicPartition, node: int) -> None:
        """Another broker leads a partition from now on."""
        self._led[tp] = node

    def write_marker(self, ended: Ended, tp: TopicPartition) -> None:
        """A leader writes the marker of a transaction."""
        partition = self.partitions[tp]
        decided = partition.end_transaction(ended.producer, ended.epoch, commit=ended.commit)
        if ended.commit and decided:
            self._shown(decided)

    def batches_of(self, ended: Ended) -> list[Arrived]:
        """Return the batches of a transaction whose markers are not written yet."""
        logs = (self.partitions[tp] for tp in ended.partitions)
        return [batch for log in logs for batch in log.open_batches(ended.producer)]

    # --- messages

    def _produce(self, node: int, request: Any) -> Any:
        rules = 2 if version_of(request) >= _NEW_RULES_FROM else 1
        return Answer(
            responses=[
                Answer(
                    name=topic.name,
                    partition_responses=[
                        self._write(node, request.transactional_id, topic.name, part, rules)
                        for part in topic.partition_data
                    ],
                )
                for topic in request.topic_data
            ]
        )

    def _write(self, node: int, name: str, topic: str, part: Any, rules: int) -> Any:
        tp, batch = TopicPartition(topic, part.index), parse_batch_header(part.records)
        offset, code = -1, NONE
        try:
            offset = self._take(node, name, tp, batch, rules)
        except KafkaRefusal as refusal:
            code = refusal.code
        return Answer(index=part.index, error_code=code, error_message=None, base_offset=offset)

    def _take(self, node: int, name: str, tp: TopicPartition, batch: Arrived, rules: int) -> int:
        if tp not in self.partitions:
            raise KafkaRefusal(UNKNOWN_TOPIC)
        if self.leader_of(tp) != node:
            raise KafkaRefusal(_NOT_LEADER)
        partition = self.partitions[tp]
        if not partition.is_open(batch.producer, batch.epoch):
            self._ask_coordinator(name, tp, batch, rules)
        return partition.append(batch)

    def _ask_coordinator(self, name: str, tp: TopicPartition, batch: Arrived, rules: int) -> None:
        """A leader that does not know the transaction asks (``AddPartitionsToTxnManager``)."""
        who = (name, batch.producer, batch.epoch)
        try:
            if rules == 2:
                self.coordinator.add(*who, {tp}, rules)
            elif self._verify:
                self.coordinator.verify(*who, tp)
        except KafkaRefusal as refusal:
            raise KafkaRefusal(_as_leaders_say(refusal.code, rules)) from None

    def _listoffsets(self, node: int, request: Any) -> Any:
        del node
        committed = bool(request.isolation_level)
        return Answer(
            topics=[
                Answer(
                    name=topic.name,
                    partitions=[
                        self._end(topic.name, part, committed) for part in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _end(self, topic: str, part: Any, committed: bool) -> Any:
        found = self.partitions[TopicPartition(topic, part.partition_index)]
        end = found.last_stable_offset if committed else found.end
        number = part.partition_index
        return Answer(
            partition_index=number, error_code=NONE, offset=end, timestamp=-1, leader_epoch=0
        )

    def _fetch(self, node: int, request: Any) -> Any:
        found = [
            Answer(
                topic=topic.topic,
                partitions=[self._read(node, topic.topic, p) for p in topic.partitions],
            )
            for topic in request.topics
        ]
        return Answer(API_VERSION=12, responses=found)

    def _read(self, node: int, topic: str, part: Any) -> Any:
        tp = TopicPartition(topic, part.partition)
        partition = self.partitions[tp]
        records = partition.fetch(part.fetch_offset)
        code = _NOT_LEADER if self.leader_of(tp) != node else NONE
        return Answer(
            partition_index=part.partition,
            error_code=code or (_OUT_OF_RANGE if records is None else NONE),
            records=records,
            aborted_transactions=(),
            last_stable_offset=partition.last_stable_offset,
            high_watermark=partition.end,
            log_start_offset=partition.start,
        )


def _as_leaders_say(code: int, rules: int) -> int:
    """Return the answer of a leader that forwards the coordinator's."""
    if code == CONCURRENT_TRANSACTIONS and rules == 1:
        return _NOT_ENOUGH
    return {PRODUCER_FENCED: INVALID_PRODUCER_EPOCH}.get(code, code)


def version_of(request: Any) -> int:
    """The version in which a message is sent, to a broker that knows all of them."""
    return int(request._max_version or request.max_version)


def rows_of(batches: Iterable[Arrived]) -> list[int]:
    """The rows in batches."""
    from kafka.record import MemoryRecords

    found: list[int] = []
    for batch in batches:
        records = MemoryRecords(batch.data)
        while part := records.next_batch():
            found += [int(record.value) for record in part]
    return found
