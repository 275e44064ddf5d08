"""Counts in the place of times: they are the same on a busy machine, and fail on a regression.

``./run bench --counts`` runs each case in a process of its own, and compares what it has counted
with ``benchmarks/counts.json``.
"""
