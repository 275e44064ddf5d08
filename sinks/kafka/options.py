"""Options of the sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from krishiv_spark.kafka.config import KafkaOptions
from krishiv_spark.sinks.options import LogPlaceOptions

__all__ = ["KafkaSinkOptions"]

_MAX_TIMEOUT_MS = 900_000
"""A broker's own default for ``transaction.max.timeout.ms``."""


class KafkaSinkOptions(KafkaOptions, LogPlaceOptions):
    """Options of the sink. Rows have the columns value, key, headers, topic, partition, timestamp.

    Attributes:
        topic: Topic of all rows; takes precedence over the column.
        delivery: Name of one of the two writers.
        id_prefix: Prefix of transactional ids.
        timeout_ms: Time-out of a transaction, which must cover the longest batch.
        compression: Codec of batches.
        batch_bytes: Size of a batch before compression.
        on_lost_transactions: Action after brokers have aborted a part of a committed epoch.
    """

    collects_prefixes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **KafkaOptions.collects_prefixes,
        **LogPlaceOptions.collects_prefixes,
    }

    topic: str | None = Field(
        default=None,
        min_length=1,
        description="Topic for all rows. Takes precedence over a `topic` column.",
    )
    delivery: Literal["exactly-once", "at-least-once"] = Field(
        default="exactly-once",
        description="Guarantee of the sink: transactions that the driver ends (`exactly-once`), or "
        "an idempotent producer (`at-least-once`).",
    )
    id_prefix: str = Field(
        default="krishiv",
        min_length=1,
        validation_alias="kafka.transactional.id",
        description="Prefix of the transactional ids: `<prefix>.<query id>.<task>.<slot>`.",
    )
    timeout_ms: int = Field(
        default=_MAX_TIMEOUT_MS,
        gt=0,
        validation_alias="kafka.transaction.timeout.ms",
        description="Transaction time-out in milliseconds, longer than the longest batch. The "
        "brokers' `transaction.max.timeout.ms` limits it.",
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = Field(
        default="none",
        validation_alias="kafka.compression.type",
        description="Compression codec of the batches.",
    )
    batch_bytes: int = Field(
        default=1_000_000,
        ge=0,
        validation_alias="kafka.batch.size",
        description="Maximum size of a batch of one partition in bytes, before compression. The "
        "topic's `max.message.bytes` must allow it.",
    )
    on_lost_transactions: Literal["repair", "error"] = Field(
        default="repair",
        description="Action if brokers aborted a part of a committed epoch because the driver was "
        "away too long: write that part again if its tasks have the same rows "
        "(`repair`), or fail (`error`).",
    )
