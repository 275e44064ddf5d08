"""The formats that ship with the package, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException

from krishiv_spark.datasource import KrishivDataSource
from krishiv_spark.kafka.writing.options import KafkaSinkOptions
from krishiv_spark.options import Options
from krishiv_spark.sinks.base import Writer
from krishiv_spark.sinks.console import ConsoleWriter
from krishiv_spark.sinks.iceberg import IcebergWriter
from krishiv_spark.sinks.kafka import KafkaAtLeastOnceWriter, KafkaWriter
from krishiv_spark.sinks.memory import MemoryWriter
from krishiv_spark.sinks.parquet import ParquetWriter
from krishiv_spark.sources.iceberg import IcebergReader
from krishiv_spark.sources.kafka import KafkaReader
from krishiv_spark.sources.memory import MemoryReader
from krishiv_spark.sources.parquet import ParquetReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "FORMATS",
    "ConsoleDataSource",
    "IcebergDataSource",
    "KafkaDataSource",
    "MemoryDataSource",
    "ParquetDataSource",
    "register",
]


class MemoryDataSource(KrishivDataSource):
    """``krishiv-memory``: pushed batches as a stream, query results as Arrow."""

    format_name = "krishiv-memory"
    reader_type = MemoryReader
    writer_type = MemoryWriter


class ConsoleDataSource(KrishivDataSource):
    """``krishiv-console``: prints each epoch on the driver."""

    format_name = "krishiv-console"
    writer_type = ConsoleWriter


class ParquetDataSource(KrishivDataSource):
    """``krishiv-parquet``: folders of Parquet files, exactly once for every reader."""

    format_name = "krishiv-parquet"
    reader_type = ParquetReader
    writer_type = ParquetWriter


class KafkaDataSource(KrishivDataSource):
    """``krishiv-kafka``: topics of Apache Kafka."""

    format_name = "krishiv-kafka"
    reader_type = KafkaReader
    writer_type = KafkaWriter

    @classmethod
    def writer_for(cls, options: Options) -> type[Writer[Any]]:
        """Exactly once, unless the user wants less."""
        plain = isinstance(options, KafkaSinkOptions) and options.delivery == "at-least-once"
        return KafkaAtLeastOnceWriter if plain else KafkaWriter


class IcebergDataSource(KrishivDataSource):
    """``krishiv-iceberg``: tables of Apache Iceberg, in any catalog that PyIceberg can write."""

    format_name = "krishiv-iceberg"
    reader_type = IcebergReader
    writer_type = IcebergWriter


FORMATS: tuple[type[KrishivDataSource], ...] = (
    MemoryDataSource,
    ConsoleDataSource,
    ParquetDataSource,
    KafkaDataSource,
    IcebergDataSource,
)


def register(spark: SparkSession) -> None:
    """Register every format of the package in a session; driver.

    Spark finds the formats by itself where the package is installed; this is for sessions that
    were started before it was, and for those who like it said.
    """
    for source in FORMATS:
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:
            # 4.0 refuses a name that it has found by itself already; later ones replace it.
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
