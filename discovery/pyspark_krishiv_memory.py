"""Lets Spark find ``krishiv-memory`` by itself: it imports modules ``pyspark_*``."""

from krishiv_spark.formats import MemoryDataSource as DefaultSource

__all__ = ["DefaultSource"]
