"""Options of the Kafka source: those of Spark's connector, with its defaults, and a few more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, BeforeValidator, Field, model_validator
from typing_extensions import Self

from krishiv_spark.arrow.time_zones import Zone
from krishiv_spark.kafka.connection import KafkaOptions
from krishiv_spark.kafka.records.wanted import INFLATED_BYTES
from krishiv_spark.kafka.topic_partition import EARLIEST, LATEST, TopicPartition
from krishiv_spark.options import ByteSize, Duration, Names
from krishiv_spark.sources.base import SourceOptions
from krishiv_spark.sources.kafka.json_types import TimeUnit, parse_units
from krishiv_spark.sources.kafka.starting_position import (
    StartingPosition,
    parse_assignment,
    parse_moment,
    parse_moments,
    parse_offsets,
)

__all__ = ["KafkaSourceOptions"]

Offsets = Annotated[StartingPosition, BeforeValidator(parse_offsets)]
Moment = Annotated[StartingPosition, BeforeValidator(parse_moment)]
Moments = Annotated[StartingPosition, BeforeValidator(parse_moments)]
Units = Annotated[dict[str, TimeUnit], BeforeValidator(parse_units)]
Assignment = Annotated[tuple[TopicPartition, ...], BeforeValidator(parse_assignment)]


def _choices(*names: str) -> Any:
    return AliasChoices(*names)


class KafkaSourceOptions(SourceOptions, KafkaOptions):
    """Options of the source."""

    subscribe: Names | None = Field(
        default=None,
        validation_alias=_choices("subscribe", "topic", "kafka.topic"),
        description="Topics, separated by commas. Give this, `subscribePattern` or `assign`.",
    )
    subscribe_pattern: str | None = Field(
        default=None,
        description="Regular expression; topics whose whole name it matches are read, also those "
        "that are made while the query runs.",
    )
    assign: Assignment | None = Field(
        default=None, description='Partitions, as JSON: `{"orders": [0, 2]}`.'
    )
    starting_offsets: Offsets | None = Field(
        default=None,
        description="Where a new query begins: `earliest` (the default of batch reads), `latest` "
        '(that of streams), or JSON for each partition, `{"orders": {"0": 23, "1": -2}}`, where '
        "-2 is earliest and -1 latest. Partitions that appear later begin at earliest.",
    )
    starting_timestamp: Moment | None = Field(
        default=None,
        description="Where a new query begins: at the first record of each partition that is not "
        "older, milliseconds since 1970 UTC. Goes before the other starts.",
    )
    starting_offsets_by_timestamp: Moments | None = Field(
        default=None,
        description='The same with a time for each partition, `{"orders": {"0": 1700000000000}}`. '
        "Goes before `startingOffsets`.",
    )
    starting_offsets_by_timestamp_strategy: Literal["error", "latest"] = Field(
        default="error",
        description="What happens where no record is as new as the time to start at.",
    )
    ending_offsets: Offsets | None = Field(
        default=None,
        description="Where a batch read ends, exclusive: `latest`, or JSON as above.",
    )
    ending_timestamp: Moment | None = Field(
        default=None, description="Where a batch read ends, as for the start."
    )
    ending_offsets_by_timestamp: Moments | None = Field(
        default=None, description="Where a batch read ends, as for the start."
    )
    fail_on_data_loss: bool = Field(
        default=True,
        description="Fail when records have gone before they were read, or a topic was deleted; "
        "otherwise go on with what is there, with a warning.",
    )
    max_rows_per_trigger: int | None = Field(
        default=None,
        gt=0,
        validation_alias=_choices("maxOffsetsPerTrigger", "maxRowsPerTrigger"),
        description="Most offsets in a batch, shared in proportion to what waits in each "
        "partition; each of them gets one at least.",
    )
    min_offsets_per_trigger: int | None = Field(
        default=None, gt=0, description="Fewest offsets in a batch; until then it waits."
    )
    max_trigger_delay: Duration = Field(
        default=900_000, ge=0, description="How long `minOffsetsPerTrigger` may hold a batch back."
    )
    min_partitions: int | None = Field(
        default=None,
        gt=0,
        description="Fewest tasks of a batch: large partitions of Kafka are split for it.",
    )
    max_records_per_partition: int | None = Field(
        default=None, gt=0, description="Most offsets of a task."
    )
    offsets_together: int = Field(
        default=10_000,
        ge=0,
        description="Partitions of Kafka that have no more new offsets than this together are "
        "read by one task; 0 for a task for each.",
    )
    include_headers: bool = Field(default=False, description="Whether there is a column `headers`.")
    columns: Names = Field(
        default=(),
        description="Columns to read, separated by commas; fewer are faster. Where a schema is "
        "given, it decides.",
    )
    value_format: Literal["raw", "json"] = Field(
        default="raw",
        description="With `json`, the fields of each value become columns: those of `valueSchema`.",
    )
    value_schema: str | None = Field(
        default=None,
        description="Fields of JSON values, as `id BIGINT, name STRING`. Without it they are the "
        "columns of `.schema(...)` that have no name of Kafka's.",
    )
    bad_records: Literal["fail", "null", "divert"] = Field(
        default="fail",
        description="What happens to a value that is no such JSON, or has none of the fields: "
        "fail, nulls in its columns, or nulls and the value itself in a column `_raw`, with the "
        "reason in `_error`.",
    )
    null_values: Literal["keep", "drop", "bad"] | None = Field(
        default=None,
        description="What happens to a record without a value (a tombstone): a row with nulls in "
        "its columns, no row, or the same as to a bad value. Without it: `keep`, with a warning.",
    )
    unknown_fields: Literal["ignore", "count", "fail", "keep"] = Field(
        default="ignore",
        description="What happens to fields of JSON values that the schema does not have: ignored, "
        "counted by name in the log, an error, or kept as JSON in a column `_unknown`.",
    )
    time_zone: Zone | None = Field(
        default=None,
        description="Zone of times in JSON values that say none, where the schema has TIMESTAMP. "
        "Without it such a value is bad.",
    )
    epoch_unit: Units | None = Field(
        default=None,
        description="Unit of numbers in JSON values where the schema has TIMESTAMP or "
        "TIMESTAMP_NTZ: `s`, `ms`, `us` or `ns` since 1970; or JSON for single fields, "
        '`{"at": "ms", "order.day": "d"}`, where `d` are the days of a DATE. Without it such a '
        "value is bad.",
    )
    group_id: str | None = Field(
        default=None,
        validation_alias=_choices("groupId", "group.id"),
        description="Consumer group to which the position is committed after each batch, so that "
        "Kafka's tools show the lag. The query never begins there.",
    )
    isolation: Literal["read_committed", "read_uncommitted"] = Field(
        default="read_committed",
        validation_alias=_choices("kafka.isolation.level", "isolation.level"),
        description="With `read_uncommitted`, rows of open and aborted transactions are read too.",
    )
    idle_timeout: Duration = Field(
        default=30_000,
        ge=0,
        description="A partition without new records whose newest one is further than this behind "
        "the newest of all no longer holds the watermark.",
    )
    max_skew: Duration | None = Field(
        default=None,
        gt=0,
        description="How far any partition may run ahead of the slowest in event time.",
    )
    max_fetch_bytes: ByteSize = Field(
        default=4 * 2**20,
        gt=0,
        validation_alias=_choices("maxFetchBytes", "kafka.fetch.max.bytes"),
        description="About the most bytes of one fetch; a task holds two.",
    )
    max_inflated_bytes: ByteSize = Field(
        default=INFLATED_BYTES,
        gt=0,
        le=2**30,
        description="Most bytes that the records of one compressed batch may become, and that the "
        "headers of one record may take in memory. A task needs up to three times as much.",
    )
    bad_batches: Literal["fail", "skip"] = Field(
        default="fail",
        description="What happens to a batch of records that becomes larger than "
        "`maxInflatedBytes`, or cannot be decoded: fail, or skip it with a warning; its rows are "
        "lost then. A wrong checksum is always an error.",
    )
    max_partition_fetch_bytes: ByteSize | None = Field(
        default=None,
        validation_alias=_choices("kafka.max.partition.fetch.bytes"),
        description="Accepted, as Spark's connector does; without effect.",
    )
    group_id_prefix: str | None = Field(
        default=None, description="Accepted, as Spark's connector does; no group is joined."
    )
    member_group_id: str | None = Field(
        default=None,
        validation_alias=_choices("kafka.group.id"),
        description="Accepted, as Spark's connector does; no group is joined. See `groupId`.",
    )
    num_retries: int | None = Field(
        default=None,
        validation_alias=_choices("fetchOffset.numRetries"),
        description="Accepted, as Spark's connector does; `kafka.default.api.timeout.ms` decides.",
    )
    retry_interval_ms: int | None = Field(
        default=None,
        validation_alias=_choices("fetchOffset.retryIntervalMs"),
        description="Accepted, as Spark's connector does; without effect.",
    )
    poll_timeout_ms: int | None = Field(
        default=None,
        validation_alias=_choices("kafkaConsumer.pollTimeoutMs"),
        description="Accepted, as Spark's connector does; `kafka.default.api.timeout.ms` decides.",
    )

    format_name: ClassVar[str] = "krishiv-kafka"
    refuses: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("max_files_per_trigger", "max_bytes_per_trigger"),
        "Kafka counts offsets; use 'maxOffsetsPerTrigger'",
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        _check_topics(self)
        _check_range(self)
        _check_rows(self)
        _check_limits(self)
        return self

    @property
    def committed(self) -> bool:
        """Whether only rows of committed transactions are read."""
        return self.isolation == "read_committed"

    @property
    def starts(self) -> dict[str, StartingPosition]:
        """By option: where a new query begins. The first counts, as with Spark's connector."""
        return _given(
            startingTimestamp=self.starting_timestamp,
            startingOffsetsByTimestamp=self.starting_offsets_by_timestamp,
            startingOffsets=self.starting_offsets,
        )

    @property
    def ends(self) -> dict[str, StartingPosition]:
        """Likewise where a batch read ends."""
        return _given(
            endingTimestamp=self.ending_timestamp,
            endingOffsetsByTimestamp=self.ending_offsets_by_timestamp,
            endingOffsets=self.ending_offsets,
        )

    def start(self, *, streaming: bool) -> StartingPosition:
        """Where a new query begins."""
        default = StartingPosition(LATEST if streaming else EARLIEST)
        return next(iter(self.starts.values()), default)

    def end(self) -> StartingPosition:
        """Where a batch read ends."""
        return next(iter(self.ends.values()), StartingPosition(LATEST))


def _given(**places: StartingPosition | None) -> dict[str, StartingPosition]:
    return {option: place for option, place in places.items() if place is not None}


def _check_topics(options: KafkaSourceOptions) -> None:
    given = [
        name
        for name, value in (
            ("subscribe", options.subscribe),
            ("subscribePattern", options.subscribe_pattern),
            ("assign", options.assign),
        )
        if value is not None
    ]
    if len(given) != 1:
        found = " and ".join(repr(name) for name in given) or "none of them"
        raise ValueError(
            f"give one of the options 'subscribe', 'subscribePattern' and 'assign'; given: {found}"
        )
    if options.subscribe == ():
        raise ValueError("option 'subscribe' names no topic")
    try:
        re.compile(options.subscribe_pattern or "")
    except re.error as error:
        raise ValueError(
            f"option 'subscribePattern' = {options.subscribe_pattern!r} is no regular "
            f"expression: {error}"
        ) from None


def _check_range(options: KafkaSourceOptions) -> None:
    if options.ending_offsets is not None and options.ending_offsets.uses(EARLIEST):
        raise ValueError("option 'endingOffsets': a batch read cannot end at the earliest offset")


def _check_rows(options: KafkaSourceOptions) -> None:
    if options.event_time not in {None, "timestamp"}:
        raise ValueError(
            f"option 'eventTime' = {options.event_time!r}: the newest event time must be known "
            "before rows are read, and Kafka knows only that of its own column 'timestamp'"
        )
    if options.max_skew is not None and options.event_time is None:
        raise ValueError("option 'maxSkew' needs the option 'eventTime' = 'timestamp'")
    if options.value_format == "raw":
        for name, used in (
            ("valueSchema", options.value_schema is not None),
            ("badRecords", options.bad_records != "fail"),
            ("nullValues", options.null_values is not None),
            ("unknownFields", options.unknown_fields != "ignore"),
            ("timeZone", options.time_zone is not None),
            ("epochUnit", options.epoch_unit is not None),
        ):
            if used:
                raise ValueError(f"option {name!r} needs the option 'valueFormat' = 'json'")


def _check_limits(options: KafkaSourceOptions) -> None:
    least, most = options.min_offsets_per_trigger, options.max_rows_per_trigger
    if least is not None and most is not None and least > most:
        raise ValueError(
            f"option 'minOffsetsPerTrigger' = {least} is more than 'maxOffsetsPerTrigger' = {most}"
        )
