"""What one process knows of a cluster, and the connections to it, kept for its life."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from typing import Any

from krishiv_spark.kafka.connection import Connection
from krishiv_spark.kafka.connections import Connections
from krishiv_spark.kafka.failures import KafkaFailedError, KafkaRefusedError, is_retriable
from krishiv_spark.kafka.metadata import MetadataQuery, features_of, features_request
from krishiv_spark.kafka.network import Node
from krishiv_spark.kafka.security import warn_of_clear_login
from krishiv_spark.kafka.topic_partition import BrokerAddress, Topic, TopicPartition
from krishiv_spark.messages.exception_chains import raise_alone

__all__ = ["Client", "KafkaFailedError", "KafkaRefusedError", "is_retriable", "open_client"]

_MOST_COORDINATORS = 10_000
"""Of transactional ids; each batch job has ids of its own."""

# Each has a thread and open files, and a worker of Spark's serves many queries in its life.
_MOST_CLIENTS = 16

_CONFIRMATIONS, _SAME = 10, 3
"""Most responses that are asked for until so many in a row are the same."""
_CONFIRMATION_S, _PAUSE_S = 1.0, 0.05
"""Time to wait for one broker, and the pause before the same one is asked again."""

_READ_METADATA = "read the metadata of topics"


class Client(Connections):
    """Connections to a cluster, with what was last said of its topics and coordinators.

    Any thread may use it.

    Args:
        connection: How the cluster is reached.

    Attributes:
        coordinators: By transactional id, the broker that coordinates it, as far as is known.

    Raises:
        KafkaFailedError: As `Connections`.
    """

    def __init__(self, connection: Connection, *, at_start: bool = False) -> None:
        self._topics: dict[str, Topic] = {}
        self._seen_s: dict[str, float] = {}
        self._largest: dict[str, Topic] = {}
        self._confirmed: dict[str, Topic] = {}
        self._extra: dict[str, Node] = {}
        self._features: dict[str, int] = {}
        self._features_until_s = 0.0
        self.coordinators: dict[str, BrokerAddress] = {}
        super().__init__(connection, at_start=at_start)

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
            By name. Those that do not exist are left out. A partition that an earlier response
            contained and this one omits, of a topic with the same id, has no leader.

        Raises:
            KafkaFailedError: If one may not be seen, or the cluster does not answer.
        """
        wanted = None if names is None else tuple(sorted(names))
        query = MetadataQuery(wanted, create=create, operations=operations)
        return self._topics_of(query, self.ask_any(_READ_METADATA, query.request(), query.code_of))

    def _topics_of(self, query: MetadataQuery, answer: Any) -> dict[str, Topic]:
        """Take in a response; see `topics`."""
        from kafka.errors import AuthorizationError, KafkaError

        self.learn_brokers(answer)
        try:
            found = query.topics(answer)
        except AuthorizationError as error:
            hint = "the user needs the ACL DESCRIBE on it"
            raise_alone(self.failed(_READ_METADATA, error, hint))
        except KafkaError as error:
            raise_alone(self.failed(_READ_METADATA, error))
        found = {name: self._with_known_partitions(topic) for name, topic in found.items()}
        self._topics.update(found)
        self._seen_s.update(dict.fromkeys(found, time.monotonic()))
        return found

    def _with_known_partitions(self, topic: Topic) -> Topic:
        before = self._largest.get(topic.name)
        if before is not None and before.usable_id and before.id == topic.id:
            topic = topic.including(before.leaders.keys())
        self._largest[topic.name] = topic
        return topic

    def confirmed_topics(
        self,
        names: Collection[str] | None = None,
        *,
        create: bool = False,
        operations: bool = False,
    ) -> dict[str, Topic]:
        """`topics`, of which other responses have confirmed that there are no more partitions.

        Use it where the number of partitions decides about rows: which are read, and which
        partition a key goes to. A broker that is just starting may know a part of the metadata
        only, and say so more than once: so other brokers are asked, or the only one after a pause.
        A topic of which this process has confirmed as many partitions takes one response.

        Raises:
            KafkaFailedError: As `topics`.
        """
        wanted = None if names is None else tuple(sorted(names))
        query = MetadataQuery(wanted, create=create, operations=operations)
        found = self._topics_of(query, self.ask_any(_READ_METADATA, query.request(), query.code_of))
        if names is not None and all(self._is_confirmed(found.get(name)) for name in names):
            return found
        same = 1
        for count in range(_CONFIRMATIONS):
            again = self._topics_of(query, self._ask_in_turn(query, count))
            same = same + 1 if _sizes(again) == _sizes(found) else 1
            found = again
            if same == _SAME:
                self._confirmed.update(found)
                break
        return found

    def _ask_in_turn(self, query: MetadataQuery, count: int) -> Any:
        """Return the response of one broker after the other; of any one if that one has none."""
        nodes = sorted(self.nodes())
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

    def feature(self, name: str) -> int:
        """The level of a feature that the cluster has agreed on (KIP-584); 0 for none.

        Asked again when it is older than ``metadata.max.age.ms``: features are upgraded, and
        downgraded, while clients live.

        Raises:
            KafkaFailedError: If the cluster does not answer.
        """
        if time.monotonic() >= self._features_until_s:
            what = "ask for the features of the cluster"
            self._features = features_of(self.ask_any(what, features_request()))
            self._features_until_s = time.monotonic() + self.connection.metadata_age_s
        return self._features.get(name, 0)

    def leader(self, tp: TopicPartition) -> int | None:
        """The node that leads a partition, as far as is known; None while there is none."""
        topic = self.topic_of(tp.topic)
        node = -1 if topic is None else topic.leaders.get(tp.partition, -1)
        return None if node < 0 else node

    def topic_of(
        self, name: str, age_s: float | None = None, *, confirmed: bool = False
    ) -> Topic | None:
        """What was last said of a topic; None if it does not exist.

        Args:
            name: As the cluster spells it; patterns are not looked for.
            age_s: How long ago that may have been; None for any time.
            confirmed: Whether the number of its partitions counts; see `confirmed_topics`.
        """
        known = self._topics.get(name)
        is_old = age_s is not None and time.monotonic() - self._seen_s.get(name, 0.0) > age_s
        if confirmed and (known is None or is_old or not self._is_confirmed(known)):
            self.confirmed_topics([name])
        elif known is None or is_old:
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

    def extra_connection(self, broker: BrokerAddress, number: int) -> Node:
        """One of several connections to a broker, on which others do not hold it up.

        A broker works off the requests of one connection one after another.
        """
        name = f"{broker.node}@{broker.host}:{broker.port}/{number}"
        if name not in self._extra:
            self._extra[name] = self._network.add_connection(name, broker)
        return self._extra[name]

    def keep_coordinators(self, ids: Collection[str]) -> None:
        """Forget those of other transactional ids, if too many are known."""
        if len(self.coordinators) > _MOST_COORDINATORS:
            known = self.coordinators
            self.coordinators = {name: known[name] for name in ids if name in known}


def _sizes(topics: Mapping[str, Topic]) -> dict[str, tuple[str, int]]:
    return {name: (topic.id, len(topic.leaders)) for name, topic in topics.items()}


_clients: dict[tuple[Connection, int], Client] = {}
"""By cluster and process, since connections do not survive a fork; the last used one is last."""


def open_client(connection: Connection, *, at_start: bool = False) -> Client:
    """The client of this process for a cluster, or a new one if that is of no use any more.

    A process has the sixteen that were used last. Others end when nobody holds them.

    Args:
        connection: How the cluster is reached.
        at_start: Of a query or batch: see `Connections`.

    Raises:
        KafkaFailedError: If no broker answers in time, or the login is refused.
    """
    key = (connection, os.getpid())
    client = _clients.pop(key, None)
    if client is not None and not client.is_usable:
        client.close()
        client = None
    if client is None:
        warn_of_clear_login(connection.values)
        client = Client(connection, at_start=at_start)
    _clients[key] = client
    for oldest in list(_clients)[:-_MOST_CLIENTS]:
        _clients.pop(oldest, None)
    return client
