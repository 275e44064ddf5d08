"""What the cluster still has of the offsets that a task is to read. Executor.

This is the one place where it is found out that offsets will not come. What follows from that is
for `krishiv_spark.sources.kafka.losses.Losses`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from krishiv_spark.kafka.client import Client, KafkaFailedError
from krishiv_spark.kafka.expected_topics import ExpectedTopic
from krishiv_spark.kafka.offset_lookups import list_offsets
from krishiv_spark.kafka.topic_partition import EARLIEST, LATEST, Topic
from krishiv_spark.sources.kafka.position import Position
from krishiv_spark.sources.kafka.ranges import OffsetRange
from krishiv_spark.sources.kafka.topics import glance, look_closely, some_gone
from krishiv_spark.sources.kafka.truncation import Cut, cuts

__all__ = ["Remains", "look_at_remains"]


@dataclass(frozen=True)
class Remains:
    """What is left of a range, from the offset on that is read next.

    Attributes:
        begin: First offset that is left; those before it have been removed.
        end: Where it ends, exclusive.
        why: Why that is not the range's own end; empty if it is.
        is_certain: Whether `end` is to be believed at once, and not only when it is still the same
            after some patience.
        whole_topic: Whether all partitions of the topic share this fate.
        epoch: Leader epoch of the leader that has it; -1 if it is not known.
    """

    begin: int
    end: int
    why: str = ""
    is_certain: bool = True
    whole_topic: bool = False
    epoch: int = -1


def look_at_remains(
    client: Client, nexts: Mapping[OffsetRange, int], *, closely: bool
) -> dict[OffsetRange, Remains]:
    """Look at metadata, and at both ends and the leader epochs of the logs.

    Args:
        client: Of this process.
        nexts: By range, the offset that is read next.
        closely: Whether what is not certain will be believed: it takes 2 s if a topic or partition
            is missing.

    Returns:
        By range; none for those of which nothing can be said now, since no broker answers or the
        partition has no leader.

    Raises:
        KafkaFailedError: If a leader does not answer in time, or a topic may not be read.
    """
    expected = _expected(nexts)
    topics = None if closely else glance(client, expected)
    if closely or (topics and any(expected[name].is_other(topics[name]) for name in topics)):
        # A broker that lags behind may name the id that the topic had before.
        topics = look_closely(client, expected)
    if topics is None:
        return {}
    try:
        return _remains(client, nexts, topics)
    except KafkaFailedError:
        if not some_gone(client, topics):
            raise
        # It went between the two looks: metadata says so by now.
        return look_at_remains(client, nexts, closely=closely)


def _expected(nexts: Mapping[OffsetRange, int]) -> dict[str, ExpectedTopic]:
    partitions: dict[str, set[int]] = {}
    for wanted in nexts:
        partitions.setdefault(wanted.tp.topic, set()).add(wanted.tp.partition)
    ids = {wanted.tp.topic: wanted.topic_id for wanted in nexts}
    return {name: ExpectedTopic(ids[name], frozenset(each)) for name, each in partitions.items()}


def _remains(
    client: Client, nexts: Mapping[OffsetRange, int], topics: Mapping[str, Topic]
) -> dict[OffsetRange, Remains]:
    fates = {wanted: _fate(wanted, at, topics.get(wanted.tp.topic)) for wanted, at in nexts.items()}
    found = {wanted: fate for wanted, fate in fates.items() if fate is not None}
    rest = {wanted: at for wanted, at in nexts.items() if wanted not in found}
    return {**found, **_held(client, {p: at for p, at in rest.items() if _is_led(p, topics)})}


def _fate(wanted: OffsetRange, at: int, topic: Topic | None) -> Remains | None:
    """What metadata says: nothing is left, or no more than that."""
    name = wanted.tp.topic
    if topic is None:
        why = f"topic {name!r} was deleted"
        return Remains(at, at, why, is_certain=False, whole_topic=True)
    expected = ExpectedTopic(wanted.topic_id, frozenset({wanted.tp.partition}))
    if expected.is_other(topic):
        return Remains(at, at, f"topic {name!r} was deleted and recreated", whole_topic=True)
    if not expected.is_confirmed_by(topic):
        why = f"topic {name!r} has only {len(topic.leaders)} partitions now"
        return Remains(at, at, why, is_certain=False)
    return None


def _is_led(wanted: OffsetRange, topics: Mapping[str, Topic]) -> bool:
    return topics[wanted.tp.topic].leaders.get(wanted.tp.partition, -1) >= 0


def _held(client: Client, nexts: Mapping[OffsetRange, int]) -> dict[OffsetRange, Remains]:
    """What the leaders have."""
    if not nexts:
        return {}
    partitions = [wanted.tp for wanted in nexts]
    oldest = list_offsets(client, dict.fromkeys(partitions, EARLIEST))
    high_watermarks = list_offsets(client, dict.fromkeys(partitions, LATEST), committed=False)
    found = cuts(
        client,
        {wanted.tp: Position(wanted.end, wanted.epoch) for wanted in nexts},
        high_watermarks,
    )
    return {
        wanted: _left(wanted, max(at, oldest[tp].offset), found.get(tp), high_watermarks[tp].epoch)
        for (wanted, at), tp in zip(nexts.items(), partitions, strict=True)
    }


def _left(wanted: OffsetRange, begin: int, cut: Cut | None, epoch: int) -> Remains:
    begin = min(begin, wanted.end)
    if cut is None:
        return Remains(begin, wanted.end, epoch=epoch)
    end = min(max(begin, cut.offset), wanted.end)
    return Remains(begin, end, cut.why, cut.is_certain, epoch=epoch)
