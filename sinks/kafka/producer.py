"""Sends batches to the leaders: bounded memory, several requests under way, each record once."""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from krishiv_spark.kafka.client import Client, KafkaFailedError
from krishiv_spark.kafka.pauses import Pauses
from krishiv_spark.kafka.places import Place
from krishiv_spark.kafka.records import Sealed
from krishiv_spark.sinks.kafka.lanes import Identity, Lane, Sending
from krishiv_spark.sinks.kafka.refusals import advice

__all__ = ["Producer"]

_MOST_BYTES = 32 * 2**20
"""Of batches that no leader has acknowledged yet."""

_REQUEST_BYTES = 4 * 2**20
_REQUESTS = 5
"""Under way to one broker."""

_REPLICAS_MS = 30_000
"""How long a leader waits for its replicas (``request.timeout.ms`` of Java's producer)."""

_NO_ERROR, _DUPLICATE = 0, 46


@dataclass(frozen=True)
class _Request:
    """A message under way.

    Attributes:
        node: To whom.
        future: Of the answer.
        parts: What it carries, one batch of a partition at most.
    """

    node: int
    future: Any
    parts: dict[Place, Sending]


class Producer:
    """Sends what one task writes. Executor.

    Args:
        client: Of this process.
        identity: Who sends.
        join: Called with partitions before the first batches for them, if they have to be added.

    Attributes:
        first: Where the first acknowledged batch lies, with its offset.
    """

    def __init__(
        self,
        client: Client,
        identity: Identity,
        join: Callable[[Collection[Place]], None] | None = None,
    ) -> None:
        self._client = client
        self._identity = identity
        self._join = join
        self._new: list[Place] = []
        self._lanes: dict[Place, Lane] = {}
        self._waiting: dict[Place, Lane] = {}
        self._unacknowledged = 0
        self._requests: deque[_Request] = deque()
        self._pauses: Pauses | None = None
        self.first: tuple[Place, int] | None = None

    def put(self, topic: str, batches: Iterable[Sealed]) -> None:
        """Send batches; waits while too much is unacknowledged.

        Raises:
            KafkaFailedError: If a leader refuses one, or does not answer in time.
        """
        for sealed in batches:
            lane = self._take_in(topic, sealed)
            if not self._new:
                self._send([lane])
        if self._new:  # they are added together
            self._send(list(self._waiting.values()))

    def put_last(self, topic: str, batches: Iterable[Sealed]) -> None:
        """As `put`, for batches that `flush` sends: small ones then share requests.

        Raises:
            KafkaFailedError: If a leader refuses one, or does not answer in time.
        """
        for sealed in batches:
            self._take_in(topic, sealed)

    def _take_in(self, topic: str, sealed: Sealed) -> Lane:
        while self._unacknowledged > _MOST_BYTES:
            self._step()
        place = Place(topic, sealed.partition)
        lane = self._lanes.get(place)
        if lane is None:
            lane = self._lanes[place] = Lane(place, self._identity)
            if self._join is not None:
                self._new.append(place)
        self._unacknowledged += lane.put(sealed)
        self._waiting[place] = lane
        return lane

    def flush(self) -> None:
        """Wait until everything is acknowledged.

        Raises:
            KafkaFailedError: If a leader refuses a batch, or does not answer in time.
        """
        while self._unacknowledged:
            self._step()

    def drain(self) -> None:
        """Await the answers that are under way, whatever they are."""
        from kafka.errors import KafkaError

        for request in self._requests:
            with contextlib.suppress(KafkaError):
                self._client.wait(request.future)
        self._requests.clear()

    def _step(self) -> None:
        """Send what can be sent, and wait for one answer."""
        self._send(list(self._waiting.values()))
        if self._requests:
            self._pauses = None
            self._receive(self._requests.popleft())
        else:
            self._await_leaders()

    def _await_leaders(self) -> None:
        self._pauses = self._pauses or Pauses(self._client.connection.patience_s)
        waiting = [place for place, lane in self._lanes.items() if not lane.is_empty()]
        self._client.forget_leaders({place.topic for place in waiting})
        if not self._pauses.pause():
            raise self._client.failed(f"write to {waiting[0]}", "nobody leads it, time is up")

    # --- requests

    def _send(self, lanes: Iterable[Lane]) -> None:
        """Send what waits in some lanes, as far as their leaders are free."""
        if self._join is not None and self._new:
            self._join(self._new)
            self._new = []
        busy = Counter(request.node for request in self._requests)
        for node, ready in self._ready(lanes, busy).items():
            while busy[node] < _REQUESTS and any(lane.is_ready() for lane in ready):
                parts = self._take(ready)
                future = self._client.submit(self._message(parts), node)
                self._requests.append(_Request(node, future, parts))
                busy[node] += 1

    def _take(self, lanes: Iterable[Lane]) -> dict[Place, Sending]:
        """The next batch of each partition, as many as fit into a request."""
        parts: dict[Place, Sending] = {}
        size = 0
        for lane in lanes:
            if lane.is_ready() and size < _REQUEST_BYTES:
                parts[lane.place] = lane.next()
                size += len(parts[lane.place].data)
                if not lane.is_waiting():
                    del self._waiting[lane.place]
        return parts

    def _ready(self, lanes: Iterable[Lane], busy: Mapping[int, int]) -> dict[int, list[Lane]]:
        found: dict[int, list[Lane]] = {}
        for lane in lanes:
            leader = self._client.leader(lane.place) if lane.is_ready() else None
            if leader is not None and busy[leader] < _REQUESTS:
                found.setdefault(leader, []).append(lane)
        return found

    def _message(self, parts: dict[Place, Sending]) -> Any:
        from kafka.protocol.producer import ProduceRequest

        topic = ProduceRequest.TopicProduceData
        grouped: dict[str, list[Any]] = {}
        for place, sending in parts.items():
            data = topic.PartitionProduceData(index=place.partition, records=sending.data)
            grouped.setdefault(place.topic, []).append(data)
        second = self._identity.rules == 2  # noqa: PLR2004
        return ProduceRequest(
            transactional_id=self._identity.transactional_id,
            acks=-1,
            timeout_ms=_REPLICAS_MS,
            topic_data=[topic(name=name, partition_data=data) for name, data in grouped.items()],
            min_version=12 if second else 3,  # from 12 on, Produce itself adds the partition
            max_version=12 if second else 11,
        )

    # --- answers

    def _receive(self, request: _Request) -> None:
        from kafka.errors import KafkaError

        try:
            response = self._client.wait(request.future)
        except KafkaError as error:
            for place, sending in request.parts.items():
                self._repeat(place, sending, error)
            return
        for topic in response.responses:
            for part in topic.partition_responses:
                place = Place(topic.name, part.index)
                self._answered(place, request.parts[place], part)

    def _answered(self, place: Place, sending: Sending, part: Any) -> None:
        from kafka.errors import for_code

        if self.first is None and part.error_code == _NO_ERROR:
            self.first = place, part.base_offset
        lane = self._lanes[place]
        if part.error_code in {_NO_ERROR, _DUPLICATE}:
            self._unacknowledged -= len(sending.data)
            lane.acknowledge(sending)
            self._wait_if_needed(lane)
        else:
            self._repeat(place, sending, for_code(part.error_code)(part.error_message or ""))

    def _repeat(self, place: Place, sending: Sending, error: Exception) -> None:
        lane = self._lanes[place]
        if not lane.may_repeat(sending, error):
            raise self._failed(place, advice(error, sending.count, len(sending.data)))
        if not lane.repeat(sending, self._client):
            raise self._failed(place, f"{error}, time is up")
        self._wait_if_needed(lane)

    def _wait_if_needed(self, lane: Lane) -> None:
        """What was sent in vain may be waiting again."""
        if lane.is_waiting():
            self._waiting[lane.place] = lane

    def _failed(self, place: Place, why: str) -> KafkaFailedError:
        return self._client.failed(f"write to {place}", why)
