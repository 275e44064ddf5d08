"""How long a query has been without a row. Driver."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from krishiv_spark.queries.progress import is_idle

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["POLL_S", "IdleTime"]

POLL_S = 0.1
"""How often whoever waits for a query looks at it: Spark's handles ring no bell."""


class IdleTime:
    """Looks at a query again and again, and knows when it last had something to do.

    Args:
        query: Spark's handle.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._busy_s = time.monotonic()
        self._epoch = -1

    def look(self) -> float:
        """Seconds since it was last seen at work; 0 if it is."""
        now_s = time.monotonic()
        newest: Any = self._query.lastProgress
        if newest is not None and not is_idle(newest) and int(newest["batchId"]) != self._epoch:
            self._epoch = int(newest["batchId"])
            if newest["numInputRows"]:
                self._busy_s = now_s
        status: Any = self._query.status
        # While a query starts, it is neither at work nor idle by Spark's flags; while it looks for
        # rows, its trigger is active, which takes most of the time of a busy machine.
        if status["message"].startswith("Initializing") or status["isDataAvailable"]:
            self._busy_s = now_s
        return now_s - self._busy_s
