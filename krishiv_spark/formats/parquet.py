"""The format ``krishiv-parquet``."""

from __future__ import annotations

from krishiv_spark.datasource import KrishivDataSource
from krishiv_spark.sinks.parquet.writer import ParquetWriter
from krishiv_spark.sources.parquet.reader import ParquetReader

__all__ = ["ParquetDataSource"]


class ParquetDataSource(KrishivDataSource):
    """``krishiv-parquet``: folders of Parquet files, exactly once for every reader."""

    format_name = "krishiv-parquet"
    reader_type = ParquetReader
    writer_type = ParquetWriter
