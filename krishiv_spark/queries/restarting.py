"""Queries that are started again when what stopped them may pass. Driver."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from krishiv_spark.errors import QueryFailed
from krishiv_spark.queries.handle import Query, Seconds, in_seconds

__all__ = ["run"]

_log = logging.getLogger(__name__)


def run(
    make: Callable[[], Query],
    *,
    restarts: int = 5,
    pause: Seconds = 1,
    longest_pause: Seconds = 60,
) -> None:
    """Run a query until it ends, and again after errors that may pass by themselves.

    Those are a broker, catalog or store that cannot be reached, and a commit of which nobody knows
    whether it has happened: a query that starts again finds that out first. A checkpoint that does
    not fit, rows that do not, another driver: these never pass.

    Args:
        make: Starts the query, on its checkpoint.
        restarts: How often it may start again without an epoch in between.
        pause: Before the first new start, seconds; each next one doubles it.
        longest_pause: Seconds.

    Raises:
        QueryFailed: If it has ended with an error that does not pass, or has not passed.
    """
    again = 0
    while True:
        query = make()
        try:
            query.await_termination()
        except QueryFailed as failed:
            again = 0 if query.progress else again
            if not failed.passes or again >= restarts:
                raise
            seconds = min(in_seconds(pause) * 2**again, in_seconds(longest_pause))
            again += 1
            _log.warning(
                "query %s starts again in %g s: %s", query.name or query.id, seconds, failed
            )
            time.sleep(seconds)
        else:
            return
