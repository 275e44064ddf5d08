"""A transport to simulated brokers, in place of `krishiv_spark.kafka.transport.Transport`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kafka.errors import KafkaConnectionError, KafkaError

from krishiv_spark.kafka.topic_partition import BrokerAddress
from krishiv_spark.kafka.transport import LEAST_LOADED
from simulation.cluster.words import shown
from simulation.present import get_present_play
from simulation.world import CallKind

__all__ = ["KAFKA", "SimulatedTransport"]

KAFKA = CallKind("kafka", lambda what: KafkaConnectionError(f"no answer: {what}"))
_SILENCE_MS = 100


class Message(NamedTuple):
    """A message to a broker."""

    broker: int
    request: Any

    @property
    def name(self) -> str:
        """The kind of the message."""
        return type(self.request).__name__

    def __str__(self) -> str:
        return f"to broker {self.broker}: {shown(self.request)}"


def _place_in_order(broker: int, request: Any) -> tuple[int, str]:
    """Of messages that are sent side by side: each broker gets one, or each id."""
    return broker, getattr(request, "transactional_id", None) or ""


class SimulatedTransport:
    """Each message is a call; those that are sent side by side are calls one after another.

    Attributes:
        heard_s: When the last answer came.
        is_alive: Whether its thread runs.
        cluster_id: Of the cluster.
    """

    is_alive = True
    cluster_id = "simulated"

    def __init__(self, values: Mapping[str, Any], *login: object) -> None:
        del values, login
        self._world = get_present_play().world
        self._cluster = get_present_play().cluster
        self.heard_s = self._world.clock.now_ms / 1000

    def bootstrap(self, timeout_s: float) -> None:
        """Nothing is to be reached."""

    def close(self) -> None:
        """Nothing is to be ended."""

    def submit(self, request: Any, node: int | str) -> Callable[[], Any]:
        """The message arrives before anything else happens: nobody sees the difference."""
        answer = self._send(node, request)

        def wait() -> Any:
            if isinstance(answer, KafkaError):
                raise answer
            return answer

        return wait

    def wait(self, future: Callable[[], Any]) -> Any:
        """The answer of a message that was submitted."""
        return future()

    def ask(self, messages: Sequence[tuple[int | str, Any]], within_s: float | None) -> list[Any]:
        """In an order of its own: the caller may have them from a set."""
        del within_s
        order = list(range(len(messages)))
        if len(order) > 1:
            order.sort(
                key=lambda number: _place_in_order(
                    self._broker(messages[number][0]), messages[number][1]
                )
            )
        answers = {number: self._send(*messages[number]) for number in order}
        return [answers[number] for number in range(len(messages))]

    def _send(self, node: int | str, request: Any) -> Any:
        broker = self._broker(node)
        try:
            answer = self._world.call(
                KAFKA, Message(broker, request), lambda: self._cluster.answer(broker, request)
            )
        except KafkaError as error:
            self._world.clock.pass_ms(_SILENCE_MS)
            return error
        self.heard_s = self._world.clock.now_ms / 1000
        return answer

    def _broker(self, node: int | str) -> int:
        if node == LEAST_LOADED:
            up = [each for each in self._cluster.nodes if each not in self._cluster.down]
            return (up or self._cluster.nodes)[0]
        return node if isinstance(node, int) else int(node.split("@")[0])

    def list_nodes(self) -> list[int]:
        """All brokers."""
        return self._cluster.nodes

    def update_brokers(self, metadata: Any) -> None:
        """All brokers are known."""

    def add_connection(self, name: str, broker: BrokerAddress) -> str:
        """One more connection."""
        del broker
        return name
