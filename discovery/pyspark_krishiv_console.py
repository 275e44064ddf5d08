"""Lets Spark find ``krishiv-console`` by itself (``lookup_data_sources``: modules ``pyspark_*``)."""

from krishiv_spark.formats import ConsoleDataSource as DefaultSource

__all__ = ["DefaultSource"]
