"""Connections to one cluster, kept for the life of a process.

kafka-python brings connections, TLS, SASL and message classes; its I/O thread runs beside the
caller. What is ours: a request that concerns many items goes side by side to the nodes that answer
for them, and again for those items only that had no answer yet.
"""

# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
# It carries stubs of kafka-python 2.

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from krishiv_spark.errors import KrishivError
from krishiv_spark.kafka.connection import Connection
from krishiv_spark.kafka.exchanges import (
    ANY,
    Exchange,
    K,
    ListOffsets,
    Metadata,
    Node,
    V,
)
from krishiv_spark.kafka.pauses import Pauses
from krishiv_spark.kafka.places import Broker, FoundOffset, Place, Topic

__all__ = ["Client", "KafkaFailedError", "is_passing", "open_client"]


class KafkaFailedError(KrishivError):
    """The cluster refused something, or did not answer in time."""


class Client:
    """One process's connections to a cluster. Any thread may use it.

    Args:
        connection: How the cluster is reached.

    Attributes:
        coordinators: By transactional id, the broker that coordinates it, as far as is known.

    Raises:
        KafkaFailedError: If no broker answers in time, or the login is refused.
    """

    def __init__(self, connection: Connection) -> None:
        from kafka.errors import KafkaError
        from kafka.net.selector import NetworkSelector

        from krishiv_spark.kafka.sockets import ConnectionManager

        self.connection = connection
        self._net = NetworkSelector(client_id=connection.values["client_id"])
        self._manager = ConnectionManager(self._net, **connection.values)
        self._net.start()
        self._topics: dict[str, Topic] = {}
        self._lanes: dict[str, Node] = {}
        self.coordinators: dict[str, Broker] = {}
        try:
            self._manager.bootstrap(connection.patience_s * 1000)
        except KafkaError as error:
            self.close()
            raise self.failed("reach the cluster", f"{error}{self._login_hint()}") from error

    def close(self) -> None:
        """End the I/O thread and the connections."""
        self._net.call_soon_threadsafe(self._manager.close)
        self._net.stop(timeout_ms=1000)
        self._net.close()

    def _login_hint(self) -> str:
        """A broker that refuses a login may close the connection before it is heard."""
        user = self.connection.values.get("sasl_plain_username")
        return (
            "" if user is None else f"; or the login of user {user!r} is refused: see its password"
        )

    def failed(self, what: str, error: object) -> KafkaFailedError:
        """An error that says what could not be done, where, and why."""
        return KafkaFailedError(f"Kafka at {self.connection.bootstrap}: cannot {what}: {error}")

    # --- messages

    def submit(self, request: Any, node: Node) -> Any:
        """Send a message without waiting.

        Returns:
            kafka-python's future of the response.
        """
        return self._manager.call_soon(self._send, request, node)

    def wait(self, future: Any) -> Any:
        """The response behind a future, or kafka-python's error, raised."""
        return self._manager.run(_result, future)

    def ask(self, messages: Sequence[tuple[Node, Any]], within_s: float | None = None) -> list[Any]:
        """Send messages side by side.

        Args:
            messages: Each with the node that it goes to.
            within_s: How long the answers are awaited, all of them together; None for as long as
                one request may take (``request.timeout.ms``).

        Returns:
            For each its response, or kafka-python's error in its place.
        """
        until_s = None if within_s is None else time.monotonic() + within_s
        found: list[Any] = self._manager.run(self._ask, messages, until_s)
        return found

    async def _ask(self, messages: Sequence[tuple[Node, Any]], until_s: float | None) -> list[Any]:
        futures = [self._send(body, node) for node, body in messages]
        return [await self._answer(future, until_s) for future in futures]

    async def _answer(self, future: Any, until_s: float | None) -> Any:
        """What comes of a request; it goes on behind our back if time is up."""
        from kafka.errors import KafkaError

        left_ms = None if until_s is None else max(0.0, until_s - time.monotonic()) * 1000
        try:
            return await self._manager.wait_for(future, left_ms)
        except KafkaError as error:
            return error

    def _send(self, request: Any, node: Node) -> Any:
        from kafka.errors import KafkaError
        from kafka.future import Future

        try:
            return self._manager.send(request, None if node == ANY else node)
        except KafkaError as error:  # a broker that is not known any more
            return Future().failure(error)

    # --- many items

    def exchange(
        self, kind: Exchange[K, V], items: Iterable[K], within_s: float | None = None
    ) -> dict[K, V | Exception]:
        """Ask about many items until each has an answer.

        Args:
            kind: What is asked.
            items: About what.
            within_s: How long that may take; None for ``default.api.timeout.ms``.

        Returns:
            By item its value, or kafka-python's error that is final for it.

        Raises:
            KafkaFailedError: If some have no answer in time, or the login is refused.
        """
        found: dict[K, V | Exception] = {}
        waiting = list(dict.fromkeys(items))
        pauses = Pauses(self.connection.patience_s if within_s is None else within_s)
        while waiting:
            last = self._round(kind, waiting, found, pauses.left_s)
            waiting = [item for item in waiting if item not in found]
            if waiting:
                kind.forget(self, waiting)  # pyright: ignore[reportArgumentType]  # this very class
                if not pauses.pause():
                    raise self.failed(kind.what, f"{last} for {_some(waiting)}, time is up")
        return found

    def demand(
        self,
        kind: Exchange[K, V],
        items: Iterable[K],
        shown: Callable[[K], str] = lambda item: f" {item!r}",
        *,
        within_s: float | None = None,
    ) -> dict[K, V]:
        """`exchange`, where an error that is final for an item is one for the caller.

        Args:
            kind: What is asked.
            items: About what.
            shown: How an item stands in a message, behind what was tried.
            within_s: How long that may take; None for ``default.api.timeout.ms``.

        Raises:
            KafkaFailedError: As `exchange`, or if an item has an error.
        """
        found: dict[K, V] = {}
        for item, answer in self.exchange(kind, items, within_s).items():
            if isinstance(answer, Exception):
                raise self.failed(f"{kind.what}{shown(item)}", answer)
            found[item] = answer
        return found

    def _round(
        self,
        kind: Exchange[K, V],
        waiting: list[K],
        found: dict[K, V | Exception],
        within_s: float,
    ) -> Exception | str:
        """Ask once about all that wait; what is still without an answer, and why."""
        from kafka.errors import KafkaError, for_code

        last: Exception | str = "no broker answers"
        parts = kind.route(self, waiting)  # pyright: ignore[reportArgumentType]  # this very class
        responses = self.ask([(node, kind.request(part)) for node, part in parts], within_s)
        for (_, part), response in zip(parts, responses, strict=True):
            if isinstance(response, KafkaError):
                last = self._passing(kind, response)
                continue
            for item, code, value in kind.answers(response, part):
                error = for_code(code)() if code else None
                if error is None or not is_passing(error):
                    found[item] = value if error is None else error
                last = error or last
        return last

    def _passing(self, kind: Exchange[K, V], error: Exception) -> Exception:
        from kafka.errors import UnknownBrokerIdError

        if not is_passing(error):
            raise self.failed(kind.what, error) from error
        if isinstance(error, UnknownBrokerIdError):
            self.topics([])  # the answer names all brokers
        return error

    # --- metadata

    def topics(
        self, names: Collection[str] | None = None, *, create: bool = False
    ) -> dict[str, Topic]:
        """What the cluster says now of topics.

        Args:
            names: Which; None for all that the user may see, without internal ones.
            create: Whether the cluster may make those that it does not have, if it is set up so.

        Returns:
            By name. Those that do not exist are left out.

        Raises:
            KafkaFailedError: If one may not be seen, or the cluster does not answer.
        """
        from kafka.errors import KafkaError

        kind = Metadata(None if names is None else tuple(sorted(names)), create=create)
        answer = self.demand(kind, ["topics"])["topics"]
        self._manager.run(_call, self._manager.cluster.update_metadata, answer)
        try:
            found = kind.topics(answer)
        except KafkaError as error:
            raise self.failed(kind.what, error) from error
        self._topics.update(found)
        return found

    def list_offsets(
        self, asked: Mapping[Place, int], *, committed: bool = True
    ) -> dict[Place, FoundOffset]:
        """Look offsets up, at the leaders, side by side.

        Args:
            asked: By partition, a time in ms (the first record at or behind it), or `EARLIEST`,
                `LATEST`, `MAX_TIMESTAMP` (KIP-734).
            committed: Whether `LATEST` is the last stable offset: behind it transactions are open.

        Raises:
            KafkaFailedError: If a partition may not be read, or has no answer in time.
        """
        kind = ListOffsets(asked, committed=committed)
        return self.demand(kind, asked, lambda place: f" of {place}")

    def leader(self, place: Place) -> int | None:
        """The node that leads a partition, as far as is known; None while there is none."""
        topic = self.topic_of(place.topic)
        node = -1 if topic is None else topic.leaders.get(place.partition, -1)
        return None if node < 0 else node

    def topic_of(self, name: str) -> Topic | None:
        """What was last said of a topic; None if it does not exist."""
        if name not in self._topics:
            self.topics([name])
        return self._topics.get(name)

    def known(self) -> set[str]:
        """The topics whose leaders are known."""
        return set(self._topics)

    def forget_leaders(self, names: Collection[str]) -> None:
        """The next look at these topics asks the cluster."""
        for name in names:
            self._topics.pop(name, None)

    def cluster_id(self) -> str:
        """The id that the brokers gave their cluster when it was made (KIP-78)."""
        if not self._manager.cluster.cluster_id:  # known with the first answer to Metadata
            self.topics([])
        return str(self._manager.cluster.cluster_id)

    def nodes(self) -> list[int]:
        """The brokers of the cluster, as far as is known."""
        return [broker.node_id for broker in self._manager.cluster.brokers()]

    def lane(self, broker: Broker, number: int) -> Node:
        """One of several connections to a broker, on which others do not hold it up.

        A broker works off the requests of one connection one after another.
        """
        name = f"{broker.node}@{broker.host}:{broker.port}/{number}"
        if name not in self._lanes:
            said = _Lane(name, broker.host, broker.port)
            add = self._manager.cluster.add_coordinator
            self._lanes[name] = self._manager.run(_call, add, said, 1, name)
        return self._lanes[name]


@dataclass(frozen=True)
class _Lane:
    """What kafka-python takes for the answer that names a coordinator."""

    node_id: str
    host: str
    port: int
    error_code: int = 0


async def _result(future: Any) -> Any:
    return await future


async def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def is_passing(error: BaseException) -> bool:
    """Whether the same request may succeed later: a broker is away, a leader moves, ..."""
    from kafka.errors import RetriableError, UnknownBrokerIdError

    return isinstance(error, RetriableError | UnknownBrokerIdError)


def open_client(connection: Connection) -> Client:
    """The client of this process for a cluster; made at the first call.

    Raises:
        KafkaFailedError: If no broker answers in time, or the login is refused.
    """
    return _client(connection, os.getpid())  # connections do not survive a fork


@functools.lru_cache(maxsize=16)
def _client(connection: Connection, pid: int) -> Client:
    del pid
    return Client(connection)


def _some(items: Collection[object], most: int = 5) -> str:
    listed = ", ".join(str(item) for item in list(items)[:most])
    return listed if len(items) <= most else f"{listed} and {len(items) - most} more"
