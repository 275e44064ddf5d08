"""Chooses where a batch begins and ends in each partition. Driver; metadata only."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from krishiv_spark.kafka.client import Client, open_client
from krishiv_spark.kafka.fetches import usable_id
from krishiv_spark.kafka.places import Place, Topic
from krishiv_spark.kafka.reading.bounds import Bounds
from krishiv_spark.kafka.reading.event_time import EventTime
from krishiv_spark.kafka.reading.limits import Delay, in_proportion, waiting
from krishiv_spark.kafka.reading.losses import Losses
from krishiv_spark.kafka.reading.options import KafkaSourceOptions
from krishiv_spark.kafka.reading.position import KafkaOffset, flat, nested
from krishiv_spark.kafka.reading.topics import Subscription
from krishiv_spark.sources.base import Limit

__all__ = ["Chooser"]


@dataclass(frozen=True)
class _View:
    """What the cluster has at one moment.

    Attributes:
        topics: The topics that are read.
        ends: The end of each partition that is read.
    """

    topics: Mapping[str, Topic]
    ends: Mapping[Place, int]

    @cached_property
    def ids(self) -> dict[str, str]:
        """Ids of the topics that have one."""
        ids = {name: usable_id(topic) for name, topic in self.topics.items()}
        return {name: number for name, number in ids.items() if number}


@dataclass(frozen=True)
class _Reach:
    """The most that a batch could take.

    Attributes:
        begins: First offset of each partition.
        newest: Where each partition ends in the cluster.
    """

    begins: Mapping[Place, int]
    newest: Mapping[Place, int]


class Chooser:
    """Chooses the ends of batches, for the life of a reader.

    Args:
        options: The options.
        streaming: Whether a stream is read.
    """

    def __init__(self, options: KafkaSourceOptions, *, streaming: bool) -> None:
        self._options = options
        self._streaming = streaming
        self._subscription = Subscription(options)
        self._losses = Losses(options.fail_on_data_loss)
        self._delay = Delay(options.min_offsets_per_trigger or 0, options.max_trigger_delay / 1000)
        self._frozen: _View | None = None
        self._backlog: dict[str, Any] = {}
        self._nothing_new: tuple[KafkaOffset, _View] | None = None

    def choose(self, start: KafkaOffset, limit: Limit) -> KafkaOffset:
        """The end of the batch that begins at `start`; `start` itself if there is nothing new."""
        client = open_client(self._options.kafka)
        bounds = Bounds(client, self._options)
        view = self._frozen or self._view(client, bounds, start)
        if self._nothing_new == (start, view):  # spares many partitions a closer look
            return start
        begins = self._begins(bounds, start, view)
        newest = {place: max(end, begins[place]) for place, end in view.ends.items()}
        ends = self._limited(bounds, start, _Reach(begins, newest), limit)
        self._backlog = _backlog(ends, newest)
        if start.at is None and ends == flat(start.topics) and view.ids == start.ids:
            self._nothing_new = (start, view) if ends == newest else None
            return start
        end = _offset(start, begins, ends, view)
        if self._options.event_time is None or not self._streaming:
            return end
        return EventTime(self._options, bounds).marked(start, end, newest)

    def freeze(self) -> None:
        """From now on nothing is seen that is newer than what is there now."""
        client = open_client(self._options.kafka)
        self._frozen = self._view(client, Bounds(client, self._options), KafkaOffset())

    def backlog(self) -> Mapping[str, Any]:
        """What waited behind the batch that was chosen last."""
        return self._backlog

    def _view(self, client: Client, bounds: Bounds, start: KafkaOffset) -> _View:
        topics = self._subscription.topics(client, start.topics)
        places = self._subscription.places(topics)
        ends = bounds.newest(places) if self._streaming else bounds.last(places)
        return _View(topics, ends)

    # --- begins

    def _begins(self, bounds: Bounds, start: KafkaOffset, view: _View) -> dict[Place, int]:
        if start.at is not None:
            return bounds.first(view.ends.keys(), streaming=self._streaming)
        self._check_topics(start, view)
        stands = {p: n for p, n in flat(start.topics).items() if _is_same(start, view, p.topic)}
        known = {place: offset for place, offset in stands.items() if place in view.ends}
        for place in stands.keys() - known.keys():
            if place.topic in view.topics:
                self._losses.happened(f"{place}, where the query stands, is gone")
        return self._checked(bounds, known, view)

    def _check_topics(self, start: KafkaOffset, view: _View) -> None:
        for name in start.topics:
            if name not in view.topics and self._subscription.wants(name):
                self._losses.happened(f"topic {name!r} was deleted")
            elif name in view.topics and not _is_same(start, view, name):
                self._losses.happened(
                    f"topic {name!r} was deleted and made anew (its id was {start.ids[name]} and "
                    f"is {view.ids[name]}): what the query has not read of the old one is gone"
                )

    def _checked(self, bounds: Bounds, known: Mapping[Place, int], view: _View) -> dict[Place, int]:
        """Begins that are there; new partitions begin with the first offset that they have."""
        new = view.ends.keys() - known.keys()
        oldest = bounds.oldest([*new, *waiting(known, view.ends)])
        begins = {place: oldest[place] for place in new}
        for place, offset in known.items():
            begins[place] = max(offset, oldest.get(place, offset))
            if begins[place] > offset:
                self._losses.passed(place, offset, begins[place])
            if view.ends[place] < offset and self._frozen is None:
                begins[place] = self._cut_back(place, offset, view.ends[place])
        return begins

    def _cut_back(self, place: Place, offset: int, end: int) -> int:
        self._losses.happened(
            f"{place}: the query stands at offset {offset}, but the partition ends at {end}: the "
            "cluster has lost records"
        )
        return end

    # --- ends

    def _limited(
        self, bounds: Bounds, start: KafkaOffset, reach: _Reach, limit: Limit
    ) -> Mapping[Place, int]:
        waits = sum(waiting(reach.begins, reach.newest).values())
        if self._frozen is None and self._delay.holds(waits, time.monotonic()):
            return reach.begins
        aligned = EventTime(self._options, bounds).aligned(start, reach.begins, reach.newest)
        return in_proportion(reach.begins, aligned, limit.rows)


def _offset(
    start: KafkaOffset, begins: Mapping[Place, int], ends: Mapping[Place, int], view: _View
) -> KafkaOffset:
    stood = flat(start.topics)
    began = {place: offset for place, offset in begins.items() if stood.get(place) != offset}
    return KafkaOffset(topics=nested(ends), ids=view.ids, began=nested(began))


def _is_same(start: KafkaOffset, view: _View, name: str) -> bool:
    """Whether a topic is the one that was read; without ids there is no telling."""
    before, now = start.ids.get(name), view.ids.get(name)
    return before is None or now is None or before == now


def _backlog(ends: Mapping[Place, int], newest: Mapping[Place, int]) -> dict[str, Any]:
    lag = {place: newest[place] - offset for place, offset in ends.items()}
    return {
        "latest": nested(newest),
        "lag": nested(lag),
        "offsets_waiting": sum(lag.values()),
    }
