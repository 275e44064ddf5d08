"""The format ``krishiv-iceberg``."""

from __future__ import annotations

from krishiv_spark.datasource import KrishivDataSource
from krishiv_spark.sinks.iceberg.writer import IcebergWriter
from krishiv_spark.sources.iceberg.reader import IcebergReader

__all__ = ["IcebergDataSource"]


class IcebergDataSource(KrishivDataSource):
    """``krishiv-iceberg``: tables of Apache Iceberg, in any catalog that PyIceberg can write."""

    format_name = "krishiv-iceberg"
    reader_type = IcebergReader
    writer_type = IcebergWriter
