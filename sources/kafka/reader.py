"""``krishiv-kafka`` as a source: topics of Apache Kafka.

Rows of committed transactions only, each exactly once. An offset names the next record of each
partition; the rows between two offsets are the same however often they are read, as long as Kafka
has them. The unit of parallelism is a partition of Kafka, or a part of one; partitions with few
new rows share a task.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from krishiv_spark.errors import OptionError
from krishiv_spark.kafka.topic_partition import EARLIEST, LATEST
from krishiv_spark.sources.base import UNLIMITED, Limit, StreamReader
from krishiv_spark.sources.kafka.options import KafkaSourceOptions
from krishiv_spark.sources.kafka.position import KafkaOffset, QueryPosition, StartName
from krishiv_spark.sources.kafka.ranges import OffsetRange, TaskRanges, spread_over_tasks
from krishiv_spark.sources.kafka.row_schema import KafkaRowSchema
from krishiv_spark.sources.kafka.starting_position import StartingPosition

if TYPE_CHECKING:
    from krishiv_spark.sources.kafka.group import ShownPosition
    from krishiv_spark.sources.kafka.planner import BatchPlanner

__all__ = ["KafkaOffset", "KafkaReader", "KafkaSourceOptions"]


class KafkaReader(StreamReader[KafkaOffset, TaskRanges]):
    """Reads topics, in streams and batches."""

    options_type = KafkaSourceOptions
    offset_type = KafkaOffset

    options: KafkaSourceOptions

    def __init__(
        self, options: KafkaSourceOptions, schema: pa.Schema | None, *, streaming: bool
    ) -> None:
        super().__init__(options, schema, streaming=streaming)
        self._made_planner: BatchPlanner | None = None
        self._made_position: ShownPosition | None = None
        self._positions = _no_positions()
        # Before Spark reads the checkpoint: a driver that began later knows a later position.
        self._since_ms = time.time_ns() // 1_000_000

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles the reader with every batch; executors choose nothing.
        left_out = {"_made_planner": None, "_made_position": None, "_positions": _no_positions()}
        return {**self.__dict__, **left_out}

    def infer_schema(self) -> pa.Schema:
        """Kafka's columns, or those of the values; asks no broker. See `StreamReader`."""
        return KafkaRowSchema.inferred(self.options).schema

    # --- positions

    def initial(self) -> KafkaOffset:
        """The start that the options ask for, by its name; constant. See `StreamReader`.

        The first batch finds out which offsets that means, and its end names them.
        """
        # What is wrong with the columns is said before any batch is planned.
        self._row_schema().check()
        if self.streaming:
            _refuse_ends(self.options)
        where = self.options.start(streaming=self.streaming)
        return KafkaOffset(at=_name(where))

    def latest(self, start: KafkaOffset, limit: Limit) -> KafkaOffset:
        """See `StreamReader`. One request to each leader, side by side, or a few of them.

        Shows `start` to Kafka's own tools, if a group is given: the batch that ended there is done.
        """
        planner, position = self._planner(), self._position_of(start)
        if self.options.group_id is not None and start.at is None:
            self._position(self.options.group_id).show(position.offsets)
        end = planner.plan_end(position, limit)
        return start if end is position else end.to_offset()

    def start_from_offset(self, offset: Mapping[str, Any]) -> KafkaOffset:
        """See `SupportsBackfillTarget`. Asks no broker."""
        from krishiv_spark.sources.kafka.takeover import taken_over

        return taken_over(self.options, offset)

    def configured_start(self) -> KafkaOffset:
        """See `SupportsBackfillTarget`."""
        from krishiv_spark.sources.kafka.takeover import begun_at, check_exact

        check_exact(self.options)
        return begun_at(self.latest(self.initial(), UNLIMITED))

    def freeze(self) -> None:
        """See `SupportsAvailableNow`."""
        self._planner().freeze()

    def backlog(self) -> Mapping[str, Any]:
        """What waits after the batch that was chosen last, and what open transactions hold back.

        With what was lost, if anything was. See `SupportsBacklog`.
        """
        return self._planner().backlog()

    def _position_of(self, offset: KafkaOffset) -> QueryPosition:
        """The same one as before, as long as the query stands where it stood."""
        for known, position in self._positions:
            if known is offset or known == offset:
                return position
        self._positions.append((offset, QueryPosition.of(offset)))
        return self._positions[-1][1]

    def _planner(self) -> BatchPlanner:
        from krishiv_spark.sources.kafka.planner import BatchPlanner

        if self._made_planner is None:
            self._made_planner = BatchPlanner(self.options, streaming=self.streaming)
        return self._made_planner

    def _position(self, group: str) -> ShownPosition:
        from krishiv_spark.sources.kafka.group import ShownPosition

        if self._made_position is None:
            self._made_position = ShownPosition(self.options.kafka, group, self._since_ms)
        return self._made_position

    # --- rows

    def plan(self, start: KafkaOffset, end: KafkaOffset) -> Sequence[TaskRanges]:
        """See `StreamReader`. From the two offsets alone."""
        if start == end:
            return []
        before, after = self._position_of(start), self._position_of(end)
        begins = {**before.offsets, **after.began}
        ranges = (
            OffsetRange(tp, end.ids.get(tp.topic, ""), begins[tp], *position)
            for tp, position in after.read.items()
        )
        return spread_over_tasks(
            ranges,
            fewest=self.options.min_partitions,
            most_offsets=self.options.max_records_per_partition,
            together=self.options.offsets_together,
        )

    def read(self, partition: TaskRanges) -> Iterator[pa.RecordBatch]:
        """See `StreamReader` and `Fetcher`."""
        from krishiv_spark.kafka.client import open_client
        from krishiv_spark.kafka.records import warm_ahead
        from krishiv_spark.sources.kafka.fetcher import Fetcher, FetchRules

        warm_ahead()
        row_schema = self._row_schema()
        rules = FetchRules(
            columns=row_schema.kafka_columns,
            committed=self.options.committed,
            fail_on_data_loss=self.options.fail_on_data_loss,
            most_bytes=self.options.max_fetch_bytes,
            inflated_bytes=self.options.max_inflated_bytes,
            skips_bad_batches=self.options.bad_batches == "skip",
        )
        for batch in Fetcher(open_client(self.options.kafka), partition, rules).batches():
            yield from row_schema.shaped(batch)
        row_schema.report()

    def _row_schema(self) -> KafkaRowSchema:
        if self.schema is None:
            return KafkaRowSchema.inferred(self.options)
        return KafkaRowSchema.given(self.options, self.schema)


def _no_positions() -> deque[tuple[KafkaOffset, QueryPosition]]:
    return deque(maxlen=2)  # the begin of a batch and its end


def _name(where: StartingPosition) -> StartName:
    if where.is_time:
        return "timestamps"
    words: dict[int | None, StartName] = {EARLIEST: "earliest", LATEST: "latest"}
    return words.get(where.everywhere, "offsets")


def _refuse_ends(options: KafkaSourceOptions) -> None:
    for name in options.ends:
        raise OptionError(
            f"{options.format_name}: option {name!r} is for batch reads; a stream has no end"
        )
