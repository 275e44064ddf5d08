"""A new checkpoint for another source, which continues where the old one stopped.

Positions of Spark's own sources are converted to krishiv-spark's, and the reverse. Positions in
Kafka are the next record of each partition in both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Protocol

from krishiv_spark.errors import OffsetError, OptionError
from krishiv_spark.offsets import canonical_json
from krishiv_spark.operate.inspection.positions import describe_position
from krishiv_spark.operate.moving.boundaries import Newest, RestorePoint, restore_point_to_move
from krishiv_spark.operate.moving.copying import CheckpointCopy, NewCheckpoint
from krishiv_spark.operate.moving.spark_positions import (
    SparkFilePositions,
    SparkTablePositions,
    parse_file_log_offset,
    parse_iceberg_position,
)
from krishiv_spark.sources.kafka.offset import KafkaOffset
from krishiv_spark.spark.checkpoint import SparkCheckpoint
from krishiv_spark.spark.offset_log import OffsetSeq

__all__ = [
    "CheckpointTranslation",
    "FromFiles",
    "FromIceberg",
    "FromKafka",
    "ToKafka",
    "Translation",
    "from_spark_kafka",
    "is_our_kafka",
    "is_spark_kafka",
    "starting_offsets",
    "to_spark_kafka",
]


def is_spark_kafka(text: str) -> bool:
    """Return True if an offset is of Spark's Kafka source: numbers by topic and partition."""
    value = _object(text)
    return value is not None and "kind" not in value and all(map(_is_numbers, value.values()))


def is_our_kafka(text: str) -> bool:
    """Return True if an offset is of krishiv-kafka's source."""
    value = _object(text)
    return value is not None and value.get("kind") == KafkaOffset.kind


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _is_numbers(value: object) -> bool:
    return isinstance(value, dict) and all(
        partition.isdecimal() and isinstance(number, int) and number >= 0
        for partition, number in value.items()
    )


def from_spark_kafka(text: str) -> KafkaOffset:
    """Return krishiv-kafka's offset for a position of Spark's (``JsonUtils.partitionOffsets``).

    It contains neither topic ids nor leader epochs: the first batch adds them.
    """
    found: dict[str, dict[str, int]] = json.loads(text)
    return KafkaOffset(topics={topic: each for topic, each in found.items() if each})


def to_spark_kafka(text: str) -> str:
    """Return Spark's offset for a position of krishiv-kafka.

    Raises:
        OffsetError: If the offset is damaged, or is a start without a position yet.
    """
    offset = KafkaOffset.from_json(text)
    if not offset.topics:
        raise OffsetError(f"{text[:200]} names no partition yet: start the query once more first")
    return starting_offsets(offset.topics)


def starting_offsets(topics: Mapping[str, Mapping[str, int]]) -> str:
    """Return a position in the form of ``startingOffsets``, which is the same for both sources."""
    return canonical_json(topics)


_AS_OPTION = (
    "the same as an option, for a query without state that starts with an empty checkpoint: "
    "startingOffsets = {}"
)
_ISOLATION = (
    "krishiv-kafka reads committed rows only, and Spark's own source those of open and aborted "
    "transactions too, unless 'kafka.isolation.level' is set: set it to the same for both"
)
_FILES = (
    "the files must be Parquet; a file that Spark has skipped as too old ('maxFileAge') was "
    "not read, and will be"
)


class Translation(Protocol):
    """A converter of one source's offsets to another's.

    Attributes:
        of: The name of the first source, for messages.
    """

    of: ClassVar[str]

    def fits(self, offset: str) -> bool:
        """Return True if an offset is of the source that is converted."""
        ...

    def lines(self, source: str, offset: str) -> list[str]:
        """Return lines that describe the position; write nothing.

        Args:
            source: Its name, or its index among the sources.
            offset: Its text.

        Raises:
            KrishivError: If it cannot be converted.
        """
        ...

    def offset(self, source: str, offset: str) -> str:
        """Return the text of the other source's offset; raise as `lines`."""
        ...


@dataclass(frozen=True)
class FromKafka:
    """The conversion of Spark's own Kafka source to ``krishiv-kafka``."""

    of: ClassVar[str] = "Spark's own Kafka source"

    def fits(self, offset: str) -> bool:
        """See `Translation`."""
        return is_spark_kafka(offset)

    def lines(self, source: str, offset: str) -> list[str]:
        """See `Translation`."""
        position = from_spark_kafka(offset)
        return [
            f"source {source}: {describe_position(position.to_json())}",
            _AS_OPTION.format(starting_offsets(position.topics)),
            _ISOLATION,
        ]

    def offset(self, source: str, offset: str) -> str:
        """See `Translation`."""
        del source
        return from_spark_kafka(offset).to_json()


@dataclass(frozen=True)
class ToKafka:
    """The conversion of ``krishiv-kafka`` to Spark's own Kafka source."""

    of: ClassVar[str] = "krishiv-kafka"

    def fits(self, offset: str) -> bool:
        """See `Translation`."""
        return is_our_kafka(offset)

    def lines(self, source: str, offset: str) -> list[str]:
        """See `Translation`."""
        return [
            f"source {source}: {describe_position(offset)}",
            _AS_OPTION.format(to_spark_kafka(offset)),
            _ISOLATION,
            "a watermark of the source ('eventTime') does not go along",
        ]

    def offset(self, source: str, offset: str) -> str:
        """See `Translation`."""
        del source
        return to_spark_kafka(offset)


@dataclass(frozen=True)
class FromFiles:
    """The conversion of Spark's file source, reading Parquet, to ``krishiv-parquet``.

    Attributes:
        old: The checkpoint of Spark's query.
        options: The options of the new source, with its `path`.
    """

    old: SparkCheckpoint
    options: Mapping[str, str] = field(repr=False)
    of: ClassVar[str] = "Spark's file source"

    def fits(self, offset: str) -> bool:
        """See `Translation`."""
        return parse_file_log_offset(offset) is not None

    def lines(self, source: str, offset: str) -> list[str]:
        """See `Translation`."""
        self._files.check_listed()
        found = self._files.found(source, parse_file_log_offset(offset) or 0)
        return [
            f"source {source}: {len(found)} files were read",
            _FILES,
        ]

    def offset(self, source: str, offset: str) -> str:
        """See `Translation`."""
        return self._files.position(source, parse_file_log_offset(offset) or 0).to_json()

    @property
    def _files(self) -> SparkFilePositions:
        return SparkFilePositions(self.old, self.options)


@dataclass(frozen=True)
class FromIceberg:
    """The conversion of Iceberg's own connector for Spark to ``krishiv-iceberg``.

    Attributes:
        options: The options of the new source, which name the table.
    """

    options: Mapping[str, str] = field(repr=False)
    of: ClassVar[str] = "Iceberg's own source"

    def fits(self, offset: str) -> bool:
        """See `Translation`."""
        return parse_iceberg_position(offset) is not None

    def lines(self, source: str, offset: str) -> list[str]:
        """See `Translation`."""
        return [f"source {source}: {describe_position(self.offset(source, offset))}"]

    def offset(self, source: str, offset: str) -> str:
        """See `Translation`."""
        del source
        spot = parse_iceberg_position(offset)
        if spot is None:
            raise OffsetError(f"{offset[:200]} is not an offset of Iceberg's source")
        return self._spots.offset(spot).to_json()

    @cached_property
    def _spots(self) -> SparkTablePositions:
        return SparkTablePositions(self.options)


_NOTHING_YET = "-"
"""Text in the offset log for a source that has no offset yet (``SERIALIZED_VOID_OFFSET``)."""


@dataclass(frozen=True)
class CheckpointTranslation:
    """A checkpoint for another query, which continues from the position of an old one.

    Attributes:
        old: The checkpoint of the query that was stopped.
        translation: The conversion of its sources' offsets; offsets that do not fit stay unchanged.
        newest: See `restore_point_to_move`.
    """

    old: SparkCheckpoint
    translation: Translation
    newest: Newest | None = None

    @cached_property
    def boundary(self) -> RestorePoint:
        """The position at which the old query was stopped.

        Raises:
            OptionError: As `restore_point_to_move`.
        """
        return restore_point_to_move(self.old, self.newest)

    @cached_property
    def sources(self) -> Mapping[str, str]:
        """The offsets that are converted, by name or index of the source.

        Raises:
            OptionError: If there is none.
        """
        offsets = self.boundary.sources
        found = {name: text for name, text in offsets.items() if self.translation.fits(text)}
        if not found:
            has = "; ".join(
                f"source {name}: {describe_position(text)}" for name, text in offsets.items()
            )
            raise OptionError(
                f"no source in {self.old.location} is {self.translation.of}; there is {has}"
            )
        return found

    def lines(self) -> list[str]:
        """Return lines that describe the query's position, source by source; change nothing.

        Raises:
            KrishivError: If a position cannot be converted.
        """
        epoch = self.boundary.epoch
        found = [line for each in self.sources.items() for line in self.translation.lines(*each)]
        return [f"the old query is at the end of epoch {epoch}", *found]

    def check(self, new: SparkCheckpoint) -> int:
        """Check that the conversion is possible; change nothing. See `CheckpointCopy.check`."""
        return self._copying(new, self.boundary).check()

    def run(self, new: SparkCheckpoint) -> NewCheckpoint:
        """Create the checkpoint. The old one is not changed.

        Raises:
            KrishivError: As `lines` and `CheckpointCopy.run`.
        """
        self.check(new)
        changes = {
            epoch: self._translate_offsets(text) for epoch, text in self.boundary.offsets.items()
        }
        return self._copying(new, self.boundary.with_sources(changes)).run()

    def _translate_offsets(self, entry: str) -> dict[str, str]:
        offsets = OffsetSeq.parse(entry).sources
        return {
            name: self.translation.offset(name, offsets[name])
            for name in self.sources
            if offsets.get(name, _NOTHING_YET) != _NOTHING_YET
        }

    def _copying(self, new: SparkCheckpoint, boundary: RestorePoint) -> CheckpointCopy:
        # Neither earlier epochs nor the state of the old sources are copied: both have the old
        # form.
        return CheckpointCopy(
            self.old, new, boundary, without=tuple(self.sources), keeps=False, verb="import"
        )
