"""The formats that ship with the package: a class each, which names its reader and writer.

Each query starts half a dozen processes, and each of them imports this module. So readers and
writers are imported on first use (`later`), and no process imports a format that it does not use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from krishiv_spark.datasource import KrishivDataSource
from krishiv_spark.runtime.lazy import later

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from krishiv_spark.options import Options
    from krishiv_spark.sinks.base import Writer

__all__ = [
    "ChainDataSource",
    "ConsoleDataSource",
    "FanoutDataSource",
    "IcebergDataSource",
    "KafkaDataSource",
    "MemoryDataSource",
    "ParquetDataSource",
    "every_format",
    "format_names",
    "format_of",
    "register",
]


def every_format() -> tuple[type[KrishivDataSource], ...]:
    """Return all formats, by name."""
    return tuple(_formats().values())


def format_names() -> list[str]:
    """Return the names of the formats, without the prefix ``krishiv-``."""
    return list(_formats())


def format_of(name: str) -> type[KrishivDataSource]:
    """Return the format ``krishiv-NAME``.

    Raises:
        KeyError: If no format has that name.
    """
    return _formats()[name]


def _formats() -> dict[str, type[KrishivDataSource]]:
    """Return the data sources that this module defines, so that no list has to be kept."""
    found = {
        each.format_name.removeprefix("krishiv-"): each
        for each in list(globals().values())
        if isinstance(each, type) and issubclass(each, KrishivDataSource)
        if each.__module__ == __name__
    }
    return dict(sorted(found.items()))


def register(spark: SparkSession) -> None:
    """Register every format of the package in a session; driver.

    Spark finds the formats automatically where the package is installed. Call this in a session
    that was started before the installation, or to register them explicitly.
    """
    from pyspark.errors import AnalysisException

    for source in every_format():
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:
            # PySpark 4.0 refuses a name that it has already found; later versions replace it.
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise


class ChainDataSource(KrishivDataSource):
    """``krishiv-chain``: a table, and then the topics from which it was landed."""

    format_name = "krishiv-chain"
    reader_type = later("krishiv_spark.sources.chain.reader", "ChainReader")


class ConsoleDataSource(KrishivDataSource):
    """``krishiv-console``: prints each epoch on the driver."""

    format_name = "krishiv-console"
    writer_type = later("krishiv_spark.sinks.console", "ConsoleWriter")


class FanoutDataSource(KrishivDataSource):
    """``krishiv-fanout``: rows into several targets, each epoch in all of them or in none."""

    format_name = "krishiv-fanout"
    writer_type = later("krishiv_spark.sinks.fanout.writer", "FanoutWriter")


class IcebergDataSource(KrishivDataSource):
    """``krishiv-iceberg``: tables of Apache Iceberg, in any catalog that PyIceberg can write."""

    format_name = "krishiv-iceberg"
    reader_type = later("krishiv_spark.sources.iceberg.reader", "IcebergReader")
    writer_type = later("krishiv_spark.sinks.iceberg.writer", "IcebergWriter")


class KafkaDataSource(KrishivDataSource):
    """``krishiv-kafka``: topics of Apache Kafka."""

    format_name = "krishiv-kafka"
    reader_type = later("krishiv_spark.sources.kafka.reader", "KafkaReader")
    writer_type = later("krishiv_spark.sinks.kafka.writer", "KafkaWriter")

    @classmethod
    def writer_for(cls, options: Options) -> type[Writer[Any, Any]]:
        """Return the writer: exactly once, unless 'delivery' is 'at-least-once'."""
        from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
        from krishiv_spark.sinks.kafka.writer import KafkaAtLeastOnceWriter, KafkaWriter

        plain = isinstance(options, KafkaSinkOptions) and options.delivery == "at-least-once"
        return KafkaAtLeastOnceWriter if plain else KafkaWriter


class MemoryDataSource(KrishivDataSource):
    """``krishiv-memory``: pushed batches as a stream, query results as Arrow."""

    format_name = "krishiv-memory"
    reader_type = later("krishiv_spark.sources.memory.reader", "MemoryReader")
    writer_type = later("krishiv_spark.sinks.memory", "MemoryWriter")


class ParquetDataSource(KrishivDataSource):
    """``krishiv-parquet``: folders of Parquet files, exactly once for every reader."""

    format_name = "krishiv-parquet"
    reader_type = later("krishiv_spark.sources.parquet.reader", "ParquetReader")
    writer_type = later("krishiv_spark.sinks.parquet.writer", "ParquetWriter")
