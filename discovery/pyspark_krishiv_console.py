"""Lets Spark find ``krishiv-console`` by itself: it imports modules ``pyspark_*``."""

from krishiv_spark.formats import ConsoleDataSource as DefaultSource

__all__ = ["DefaultSource"]
