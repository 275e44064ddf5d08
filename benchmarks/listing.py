"""How long the source looks at a folder of many files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.bench import MEMORY, Run, benchmark, scratch
from benchmarks.measure import Figure, expect, figure, seconds

__all__ = ["listing"]


@benchmark("parquet.listing", "krishiv_spark.sources.parquet")
def listing(run: Run) -> Iterator[Figure]:
    """A folder of 100 000 files: the first look, and a later one with nothing new."""
    from krishiv_spark.sources.parquet import ParquetReader
    from krishiv_spark.sources.base import Limit

    count = 10_000 if run.quick else 100_000
    with scratch(MEMORY) as folder:
        run.told(f"making {count:,} files")
        _fill(folder, count)
