"""Lets Spark find ``krishiv-parquet`` by itself (``lookup_data_sources``: modules ``pyspark_*``)."""

from krishiv_spark.formats import ParquetDataSource as DefaultSource

__all__ = ["DefaultSource"]
