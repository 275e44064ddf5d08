"""Spark's part, played without a JVM: they do steps, tell a story, and ask the judge."""
