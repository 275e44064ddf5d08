"""The topics and partitions that a query reads, as the cluster has them now. Driver.

``subscribePattern`` is matched in bounded time. A user who may create topics chooses their names,
and Python's engine takes exponential time for some patterns and names. RE2, which PyArrow contains,
takes linear time. It lacks a part of Python's syntax: Python matches the other patterns in a child
process that is killed after a time limit.
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.errors import OptionError
from krishiv_spark.kafka.client import KafkaClient
from krishiv_spark.kafka.expected_topics import (
    Expected,
    ExpectedTopic,
    any_topic_deleted,
    retry_until_confirmed,
)
from krishiv_spark.kafka.partition_table import FoundOffsets, PartitionTable
from krishiv_spark.kafka.topic_partition import Topic, TopicPartition
from krishiv_spark.sources.kafka.offset import PartitionPosition, QueryPosition
from krishiv_spark.sources.kafka.options import KafkaSourceOptions

__all__ = ["ClusterSnapshot", "Subscription", "TopicPattern", "get_topic_ids"]

_log = logging.getLogger(__name__)

_Comparison: TypeAlias = tuple[dict[TopicPartition, PartitionPosition], dict[str, str]]

_SHARE_OF_TIME = 10
"""Topics are requested for at most a tenth of the time: a request is followed by a pause of ten
times its duration."""


@dataclass(frozen=True)
class ClusterSnapshot:
    """The state of the cluster at one moment.

    Attributes:
        topics: The topics that are read.
        ids: The ids of these topics, if they have one.
        newest: The end of each partition that is read.
        ends: The offsets at which reading ends, exclusive: in streams, `newest`; in batch reads, as
            the options specify.
        left: Positions in partitions that the options no longer include.
        known_ids: The same as `ids`, and the ids of topics in `left` and of deleted topics that
            the options name.
    """

    topics: Mapping[str, Topic]
    ids: Mapping[str, str]
    newest: FoundOffsets
    ends: Mapping[TopicPartition, int]
    left: Mapping[TopicPartition, PartitionPosition]
    known_ids: Mapping[str, str]


class Subscription:
    """The topics that the options include, requested periodically.

    Args:
        options: They have one of ``subscribe``, ``subscribePattern`` and ``assign``.
    """

    def __init__(self, options: KafkaSourceOptions) -> None:
        self._options = options
        pattern = options.subscribe_pattern
        self._pattern = None if pattern is None else TopicPattern(pattern)
        self._assigned = None if options.assign is None else frozenset(options.assign)
        assigned = (tp.topic for tp in options.assign or ())
        self._names = frozenset((*(options.subscribe or ()), *assigned))
        self._topics: dict[str, Topic] = {}
        self._rows: tuple[Mapping[str, Topic], PartitionTable] = self._topics, PartitionTable(())
        self._compared: tuple[QueryPosition, Mapping[str, Topic], _Comparison] | None = None
        self._expected: tuple[QueryPosition | None, Expected] = None, {}
        self._covered: tuple[QueryPosition | None, Mapping[str, Topic]] = None, self._topics
        self._existing: set[TopicPartition] = set()
        self._refresh_at_s = 0.0

    def fetch_topics(self, client: KafkaClient, position: QueryPosition | None) -> dict[str, Topic]:
        """Return the existing topics by name.

        Args:
            client: The client of this process.
            position: The position of the query; None if it is unknown. If a response lacks one of
                its topics or partitions, the request is repeated a few times before that counts. A
                partition that is missing from a topic with an unchanged id has no leader. Without a
                position, or before the first batch, a second response must be the same.

        Raises:
            KafkaFailedError: If the cluster does not respond, or a topic may not be read.
        """
        if time.monotonic() >= self._refresh_at_s or not self.covers(self._topics, position):
            began_s = time.monotonic()
            found = self._fetch_confirmed(client, position)
            # The same object while the topics are equal: the tables made from it are cached by
            # identity.
            self._topics = self._topics if found == self._topics else found
            now_s = time.monotonic()
            self._refresh_at_s = now_s + _SHARE_OF_TIME * (now_s - began_s)
        return self._topics

    def is_stale(self, client: KafkaClient) -> bool:
        """Return True if a topic was deleted since the last request; the next call sends one."""
        self._refresh_at_s = 0.0
        return any_topic_deleted(client, self._topics)

    def partitions_of(self, topics: Mapping[str, Topic]) -> PartitionTable:
        """Return the partitions of these topics that are read."""
        if self._rows[0] is not topics:
            found = [tp for topic in topics.values() for tp in topic.partitions]
            assigned = self._assigned
            read = found if assigned is None else [tp for tp in found if tp in assigned]
            self._rows = topics, PartitionTable(read)
        return self._rows[1]

    def covers(self, topics: Mapping[str, Topic], position: QueryPosition | None) -> bool:
        """Return True if topics have all partitions that the query has read and still includes."""
        before = self._covered
        if before[0] is position and before[1] is topics:
            return True
        expected = self._expect(position).items()
        is_covered = all(
            name in topics and each.is_confirmed_by(topics[name]) for name, each in expected
        ) and all(each.partitions <= topics[name].leaders.keys() for name, each in expected)
        if is_covered:
            self._covered = position, topics
        return is_covered

    def _expect(self, position: QueryPosition | None) -> Expected:
        if self._expected[0] is not position:
            partitions: dict[str, set[int]] = {}
            for tp in () if position is None else (*position.left, *position.read):
                if self.includes(tp):
                    partitions.setdefault(tp.topic, set()).add(tp.partition)
            ids = {} if position is None else position.ids
            found = {
                name: ExpectedTopic(ids.get(name, ""), frozenset(numbers))
                for name, numbers in partitions.items()
            }
            self._expected = position, found
        return self._expected[1]

    def _fetch_confirmed(
        self, client: KafkaClient, position: QueryPosition | None
    ) -> dict[str, Topic]:
        expected = self._expect(position)
        is_new = position is None or position.at is not None
        found = retry_until_confirmed(
            lambda: self._fetch(client, expected.keys(), is_new=is_new), expected
        )
        same = {name: each for name, each in expected.items() if name in found}
        whole = {
            name: found[name].including(each.partitions)
            for name, each in same.items()
            if each.is_same(found[name])
        }
        return {**found, **whole}

    def _fetch(
        self, client: KafkaClient, known: Collection[str], *, is_new: bool
    ) -> dict[str, Topic]:
        # A batch would omit a topic that the first response lacks, and a stream would read it from
        # another start than the options specify.
        ask = client.fetch_confirmed_topics if is_new else client.fetch_topics
        if self._pattern is None:
            return ask(self._names)
        there = ask()
        self._pattern.retain({*there, *known})
        found = {name: there[name] for name in self._pattern.select(there)}
        # A list contains only the topics that the user may describe. A request by name reports a
        # missing permission as an error.
        missing = set(known) - found.keys()
        return {**found, **client.fetch_topics(missing)} if missing else found

    def includes_topic(self, name: str) -> bool:
        """Return True if the options include a topic of this name."""
        if self._pattern is None:
            return name in self._names
        return bool(self._pattern.select([name]))

    def compare(self, position: QueryPosition, topics: Mapping[str, Topic]) -> _Comparison:
        """Compare a position with the existing topics.

        Args:
            position: The position of the query.
            topics: The existing topics.

        Returns:
            `ClusterSnapshot.left` and `ClusterSnapshot.known_ids`.

        Raises:
            OptionError: If a topic or partition that the options name never existed.
        """
        kept = self._compared
        if kept is None or kept[0] is not position or kept[1] is not topics:
            kept = self._compared = position, topics, self._compare_now(position, topics)
        return kept[2]

    def _compare_now(self, position: QueryPosition, topics: Mapping[str, Topic]) -> _Comparison:
        known = position.ids.keys() | position.topics
        self._refuse_missing(topics, known, {**position.left, **position.read})
        left = self._find_left(position)
        named = self._names | {tp.topic for tp in left}
        remembered = {name: number for name, number in position.ids.items() if name in named}
        return left, {**remembered, **get_topic_ids(topics)}

    def _find_left(self, position: QueryPosition) -> dict[TopicPartition, PartitionPosition]:
        positions = {**position.left, **position.read}
        left = {tp: each for tp, each in positions.items() if not self.includes(tp)}
        for tp in left.keys() & position.read.keys():
            _log.warning(
                "%s is no longer read, because the options do not include it; if they include "
                "it again, the query continues from offset %d",
                tp,
                left[tp].offset,
            )
        return left

    def includes(self, tp: TopicPartition) -> bool:
        """Return True if the options include a partition."""
        return self.includes_topic(tp.topic) and (self._assigned is None or tp in self._assigned)

    def _refuse_missing(
        self,
        found: Mapping[str, Topic],
        topics: Collection[str],
        partitions: Collection[TopicPartition],
    ) -> None:
        """Refuse topics and partitions that the options name and that never existed.

        Args:
            found: The existing topics.
            topics: Topics that the query has read before.
            partitions: Partitions of its position.

        Raises:
            OptionError: If a topic or partition that the options name never existed.
        """
        missing = sorted(self._names - found.keys() - set(topics))
        if missing:
            raise OptionError(
                f"{self._options.format_name}: topic {missing[0]!r} does not exist on "
                f"{self._options.kafka.bootstrap}: create it, or correct the option"
            )
        # A partition that existed once is lost; the options are correct.
        existing = set(self.partitions_of(found).partitions) if self._assigned else set()
        self._existing |= {tp for tp in self._assigned or () if tp in existing or tp in partitions}
        for tp in self._options.assign or ():
            if tp.topic in found and tp not in self._existing:
                raise OptionError(
                    f"{self._options.format_name}: option 'assign' names partition "
                    f"{tp.partition} of topic {tp.topic!r}, which has "
                    f"{len(found[tp.topic].leaders)}"
                )


def get_topic_ids(topics: Mapping[str, Topic]) -> dict[str, str]:
    """Return the ids of topics by name, without topics that have none."""
    return {name: number for name, topic in topics.items() if (number := topic.usable_id)}


_LIMIT_S = 10.0
"""Time limit for all new names together; a harmless pattern takes microseconds for each."""

_DIFFERS = re.compile(r"\{,|\[:|\\[0-9xCQEpPz]|[^\x20-\x7e]")
"""Syntax that both engines accept, and that they may read differently."""

_CHILD = """
import json, re, sys
pattern = re.compile(sys.argv[1])
for line in sys.stdin:
    print(int(pattern.fullmatch(json.loads(line)) is not None), flush=True)
"""


class TopicPattern:
    """A pattern that caches its result for each name.

    Args:
        pattern: A valid regular expression of Python's.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._cached: dict[str, bool] = {}

    def select(self, names: Collection[str]) -> list[str]:
        """Return the names that the pattern matches as a whole, in their order.

        Raises:
            OptionError: If Python takes too long for a name.
        """
        new = [name for name in names if name not in self._cached]
        if new:
            found = _match_by_re2(self._pattern, new)
            if found is None:
                found = _match_by_python(self._pattern, new)
            self._cached.update(zip(new, found, strict=True))
        return [name for name in names if self._cached[name]]

    def retain(self, names: Iterable[str]) -> None:
        """Delete the cached results for all names but these."""
        self._cached = {name: self._cached[name] for name in names if name in self._cached}


def _match_by_re2(pattern: str, names: Collection[str]) -> list[bool] | None:
    """Return True for each name that matches; None if RE2 does not support the syntax."""
    if _DIFFERS.search(pattern):
        return None
    try:
        found = pc.match_substring_regex(pa.array(names, pa.string()), f"^(?:{pattern})$")
    except pa.ArrowInvalid:
        return None
    matched: list[bool] = found.to_pylist()
    return matched


def _match_by_python(pattern: str, names: Collection[str]) -> list[bool]:
    command = [sys.executable, "-I", "-S", "-c", _CHILD, pattern]
    given = "".join(f"{json.dumps(name)}\n" for name in names)
    try:
        done = subprocess.run(  # noqa: S603  the program is ours, and no shell reads the pattern
            command,
            input=given,
            capture_output=True,
            encoding="utf-8",
            timeout=_LIMIT_S,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        answered = len((error.stdout or b"").split())
        raise OptionError(
            f"option 'subscribePattern' = {pattern!r} takes more than {_LIMIT_S:g} s for the topic "
            f"name {list(names)[answered]!r}: write it without repetitions within repetitions; "
            "without (?=...), \\1 and the like it is matched in linear time"
        ) from None
    return [line == "1" for line in done.stdout.split()]
