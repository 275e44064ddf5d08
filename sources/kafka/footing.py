"""Where a batch begins: where the last one ended, if the cluster still has that. Driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from krishiv_spark.kafka.fetches import usable_id
from krishiv_spark.kafka.places import FoundOffset, Place, Topic
from krishiv_spark.sources.kafka.bounds import Bounds
from krishiv_spark.sources.kafka.limits import waiting
from krishiv_spark.sources.kafka.position import KafkaOffset
from krishiv_spark.sources.kafka.truncation import Stand, certain_cuts, is_doubtful

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
    cluster: Mapping[Place, FoundOffset]
    ends: Mapping[Place, int]

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

    bounds: Bounds

    def begins(
        self, start: KafkaOffset, stands: Mapping[Place, Stand], view: View
    ) -> dict[Place, int]:
        """First offsets that are there, of all partitions in the view.

        Args:
            start: Where the batch before ended.
            stands: Its positions in those partitions that are asked for.
            view: What the cluster has. New partitions begin with the first offset that they have.

        Raises:
            DataLossError: If something has gone, and losses are errors.
            KafkaFailedError: If the cluster does not answer in time.
        """
        known = {p: stand for p, stand in stands.items() if self._is_there(start, p, view)}
        self._check_topics(start, {p: s for p, s in stands.items() if p not in known}, view)
        kept = self._kept(known, view)
        new = view.ends.keys() - known.keys()
        oldest = self.bounds.oldest([*new, *waiting(kept, view.ends)])
        begins = {place: oldest[place] for place in new}
        for place, offset in kept.items():
            begins[place] = max(offset, oldest.get(place, offset))
            if begins[place] > offset:
                self.bounds.losses.aged_out(place, offset, begins[place])
        return begins

    def _is_there(self, start: KafkaOffset, place: Place, view: View) -> bool:
        return place in view.ends and not _is_other(start, view, place.topic)

    def _check_topics(self, start: KafkaOffset, gone: Mapping[Place, Stand], view: View) -> None:
        for name in dict.fromkeys(place.topic for place in gone):
            stood = {place: s.offset for place, s in gone.items() if place.topic == name}
            self.bounds.losses.topic_gone(_what_became(start, view, name), stood)

    def _kept(self, known: Mapping[Place, Stand], view: View) -> dict[Place, int]:
        """Positions, gone back to where the log was cut off if it does not reach them any more.

        A position after the last stable offset stays where it is: the records up to it were read
        when uncommitted ones were asked for.
        """
        kept = {place: stand.offset for place, stand in known.items()}
        doubtful = {p: stand for p, stand in known.items() if is_doubtful(stand, view.cluster[p])}
        if doubtful:
            for place, cut in certain_cuts(self.bounds.client, doubtful).items():
                self.bounds.losses.cut_off(place, kept[place], cut)
                kept[place] = cut.offset
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
