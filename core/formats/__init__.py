"""The formats that ship with the package; a process that needs one does not import the others.

Each query starts half a dozen processes, and each of them imports its format.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from krishiv_spark.datasource import KrishivDataSource
    from krishiv_spark.formats.console import ConsoleDataSource
    from krishiv_spark.formats.iceberg import IcebergDataSource
    from krishiv_spark.formats.kafka import KafkaDataSource
    from krishiv_spark.formats.memory import MemoryDataSource
    from krishiv_spark.formats.parquet import ParquetDataSource

__all__ = [
    "ConsoleDataSource",
    "IcebergDataSource",
    "KafkaDataSource",
    "MemoryDataSource",
    "ParquetDataSource",
    "every_format",
    "register",
]

_HOMES = {
    "MemoryDataSource": "memory",
    "ConsoleDataSource": "console",
    "ParquetDataSource": "parquet",
    "KafkaDataSource": "kafka",
    "IcebergDataSource": "iceberg",
}


def __getattr__(name: str) -> type[KrishivDataSource]:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: type[KrishivDataSource] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def every_format() -> tuple[type[KrishivDataSource], ...]:
    """All of them; imports them all."""
    return tuple(__getattr__(name) for name in _HOMES)


def register(spark: SparkSession) -> None:
    """Register every format of the package in a session; driver.

    Spark finds the formats by itself where the package is installed; this is for sessions that
    were started before it was, and for those who like it said.
    """
    for source in every_format():
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:
            # 4.0 refuses a name that it has found by itself already; later ones replace it.
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
