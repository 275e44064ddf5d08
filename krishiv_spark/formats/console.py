"""The format ``krishiv-console``."""

from __future__ import annotations

from krishiv_spark.datasource import KrishivDataSource
from krishiv_spark.runtime.lazy import later

__all__ = ["ConsoleDataSource"]


class ConsoleDataSource(KrishivDataSource):
    """``krishiv-console``: prints each epoch on the driver."""

    format_name = "krishiv-console"
    writer_type = later("krishiv_spark.sinks.console", "ConsoleWriter")
