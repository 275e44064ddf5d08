"""Lets Spark find ``krishiv-postgresql`` by itself: it imports modules ``pyspark_*``."""

from krishiv_spark.formats import PostgresqlDataSource as DefaultSource

__all__ = ["DefaultSource"]
