"""Chooses where a batch begins and ends in each partition. Driver; metadata only."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from krishiv_spark.kafka.client import Client, KafkaFailedError, open_client
from krishiv_spark.kafka.lookups import list_offsets
from krishiv_spark.kafka.topic_partition import LATEST, FoundOffset, Topic, TopicPartition
from krishiv_spark.sources.base import Limit
from krishiv_spark.sources.kafka.event_time import EventTime
from krishiv_spark.sources.kafka.footing import Footing, View
from krishiv_spark.sources.kafka.lag import Lag
from krishiv_spark.sources.kafka.limits import Delay, in_proportion, waiting
from krishiv_spark.sources.kafka.losses import Losses
from krishiv_spark.sources.kafka.offset_lookup import OffsetLookup
from krishiv_spark.sources.kafka.options import KafkaSourceOptions
from krishiv_spark.sources.kafka.position import KafkaOffset, flat, nested
from krishiv_spark.sources.kafka.topics import Subscription
from krishiv_spark.sources.kafka.truncation import Position

__all__ = ["BatchPlanner"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Reach:
    """The most that a batch could take.

    Attributes:
        begins: First offset of each partition.
        newest: Where each partition ends in the cluster.
        left: Where the query stands in partitions that it no longer reads.
    """

    begins: Mapping[TopicPartition, int]
    newest: Mapping[TopicPartition, int]
    left: Mapping[TopicPartition, Position]


class BatchPlanner:
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
        self._lag = Lag()
        self._frozen: View | None = None
        self._nothing_new: tuple[KafkaOffset, View] | None = None

    def choose(self, start: KafkaOffset, limit: Limit) -> KafkaOffset:
        """The end of the batch that begins at `start`; `start` itself if there is nothing new.

        Raises:
            OptionError: If the options name what was never there.
            DataLossError: If something has gone, and losses are errors.
            KafkaFailedError: If the cluster does not answer in time.
        """
        client = open_client(self._options.kafka)
        try:
            return self._chosen(client, start, limit)
        except KafkaFailedError:
            # Of a topic that has gone since it was found there is no answer.
            if not self._subscription.is_stale(client):
                raise
            if self._frozen is not None:
                self._frozen = self._view(client, start)
            return self._chosen(client, start, limit)

    def _chosen(self, client: Client, start: KafkaOffset, limit: Limit) -> KafkaOffset:
        bounds = self._bounds(client)
        view = self._seen(client, start)
        if self._nothing_new == (start, view):  # spares many partitions a closer look
            return start
        reach = self._reach(bounds, start, view)
        ends = self._limited(bounds, start, reach, limit)
        self._lag.chosen(ends, reach.newest)
        end = self._offset(start, reach, ends, view)
        if start.at is None and _is_where(start, end):
            self._nothing_new = (start, view) if ends == reach.newest else None
            return start
        if self._options.event_time is None or not self._streaming:
            return end
        return EventTime(self._options, bounds).marked(start, end, reach.newest)

    def freeze(self) -> None:
        """From now on nothing is seen that is newer than what is there now."""
        self._frozen = self._view(open_client(self._options.kafka), None)

    def backlog(self) -> Mapping[str, Any]:
        """What waited after the batch that was chosen last, and what was lost."""
        return {**self._lag.report(), **self._losses.report()}

    # --- what there is

    def _bounds(self, client: Client) -> OffsetLookup:
        return OffsetLookup(client, self._options, self._losses)

    def _seen(self, client: Client, start: KafkaOffset) -> View:
        view = self._frozen
        if view is None:
            view = self._view(client, start)
        elif any(self._subscription.wants(name) for name in start.topics.keys() - view.topics):
            # It was not known then that one of them has been read: it deserves a closer look.
            view = self._frozen = self._view(client, start)
        else:
            self._refuse_missing(view.topics, start)
        return view

    def _view(self, client: Client, start: KafkaOffset | None) -> View:
        """What there is; without a start nothing is known of what must be there."""
        topics = self._subscription.topics(client, () if start is None else start.topics)
        if start is not None:
            self._refuse_missing(topics, start)
        partitions = self._subscription.partitions(topics)
        cluster = self._cluster(client, partitions)
        if not self._streaming:
            return View(topics, cluster, self._bounds(client).last(partitions))
        return View(topics, cluster, {tp: end.offset for tp, end in cluster.items()})

    def _cluster(
        self, client: Client, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, FoundOffset]:
        asked, committed = dict.fromkeys(partitions, LATEST), self._options.committed
        if not (self._streaming and committed):
            return list_offsets(client, asked, committed=committed)
        self._lag.look(client, partitions)
        ends = list_offsets(client, asked, committed=True)
        self._lag.compare(ends)
        return ends

    def _refuse_missing(self, topics: Mapping[str, Topic], start: KafkaOffset) -> None:
        known = start.ids.keys() | start.topics.keys()
        self._subscription.refuse_missing(topics, known, start.positions())

    # --- begins

    def _reach(self, bounds: OffsetLookup, start: KafkaOffset, view: View) -> _Reach:
        positions = start.positions()
        left = {
            p: position for p, position in positions.items() if not self._subscription.asks_for(p)
        }
        if start.at is not None:
            begins = bounds.first(view.ends.keys(), streaming=self._streaming)
        else:
            asked = {tp: position for tp, position in positions.items() if tp not in left}
            begins = Footing(bounds).begins(start, asked, view)
        self._tell_left(start, left)
        newest = {tp: max(end, begins[tp]) for tp, end in view.ends.items()}
        return _Reach(begins, newest, left)

    def _tell_left(self, start: KafkaOffset, left: Mapping[TopicPartition, Position]) -> None:
        for tp in left.keys() & flat(start.topics):
            _log.warning(
                "%s is not read any more, since the options do not ask for it; if they do again, "
                "the query goes on from offset %d",
                tp,
                left[tp].offset,
            )

    # --- ends

    def _limited(
        self, bounds: OffsetLookup, start: KafkaOffset, reach: _Reach, limit: Limit
    ) -> Mapping[TopicPartition, int]:
        waits = sum(waiting(reach.begins, reach.newest).values())
        if self._frozen is None and self._delay.holds(waits, time.monotonic()):
            return reach.begins
        aligned = EventTime(self._options, bounds).aligned(start, reach.begins, reach.newest)
        return in_proportion(reach.begins, aligned, limit.rows)

    def _offset(
        self, start: KafkaOffset, reach: _Reach, ends: Mapping[TopicPartition, int], view: View
    ) -> KafkaOffset:
        stood = flat(start.topics)
        began = {tp: n for tp, n in reach.begins.items() if stood.get(tp) != n}
        epochs = {
            **{tp: position.epoch for tp, position in reach.left.items()},
            **{tp: view.cluster[tp].epoch for tp in ends},
        }
        kept = {tp.topic for tp in reach.left}
        ids = {n: i for n, i in start.ids.items() if n in kept or self._subscription.names(n)}
        return KafkaOffset(
            topics=nested(ends),
            ids={**ids, **view.ids},
            began=nested(began),
            epochs=nested({tp: epoch for tp, epoch in epochs.items() if epoch >= 0}),
            left=nested({tp: position.offset for tp, position in reach.left.items()}),
        )


def _is_where(start: KafkaOffset, end: KafkaOffset) -> bool:
    """Whether both are one position. Elections alone make no batch, epochs that were unknown do."""
    is_known = flat(start.epochs).keys() == flat(end.epochs).keys()
    return is_known and (start.topics, start.left, start.ids) == (end.topics, end.left, end.ids)
