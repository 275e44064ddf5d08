"""Which topics and partitions are read, and whether they are still there.

The driver chooses; executors look again at what does not answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from krishiv_spark.errors import OptionError
from krishiv_spark.kafka.client import Client
from krishiv_spark.kafka.expected_topics import (
    Expected,
    ExpectedTopic,
    are_confirmed,
    look_again,
)
from krishiv_spark.kafka.fetches import usable_id
from krishiv_spark.kafka.metadata import MetadataQuery
from krishiv_spark.kafka.network import LEAST_LOADED
from krishiv_spark.kafka.partition_rows import FoundOffsets, PartitionRows
from krishiv_spark.kafka.topic_partition import Topic, TopicPartition
from krishiv_spark.sources.kafka.options import KafkaSourceOptions
from krishiv_spark.sources.kafka.patterns import TopicPattern
from krishiv_spark.sources.kafka.position import Position, QueryPosition

__all__ = ["ClusterSnapshot", "Subscription", "glance", "ids_of", "look_closely", "some_gone"]

_log = logging.getLogger(__name__)

_Comparison: TypeAlias = tuple[dict[TopicPartition, Position], dict[str, str]]

_SHARE_OF_TIME = 10
"""Topics are looked up again when that many times as long has passed as the look-up took."""


@dataclass(frozen=True)
class ClusterSnapshot:
    """What the cluster has at one moment.

    Attributes:
        topics: The topics that are read.
        ids: The ids of those that have one.
        newest: Where each partition that is read ends.
        ends: Where reading ends: in streams there as well, in batch reads where the options say.
        left: Where the query stands in partitions that the options do not ask for any more.
        known_ids: As `ids`, with those of topics that are left, or that the options name and that
            have gone.
    """

    topics: Mapping[str, Topic]
    ids: Mapping[str, str]
    newest: FoundOffsets
    ends: Mapping[TopicPartition, int]
    left: Mapping[TopicPartition, Position]
    known_ids: Mapping[str, str]


class Subscription:
    """The topics that the options name, looked up now and then.

    Args:
        options: One of ``subscribe``, ``subscribePattern`` and ``assign``.
    """

    def __init__(self, options: KafkaSourceOptions) -> None:
        self._options = options
        pattern = options.subscribe_pattern
        self._pattern = None if pattern is None else TopicPattern(pattern)
        self._assigned = None if options.assign is None else frozenset(options.assign)
        assigned = (tp.topic for tp in options.assign or ())
        self._names = frozenset((*(options.subscribe or ()), *assigned))
        self._found: dict[str, Topic] = {}
        self._rows: tuple[Mapping[str, Topic], PartitionRows] = self._found, PartitionRows(())
        self._compared: tuple[QueryPosition, Mapping[str, Topic], _Comparison] | None = None
        self._expected: tuple[QueryPosition | None, Expected] = None, {}
        self._covered: tuple[QueryPosition | None, Mapping[str, Topic]] = None, self._found
        self._seen: set[TopicPartition] = set()
        self._until_s = 0.0

    def topics(self, client: Client, position: QueryPosition | None) -> dict[str, Topic]:
        """The topics that are there, by name.

        Args:
            client: Of this process.
            position: Where the query stands; None if that is not known. If a response lacks a
                topic or partition of it, the cluster is asked a few times before that counts. A
                partition that is missing from a topic with an unchanged id has no leader.
                Without a position, or at its very beginning, a second response must be the same.

        Raises:
            KafkaFailedError: If the cluster does not answer, or a topic may not be read.
        """
        if time.monotonic() >= self._until_s or not self.covers(self._found, position):
            began_s = time.monotonic()
            found = self._looked_up(client, position)
            # What was made of these topics, partition by partition, is kept as long as they are.
            self._found = self._found if found == self._found else found
            now_s = time.monotonic()
            self._until_s = now_s + _SHARE_OF_TIME * (now_s - began_s)
        return self._found

    def is_stale(self, client: Client) -> bool:
        """Whether a topic that was found last has gone since: the next look finds out."""
        self._until_s = 0.0
        return some_gone(client, self._found)

    def partitions(self, topics: Mapping[str, Topic]) -> PartitionRows:
        """The partitions of these topics that are read."""
        if self._rows[0] is not topics:
            found = [tp for topic in topics.values() for tp in topic.partitions]
            assigned = self._assigned
            read = found if assigned is None else [tp for tp in found if tp in assigned]
            self._rows = topics, PartitionRows(read)
        return self._rows[1]

    def covers(self, topics: Mapping[str, Topic], position: QueryPosition | None) -> bool:
        """Return True if topics have everything that the query has read and still asks for."""
        before = self._covered
        if before[0] is position and before[1] is topics:
            return True
        expected = self._expected_at(position).items()
        is_covered = all(
            name in topics and each.is_confirmed_by(topics[name]) for name, each in expected
        ) and all(each.partitions <= topics[name].leaders.keys() for name, each in expected)
        if is_covered:
            self._covered = position, topics
        return is_covered

    def _expected_at(self, position: QueryPosition | None) -> Expected:
        if self._expected[0] is not position:
            partitions: dict[str, set[int]] = {}
            for tp in () if position is None else (*position.left, *position.read):
                if self.asks_for(tp):
                    partitions.setdefault(tp.topic, set()).add(tp.partition)
            ids = {} if position is None else position.ids
            found = {
                name: ExpectedTopic(ids.get(name, ""), frozenset(numbers))
                for name, numbers in partitions.items()
            }
            self._expected = position, found
        return self._expected[1]

    def _looked_up(self, client: Client, position: QueryPosition | None) -> dict[str, Topic]:
        expected = self._expected_at(position)
        is_new = position is None or position.at is not None
        found = look_again(lambda: self._look(client, expected.keys(), is_new=is_new), expected)
        same = {name: each for name, each in expected.items() if name in found}
        whole = {
            name: found[name].including(each.partitions)
            for name, each in same.items()
            if each.is_same(found[name])
        }
        return {**found, **whole}

    def _look(self, client: Client, known: Collection[str], *, is_new: bool) -> dict[str, Topic]:
        # What the first response lacks, a batch would omit, and a stream would read from another
        # start than the one that the options name.
        ask = client.confirmed_topics if is_new else client.topics
        if self._pattern is None:
            return ask(self._names)
        there = ask()
        self._pattern.keep({*there, *known})
        found = {name: there[name] for name in self._pattern.matches(there)}
        # The list has only what the user may see. Whoever asks by name is told the difference.
        missing = set(known) - found.keys()
        return {**found, **client.topics(missing)} if missing else found

    def wants(self, name: str) -> bool:
        """Whether the options ask for a topic of this name."""
        if self._pattern is None:
            return name in self._names
        return bool(self._pattern.matches([name]))

    def compare(self, position: QueryPosition, topics: Mapping[str, Topic]) -> _Comparison:
        """Compare a position with the topics that are there.

        Args:
            position: Where the query stands.
            topics: The topics that are there.

        Returns:
            Where the query stands in partitions that the options do not ask for any more, and the
            ids of all topics that it has to remember: see `ClusterSnapshot`.

        Raises:
            OptionError: If a topic or partition that is named in the options was never there.
        """
        kept = self._compared
        if kept is None or kept[0] is not position or kept[1] is not topics:
            kept = self._compared = position, topics, self._freshly_compared(position, topics)
        return kept[2]

    def _freshly_compared(
        self, position: QueryPosition, topics: Mapping[str, Topic]
    ) -> _Comparison:
        known = position.ids.keys() | position.topics
        self._refuse_missing(topics, known, {**position.left, **position.read})
        left = self._find_left(position)
        named = self._names | {tp.topic for tp in left}
        remembered = {name: number for name, number in position.ids.items() if name in named}
        return left, {**remembered, **ids_of(topics)}

    def _find_left(self, position: QueryPosition) -> dict[TopicPartition, Position]:
        positions = {**position.left, **position.read}
        left = {tp: each for tp, each in positions.items() if not self.asks_for(tp)}
        for tp in left.keys() & position.read.keys():
            _log.warning(
                "%s is no longer read, because the options do not include it; if they include "
                "it again, the query continues from offset %d",
                tp,
                left[tp].offset,
            )
        return left

    def asks_for(self, tp: TopicPartition) -> bool:
        """Whether the options ask for a partition."""
        return self.wants(tp.topic) and (self._assigned is None or tp in self._assigned)

    def _refuse_missing(
        self,
        found: Mapping[str, Topic],
        topics: Collection[str],
        partitions: Collection[TopicPartition],
    ) -> None:
        """What the options name and the cluster does not have must have been there once.

        Args:
            found: The topics that are there.
            topics: Those that the query has read before.
            partitions: Where it stands.

        Raises:
            OptionError: If a topic or partition that is named in the options was never there.
        """
        missing = sorted(self._names - found.keys() - set(topics))
        if missing:
            raise OptionError(
                f"{self._options.format_name}: topic {missing[0]!r} does not exist on "
                f"{self._options.kafka.bootstrap}: create it, or correct the option"
            )
        # One that was there once is lost, and no mistake in the options.
        there = set(self.partitions(found).partitions) if self._assigned else set()
        self._seen |= {tp for tp in self._assigned or () if tp in there or tp in partitions}
        for tp in self._options.assign or ():
            if tp.topic in found and tp not in self._seen:
                raise OptionError(
                    f"{self._options.format_name}: option 'assign' names partition "
                    f"{tp.partition} of topic {tp.topic!r}, which has "
                    f"{len(found[tp.topic].leaders)}"
                )


def ids_of(topics: Mapping[str, Topic]) -> dict[str, str]:
    """The ids of those topics that have one, by name."""
    return {name: number for name, topic in topics.items() if (number := usable_id(topic))}


def look_closely(client: Client, expected: Expected) -> dict[str, Topic] | None:
    """`glance`, a few times before it is believed that topics or partitions are gone."""
    return look_again(lambda: glance(client, expected), expected)


def glance(client: Client, names: Collection[str]) -> dict[str, Topic] | None:
    """What one broker says of topics, asked once.

    Returns:
        By name, without those that do not exist; None if there is no answer.
    """
    from kafka.errors import KafkaError

    query = MetadataQuery(tuple(sorted(names)))
    (answer,) = client.ask([(LEAST_LOADED, query.request())])
    try:
        return None if isinstance(answer, KafkaError) else query.topics(answer)
    except KafkaError:
        return None


def some_gone(client: Client, before: Mapping[str, Topic]) -> bool:
    """Whether one of some topics is not there any more, or is another, or has fewer partitions."""
    expected = {name: ExpectedTopic.of(topic) for name, topic in before.items()}
    now = look_closely(client, expected)
    return now is not None and not are_confirmed(expected, now)
