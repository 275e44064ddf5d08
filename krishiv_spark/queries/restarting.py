"""Restarts of queries after transient errors. Driver."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from krishiv_spark.errors import QueryFailed
from krishiv_spark.queries.failures import failure_of
from krishiv_spark.queries.handle import Query, Seconds, in_seconds

__all__ = ["Restarts", "run"]

_log = logging.getLogger(__name__)

_MOST_DOUBLINGS = 64
"""From a nanosecond, that many reach 500 years; a thousand are too many for a float."""


class Restarts:
    """The rule by which a query is restarted after an error.

    Args:
        attempts: Maximum number of restarts without a completed epoch in between.
        pause: Pause before the first restart, in seconds. It doubles for each further restart.
        longest_pause: Maximum pause, in seconds.
    """

    def __init__(self, attempts: int, pause: Seconds, longest_pause: Seconds) -> None:
        self._attempts = attempts
        self._pause_s = in_seconds(pause)
        self._longest_s = in_seconds(longest_pause)
        self._again = 0

    def pause_after(self, error: Exception, name: str, *, progressed: bool) -> float:
        """Return the pause before the next start, in seconds.

        Args:
            error: The error with which it ended, or could not be started.
            name: The name of the query.
            progressed: True if an epoch was completed before the error.

        Raises:
            Exception: The given error, if the query must not be restarted.
        """
        failed = failure_of(error)
        self._again = 0 if progressed else self._again
        if not failed.passes or self._again >= self._attempts:
            raise error
        doublings = min(self._again, _MOST_DOUBLINGS)
        seconds: float = min(self._pause_s * 2**doublings, self._longest_s)
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
    """Run a query until it ends, and restart it after transient errors.

    Transient are a broker, catalog or store that cannot be reached, a Python process of Spark that
    was killed, and a commit whose outcome is unknown: a restarted query first determines the
    outcome. Errors about a checkpoint or rows that do not fit, or about another driver, are never
    transient.

    Args:
        make: Starts the query, on its checkpoint. It is called again if it raises a transient error
            itself, such as that of a catalog that `load` cannot reach.
        restarts: Maximum number of restarts without a completed epoch in between.
        pause: Pause before the first restart, in seconds. It doubles for each further restart.
        longest_pause: Maximum pause, in seconds.

    Returns:
        The query that has ended; see `Query.made_no_progress`.

    Raises:
        QueryFailed: If it has ended with a permanent error, or with a transient one after the
            maximum number of restarts.
        Exception: The error of `make`, likewise.
    """
    policy = Restarts(restarts, pause, longest_pause)
    while True:
        try:
            query = make()
        except Exception as error:  # noqa: BLE001  `pause_after` raises a permanent one
            time.sleep(policy.pause_after(error, "that is to begin", progressed=False))
            continue
        try:
            query.await_termination()
        except QueryFailed as failed:
            name, progressed = query.name or query.id, query.last_progress is not None
            time.sleep(policy.pause_after(failed, name, progressed=progressed))
        else:
            return query
