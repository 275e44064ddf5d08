"""The format ``krishiv-memory``."""

from __future__ import annotations

from krishiv_spark.datasource import KrishivDataSource
from krishiv_spark.runtime.lazy import later

__all__ = ["MemoryDataSource"]


class MemoryDataSource(KrishivDataSource):
    """``krishiv-memory``: pushed batches as a stream, query results as Arrow."""

    format_name = "krishiv-memory"
    reader_type = later("krishiv_spark.sources.memory.reader", "MemoryReader")
    writer_type = later("krishiv_spark.sinks.memory", "MemoryWriter")
