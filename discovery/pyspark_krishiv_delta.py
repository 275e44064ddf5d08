"""Lets Spark find ``krishiv-delta`` by itself: it imports modules ``pyspark_*``."""

from krishiv_spark.formats import DeltaDataSource as DefaultSource

__all__ = ["DefaultSource"]
