"""What a query is doing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["QueryState", "QueryStatus", "status_of"]


class QueryState(Enum):
    """Where a query is in its life."""

    STARTING = "starting"
    """It has no epoch behind it yet, and none under way."""
    RUNNING = "running"
    """An epoch is under way, or due."""
    IDLE = "idle"
    """It waits for rows, or for its next trigger."""
    STOPPED = "stopped"
    """It has ended without an error."""
    FAILED = "failed"
    """It has ended with an error."""


@dataclass(frozen=True)
class QueryStatus:
    """What a query is doing now.

    Attributes:
        state: In one word.
        message: Spark's own words; of a failed query, the line that says why.
    """

    state: QueryState
    message: str


def status_of(query: StreamingQuery, why: str | None) -> QueryStatus:
    """Look once.

    Args:
        query: Spark's handle.
        why: Of a query that has failed, the line that says it.
    """
    status: Any = query.status
    message = str(status["message"])
    if why is not None:
        return QueryStatus(QueryState.FAILED, why)
    if not query.isActive:
        return QueryStatus(QueryState.STOPPED, message)
    if status["isTriggerActive"] or status["isDataAvailable"]:
        return QueryStatus(QueryState.RUNNING, message)
    is_new = query.lastProgress is None
    return QueryStatus(QueryState.STARTING if is_new else QueryState.IDLE, message)
