"""Lets Spark find ``krishiv-fanout`` by itself: it imports modules ``pyspark_*``."""

from krishiv_spark.formats import FanoutDataSource as DefaultSource

__all__ = ["DefaultSource"]
