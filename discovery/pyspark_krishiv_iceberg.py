"""Lets Spark find ``krishiv-iceberg`` by itself: it imports modules ``pyspark_*``."""

from krishiv_spark.formats import IcebergDataSource as DefaultSource

__all__ = ["DefaultSource"]
