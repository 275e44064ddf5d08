"""Lets Spark find ``krishiv-kafka`` by itself: it imports modules ``pyspark_*``."""

from krishiv_spark.formats import KafkaDataSource as DefaultSource

__all__ = ["DefaultSource"]
