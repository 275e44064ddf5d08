"""Copies and rewinds of checkpoints, and moves from and to Spark's own sources.

Queries do not run meanwhile: each function reads one checkpoint and writes another, or rewinds one.
Spark refuses an incomplete checkpoint (`krishiv_spark.operate.moving.copying`).
"""
