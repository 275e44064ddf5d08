"""The same cases on real Spark, when they are asked for."""
