"""Plans where a batch begins and ends in each partition. Driver; metadata only."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from krishiv_spark.kafka.client import Client, KafkaFailedError, open_client
from krishiv_spark.kafka.offset_lookups import RepeatedLookup
from krishiv_spark.kafka.topic_partition import LATEST, TopicPartition
from krishiv_spark.offsets.watermark import WatermarkPlanner
from krishiv_spark.sources.base import Limit
from krishiv_spark.sources.kafka.event_time import EventTime
from krishiv_spark.sources.kafka.lag import Lag
from krishiv_spark.sources.kafka.limits import Delay, in_proportion
from krishiv_spark.sources.kafka.losses import Losses
from krishiv_spark.sources.kafka.offset_lookup import OffsetLookup
from krishiv_spark.sources.kafka.options import KafkaSourceOptions
from krishiv_spark.sources.kafka.position import Position, QueryPosition
from krishiv_spark.sources.kafka.topics import ClusterSnapshot, Subscription, ids_of

__all__ = ["BatchPlanner"]

Offsets: TypeAlias = Mapping[TopicPartition, int]
"""Begins or ends, by partition."""


class BatchPlanner:
    """Plans the ends of batches, for the life of a reader.

    Args:
        options: Topics, starting positions, limits, and what a loss is.
        streaming: Whether a stream is read.
    """

    def __init__(self, options: KafkaSourceOptions, *, streaming: bool) -> None:
        self._options = options
        self._streaming = streaming
        self._committed = options.committed
        self._subscription = Subscription(options)
        self._losses = Losses(options.fail_on_data_loss)
        self._delay = Delay(options.min_offsets_per_trigger or 0, options.max_trigger_delay / 1000)
        self._lag = Lag()
        self._ends = RepeatedLookup(LATEST, committed=options.committed)
        self._watermarks = WatermarkPlanner(options.watermark_delay, options.max_event_time_ahead)
        self._is_started = False
        self._frozen: ClusterSnapshot | None = None
        self._planned: tuple[Offsets, Offsets] = {}, {}
        self._nothing_new: tuple[QueryPosition, ClusterSnapshot] | None = None

    def _client(self) -> Client:
        client = open_client(self._options.kafka, at_start=not self._is_started)
        self._is_started = True
        return client

    def plan_end(self, start: QueryPosition, limit: Limit) -> QueryPosition:
        """The end of the batch that begins at `start`; `start` itself if there is nothing new.

        Raises:
            OptionError: If the options name what was never there.
            DataLossError: If something has gone, and losses are errors.
            KafkaFailedError: If the cluster does not answer in time.
        """
        client = self._client()
        try:
            return self._plan(client, start, limit)
        except KafkaFailedError:
            # Of a topic that has gone since it was found there is no answer.
            if not self._subscription.is_stale(client):
                raise
            if self._frozen is not None:
                self._frozen = self._look(client, start)
            return self._plan(client, start, limit)

    def _plan(self, client: Client, start: QueryPosition, limit: Limit) -> QueryPosition:
        # What the cluster has
        snapshot = self._take_snapshot(client, start)
        if self._nothing_new == (start, snapshot):  # spares many partitions a closer look
            return start
        # Where it begins
        lookup = OffsetLookup(client, self._options, self._losses)
        if start.at is not None:
            begins = lookup.first(snapshot.ends.keys(), streaming=self._streaming)
        else:
            begins = lookup.begins(start, snapshot)
        # A position may lie after the last stable offset, where uncommitted records were read
        # before.
        newest = {tp: max(end, begins[tp]) for tp, end in snapshot.ends.items()}
        # How far it goes
        event_time = EventTime(self._options, lookup, self._watermarks, self._watermarks.limit())
        waits = sum(newest[tp] - begin for tp, begin in begins.items())
        # A run that ends with what is there has no later batch to wait for.
        if self._frozen is None and self._delay.holds(waits, time.monotonic()):
            ends: Offsets = begins
        else:
            has_skew = self._options.max_skew is not None
            aligned = event_time.align(start, begins, newest) if has_skew else newest
            ends = in_proportion(begins, aligned, limit.rows)
        self._planned = ends, newest
        # Where it ends, and how far event time has come there
        reached = {tp: Position(offset, snapshot.newest[tp].epoch) for tp, offset in ends.items()}
        end = start.advance(begins, reached, snapshot.left, snapshot.known_ids)
        # From a start without offsets there is always a batch, if an empty one: its end says what
        # the start meant.
        if start.at is None and start.is_at(end):
            self._nothing_new = (start, snapshot) if ends == newest else None
            return start
        has_event_time = self._options.event_time is not None and self._streaming
        return event_time.mark(start, end, newest) if has_event_time else end

    def _take_snapshot(self, client: Client, start: QueryPosition) -> ClusterSnapshot:
        """What there is now, or was when the query froze it."""
        frozen = self._frozen
        if frozen is None:
            return self._look(client, start)
        if not self._subscription.covers(frozen.topics, start):
            # It was not known then that one of them has been read: it deserves a closer look.
            self._frozen = self._look(client, start)
            return self._frozen
        left, known_ids = self._subscription.compare(start, frozen.topics)
        return replace(frozen, left=left, known_ids=known_ids)

    def _look(self, client: Client, start: QueryPosition | None) -> ClusterSnapshot:
        """What there is now; without a start nothing is known of what must be there."""
        topics = self._subscription.topics(client, start)
        left, known_ids = self._subscription.compare(start, topics) if start else ({}, {})
        partitions, ids = self._subscription.partitions(topics), ids_of(topics)
        if self._streaming and self._committed:
            newest = self._lag.look_up_ends(client, partitions)
        else:
            newest = self._ends.demand(client, partitions)
        if self._streaming:
            ends: Offsets = newest.numbers
        else:
            lookup = OffsetLookup(client, self._options, self._losses)
            ends = lookup.last(partitions.partitions)
        return ClusterSnapshot(topics, ids, newest, ends, left, known_ids)

    def freeze(self) -> None:
        """From now on nothing is seen that is newer than what is there now."""
        self._frozen = self._look(self._client(), None)

    def backlog(self) -> Mapping[str, Any]:
        """Return the backlog after the last planned batch, and counts of lost and ignored rows."""
        known = (self._lag.report(*self._planned), self._losses.report(), self._watermarks.report())
        return {key: value for report in known for key, value in report.items()}
