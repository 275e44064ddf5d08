"""The format ``krishiv-kafka``."""

from __future__ import annotations

from typing import Any

from krishiv_spark.datasource import KrishivDataSource
from krishiv_spark.options import Options
from krishiv_spark.sinks.base import Writer
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.writer import KafkaAtLeastOnceWriter, KafkaWriter
from krishiv_spark.sources.kafka.reader import KafkaReader

__all__ = ["KafkaDataSource"]


class KafkaDataSource(KrishivDataSource):
    """``krishiv-kafka``: topics of Apache Kafka."""

    format_name = "krishiv-kafka"
    reader_type = KafkaReader
    writer_type = KafkaWriter

    @classmethod
    def writer_for(cls, options: Options) -> type[Writer[Any, Any]]:
        """Exactly once, unless the user wants less."""
        plain = isinstance(options, KafkaSinkOptions) and options.delivery == "at-least-once"
        return KafkaAtLeastOnceWriter if plain else KafkaWriter
