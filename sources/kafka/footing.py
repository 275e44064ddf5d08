"""Where a batch begins: where the last one ended, if the cluster still has that. Driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from krishiv_spark.kafka.fetches import usable_id
from krishiv_spark.kafka.topic_partition import FoundOffset, Topic, TopicPartition
from krishiv_spark.sources.kafka.limits import waiting
from krishiv_spark.sources.kafka.offset_lookup import OffsetLookup
from krishiv_spark.sources.kafka.position import KafkaOffset
from krishiv_spark.sources.kafka.truncation import Position, certain_cuts, is_doubtful

__all__ = ["Footing", "View"]


@dataclass(frozen=True)
class View:
    """What the cluster has at one moment.

    Attributes:
        topics: The topics that are read.
        cluster: Where each partition that is read ends.
        ends: Where reading ends: in streams there as well, in batch reads where the options say.
    """

    topics: Mapping[str, Topic]
    cluster: Mapping[TopicPartition, FoundOffset]
    ends: Mapping[TopicPartition, int]

    @cached_property
    def ids(self) -> dict[str, str]:
        """Ids of the topics that have one."""
        ids = {name: usable_id(topic) for name, topic in self.topics.items()}
        return {name: number for name, number in ids.items() if number}


@dataclass(frozen=True)
class Footing:
    """Finds the first offset of each partition in a batch.

    Attributes:
        bounds: Looks up offsets, and knows what becomes of those that have gone.
    """

    bounds: OffsetLookup

    def begins(
        self, start: KafkaOffset, positions: Mapping[TopicPartition, Position], view: View
    ) -> dict[TopicPartition, int]:
        """First offsets that are there, of all partitions in the view.

        Args:
            start: Where the batch before ended.
            positions: Its positions in those partitions that are asked for.
            view: What the cluster has. New partitions begin with the first offset that they have.

        Raises:
            DataLossError: If something has gone, and losses are errors.
            KafkaFailedError: If the cluster does not answer in time.
        """
        known = {p: position for p, position in positions.items() if self._is_there(start, p, view)}
        self._check_topics(start, {p: s for p, s in positions.items() if p not in known}, view)
        kept = self._kept(known, view)
        new = view.ends.keys() - known.keys()
        oldest = self.bounds.oldest([*new, *waiting(kept, view.ends)])
        begins = {tp: oldest[tp] for tp in new}
        for tp, offset in kept.items():
            begins[tp] = max(offset, oldest.get(tp, offset))
            if begins[tp] > offset:
                self.bounds.losses.report_aged_out(tp, offset, begins[tp])
        return begins

    def _is_there(self, start: KafkaOffset, tp: TopicPartition, view: View) -> bool:
        return tp in view.ends and not _is_other(start, view, tp.topic)

    def _check_topics(
        self, start: KafkaOffset, gone: Mapping[TopicPartition, Position], view: View
    ) -> None:
        for name in dict.fromkeys(tp.topic for tp in gone):
            stood = {tp: s.offset for tp, s in gone.items() if tp.topic == name}
            self.bounds.losses.report_topic_deleted(_what_became(start, view, name), stood)

    def _kept(
        self, known: Mapping[TopicPartition, Position], view: View
    ) -> dict[TopicPartition, int]:
        """Positions, gone back to where the log was cut off if it does not reach them any more.

        A position after the last stable offset stays where it is: the records up to it were read
        when uncommitted ones were asked for.
        """
        kept = {tp: position.offset for tp, position in known.items()}
        doubtful = {
            p: position for p, position in known.items() if is_doubtful(position, view.cluster[p])
        }
        if doubtful:
            for tp, cut in certain_cuts(self.bounds.client, doubtful).items():
                self.bounds.losses.report_cut_off(tp, kept[tp], cut)
                kept[tp] = cut.offset
        return kept


def _is_other(start: KafkaOffset, view: View, name: str) -> bool:
    """Whether a topic is not the one that was read; without ids there is no telling."""
    before, now = start.ids.get(name), view.ids.get(name)
    return before is not None and now is not None and before != now


def _what_became(start: KafkaOffset, view: View, name: str) -> str:
    if name not in view.topics:
        return f"topic {name!r} was deleted"
    if _is_other(start, view, name):
        return (
            f"topic {name!r} was deleted and made anew (its id was {start.ids[name]} and is "
            f"{view.ids[name]})"
        )
    return f"topic {name!r} has only {len(view.topics[name].leaders)} partitions now"
