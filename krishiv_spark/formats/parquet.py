"""The format ``krishiv-parquet``."""

from __future__ import annotations

from krishiv_spark.datasource import KrishivDataSource
from krishiv_spark.runtime.lazy import later

__all__ = ["ParquetDataSource"]


class ParquetDataSource(KrishivDataSource):
    """``krishiv-parquet``: folders of Parquet files, exactly once for every reader."""

    format_name = "krishiv-parquet"
    reader_type = later("krishiv_spark.sources.parquet.reader", "ParquetReader")
    writer_type = later("krishiv_spark.sinks.parquet.writer", "ParquetWriter")
