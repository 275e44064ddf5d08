"""The client of a cluster: its messages, its metadata, and one instance per process and cluster.

kafka-python provides connections, TLS, SASL and message classes; `krishiv_spark.kafka.transport`
sends the messages.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from krishiv_spark.errors import KrishivError, OptionError
from krishiv_spark.kafka.cluster_limits import ClusterFeatures, explain_unsupported
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.key_stores import make_context, needs_context
from krishiv_spark.kafka.login_tokens import LoginTokenError, LoginTokens, open_tokens
from krishiv_spark.kafka.metadata import MetadataQuery, features_request
from krishiv_spark.kafka.msk_iam import (
    MskTokenLogin,
    fetch_credentials,
    find_msk_login,
    sign_token,
)
from krishiv_spark.kafka.security import warn_of_clear_login
from krishiv_spark.kafka.topic_partition import BrokerAddress, Topic, TopicPartition
from krishiv_spark.kafka.transport import LEAST_LOADED, Node, Transport
from krishiv_spark.messages.exception_chains import raise_alone
from krishiv_spark.messages.redaction import excerpt
from krishiv_spark.runtime.retry import Backoff

__all__ = ["KafkaClient", "KafkaFailedError", "KafkaRefusedError", "is_retriable", "open_client"]

_MOST_COORDINATORS = 10_000
"""Cached coordinators of transactional ids; each batch job has ids of its own."""

# A client has a thread and open files, and a worker of Spark serves many queries in its life.
_MOST_CLIENTS = 16

_CONFIRMATIONS, _SAME = 10, 3
"""Most further responses to request, and how many in a row must be equal."""
_CONFIRMATION_S, _PAUSE_S = 1.0, 0.05
"""Time to wait for one broker, and the pause before the same one is asked again."""

_FIRST_TOKEN_S = 8.0
"""Time that a token may take before a query has started: an error appears within ten seconds."""

_READ_METADATA = "read the metadata of topics"

_BEFORE_LOGIN = ("ECONNREFUSED", "DNS", "Handshake failed", "timed out", "unreachable")
"""Signs in a broker's error that the connection failed before the login."""


# --- errors


class KafkaFailedError(KrishivError):
    """The cluster refused a request, or did not respond in time."""


class KafkaRefusedError(KafkaFailedError):
    """The user lacks a permission: a retry does not help until it is granted."""


def is_retriable(error: BaseException) -> bool:
    """Return True if the same request may succeed later: a broker is away, a leader moves, ...

    A batch that arrived damaged counts too, as in Java's producer (``CorruptRecordException``).
    """
    from kafka.errors import (
        CorruptRecordError,
        RetriableError,  # pyright: ignore[reportAttributeAccessIssue]  # stubs of version 2
        UnknownBrokerIdError,  # pyright: ignore[reportAttributeAccessIssue]  # stubs of version 2
    )

    return isinstance(error, RetriableError | UnknownBrokerIdError | CorruptRecordError)


# --- the client


class KafkaClient:
    """A client of one cluster, with a cache of its topics and coordinators. Any thread may use it.

    Args:
        config: How to reach the cluster.
        at_start: True if no work is in progress for which the client should wait for the cluster:
            unless the settings give a time, the first contact may then take ten seconds.

    Attributes:
        config: As given.
        coordinators: The broker that coordinates each transactional id, if it is cached.

    Raises:
        KafkaFailedError: If no broker answers in time, the login is refused, or a file that the
            settings name is not on this machine.
    """

    def __init__(self, config: KafkaConfig, *, at_start: bool = False) -> None:
        from kafka.errors import KafkaError

        self.config = config
        self.coordinators: dict[str, BrokerAddress] = {}
        self._topics: dict[str, Topic] = {}
        self._fetched_s: dict[str, float] = {}
        self._largest: dict[str, Topic] = {}
        self._confirmed: dict[str, Topic] = {}
        self._added: dict[str, Node] = {}
        self._features = ClusterFeatures()
        self._features_until_s = 0.0
        self._is_unanswered = False
        self._tokens = _open_tokens(config)
        missing = config.find_missing_file()
        if missing is not None:
            raise self.make_error(
                "reach the cluster", f"there is no file on this machine for {missing}"
            )
        self._fetch_token(at_start=at_start)
        self._transport = self._open_transport()
        self._finalizer = weakref.finalize(self, self._transport.close)
        self._finalizer.atexit = False  # the thread is a daemon
        try:
            self._transport.bootstrap(config.connect_timeout_s(at_start=at_start))
        except KafkaError as error:
            why, hint = self._explain_troubles(error), self._login_hint(error)
            self.close()
            raise_alone(self.make_error("reach the cluster", why, hint))

    def close(self) -> None:
        """End the I/O thread and the connections; so does the garbage collector."""
        self._finalizer()

    @property
    def is_usable(self) -> bool:
        """Return True if another task can use this client.

        It cannot if the thread has ended, or if no broker at all answered during a whole failed
        request: all of them may have moved to other addresses.
        """
        return self._transport.is_alive and not self._is_unanswered

    def _fetch_token(self, *, at_start: bool) -> None:
        """Fetch the token of a login with one: its source fails more clearly than a broker."""
        try:
            if self._tokens is not None:
                self._tokens.get(_FIRST_TOKEN_S if at_start else self.config.api_timeout_s)
        except LoginTokenError as error:
            raise_alone(self.make_error("log in", error))

    def _open_transport(self) -> Transport:
        values = self.config.values
        try:
            make = partial(make_context, values) if needs_context(values) else None
            if make is not None:
                make()  # a store that cannot be read is an error here, and not in each connection
        except (OptionError, OSError) as error:
            raise_alone(self.make_error("set up TLS", error))
        return Transport(values, self._tokens, make)

    def _explain_troubles(self, error: Exception) -> str:
        """Return the newest error of each broker; without one, the text of the whole error."""
        found = self._transport.troubles()
        return "; ".join(f"{at}: {_explain(text)}" for at, text in found.items()) or str(error)

    def _login_hint(self, error: Exception) -> str:
        """Return a hint at the password, unless the connection failed before the login.

        A broker that refuses a login may close the connection before its response arrives.
        """
        from kafka.errors import SaslAuthenticationFailedError

        if self._tokens is not None and isinstance(error, SaslAuthenticationFailedError):
            return (
                f"the token of {self._tokens.login.origin} is refused: see its audience, scope and "
                "extensions, and the broker's log"
            )
        user = self.config.values.get("sasl_plain_username")
        if user is None:
            return ""
        is_certain = isinstance(error, SaslAuthenticationFailedError)
        texts = self._transport.troubles().values()
        if not is_certain and any(sign in text for sign in _BEFORE_LOGIN for text in texts):
            return ""
        return (
            f"{'' if is_certain else 'or '}the login of user {user!r} is refused: see its password"
        )

    def make_error(self, what: str, error: object, hint: str = "") -> KafkaFailedError:
        """Return an error that states what failed, where, why, and what to do.

        Raise it by `raise_alone` while kafka-python's error is being handled.
        """
        from kafka.errors import AuthorizationError

        kind = KafkaRefusedError if isinstance(error, AuthorizationError) else KafkaFailedError
        # A broker that refuses may repeat what it was sent.
        tokens = set[str]() if self._tokens is None else self._tokens.secrets()
        why = excerpt(str(error), self.config.secrets() | tokens)
        hint = hint or explain_unsupported(error)
        why = f"{why.rstrip('.')}; {hint}" if hint else why
        return kind(f"Kafka at {self.config.bootstrap}: cannot {what}: {why}")

    # --- messages

    def submit(self, request: Any, node: Node) -> Any:
        """Send a message without waiting.

        Returns:
            kafka-python's future of the response.
        """
        return self._call_transport(self._transport.submit, request, node)

    def wait(self, future: Any) -> Any:
        """Wait for the response of a future, or kafka-python's error, raised."""
        return self._call_transport(self._transport.wait, future)

    def ask(self, messages: Sequence[tuple[Node, Any]], within_s: float | None = None) -> list[Any]:
        """Send messages side by side, and wait for the responses.

        Args:
            messages: Each with the node to send it to.
            within_s: Time limit for all responses together; None for that of one request
                (``request.timeout.ms``).

        Returns:
            For each message its response, or kafka-python's error in its place.
        """
        found: list[Any] = self._call_transport(self._transport.ask, messages, within_s)
        return found

    def _call_transport(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a method of the transport.

        Raises:
            KafkaFailedError: If its thread has ended.
        """
        try:
            return function(*args)
        except Exception as error:
            if self._transport.is_alive:
                raise
            why = f"the thread of its connections has ended: {type(error).__name__}: {error}"
            raise_alone(self.make_error("go on", why))

    def ask_any(
        self, what: str, message: Any, code_of: Callable[[Any], int] = lambda r: int(r.error_code)
    ) -> Any:
        """Ask the broker with the least to do, and repeat that until one has an answer.

        Args:
            what: What the request does, for messages.
            message: A request of kafka-python's, of any version of its API.
            code_of: Returns the number of the error in a response; 0 for none.

        Returns:
            The response that has no error.

        Raises:
            KafkaFailedError: If the response has an error that does not pass, if there is none in
                ``default.api.timeout.ms``, or if the login is refused.
        """
        start_s = time.monotonic()
        error: Exception | None = None
        for left_s in Backoff(self.config.api_timeout_s).attempts():
            (answer,) = self.ask([(LEAST_LOADED, message)], left_s)
            error = _find_error(answer, code_of)
            if error is None:
                return answer
            if not is_retriable(error):
                raise self.make_error(what, error)
        self.record_silence(start_s)
        raise self.make_error(what, f"{error}, time is up")

    def record_silence(self, since_s: float) -> None:
        """Record that a request ran out of time; see `is_usable`.

        Args:
            since_s: Start of the request, by the monotonic clock. An answer since then shows that
                brokers are still at their addresses.
        """
        self._is_unanswered = self._is_unanswered or self._transport.heard_s < since_s

    # --- brokers

    def update_brokers(self, metadata: Any) -> None:
        """Take the addresses of all brokers from a response to Metadata."""
        self._transport.update_brokers(metadata)

    def list_nodes(self) -> list[int]:
        """Return the known ids of the cluster's brokers."""
        return self._transport.list_nodes()

    def add_connection(self, broker: BrokerAddress, number: int) -> Node:
        """Return one of several connections to a broker.

        A broker processes the requests of one connection in order, so requests of others do not
        delay those on this one.
        """
        name = f"{broker.node}@{broker.host}:{broker.port}/{number}"
        if name not in self._added:
            self._added[name] = self._transport.add_connection(name, broker)
        return self._added[name]

    def prune_coordinators(self, ids: Collection[str]) -> None:
        """Drop the cached coordinators of other transactional ids if there are too many."""
        if len(self.coordinators) > _MOST_COORDINATORS:
            cached = self.coordinators
            self.coordinators = {name: cached[name] for name in ids if name in cached}

    def fetch_cluster_id(self) -> str:
        """Return the id that the brokers gave their cluster when it was created (KIP-78)."""
        if not self._transport.cluster_id:  # the first response to Metadata contains it
            self.fetch_topics([])
        return str(self._transport.cluster_id)

    def get_features(self) -> ClusterFeatures:
        """Return the features of the cluster.

        They are read again after ``metadata.max.age.ms``: features are upgraded, and downgraded,
        while clients live.

        Raises:
            KafkaFailedError: If the cluster does not answer.
        """
        if time.monotonic() >= self._features_until_s:
            what = "ask for the features of the cluster"
            self._features = ClusterFeatures.from_response(self.ask_any(what, features_request()))
            self._features_until_s = time.monotonic() + self.config.metadata_age_s
        return self._features

    # --- topics

    def fetch_topics(
        self,
        names: Collection[str] | None = None,
        *,
        create: bool = False,
        operations: bool = False,
    ) -> dict[str, Topic]:
        """Request the metadata of topics.

        Args:
            names: Names of topics; None for all that the user may see, without internal ones.
            create: Let the cluster create topics that it does not have, if it is configured so.
            operations: Ask which operations the user may perform on them too.

        Returns:
            By name. Those that do not exist are left out. A partition that an earlier response
            contained and this one omits, of a topic with the same id, has no leader.

        Raises:
            KafkaFailedError: If one may not be seen, or the cluster does not answer.
        """
        return self._fetch(_make_query(names, create=create, operations=operations))

    def _fetch(self, query: MetadataQuery) -> dict[str, Topic]:
        answer = self.ask_any(_READ_METADATA, query.request(), query.code_of)
        return self._cache_topics(query, answer)

    def _cache_topics(self, query: MetadataQuery, answer: Any) -> dict[str, Topic]:
        from kafka.errors import AuthorizationError, KafkaError

        self.update_brokers(answer)
        try:
            found = query.topics(answer)
        except AuthorizationError as error:
            hint = "the user needs the ACL DESCRIBE on it"
            raise_alone(self.make_error(_READ_METADATA, error, hint))
        except KafkaError as error:
            raise_alone(self.make_error(_READ_METADATA, error))
        found = {name: self._with_known_partitions(topic) for name, topic in found.items()}
        for name in query.names or ():
            if name not in found:  # it was deleted
                self._topics.pop(name, None)
        self._topics.update(found)
        self._fetched_s.update(dict.fromkeys(found, time.monotonic()))
        return found

    def _with_known_partitions(self, topic: Topic) -> Topic:
        before = self._largest.get(topic.name)
        if before is not None and before.usable_id and before.id == topic.id:
            topic = topic.including(before.leaders.keys())
        self._largest[topic.name] = topic
        return topic

    def fetch_confirmed_topics(
        self,
        names: Collection[str] | None = None,
        *,
        create: bool = False,
        operations: bool = False,
    ) -> dict[str, Topic]:
        """`fetch_topics`, with other responses that confirm that there are no more partitions.

        Use it where the number of partitions decides about rows: which are read, and which
        partition a key goes to. A broker that is just starting may know only a part of the
        metadata, and report it more than once. So other brokers are asked, or the only one after a
        pause. A topic of which this process has confirmed as many partitions takes one response.

        Raises:
            KafkaFailedError: As `fetch_topics`.
        """
        query = _make_query(names, create=create, operations=operations)
        found = self._fetch(query)
        if names is not None and all(self._is_confirmed(found.get(name)) for name in names):
            return found
        same = 1
        for count in range(_CONFIRMATIONS):
            next_found = self._cache_topics(query, self._ask_in_turn(query, count))
            same = same + 1 if _sizes(next_found) == _sizes(found) else 1
            found = next_found
            if same == _SAME:
                self._confirmed.update(found)
                break
        return found

    def _ask_in_turn(self, query: MetadataQuery, count: int) -> Any:
        """Return the response of one broker after the other; of any one if that one has none."""
        nodes = sorted(self.list_nodes())
        if len(nodes) < _SAME:
            time.sleep(_PAUSE_S)
        if nodes:
            node = nodes[count % len(nodes)]
            (answer,) = self.ask([(node, query.request())], _CONFIRMATION_S)
            if not isinstance(answer, Exception) and not query.code_of(answer):
                return answer
        return self.ask_any(_READ_METADATA, query.request(), query.code_of)

    def _is_confirmed(self, topic: Topic | None) -> bool:
        before = None if topic is None else self._confirmed.get(topic.name)
        if topic is None or before is None:
            return False
        return before.id == topic.id and before.leaders.keys() <= topic.leaders.keys()

    def get_topic(
        self, name: str, age_s: float | None = None, *, confirmed: bool = False
    ) -> Topic | None:
        """Return the cached metadata of a topic; request them if there are none.

        Args:
            name: As the cluster spells it; patterns are not expanded.
            age_s: Request them again if they are older than this; None for any age.
            confirmed: True if the number of its partitions counts; see `fetch_confirmed_topics`.

        Returns:
            None if the topic does not exist.
        """
        cached = self._topics.get(name)
        is_old = age_s is not None and time.monotonic() - self._fetched_s.get(name, 0.0) > age_s
        if confirmed and (cached is None or is_old or not self._is_confirmed(cached)):
            self.fetch_confirmed_topics([name])
        elif cached is None or is_old:
            self.fetch_topics([name])
        return self._topics.get(name)

    def get_leader(self, tp: TopicPartition) -> int | None:
        """Return the node that leads a partition, from the cache; None while there is none."""
        topic = self.get_topic(tp.topic)
        node = -1 if topic is None else topic.leaders.get(tp.partition, -1)
        return None if node < 0 else node

    def list_cached_topics(self) -> set[str]:
        """Return the names of the topics whose leaders are cached."""
        return set(self._topics)

    def forget_leaders(self, names: Collection[str]) -> None:
        """Drop topics from the cache: `get_topic` requests them again."""
        for name in names:
            self._topics.pop(name, None)


def _open_tokens(config: KafkaConfig) -> LoginTokens | None:
    by_iam = find_msk_login(config.values)
    if isinstance(by_iam, MskTokenLogin):
        return open_tokens(by_iam, sign_token)
    if by_iam is not None:
        return open_tokens(by_iam, fetch_credentials)
    return None if config.login is None else open_tokens(config.login)


def _make_query(names: Collection[str] | None, *, create: bool, operations: bool) -> MetadataQuery:
    ordered = None if names is None else tuple(sorted(names))
    return MetadataQuery(ordered, create=create, operations=operations)


def _sizes(topics: Mapping[str, Topic]) -> dict[str, tuple[str, int]]:
    return {name: (topic.id, len(topic.leaders)) for name, topic in topics.items()}


_EXPLANATIONS = {
    "ECONNREFUSED": "no server listens there ({text}): correct 'kafka.bootstrap.servers'",
    "DNS": "the host is unknown ({text}): correct 'kafka.bootstrap.servers'",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not trusted ({text}): correct "
    "'kafka.ssl.truststore.location'",
    "WRONG_VERSION_NUMBER": "it does not use TLS ({text}): correct 'kafka.security.protocol', or "
    "the port in 'kafka.bootstrap.servers'",
}
"""By a sign in the text of a broker's error: what it means, and what to do."""


def _explain(text: str) -> str:
    known = next((meaning for sign, meaning in _EXPLANATIONS.items() if sign in text), "{text}")
    return known.format(text=text)


def _find_error(answer: Any, code_of: Callable[[Any], int]) -> Exception | None:
    from kafka.errors import KafkaError, for_code

    error: Exception | None = None
    if isinstance(answer, KafkaError):
        error = answer
    elif code := code_of(answer):
        error = for_code(code)()
    return error


# --- the clients of a process

_clients: dict[tuple[KafkaConfig, int], KafkaClient] = {}
"""By cluster and process, since connections do not survive a fork; the last used one is last."""


def open_client(config: KafkaConfig, *, at_start: bool = False) -> KafkaClient:
    """Return this process's client of a cluster; a new one if the old one is not usable any more.

    A process caches the sixteen that it used last. Others end when nothing references them.

    Args:
        config: How to reach the cluster.
        at_start: As for `KafkaClient`.

    Raises:
        KafkaFailedError: If no broker answers in time, or the login is refused.
    """
    key = (config, os.getpid())
    client = _clients.pop(key, None)
    if client is not None and not client.is_usable:
        client.close()
        client = None
    if client is None:
        warn_of_clear_login(config.values)
        client = KafkaClient(config, at_start=at_start)
    _clients[key] = client
    for oldest in list(_clients)[:-_MOST_CLIENTS]:
        _clients.pop(oldest, None)
    return client
