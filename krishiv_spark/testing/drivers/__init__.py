"""Drivers that play Spark's part without a JVM: they do steps, keep a story and check the rules."""
