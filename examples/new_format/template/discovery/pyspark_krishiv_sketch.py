"""Lets Spark find ``krishiv-sketch`` by itself: it imports modules ``pyspark_*``."""

from krishiv_spark.formats import SketchDataSource as DefaultSource

__all__ = ["DefaultSource"]
