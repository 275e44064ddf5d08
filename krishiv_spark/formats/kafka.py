"""The format ``krishiv-kafka``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from krishiv_spark.datasource import KrishivDataSource
from krishiv_spark.options import Options
from krishiv_spark.runtime.lazy import later

if TYPE_CHECKING:
    from krishiv_spark.sinks.base import Writer

__all__ = ["KafkaDataSource"]


class KafkaDataSource(KrishivDataSource):
    """``krishiv-kafka``: topics of Apache Kafka."""

    format_name = "krishiv-kafka"
    reader_type = later("krishiv_spark.sources.kafka.reader", "KafkaReader")
    writer_type = later("krishiv_spark.sinks.kafka.writer", "KafkaWriter")

    @classmethod
    def writer_for(cls, options: Options) -> type[Writer[Any, Any]]:
        """Exactly once, unless the user wants less."""
        from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
        from krishiv_spark.sinks.kafka.writer import KafkaAtLeastOnceWriter, KafkaWriter

        plain = isinstance(options, KafkaSinkOptions) and options.delivery == "at-least-once"
        return KafkaAtLeastOnceWriter if plain else KafkaWriter
