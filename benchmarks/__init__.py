"""Benchmarks beside Spark's own connectors: ``./run bench``."""
