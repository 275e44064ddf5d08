"""``krishiv-kafka`` as a source: topics of Apache Kafka.

A reader returns the rows of committed transactions, each exactly once. An offset contains the next
record of each partition. The rows between two offsets are the same in every read, as long as Kafka
has them. The unit of parallelism is a partition of Kafka, or a part of one; partitions with few
new rows share a task.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from typing_extensions import override

from krishiv_spark.errors import OptionError
from krishiv_spark.kafka.topic_partition import EARLIEST, LATEST
from krishiv_spark.sources.base import UNLIMITED, Limit, StreamReader
from krishiv_spark.sources.kafka.offset import (
    KafkaOffset,
    QueryPosition,
    StartName,
    ValueSchema,
)
from krishiv_spark.sources.kafka.options import KafkaSourceOptions, StartingPosition
from krishiv_spark.sources.kafka.ranges import OffsetRange, TaskRanges, spread_over_tasks
from krishiv_spark.sources.kafka.row_schema import KafkaRowSchema

if TYPE_CHECKING:
    from krishiv_spark.kafka.schemas.registry import Part
    from krishiv_spark.sources.kafka.group import ConsumerGroupMirror
    from krishiv_spark.sources.kafka.planner import BatchPlanner
    from krishiv_spark.sources.kafka.reader_schemas import ReaderSchema

__all__ = ["KafkaOffset", "KafkaReader", "KafkaSourceOptions"]

_SET_BOTH = "set 'snapshot' and 'then.startingOffsets'"


class KafkaReader(StreamReader[KafkaOffset, TaskRanges]):
    """A reader of topics, for streams and batches."""

    options_type = KafkaSourceOptions
    offset_type = KafkaOffset

    options: KafkaSourceOptions

    def __init__(
        self, options: KafkaSourceOptions, schema: pa.Schema | None, *, streaming: bool
    ) -> None:
        super().__init__(options, schema, streaming=streaming)
        self._cached_planner: BatchPlanner | None = None
        self._cached_group: ConsumerGroupMirror | None = None
        self._cached_schemas: dict[Part, ReaderSchema] | None = None
        self._positions = _make_cache()
        # Taken before Spark reads the checkpoint: a driver that started later has a later position.
        self._since_ms = time.time_ns() // 1_000_000

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles the reader with every batch; executors plan nothing.
        left_out = dict.fromkeys(("_cached_planner", "_cached_group", "_cached_schemas"))
        return {**self.__dict__, **left_out, "_positions": _make_cache()}

    @override
    def infer_schema(self) -> pa.Schema:
        """Return Kafka's columns, or those of the values; a registry needs a request."""
        return KafkaRowSchema.from_options(self.options, *self._find_schemas()).schema

    # --- positions

    @override
    def initial(self) -> KafkaOffset:
        """Return the name of the start that the options specify; it is constant.

        The planner of the first batch resolves it to offsets, which the batch's end contains.
        """
        # An error in the columns is raised before any batch is planned.
        self._row_schema(*self._find_schemas()).check()
        if self.streaming:
            _refuse_ends(self.options)
        where = self.options.start(streaming=self.streaming)
        return KafkaOffset(at=_name_start(where))

    @override
    def latest(self, start: KafkaOffset, limit: Limit) -> KafkaOffset:
        """Return the end of the next batch, by one or a few parallel requests to each leader.

        If a group is given, commit `start` to it: the batch that ended there is complete.
        """
        pinned = self._pin(start)
        planner, position = self._planner(), self._position_of(start)
        if self.options.group_id is not None and start.at is None:
            self._group_mirror(self.options.group_id).commit(position.offsets)
        end = planner.plan_end(position, limit)
        if end is position:
            return start
        return end.to_offset().model_copy(update=pinned)

    def start_from_offset(self, offset: Mapping[str, Any]) -> KafkaOffset:
        """Start where another query ended; see `SupportsBackfillTarget`. Sends no request."""
        return _start_from_offset(self.options, offset)

    def configured_start(self) -> KafkaOffset:
        """Look up the start that the options specify; see `SupportsBackfillTarget`."""
        _check_exact_start(self.options)
        end = self.latest(self.initial(), UNLIMITED)
        return KafkaOffset(topics=end.began, ids=end.ids)

    def freeze(self) -> None:
        """Read nothing that is newer than the newest records of now; see `SupportsAvailableNow`."""
        self._planner().freeze()

    def backlog(self) -> Mapping[str, Any]:
        """Return the backlog after the last planned batch; see `SupportsBacklog`.

        It contains the offsets that open transactions block, and lost records, if there are any.
        """
        return self._planner().backlog()

    def _position_of(self, offset: KafkaOffset) -> QueryPosition:
        # The same object for an equal offset: planners compare positions by identity first.
        for known, position in self._positions:
            if known is offset or known == offset:
                return position
        self._positions.append((offset, QueryPosition.from_offset(offset)))
        return self._positions[-1][1]

    def _planner(self) -> BatchPlanner:
        from krishiv_spark.sources.kafka.planner import BatchPlanner

        if self._cached_planner is None:
            self._cached_planner = BatchPlanner(self.options, streaming=self.streaming)
        return self._cached_planner

    def _group_mirror(self, group: str) -> ConsumerGroupMirror:
        from krishiv_spark.sources.kafka.group import ConsumerGroupMirror

        if self._cached_group is None:
            self._cached_group = ConsumerGroupMirror(self.options.kafka, group, self._since_ms)
        return self._cached_group

    # --- rows

    @override
    def plan(self, start: KafkaOffset, end: KafkaOffset) -> Sequence[TaskRanges]:
        if start == end:
            return []
        pinned = self._pin(end)
        schema_ids = [None if found is None else found.id for found in pinned.values()]
        before, after = self._position_of(start), self._position_of(end)
        begins = {**before.offsets, **after.began}
        ranges = (
            OffsetRange(tp, end.ids.get(tp.topic, ""), begins[tp], *position, *schema_ids)
            for tp, position in after.read.items()
        )
        return spread_over_tasks(
            ranges,
            fewest=self.options.min_partitions,
            most_offsets=self.options.max_records_per_partition,
            together=self.options.offsets_together,
        )

    @override
    def read(self, partition: TaskRanges) -> Iterator[pa.RecordBatch]:
        from krishiv_spark.kafka.client import open_client
        from krishiv_spark.kafka.records import warm_ahead
        from krishiv_spark.sources.kafka.fetcher import Fetcher, FetchRules

        forms = {self.options.form_of(part) for part in self.options.registered_parts}
        warm_ahead(*(f"{form} reader" for form in sorted(forms - {"json-schema"})))
        read = partition[0]
        row_schema = self._row_schema(
            self._find_schema(read.schema_id, "value"),
            self._find_schema(read.key_schema_id, "key"),
        )
        rules = FetchRules(
            columns=row_schema.kafka_columns,
            committed=self.options.committed,
            fail_on_data_loss=self.options.fail_on_data_loss,
            most_bytes=self.options.max_fetch_bytes,
            inflated_bytes=self.options.max_inflated_bytes,
            skips_bad_batches=self.options.bad_batches == "skip",
        )
        for batch in Fetcher(open_client(self.options.kafka), partition, rules).batches():
            yield from row_schema.convert(batch)
        row_schema.report()

    def _row_schema(
        self, value_schema: ReaderSchema | None, key_schema: ReaderSchema | None
    ) -> KafkaRowSchema:
        if self.schema is None:
            return KafkaRowSchema.from_options(self.options, value_schema, key_schema)
        return KafkaRowSchema.from_schema(self.options, self.schema, value_schema, key_schema)

    # --- schemas of values and keys

    def _find_schemas(self) -> tuple[ReaderSchema | None, ReaderSchema | None]:
        """Return the reader's schemas of values and keys; None for those of other forms. Driver."""
        if self._cached_schemas is None:
            self._cached_schemas = {}
            for part in self.options.registered_parts:
                from krishiv_spark.sources.kafka.registered_values import find_schema

                self._cached_schemas[part] = find_schema(self.options, part)
        return self._cached_schemas.get("value"), self._cached_schemas.get("key")

    def _pin(self, known: KafkaOffset) -> dict[str, ValueSchema | None]:
        """Return the reader's schemas as a position records them, after a check of the known ones.

        Returns:
            By the names of `KafkaOffset`: that of values, then that of keys.
        """
        pinned: dict[str, ValueSchema | None] = {"value_schema": None, "key_schema": None}
        parts: tuple[Part, Part] = ("value", "key")
        for part, found in zip(parts, self._find_schemas(), strict=True):
            if found is not None:
                from krishiv_spark.sources.kafka.registered_values import check_pinned, pin

                now = pin(found, self.options, part)
                before = known.key_schema if part == "key" else known.value_schema
                check_pinned(before, now, self.options, part)
                pinned[f"{part}_schema"] = now
        return pinned

    def _find_schema(self, schema_id: int | None, part: Part) -> ReaderSchema | None:
        """Return the reader's schema by its id. Executor."""
        settings = self.options.registry
        if schema_id is None or settings is None:
            return None
        from krishiv_spark.kafka.schemas.registry import open_registry
        from krishiv_spark.sources.kafka.registered_values import make_reader_schema

        found = open_registry(settings).find(schema_id)
        return make_reader_schema(found, settings, part, self.options.rules_of(part))


def _make_cache() -> deque[tuple[KafkaOffset, QueryPosition]]:
    return deque(maxlen=2)  # start and end of a batch


def _name_start(where: StartingPosition) -> StartName:
    if where.is_time:
        return "timestamps"
    words: dict[int | None, StartName] = {EARLIEST: "earliest", LATEST: "latest"}
    return words.get(where.everywhere, "offsets")


def _refuse_ends(options: KafkaSourceOptions) -> None:
    for name in options.ends:
        raise OptionError(
            f"{options.format_name}: option {name!r} is for batch reads; a stream has no end"
        )


def _start_from_offset(options: KafkaSourceOptions, given: Mapping[str, Any]) -> KafkaOffset:
    """Return the position of another query, without its event time.

    It keeps the ids of topics and the leader epochs, so that a recreated topic, another cluster or
    a truncated log is detected, as for the query's own positions. Partitions that it does not
    contain are newer, and start at their oldest record, as in that query.

    Args:
        options: The options of the source that starts there.
        given: The offset, in the form that Spark stores.

    Raises:
        OptionError: See `SupportsBackfillTarget`.
        OffsetError: If the offset is damaged, or of a newer version.
    """
    _refuse_starts(options)
    if given.get("kind") != KafkaOffset.kind:
        what = "of Spark itself" if "kind" not in given else f"of kind {given['kind']!r}"
        raise OptionError(
            f"{options.format_name}: the rows came from a source {what}, and not from "
            f"{options.format_name}, so its position cannot be used here: {_SET_BOTH}"
        )
    offset = KafkaOffset.from_dict(given)
    _check_topics(options, QueryPosition.from_offset(offset))
    return KafkaOffset(topics=offset.topics, ids=offset.ids, epochs=offset.epochs, left=offset.left)


def _check_exact_start(options: KafkaSourceOptions) -> None:
    """Refuse a start that does not specify the offset of each partition.

    Raises:
        OptionError: If the start is a name or a time.
    """
    start = options.start(streaming=True)
    if start.is_time or start.everywhere is not None or start.uses(LATEST):
        raise OptionError(
            f"{options.format_name}: 'startingOffsets' must specify the offset of each "
            'partition at which the rows read before end, as JSON such as \'{"orders": {"0": '
            '23, "1": -2}}\' (-2: oldest, if there are no rows of the partition)'
        )


def _refuse_starts(options: KafkaSourceOptions) -> None:
    for name in options.starts:
        raise OptionError(
            f"{options.format_name}: option {name!r} would start at another position than the "
            "end of the rows read before; remove it, or set 'snapshot' too, whose rows end "
            "there"
        )


def _check_topics(options: KafkaSourceOptions, position: QueryPosition) -> None:
    from krishiv_spark.sources.kafka.subscription import Subscription

    known = {*position.read, *position.left}
    subscription = Subscription(options)
    unread = sorted(tp for tp in position.read if not subscription.includes(tp))
    if unread:
        raise OptionError(
            f"{options.format_name}: the rows read before come from {unread[0]} too, which the "
            f"options do not include: include all topics that were read, or {_SET_BOTH}"
        )
    named = {*(options.subscribe or ())}
    topics = {f"topic {name!r}" for name in named - {tp.topic for tp in known}}
    partitions = {f"partition {tp}" for tp in {*(options.assign or ())} - known}
    unlanded = sorted(topics | partitions)
    if unlanded or not position.read:
        which = unlanded[0] if unlanded else "any topic"
        raise OptionError(
            f"{options.format_name}: there are no rows of {which} among the rows read before, "
            f"which end in {', '.join(sorted(position.topics)) or 'none'}. Remove it, or "
            f"{_SET_BOTH}"
        )
