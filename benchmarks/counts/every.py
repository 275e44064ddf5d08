"""All cases: importing this makes them known."""

from __future__ import annotations

from benchmarks.counts import kernel, processes, rows, sinks, sources, under_spark
from benchmarks.counts.case import CASES

__all__ = ["CASES", "TOPICS"]

TOPICS = (sinks, kernel, sources, rows, processes, under_spark)
