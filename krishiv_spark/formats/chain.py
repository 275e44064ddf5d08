"""The format ``krishiv-chain``."""

from __future__ import annotations

from krishiv_spark.datasource import KrishivDataSource
from krishiv_spark.runtime.lazy import later

__all__ = ["ChainDataSource"]


class ChainDataSource(KrishivDataSource):
    """``krishiv-chain``: a table, and then the topics from which it was landed."""

    format_name = "krishiv-chain"
    reader_type = later("krishiv_spark.sources.chain.reader", "ChainReader")
