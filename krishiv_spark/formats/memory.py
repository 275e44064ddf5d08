"""The format ``krishiv-memory``."""

from __future__ import annotations

from krishiv_spark.datasource import KrishivDataSource
from krishiv_spark.sinks.memory import MemoryWriter
from krishiv_spark.sources.memory.reader import MemoryReader

__all__ = ["MemoryDataSource"]


class MemoryDataSource(KrishivDataSource):
    """``krishiv-memory``: pushed batches as a stream, query results as Arrow."""

    format_name = "krishiv-memory"
    reader_type = MemoryReader
    writer_type = MemoryWriter
