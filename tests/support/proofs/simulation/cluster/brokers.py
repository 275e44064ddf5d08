"""Brokers: which answers to which message, in the form in which kafka-python gives them."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from kafka.errors import KafkaConnectionError

from krishiv_spark.kafka.topic_partition import READ, WRITE, TopicPartition
from simulation.clock import Clock
from simulation.cluster.coordinator import (
    ID_NOT_FOUND,
    NONE,
    NOT_COORDINATOR,
    Coordinator,
    Ended,
    KafkaRefusal,
)
from simulation.cluster.leaders import UNKNOWN_TOPIC, Leaders
from simulation.cluster.partitions import Arrived, Partition
from simulation.cluster.words import Said as Answer

__all__ = ["TOPIC", "Cluster"]

TOPIC = "t"
_COORDINATORS = 4
"""Partitions of the coordinators' topic."""
_ABORT_EVERY_MS = 10_000
_NEW_RULES_FROM = 5


class Cluster(Leaders):
    """Brokers with one topic.

    Args:
        clock: Of the history.
        brokers: How many, from 1 on.
        partitions: Of the topic.
        rules: Of transactions, 1 or 2.
        verify: TV1: whether leaders ask coordinators.
        top: The highest producer epoch.
        decided: Called with each outcome; writes the markers sooner or later.
        shown: Called with batches that readers of committed records see from now on.
        topic: Its name.

    Attributes:
        coordinator: Of all ids.
        partitions: By name.
        down: Brokers that do not answer.
    """

    def __init__(
        self,
        clock: Clock,
        brokers: int,
        partitions: int,
        rules: int,
        *,
        verify: bool,
        top: int,
        decided: Callable[[Ended], None],
        shown: Callable[[list[Arrived]], None],
        topic: str = TOPIC,
    ) -> None:
        nodes = list(range(1, brokers + 1))
        logs = {TopicPartition(topic, number): Partition() for number in range(partitions)}
        coordinator = Coordinator(rules, top, lambda: clock.now_ms, decided)
        super().__init__(nodes, logs, coordinator, verify=verify, shown=shown)
        self.down: set[int] = set()
        self._clock = clock
        self._topic_name = topic
        self._moved = 0
        clock.ring = self._ring
        clock.alarm_ms = clock.now_ms + _ABORT_EVERY_MS

    # --- who is who

    def coordinator_of(self, name: str) -> int:
        """The broker that answers for an id."""
        number = zlib.crc32(name.encode()) % _COORDINATORS + self._moved
        return self.nodes[number % len(self.nodes)]

    def move(self, number: int) -> None:
        """Coordinators and a leader move to other brokers."""
        self._moved += 1
        tp = list(self.partitions)[number % len(self.partitions)]
        self.lead(tp, self.nodes[number % len(self.nodes)])

    # --- what happens by itself

    def _ring(self) -> None:
        """Every ten seconds, abort what is open for too long."""
        for name in self.coordinator.expired():
            self.coordinator.time_out(name)
        self._clock.alarm_ms = self._clock.now_ms + _ABORT_EVERY_MS

    # --- messages

    def answer(self, node: int, request: Any) -> Any:
        """Return the answer of a broker.

        Raises:
            KafkaConnectionError: If it cannot be reached.
        """
        if node in self.down:
            raise KafkaConnectionError(f"broker {node} is away")
        handler: Callable[[int, Any], Any] = getattr(
            self, f"_{type(request).__name__[:-7].lower()}"
        )
        return handler(node, request)

    def _guarded(self, node: int, name: str, work: Callable[[], Any]) -> tuple[int, Any]:
        """Return the error number and the value of an operation of an id's coordinator."""
        if node != self.coordinator_of(name):
            return NOT_COORDINATOR, None
        try:
            return NONE, work()
        except KafkaRefusal as refusal:
            return refusal.code, None

    def _apiversions(self, node: int, request: Any) -> Any:
        del node, request
        level = self.coordinator.rules
        feature = Answer(name="transaction.version", max_version_level=level)
        offered = [Answer(api_key=number, max_version=99) for number in range(100)]
        return Answer(error_code=NONE, finalized_features=[feature], api_keys=offered)

    def _metadata(self, node: int, request: Any) -> Any:
        del node
        asked = None if request.topics is None else [topic.name for topic in request.topics]
        names = [self._topic_name] if asked is None else asked
        return Answer(topics=[self._topic(name) for name in names])

    def _topic(self, name: str) -> Any:
        parts = [
            Answer(partition_index=tp.partition, leader_id=self.leader_of(tp))
            for tp in self.partitions
            if tp.topic == name
        ]
        code = NONE if parts else UNKNOWN_TOPIC
        return Answer(
            error_code=code,
            name=name,
            is_internal=False,
            topic_id="",
            partitions=parts,
            authorized_operations=[READ, WRITE],
        )

    def _findcoordinator(self, node: int, request: Any) -> Any:
        del node
        found = [
            Answer(key=name, error_code=NONE, node_id=self.coordinator_of(name), host="h", port=1)
            for name in sorted(request.coordinator_keys)
        ]
        return Answer(coordinators=found)

    def _initproducerid(self, node: int, request: Any) -> Any:
        name = request.transactional_id
        given = (request.producer_id, request.producer_epoch)
        expected = None if given[0] in {None, -1} else given
        code, known = self._guarded(
            node,
            name,
            lambda: self.coordinator.begin(name, request.transaction_timeout_ms, expected),
        )
        producer, epoch = (-1, -1) if known is None else (known.producer, known.epoch)
        return Answer(error_code=code, producer_id=producer, producer_epoch=epoch)

    def _addpartitionstotxn(self, node: int, request: Any) -> Any:
        name = request.v3_and_below_transactional_id
        topics = request.v3_and_below_topics
        partitions = {
            TopicPartition(topic.name, number) for topic in topics for number in topic.partitions
        }
        who = (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        code, _ = self._guarded(node, name, lambda: self.coordinator.add(name, *who, partitions))
        found = [
            Answer(
                name=topic.name,
                results_by_partition=[
                    Answer(partition_index=number, partition_error_code=code)
                    for number in topic.partitions
                ],
            )
            for topic in topics
        ]
        return Answer(results_by_topic_v3_and_below=found)

    def _endtxn(self, node: int, request: Any) -> Any:
        rules = 2 if _NEW_RULES_FROM <= request.API_VERSION else 1
        name, who = request.transactional_id, (request.producer_id, request.producer_epoch)
        code, _ = self._guarded(
            node,
            name,
            lambda: self.coordinator.end(name, *who, rules, commit=request.committed),
        )
        return Answer(error_code=code)

    def _describetransactions(self, node: int, request: Any) -> Any:
        return Answer(
            transaction_states=[
                self._description(node, n) for n in sorted(request.transactional_ids)
            ]
        )

    def _description(self, node: int, name: str) -> Any:
        known = self.coordinator.known.get(name)
        code = NOT_COORDINATOR if node != self.coordinator_of(name) else NONE
        if known is None or code:
            return Answer(transactional_id=name, error_code=code or ID_NOT_FOUND)
        numbers = sorted(tp.partition for tp in known.partitions)
        return Answer(
            transactional_id=name,
            error_code=NONE,
            transaction_state=known.state,
            producer_id=known.producer,
            producer_epoch=known.epoch,
            transaction_start_time_ms=known.begun_ms,
            transaction_timeout_ms=known.timeout_ms,
            topics=[Answer(topic=self._topic_name, partitions=numbers)] if numbers else [],
        )

    def _listtransactions(self, node: int, request: Any) -> Any:
        wanted = set(request.state_filters or ())
        found = [
            Answer(transactional_id=name, transaction_state=known.state)
            for name, known in self.coordinator.known.items()
            if node == self.coordinator_of(name) and (not wanted or known.state in wanted)
        ]
        return Answer(error_code=NONE, transaction_states=found)
