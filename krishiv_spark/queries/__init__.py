"""Streaming queries from start to end: handles, progress as values, listeners, restarts. Driver.

::

    from krishiv_spark import queries

    with queries.start(orders.writeStream.format("krishiv-kafka")...) as query:
        query.await_termination(timeout=3600)

A thin layer over Spark's own handles, classic or Connect, for queries of any format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from krishiv_spark.runtime.lazy import find

if TYPE_CHECKING:
    from krishiv_spark.queries.failures import check
    from krishiv_spark.queries.handle import Query, QueryState, QueryStatus, start
    from krishiv_spark.queries.progress import Listening, Progress, SourceProgress, listen
    from krishiv_spark.queries.restarting import run

__all__ = [
    "Listening",
    "Progress",
    "Query",
    "QueryState",
    "QueryStatus",
    "SourceProgress",
    "check",
    "listen",
    "run",
    "start",
]

_HOMES = {
    "Listening": "krishiv_spark.queries.progress",
    "Progress": "krishiv_spark.queries.progress",
    "Query": "krishiv_spark.queries.handle",
    "QueryState": "krishiv_spark.queries.handle",
    "QueryStatus": "krishiv_spark.queries.handle",
    "SourceProgress": "krishiv_spark.queries.progress",
    "check": "krishiv_spark.queries.failures",
    "listen": "krishiv_spark.queries.progress",
    "run": "krishiv_spark.queries.restarting",
    "start": "krishiv_spark.queries.handle",
}


def __getattr__(name: str) -> object:
    return find(__name__, _HOMES, name)
