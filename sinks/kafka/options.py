"""Options of the sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from krishiv_spark.kafka.connection import KafkaOptions
from krishiv_spark.sinks.log_places import LogPlaceOptions

__all__ = ["KafkaSinkOptions"]

_MAX_TIMEOUT_MS = 900_000
"""A broker's own default for ``transaction.max.timeout.ms``."""


class KafkaSinkOptions(KafkaOptions, LogPlaceOptions):
    """Options of the sink. Rows have the columns value, key, headers, topic, partition, timestamp.

    Attributes:
        topic: Goes before the column.
        delivery: Which of the two writers.
        id_prefix: Transactional ids begin with it.
        timeout_ms: How long a transaction may be open; it has to cover the longest batch.
        compression: Codec of batches.
        batch_bytes: Size of a batch before compression.
        on_lost_transactions: See `krishiv_spark.sinks.kafka.writer`.
    """

    gathers: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **KafkaOptions.gathers,
        **LogPlaceOptions.gathers,
    }

    topic: str | None = Field(
        default=None, min_length=1, description="Topic of all rows; goes before a column `topic`."
    )
    delivery: Literal["exactly-once", "at-least-once"] = Field(
        default="exactly-once",
        description="With transactions that the driver ends, or with an idempotent producer alone.",
    )
    id_prefix: str = Field(
        default="krishiv",
        min_length=1,
        validation_alias="kafka.transactional.id",
        description="Transactional ids begin with it: `<it>.<query id>.<task>.<slot>`.",
    )
    timeout_ms: int = Field(
        default=_MAX_TIMEOUT_MS,
        gt=0,
        validation_alias="kafka.transaction.timeout.ms",
        description="How long a transaction may be open, milliseconds: longer than the longest "
        "batch. The brokers' `transaction.max.timeout.ms` limits it.",
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = Field(
        default="none",
        validation_alias="kafka.compression.type",
        description="Codec of the batches.",
    )
    batch_bytes: int = Field(
        default=1_000_000,
        ge=0,
        validation_alias="kafka.batch.size",
        description="Most bytes in a batch of one partition, before compression; the topic's "
        "`max.message.bytes` has to allow it.",
    )
    on_lost_transactions: Literal["repair", "error"] = Field(
        default="repair",
        description="When brokers aborted a part of a committed epoch because the driver stayed "
        "away for longer than the time-out: write that part again, if its tasks have the same "
        "rows as before, or fail.",
    )
