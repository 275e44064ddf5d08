"""Where a source stands in topics, in few numbers: by topic and group of partitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from krishiv_spark.operate.inspection.topic_offsets import offsets_by_topic
from krishiv_spark.queries.progress import SourceProgress

__all__ = ["OTHER_TOPICS", "TopicShare", "topic_shares"]

_TOPICS = 20
_GROUPS = 10
OTHER_TOPICS = "(others)"
"""Topics after the first twenty, by name: no topic can be called that."""


@dataclass(frozen=True)
class TopicShare:
    """A group of partitions of a topic.

    Attributes:
        topic: The topic, or `OTHER_TOPICS`.
        partitions: As "3", or from the first to the last one as "0-99".
        position: Sum of the next offsets.
        waiting: Offsets after them; None if the source does not say.
    """

    topic: str
    partitions: str
    position: int
    waiting: int | None


def topic_shares(source: SourceProgress) -> list[TopicShare]:
    """The shares of a source that reads topics of Kafka, ours or Spark's; nothing of others."""
    ends, newest = offsets_by_topic(source.end), offsets_by_topic(source.latest)
    names = sorted(ends)
    found = [share for name in names[:_TOPICS] for share in _shares(name, ends[name], newest)]
    rest = [_share(OTHER_TOPICS, "", ends[name], newest.get(name)) for name in names[_TOPICS:]]
    return [*found, *_together(rest)]


def _shares(
    topic: str, ends: Mapping[int, int], newest: Mapping[str, Mapping[int, int]]
) -> Iterator[TopicShare]:
    width = -(-(max(ends, default=0) + 1) // _GROUPS)
    for number, members in groupby(sorted(ends), lambda partition: partition // width):
        first = number * width
        name = str(first) if width == 1 else f"{first}-{first + width - 1}"
        yield _share(topic, name, {p: ends[p] for p in members}, newest.get(topic))


def _share(
    topic: str, partitions: str, ends: Mapping[int, int], newest: Mapping[int, int] | None
) -> TopicShare:
    known = None if newest is None else {p: newest[p] for p in ends if p in newest}
    waiting = None if known is None else sum(max(end - ends[p], 0) for p, end in known.items())
    return TopicShare(topic, partitions, sum(ends.values()), waiting)


def _together(shares: list[TopicShare]) -> Iterator[TopicShare]:
    if shares:
        known = [share.waiting for share in shares if share.waiting is not None]
        position = sum(share.position for share in shares)
        yield TopicShare(OTHER_TOPICS, "", position, sum(known) if known else None)
