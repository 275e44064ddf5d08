"""The options of the Kafka source: the options of Spark's connector, and a few more.

Options of Spark's connector have its defaults. A start or an end is a name, JSON of offsets, or a
time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, BeforeValidator, Field, model_validator
from typing_extensions import Self

from krishiv_spark.arrow.cast import Zone
from krishiv_spark.arrow.json_types import JsonRules, TimeUnit, parse_units
from krishiv_spark.kafka.config import KafkaOptions
from krishiv_spark.kafka.records.scanner import INFLATED_BYTES
from krishiv_spark.kafka.schemas.registry import REGISTERED_FORMS, Part, RegistrySettings
from krishiv_spark.kafka.topic_partition import EARLIEST, LATEST, TopicPartition
from krishiv_spark.options import ByteSize, Duration, Names
from krishiv_spark.sources.base import SourceOptions

__all__ = ["KafkaSourceOptions", "StartingPosition"]

_NO_EFFECT = (
    "Accepted without effect, for queries of [Spark's connector](from-spark-kafka.md#steps)."
)

_END = "End of a batch read, exclusive, in the form of the starting option. Default: `latest`."

_WORDS = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True)
class StartingPosition:
    """A position in each partition.

    Attributes:
        everywhere: A number for all partitions; None if each has a separate one.
        each: A number for each partition.
        is_time: True if the numbers are times, in milliseconds since 1970 UTC: the first record
            with this timestamp or a later one. Otherwise they are offsets, `EARLIEST` or `LATEST`.
    """

    everywhere: int | None = None
    each: Mapping[TopicPartition, int] = field(default_factory=dict)
    is_time: bool = False

    def uses(self, word: int) -> bool:
        """Return True if any partition has this name, which is `EARLIEST` or `LATEST`."""
        return not self.is_time and (self.everywhere == word or word in self.each.values())

    def get(self, tp: TopicPartition) -> int:
        """Return the number for a partition."""
        return self.each[tp] if self.everywhere is None else self.everywhere


def parse_offsets(given: object) -> object:
    """Parse ``earliest``, ``latest``, or JSON such as ``{"orders": {"0": 23, "1": -2}}``.

    Raises:
        ValueError: If it is neither, with an example.
    """
    if not isinstance(given, str):
        return given
    if given.strip().lower() in _WORDS:
        return StartingPosition(_WORDS[given.strip().lower()])
    example = "'earliest', 'latest' or JSON such as '{\"orders\": {\"0\": 23, \"1\": -2}}'"
    return StartingPosition(
        each=_parse_by_partition(given, EARLIEST, f"{example} (-2: earliest, -1: latest)")
    )


def parse_moment(given: object) -> object:
    """Parse a time for all partitions: milliseconds since 1970 UTC.

    Raises:
        ValueError: If it is not a whole number, or below 0.
    """
    if not isinstance(given, str):
        return given
    if not given.strip().isdecimal():
        raise ValueError("write a whole number: milliseconds since 1970 UTC")
    return StartingPosition(int(given), is_time=True)


def parse_moments(given: object) -> object:
    """Parse a time for each partition: JSON such as ``{"orders": {"0": 1700000000000}}``.

    Raises:
        ValueError: If it is anything else, with an example.
    """
    if not isinstance(given, str):
        return given
    example = 'JSON such as \'{"orders": {"0": 1700000000000}}\', milliseconds since 1970 UTC'
    return StartingPosition(each=_parse_by_partition(given, 0, example), is_time=True)


def parse_assignment(given: object) -> object:
    """Parse partitions: JSON such as ``{"orders": [0, 2]}``.

    Raises:
        ValueError: If it is anything else, with an example.
    """
    if not isinstance(given, str):
        return given
    example = "JSON such as '{\"orders\": [0, 2]}'"
    found = _parse_object(given, example)
    partitions = [
        TopicPartition(topic, _check_whole(partition, 0, example))
        for topic, each in found.items()
        for partition in _check_list(each, example)
    ]
    if not partitions:
        raise ValueError(f"write at least one partition: {example}")
    return tuple(dict.fromkeys(partitions))


def _parse_by_partition(text: str, least: int, example: str) -> dict[TopicPartition, int]:
    found = {}
    for topic, each in _parse_object(text, example).items():
        _require(isinstance(each, dict), f"{topic!r} needs a number for each partition: {example}")
        for partition, number in each.items():
            tp = TopicPartition(topic, _check_whole(_to_number(partition), 0, example))
            found[tp] = _check_whole(number, least, example)
    if not found:
        raise ValueError(f"write at least one partition: {example}")
    return found


def _parse_object(text: str, example: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        raise ValueError(f"write {example}") from None
    _require(isinstance(value, dict), f"write {example}")
    found: dict[str, Any] = value
    return found


def _to_number(text: str) -> object:
    return int(text) if text.isdecimal() else text


def _check_list(value: Any, example: str) -> list[object]:
    _require(isinstance(value, list), f"write a list of partitions: {example}")
    found: list[object] = value
    return found


def _require(is_so: bool, text: str) -> None:
    if not is_so:
        raise ValueError(text)


def _check_whole(value: object, least: int, example: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{value!r} is not valid; write {example}")
    return value


Offsets = Annotated[StartingPosition, BeforeValidator(parse_offsets)]
Moment = Annotated[StartingPosition, BeforeValidator(parse_moment)]
Moments = Annotated[StartingPosition, BeforeValidator(parse_moments)]
Units = Annotated[dict[str, TimeUnit], BeforeValidator(parse_units)]
Assignment = Annotated[tuple[TopicPartition, ...], BeforeValidator(parse_assignment)]


def _registry(given: object) -> object:
    return RegistrySettings.from_options(given) if isinstance(given, Mapping) else given


def _choices(*names: str) -> Any:
    return AliasChoices(*names)


class KafkaSourceOptions(SourceOptions, KafkaOptions):
    """The options of the source."""

    subscribe: Names | None = Field(
        default=None,
        validation_alias=_choices("subscribe", "topic", "kafka.topic"),
        description="Topics, separated by commas. Give this, `subscribePattern` or `assign`.",
    )
    subscribe_pattern: str | None = Field(
        default=None,
        description="Regular expression for whole topic names, in Python's syntax. New topics are "
        "read too.",
    )
    assign: Assignment | None = Field(
        default=None, description='Partitions, as JSON: `{"orders": [0, 2]}`.'
    )
    starting_offsets: Offsets | None = Field(
        default=None,
        description="Start of a new query: `earliest` (default of batches), `latest` (default "
        'of streams), or JSON by partition, `{"orders": {"0": 23, "1": -2}}`; -2 is earliest, '
        "-1 latest.",
    )
    starting_timestamp: Moment | None = Field(
        default=None,
        description="Start at the first record with this timestamp or later (epoch "
        "milliseconds). Takes precedence over the other starts.",
    )
    starting_offsets_by_timestamp: Moments | None = Field(
        default=None,
        description='The same by partition: `{"orders": {"0": 1700000000000}}`. Takes '
        "precedence over `startingOffsets`.",
    )
    starting_offsets_by_timestamp_strategy: Literal["error", "latest"] = Field(
        default="error",
        description="Action for a partition without such a record: fail (`error`), or start at "
        "its end (`latest`).",
    )
    ending_offsets: Offsets | None = Field(
        default=None,
        description=_END,
    )
    ending_timestamp: Moment | None = Field(
        default=None,
        description=_END,
    )
    ending_offsets_by_timestamp: Moments | None = Field(
        default=None,
        description=_END,
    )
    fail_on_data_loss: bool = Field(
        default=True,
        description="Fail if records were deleted before they were read. With `false`, continue "
        "[with a warning](#missing-records).",
    )
    max_rows_per_trigger: int | None = Field(
        default=None,
        gt=0,
        validation_alias=_choices("maxOffsetsPerTrigger", "maxRowsPerTrigger"),
        description="Maximum number of offsets in a batch, shared in proportion to the backlog "
        "of each partition.",
    )
    min_offsets_per_trigger: int | None = Field(
        default=None,
        gt=0,
        description="Minimum number of offsets in a batch; the query waits for them.",
    )
    max_trigger_delay: Duration = Field(
        default=900_000,
        ge=0,
        description="Maximum time that `minOffsetsPerTrigger` may delay a batch.",
    )
    min_partitions: int | None = Field(
        default=None,
        gt=0,
        description="Minimum number of tasks of a batch: large partitions are split.",
    )
    max_records_per_partition: int | None = Field(
        default=None, gt=0, description="Maximum number of offsets per task."
    )
    offsets_together: int = Field(
        default=10_000,
        ge=0,
        description="Partitions with fewer new offsets than this together share a task; 0 gives "
        "each its own.",
    )
    include_headers: bool = Field(default=False, description="Add a column `headers`.")
    columns: Names = Field(
        default=(),
        description="Columns to read, separated by commas. A schema given to Spark takes "
        "precedence.",
    )
    value_format: Literal["raw", "json", "avro", "protobuf", "json-schema"] = Field(
        default="raw",
        description="Columns from the values: JSON (`json`, with `valueSchema`), or by a schema "
        "registry (`registry.url`) `avro`, `protobuf` or `json-schema`.",
    )
    key_format: Literal["raw", "avro", "protobuf", "json-schema"] = Field(
        default="raw",
        description="Decode keys by the schema registry (`avro`, `protobuf`, `json-schema`): "
        "the column `key` is a STRUCT.",
    )
    registry: Annotated[RegistrySettings | None, BeforeValidator(_registry)] = Field(
        default=None,
        validation_alias="registry.url",
        description="Address of a [schema registry](kafka-schemas.md#the-registry), whose other "
        "settings have the prefix `registry.` too.",
    )
    value_schema: str | None = Field(
        default=None,
        description="Fields of JSON values, as `id BIGINT, name STRING`. Default: the columns of "
        "`.schema(...)` that are not Kafka's.",
    )
    bad_records: Literal["fail", "null", "divert"] = Field(
        default="fail",
        description="Action for a value that does not fit the schema: `fail`; `null`: nulls in "
        "its fields; `divert`: also the value in `_raw` and the reason in `_error`.",
    )
    null_values: Literal["keep", "drop", "bad"] | None = Field(
        default=None,
        description="Action for a record without a value (a tombstone): `keep` it with nulls "
        "(default, with a warning), `drop` it, or treat it as `bad`.",
    )
    unknown_fields: Literal["ignore", "count", "fail", "keep"] = Field(
        default="ignore",
        description="Action for JSON fields outside of the schema: `ignore`, `count` in the "
        "log, `fail`, or `keep` as JSON in a column `_unknown`.",
    )
    time_zone: Zone | None = Field(
        default=None,
        description="Time zone of JSON times without one, for TIMESTAMP. By default, such a "
        "value is bad.",
    )
    epoch_unit: Units | None = Field(
        default=None,
        description="Unit of JSON times that are numbers since 1970: `s`, `ms`, `us` or `ns`; "
        'or JSON by field, `{"at": "ms", "day": "d"}`. By default, such a value is bad.',
    )
    group_id: str | None = Field(
        default=None,
        validation_alias=_choices("groupId", "group.id"),
        description="Consumer group to which the position is committed after each batch, so "
        "that Kafka's tools show the lag. The query does not join it.",
    )
    isolation: Literal["read_committed", "read_uncommitted"] = Field(
        default="read_committed",
        validation_alias=_choices("kafka.isolation.level", "isolation.level"),
        description="With `read_uncommitted`, rows of open and aborted transactions are read too.",
    )
    idle_timeout: Duration = Field(
        default=30_000,
        ge=0,
        description="A partition is ignored by the watermark if its newest record is older than "
        "that of another by more than this.",
    )
    max_skew: Duration | None = Field(
        default=None,
        gt=0,
        description="Maximum difference in event time between any partition and the slowest one.",
    )
    max_fetch_bytes: ByteSize = Field(
        default=4 * 2**20,
        gt=0,
        validation_alias=_choices("maxFetchBytes", "kafka.fetch.max.bytes"),
        description="Approximate maximum size of one fetch in bytes. A task keeps two in memory.",
    )
    max_inflated_bytes: ByteSize = Field(
        default=INFLATED_BYTES,
        gt=0,
        le=2**30,
        description="Maximum size of a [decompressed batch of "
        "records](kafka-operations.md#batches-that-become-too-large), and of a record's headers.",
    )
    bad_batches: Literal["fail", "skip"] = Field(
        default="fail",
        description="Action for a batch that exceeds `maxInflatedBytes` or cannot be decoded: "
        "`fail`, or `skip` it, which loses its rows.",
    )
    max_partition_fetch_bytes: ByteSize | None = Field(
        default=None,
        validation_alias=_choices("kafka.max.partition.fetch.bytes"),
        description=_NO_EFFECT,
    )
    group_id_prefix: str | None = Field(
        default=None,
        description=_NO_EFFECT,
    )
    member_group_id: str | None = Field(
        default=None,
        validation_alias=_choices("kafka.group.id"),
        description=_NO_EFFECT,
    )
    num_retries: int | None = Field(
        default=None,
        validation_alias=_choices("fetchOffset.numRetries"),
        description=_NO_EFFECT,
    )
    retry_interval_ms: int | None = Field(
        default=None,
        validation_alias=_choices("fetchOffset.retryIntervalMs"),
        description=_NO_EFFECT,
    )
    poll_timeout_ms: int | None = Field(
        default=None,
        validation_alias=_choices("kafkaConsumer.pollTimeoutMs"),
        description=_NO_EFFECT,
    )

    format_name: ClassVar[str] = "krishiv-kafka"
    unsupported: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("max_files_per_trigger", "max_bytes_per_trigger"),
        "Kafka counts offsets; use 'maxOffsetsPerTrigger'",
    )

    collects_prefixes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **KafkaOptions.collects_prefixes,
        "registry": ("registry.",),
    }

    @model_validator(mode="after")
    def _agree(self) -> Self:
        _check_topics(self)
        _check_range(self)
        _check_rows(self)
        _check_limits(self)
        return self

    @property
    def registered_parts(self) -> tuple[Part, ...]:
        """The parts of a record whose schemas are in a registry."""
        parts: tuple[Part, Part] = ("value", "key")
        return tuple(part for part in parts if self.form_of(part) in REGISTERED_FORMS)

    def form_of(self, part: Part) -> str:
        """Return the form of values or keys."""
        return self.key_format if part == "key" else self.value_format

    def rules_of(self, part: Part) -> JsonRules:
        """Return the time zone and the units of times in JSON; keys have none."""
        if part == "key":
            return JsonRules()
        return JsonRules(self.time_zone, self.epoch_unit or {})

    @property
    def committed(self) -> bool:
        """True if only rows of committed transactions are read."""
        return self.isolation == "read_committed"

    @property
    def starts(self) -> dict[str, StartingPosition]:
        """The starts of a new query by option. The first one counts, as in Spark's connector."""
        return _drop_missing(
            startingTimestamp=self.starting_timestamp,
            startingOffsetsByTimestamp=self.starting_offsets_by_timestamp,
            startingOffsets=self.starting_offsets,
        )

    @property
    def ends(self) -> dict[str, StartingPosition]:
        """The ends of a batch read by option; the first one counts."""
        return _drop_missing(
            endingTimestamp=self.ending_timestamp,
            endingOffsetsByTimestamp=self.ending_offsets_by_timestamp,
            endingOffsets=self.ending_offsets,
        )

    def start(self, *, streaming: bool) -> StartingPosition:
        """Return the start of a new query."""
        default = StartingPosition(LATEST if streaming else EARLIEST)
        return next(iter(self.starts.values()), default)

    def end(self) -> StartingPosition:
        """Return the end of a batch read."""
        return next(iter(self.ends.values()), StartingPosition(LATEST))


def _drop_missing(**positions: StartingPosition | None) -> dict[str, StartingPosition]:
    return {option: each for option, each in positions.items() if each is not None}


def _check_topics(options: KafkaSourceOptions) -> None:
    names = [
        name
        for name, value in (
            ("subscribe", options.subscribe),
            ("subscribePattern", options.subscribe_pattern),
            ("assign", options.assign),
        )
        if value is not None
    ]
    if len(names) != 1:
        found = " and ".join(repr(name) for name in names) or "none of them"
        raise ValueError(
            f"set one of the options 'subscribe', 'subscribePattern' and 'assign'; given: {found}"
        )
    if options.subscribe == ():
        raise ValueError("option 'subscribe' names no topic")
    try:
        re.compile(options.subscribe_pattern or "")
    except re.error as error:
        raise ValueError(
            f"option 'subscribePattern' = {options.subscribe_pattern!r} is not a valid regular "
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
    for part in options.registered_parts if options.registry is None else ():
        form = options.form_of(part)
        raise ValueError(f"option '{part}Format' = {form!r} needs the option 'registry.url'")
    if options.registry is not None and not options.registered_parts:
        known = " or ".join(map(repr, REGISTERED_FORMS))
        raise ValueError(
            f"option 'registry.url' needs the option 'valueFormat' or 'keyFormat' = {known}"
        )
    if options.registry is not None:
        options.registry.check_messages(options.value_format, options.key_format)
    json: tuple[str, ...] = ("json",)
    by_name = (*json, "json-schema")
    both = (*json, *REGISTERED_FORMS)
    for name, is_used, forms in (
        ("valueSchema", options.value_schema is not None, json),
        ("badRecords", options.bad_records != "fail" and options.key_format == "raw", both),
        ("nullValues", options.null_values is not None, both),
        ("unknownFields", options.unknown_fields != "ignore", by_name),
        ("timeZone", options.time_zone is not None, by_name),
        ("epochUnit", options.epoch_unit is not None, by_name),
    ):
        if is_used and options.value_format not in forms:
            wanted = " or ".join(map(repr, forms))
            raise ValueError(f"option {name!r} needs the option 'valueFormat' = {wanted}")


def _check_limits(options: KafkaSourceOptions) -> None:
    least, most = options.min_offsets_per_trigger, options.max_rows_per_trigger
    if least is not None and most is not None and least > most:
        raise ValueError(
            f"option 'minOffsetsPerTrigger' = {least} is more than 'maxOffsetsPerTrigger' = {most}"
        )
