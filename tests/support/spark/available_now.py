"""Queries with the trigger ``availableNow``, which ends before everything is read on old Spark."""

from collections.abc import Callable
from pathlib import Path

import pyspark
from patience import PATIENCE
from pyspark.sql.streaming.query import StreamingQuery

ENDS_WITH_LIMITS = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)
"""True if a run reads everything in limited batches; before, it is one batch."""


def run_to_end(start: Callable[[], StreamingQuery], checkpoint: str | Path) -> StreamingQuery:
    """Run a query until no batch is left; returns its last run."""
    while True:
        before = _committed(checkpoint)
        query = start()
        assert query.awaitTermination(PATIENCE)
        if ENDS_WITH_LIMITS or _committed(checkpoint) == before:
            return query


def _committed(checkpoint: str | Path) -> list[str]:
    return sorted(path.name for path in Path(checkpoint, "commits").glob("[0-9]*"))
