"""Spark: the checkpoint of a query, the JVM, the logs and the start of Python processes."""
