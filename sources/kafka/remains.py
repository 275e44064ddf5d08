"""What the cluster still has of the offsets that a task is to read. Executor.

This is the one place where it is found out that offsets will not come. What follows from that is
for `krishiv_spark.sources.kafka.losses.Losses`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from krishiv_spark.kafka.client import Client, KafkaFailedError
from krishiv_spark.kafka.fetches import usable_id
from krishiv_spark.kafka.lookups import list_offsets
from krishiv_spark.kafka.places import EARLIEST, LATEST, Topic
from krishiv_spark.sources.kafka.shares import Piece
from krishiv_spark.sources.kafka.topics import glance, look_closely, some_gone
from krishiv_spark.sources.kafka.truncation import Cut, Stand, cuts

__all__ = ["Remains", "look_at_remains"]


@dataclass(frozen=True)
class Remains:
    """What is left of a piece, from the offset on that is read next.

    Attributes:
        begin: First offset that is left; those before it have been removed.
        end: Where it ends, exclusive.
        why: Why that is not the piece's own end; empty if it is.
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
    client: Client, nexts: Mapping[Piece, int], *, closely: bool
) -> dict[Piece, Remains]:
    """Look at metadata, and at both ends and the leader epochs of the logs.

    Args:
        client: The cluster.
        nexts: By piece, the offset that is read next.
        closely: Whether what is not certain will be believed: it takes 2 s if a topic is missing.

    Returns:
        By piece; none for those of which nothing can be said now, since no broker answers or the
        partition has no leader.

    Raises:
        KafkaFailedError: If a leader does not answer in time, or a topic may not be read.
    """
    look = look_closely if closely else glance
    topics = look(client, {piece.place.topic for piece in nexts})
    if topics is None:
        return {}
    try:
        return _remains(client, nexts, topics)
    except KafkaFailedError:
        if not some_gone(client, topics):
            raise
        return look_at_remains(client, nexts, closely=closely)


def _remains(
    client: Client, nexts: Mapping[Piece, int], topics: Mapping[str, Topic]
) -> dict[Piece, Remains]:
    fates = {piece: _fate(piece, at, topics.get(piece.place.topic)) for piece, at in nexts.items()}
    found = {piece: fate for piece, fate in fates.items() if fate is not None}
    rest = {piece: at for piece, at in nexts.items() if piece not in found}
    return {**found, **_held(client, {p: at for p, at in rest.items() if _is_led(p, topics)})}


def _fate(piece: Piece, at: int, topic: Topic | None) -> Remains | None:
    """What metadata says: nothing is left, or no more than that."""
    name = piece.place.topic
    if topic is None:
        why = f"topic {name!r} was deleted"
        return Remains(at, at, why, is_certain=False, whole_topic=True)
    if piece.topic_id and usable_id(topic) != piece.topic_id:
        return Remains(at, at, f"topic {name!r} was deleted and made anew", whole_topic=True)
    if piece.place.partition not in topic.leaders:
        why = f"topic {name!r} has only {len(topic.leaders)} partitions now"
        return Remains(at, at, why, is_certain=False)
    return None


def _is_led(piece: Piece, topics: Mapping[str, Topic]) -> bool:
    return topics[piece.place.topic].leaders[piece.place.partition] >= 0


def _held(client: Client, nexts: Mapping[Piece, int]) -> dict[Piece, Remains]:
    """What the leaders have."""
    if not nexts:
        return {}
    places = [piece.place for piece in nexts]
    oldest = list_offsets(client, dict.fromkeys(places, EARLIEST))
    highs = list_offsets(client, dict.fromkeys(places, LATEST), committed=False)
    found = cuts(client, {piece.place: Stand(piece.end, piece.epoch) for piece in nexts}, highs)
    return {
        piece: _left(piece, max(at, oldest[place].offset), found.get(place), highs[place].epoch)
        for (piece, at), place in zip(nexts.items(), places, strict=True)
    }


def _left(piece: Piece, begin: int, cut: Cut | None, epoch: int) -> Remains:
    begin = min(begin, piece.end)
    if cut is None:
        return Remains(begin, piece.end, epoch=epoch)
    end = min(max(begin, cut.offset), piece.end)
    return Remains(begin, end, cut.why, cut.is_certain, epoch=epoch)
