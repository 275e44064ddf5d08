"""Lets Spark find ``krishiv-chain`` by itself: it imports modules ``pyspark_*``."""

from krishiv_spark.formats import ChainDataSource as DefaultSource

__all__ = ["DefaultSource"]
