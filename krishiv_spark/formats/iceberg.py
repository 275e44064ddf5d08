"""The format ``krishiv-iceberg``."""

from __future__ import annotations

from krishiv_spark.datasource import KrishivDataSource
from krishiv_spark.runtime.lazy import later

__all__ = ["IcebergDataSource"]


class IcebergDataSource(KrishivDataSource):
    """``krishiv-iceberg``: tables of Apache Iceberg, in any catalog that PyIceberg can write."""

    format_name = "krishiv-iceberg"
    reader_type = later("krishiv_spark.sources.iceberg.reader", "IcebergReader")
    writer_type = later("krishiv_spark.sinks.iceberg.writer", "IcebergWriter")
