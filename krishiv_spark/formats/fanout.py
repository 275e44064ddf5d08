"""The format ``krishiv-fanout``."""

from __future__ import annotations

from krishiv_spark.datasource import KrishivDataSource
from krishiv_spark.runtime.lazy import later

__all__ = ["FanoutDataSource"]


class FanoutDataSource(KrishivDataSource):
    """``krishiv-fanout``: rows into several targets, each epoch in all of them or in none."""

    format_name = "krishiv-fanout"
    writer_type = later("krishiv_spark.sinks.fanout.writer", "FanoutWriter")
