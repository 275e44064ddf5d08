"""Which positions become which: of Spark's own sources to ours, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Protocol

from krishiv_spark.errors import OffsetError
from krishiv_spark.operate.inspection.positions import in_words
from krishiv_spark.operate.moving import spark_kafka
from krishiv_spark.operate.moving.spark_files import SeenFiles, log_offset
from krishiv_spark.operate.moving.spark_iceberg import TableSpots, sparks_spot
from krishiv_spark.spark.checkpoint import SparkCheckpoint

__all__ = ["FromFiles", "FromIceberg", "FromKafka", "ToKafka", "Translation"]

_AS_OPTION = (
    "the same as an option, for a query without state that begins with an empty checkpoint: "
    "startingOffsets = {}"
)
_ISOLATION = (
    "krishiv-kafka reads committed rows only, and Spark's own source those of open and aborted "
    "transactions too, unless 'kafka.isolation.level' says otherwise: give both the same"
)
_FILES = (
    "the files have to be Parquet; one that Spark has passed over as too old ('maxFileAge') was "
    "not read, and will be"
)


class Translation(Protocol):
    """Makes offsets of one source from those of another one.

    Attributes:
        of: What the offsets are of, for messages.
    """

    of: ClassVar[str]

    def fits(self, offset: str) -> bool:
        """Whether an offset is of the source that is translated."""
        ...

    def lines(self, source: str, offset: str) -> list[str]:
        """What the position is, in words; writes nothing.

        Args:
            source: Its name, or its place among the sources.
            offset: Its text.

        Raises:
            KrishivError: If it cannot be translated.
        """
        ...

    def offset(self, source: str, offset: str) -> str:
        """The text of the other source's offset; raises as `lines`."""
        ...


@dataclass(frozen=True)
class FromKafka:
    """Spark's own Kafka source, to ``krishiv-kafka``."""

    of: ClassVar[str] = "Spark's own Kafka source"

    def fits(self, offset: str) -> bool:
        """See `Translation`."""
        return spark_kafka.is_spark(offset)

    def lines(self, source: str, offset: str) -> list[str]:
        """See `Translation`."""
        position = spark_kafka.from_spark(offset)
        return [
            f"source {source}: {in_words(position.to_json())}",
            _AS_OPTION.format(spark_kafka.starting_offsets(position.topics)),
            _ISOLATION,
        ]

    def offset(self, source: str, offset: str) -> str:
        """See `Translation`."""
        del source
        return spark_kafka.from_spark(offset).to_json()


@dataclass(frozen=True)
class ToKafka:
    """``krishiv-kafka``, to Spark's own Kafka source."""

    of: ClassVar[str] = "krishiv-kafka"

    def fits(self, offset: str) -> bool:
        """See `Translation`."""
        return spark_kafka.is_ours(offset)

    def lines(self, source: str, offset: str) -> list[str]:
        """See `Translation`."""
        return [
            f"source {source}: {in_words(offset)}",
            _AS_OPTION.format(spark_kafka.to_spark(offset)),
            _ISOLATION,
            "a watermark of the source ('eventTime') does not go along",
        ]

    def offset(self, source: str, offset: str) -> str:
        """See `Translation`."""
        del source
        return spark_kafka.to_spark(offset)


@dataclass(frozen=True)
class FromFiles:
    """Spark's file source, reading Parquet, to ``krishiv-parquet``.

    Attributes:
        old: The checkpoint of Spark's query.
        options: Of the new source, with its `path`.
    """

    old: SparkCheckpoint
    options: Mapping[str, str] = field(repr=False)
    of: ClassVar[str] = "Spark's file source"

    def fits(self, offset: str) -> bool:
        """See `Translation`."""
        return log_offset(offset) is not None

    def lines(self, source: str, offset: str) -> list[str]:
        """See `Translation`."""
        self._files.check_listed()
        found = self._files.found(source, log_offset(offset) or 0)
        return [
            f"source {source}: {len(found)} files were read",
            _FILES,
        ]

    def offset(self, source: str, offset: str) -> str:
        """See `Translation`."""
        return self._files.position(source, log_offset(offset) or 0).to_json()

    @property
    def _files(self) -> SeenFiles:
        return SeenFiles(self.old, self.options)


@dataclass(frozen=True)
class FromIceberg:
    """Iceberg's own connector for Spark, to ``krishiv-iceberg``.

    Attributes:
        options: Of the new source, which name the table.
    """

    options: Mapping[str, str] = field(repr=False)
    of: ClassVar[str] = "Iceberg's own source"

    def fits(self, offset: str) -> bool:
        """See `Translation`."""
        return sparks_spot(offset) is not None

    def lines(self, source: str, offset: str) -> list[str]:
        """See `Translation`."""
        return [f"source {source}: {in_words(self.offset(source, offset))}"]

    def offset(self, source: str, offset: str) -> str:
        """See `Translation`."""
        del source
        spot = sparks_spot(offset)
        if spot is None:
            raise OffsetError(f"{offset[:200]} is no offset of Iceberg's source")
        return self._spots.offset(spot).to_json()

    @cached_property
    def _spots(self) -> TableSpots:
        return TableSpots(self.options)
