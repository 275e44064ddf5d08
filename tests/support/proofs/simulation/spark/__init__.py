"""Spark, as far as a sink meets it."""
