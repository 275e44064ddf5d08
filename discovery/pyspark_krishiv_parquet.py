"""Lets Spark find ``krishiv-parquet`` by itself: it imports modules ``pyspark_*``."""

from krishiv_spark.formats import ParquetDataSource as DefaultSource

__all__ = ["DefaultSource"]
