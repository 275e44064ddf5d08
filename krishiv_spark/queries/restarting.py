"""Queries that are started again when what stopped them may pass. Driver."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from krishiv_spark.errors import QueryFailed
from krishiv_spark.queries.failures import failure_of
from krishiv_spark.queries.handle import Query, Seconds, in_seconds

__all__ = ["Restarts", "run"]

_log = logging.getLogger(__name__)


class Restarts:
    """The rule by which a query starts again after an error.

    Args:
        attempts: How often it may start again without an epoch in between.
        pause: Before the first new start, seconds; each next one doubles it.
        longest_pause: Seconds.
    """

    def __init__(self, attempts: int, pause: Seconds, longest_pause: Seconds) -> None:
        self._attempts = attempts
        self._pause_s = in_seconds(pause)
        self._longest_s = in_seconds(longest_pause)
        self._again = 0

    def pause_after(self, error: Exception, name: str, *, progressed: bool) -> float:
        """Return the pause before the next start, seconds.

        Args:
            error: It ended with, or could not be started for.
            name: Of the query.
            progressed: Whether there was an epoch before the error.

        Raises:
            Exception: The one that was given, if it is not to start again.
        """
        failed = failure_of(error)
        self._again = 0 if progressed else self._again
        if not failed.passes or self._again >= self._attempts:
            raise error
        seconds: float = min(self._pause_s * 2**self._again, self._longest_s)
        self._again += 1
        _log.warning("query %s starts again in %g s: %s", name, seconds, failed.line)
        return seconds


def run(
    make: Callable[[], Query],
    *,
    restarts: int = 5,
    pause: Seconds = 1,
    longest_pause: Seconds = 60,
) -> Query:
    """Run a query until it ends, and again after errors that may pass by themselves.

    Those are a broker, catalog or store that cannot be reached, and a commit of which nobody knows
    whether it has happened: a query that starts again finds that out first. A checkpoint that does
    not fit, rows that do not, another driver: these never pass.

    Args:
        make: Starts the query, on its checkpoint.
        restarts: How often it may start again without an epoch in between.
        pause: Before the first new start, seconds; each next one doubles it.
        longest_pause: Seconds.

    Returns:
        The query that has ended; see `Query.made_no_progress`.

    Raises:
        QueryFailed: If it has ended with an error that does not pass, or has not passed.
    """
    policy = Restarts(restarts, pause, longest_pause)
    while True:
        try:
            query = make()
        except QueryFailed as failed:  # its sink was asked first
            time.sleep(policy.pause_after(failed, "that is to begin", progressed=False))
            continue
        try:
            query.await_termination()
        except QueryFailed as failed:
            name, progressed = query.name or query.id, query.last_progress is not None
            time.sleep(policy.pause_after(failed, name, progressed=progressed))
        else:
            return query
