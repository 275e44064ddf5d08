"""Connections to one cluster, kept for the life of a process.

kafka-python brings connections, TLS, SASL and message classes; its I/O thread runs beside the
caller. What is ours: a request that concerns many items goes side by side to the nodes that answer
for them, and again for those items only that had no answer yet.
"""

# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
# It carries stubs of kafka-python 2.

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from krishiv_spark.kafka.connection import Connection
from krishiv_spark.kafka.exchanges import Exchange, Features, K, Metadata, Node, V
from krishiv_spark.kafka.failures import KafkaFailedError, KafkaRefusedError, is_passing
from krishiv_spark.kafka.lookups import ListOffsets
from krishiv_spark.kafka.network import Network
from krishiv_spark.kafka.places import Broker, FoundOffset, Place, Topic
from krishiv_spark.kafka.rounds import collect

__all__ = ["Client", "KafkaFailedError", "KafkaRefusedError", "is_passing", "open_client"]

_log = logging.getLogger(__name__)

_MOST_COORDINATORS = 10_000
"""Of transactional ids; each batch job has ids of its own."""

_MOST_CLIENTS = 16


class Client:
    """One process's connections to a cluster. Any thread may use it.

    Args:
        connection: How the cluster is reached.

    Attributes:
        coordinators: By transactional id, the broker that coordinates it, as far as is known.

    Raises:
        KafkaFailedError: If no broker answers in time, the login is refused, or a file that the
            settings name is not on this machine.
    """

    def __init__(self, connection: Connection) -> None:
        from kafka.errors import KafkaError

        self.connection = connection
        missing = connection.missing_file()
        if missing is not None:
            raise self.failed(
                "reach the cluster", f"there is no file on this machine for {missing}"
            )
        self._network = Network(connection.values)
        self._end = weakref.finalize(self, self._network.close)
        self._end.atexit = False  # the thread is a daemon
        self._topics: dict[str, Topic] = {}
        self._seen_s: dict[str, float] = {}
        self._lanes: dict[str, Node] = {}
        self._features: dict[str, int] = {}
        self._features_until_s = 0.0
        self._is_deaf = False
        self.coordinators: dict[str, Broker] = {}
        try:
            self._network.bootstrap(connection.patience_s)
        except KafkaError as error:
            self.close()
            raise self.failed("reach the cluster", f"{error}{self._login_hint()}") from error

    def close(self) -> None:
        """End the I/O thread and the connections; so does the garbage collector."""
        self._end()

    @property
    def is_usable(self) -> bool:
        """Whether it may be of use to another task.

        It is not when its thread has ended, nor when no broker at all has answered it for as long
        as something was tried: all of them may have moved to other addresses.
        """
        return self._network.is_alive and not self._is_deaf

    def _login_hint(self) -> str:
        """A broker that refuses a login may close the connection before it is heard."""
        user = self.connection.values.get("sasl_plain_username")
        return (
            "" if user is None else f"; or the login of user {user!r} is refused: see its password"
        )

    def failed(self, what: str, error: object, hint: str = "") -> KafkaFailedError:
        """An error that says what could not be done, where, why, and what to do."""
        from kafka.errors import AuthorizationError

        kind = KafkaRefusedError if isinstance(error, AuthorizationError) else KafkaFailedError
        why = f"{error}; {hint}" if hint else f"{error}"
        return kind(f"Kafka at {self.connection.bootstrap}: cannot {what}: {why}")

    # --- messages

    def submit(self, request: Any, node: Node) -> Any:
        """Send a message without waiting.

        Returns:
            kafka-python's future of the response.
        """
        return self._alive(self._network.submit, request, node)

    def wait(self, future: Any) -> Any:
        """The response behind a future, or kafka-python's error, raised."""
        return self._alive(self._network.wait, future)

    def ask(self, messages: Sequence[tuple[Node, Any]], within_s: float | None = None) -> list[Any]:
        """Send messages side by side.

        Args:
            messages: Each with the node that it goes to.
            within_s: How long the answers are awaited, all of them together; None for as long as
                one request may take (``request.timeout.ms``).

        Returns:
            For each its response, or kafka-python's error in its place.
        """
        found: list[Any] = self._alive(self._network.ask, messages, within_s)
        return found

    def _alive(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function of the network.

        Raises:
            KafkaFailedError: If its thread has ended.
        """
        try:
            return function(*args)
        except Exception as error:
            if self._network.is_alive:
                raise
            why = f"the thread of its connections has ended: {type(error).__name__}: {error}"
            raise self.failed("go on", why) from error

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
        found, missing, why = self._collect(kind, items, within_s)
        if missing:
            raise self.failed(kind.what, f"{why} for {_some(missing)}, time is up")
        return found

    def gather(
        self, kind: Exchange[K, V], items: Iterable[K], within_s: float
    ) -> dict[K, V | Exception]:
        """`exchange`, where what has no answer in time is left out, with a warning."""
        found, missing, why = self._collect(kind, items, within_s)
        if missing:
            what = (self.connection.bootstrap, kind.what, _some(missing), why)
            _log.warning("Kafka at %s: cannot %s %s: %s; going on without", *what)
        return found

    def _collect(
        self, kind: Exchange[K, V], items: Iterable[K], within_s: float | None
    ) -> tuple[dict[K, V | Exception], list[K], Exception | str]:
        """What is answered in time, what is not, and why."""
        begun_s = time.monotonic()
        patience_s = self.connection.patience_s if within_s is None else within_s
        found, missing, why = collect(self, kind, items, patience_s)  # pyright: ignore[reportArgumentType]  # this very class
        if missing and within_s is None and self._network.heard_s < begun_s:
            self._is_deaf = True
        return found, missing, why

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

    # --- metadata

    def topics(
        self,
        names: Collection[str] | None = None,
        *,
        create: bool = False,
        operations: bool = False,
    ) -> dict[str, Topic]:
        """What the cluster says now of topics.

        Args:
            names: Which; None for all that the user may see, without internal ones.
            create: Whether the cluster may make those that it does not have, if it is set up so.
            operations: Whether it says what the user may do with them.

        Returns:
            By name. Those that do not exist are left out.

        Raises:
            KafkaFailedError: If one may not be seen, or the cluster does not answer.
        """
        from kafka.errors import AuthorizationError, KafkaError

        wanted = None if names is None else tuple(sorted(names))
        kind = Metadata(wanted, create=create, operations=operations)
        answer = self.demand(kind, ["topics"])["topics"]
        self._network.learn(answer)
        try:
            found = kind.topics(answer)
        except AuthorizationError as error:
            raise self.failed(kind.what, error, "the user needs the ACL DESCRIBE on it") from error
        except KafkaError as error:
            raise self.failed(kind.what, error) from error
        self._topics.update(found)
        self._seen_s.update(dict.fromkeys(found, time.monotonic()))
        return found

    def feature(self, name: str) -> int:
        """The level of a feature that the cluster has agreed on (KIP-584); 0 for none.

        Asked again when it is older than ``metadata.max.age.ms``: features are upgraded, and
        downgraded, while clients live.

        Raises:
            KafkaFailedError: If the cluster does not answer.
        """
        if time.monotonic() >= self._features_until_s:
            self._features = self.demand(Features(), ["features"])["features"]
            self._features_until_s = time.monotonic() + self.connection.metadata_age_s
        return self._features.get(name, 0)

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

    def topic_of(self, name: str, age_s: float | None = None) -> Topic | None:
        """What was last said of a topic; None if it does not exist.

        Args:
            name: Its name.
            age_s: How long ago that may have been; None for any time.
        """
        known = name in self._topics
        if not known or (age_s is not None and time.monotonic() - self._seen_s[name] > age_s):
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
        if not self._network.cluster_id:  # known with the first answer to Metadata
            self.topics([])
        return str(self._network.cluster_id)

    def nodes(self) -> list[int]:
        """The brokers of the cluster, as far as is known."""
        return self._network.nodes()

    def lane(self, broker: Broker, number: int) -> Node:
        """One of several connections to a broker, on which others do not hold it up.

        A broker works off the requests of one connection one after another.
        """
        name = f"{broker.node}@{broker.host}:{broker.port}/{number}"
        if name not in self._lanes:
            self._lanes[name] = self._network.add_lane(name, broker)
        return self._lanes[name]

    def keep_coordinators(self, ids: Collection[str]) -> None:
        """Forget those of other transactional ids, if too many are known."""
        if len(self.coordinators) > _MOST_COORDINATORS:
            known = self.coordinators
            self.coordinators = {name: known[name] for name in ids if name in known}


_clients: dict[tuple[Connection, int], Client] = {}
"""By cluster and process, since connections do not survive a fork; the last used one is last."""


def open_client(connection: Connection) -> Client:
    """The client of this process for a cluster, or a new one if that is of no use any more.

    A process has the sixteen that were used last. Others end when nobody holds them.

    Raises:
        KafkaFailedError: If no broker answers in time, or the login is refused.
    """
    key = (connection, os.getpid())
    client = _clients.pop(key, None)
    if client is not None and not client.is_usable:
        client.close()
        client = None
    client = _clients[key] = client or Client(connection)
    for oldest in list(_clients)[:-_MOST_CLIENTS]:
        _clients.pop(oldest, None)
    return client


def _some(items: Collection[object], most: int = 5) -> str:
    listed = ", ".join(str(item) for item in list(items)[:most])
    return listed if len(items) <= most else f"{listed} and {len(items) - most} more"
