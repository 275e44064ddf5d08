"""Lets Spark find ``krishiv-memory`` by itself (``lookup_data_sources``: modules ``pyspark_*``)."""

from krishiv_spark.formats import MemoryDataSource as DefaultSource

__all__ = ["DefaultSource"]
