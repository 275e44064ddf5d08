"""A handle over one query of Spark: its state, its progress, its end. Driver."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from typing_extensions import Self

from krishiv_spark.errors import QueryFailed
from krishiv_spark.queries.failures import check as check_writer
from krishiv_spark.queries.failures import failure_of
from krishiv_spark.queries.progress import Progress, is_idle

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = [
    "POLL_S",
    "IdleTime",
    "Query",
    "QueryState",
    "QueryStatus",
    "Seconds",
    "in_seconds",
    "start",
    "status_of",
]


class QueryState(Enum):
    """The stage of a query's life."""

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
    """The current activity of a query.

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
        """Return the seconds since the query last worked; 0 while it does."""
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


Seconds: TypeAlias = float | timedelta

_log = logging.getLogger(__name__)


def in_seconds(given: Seconds) -> float:
    """Return a duration in seconds."""
    return given.total_seconds() if isinstance(given, timedelta) else float(given)


def start(
    writer: DataStreamWriter,
    *,
    timeout: Seconds | None = None,
    idle: Seconds | None = None,
    grace: Seconds = 60,
    check: bool = True,
) -> Query:
    """Start a query, if its sink takes it.

    Args:
        writer: From ``frame.writeStream``, with its format or function, options and trigger.
        timeout: How long it may run, seconds; then it is stopped as by `Query.stop`.
        idle: How long it may be without a row, seconds; then likewise.
        grace: How long an epoch under way may take then, seconds.
        check: Whether the sink is asked first, by `krishiv_spark.queries.check`.

    Raises:
        QueryFailed: If the sink would refuse it.
        PySparkException: As Spark's own ``start``.
    """
    if check:
        check_writer(writer)
    query = Query(writer.start())
    if timeout is not None or idle is not None:
        query.stop_when(timeout=timeout, idle=idle, grace=grace)
    return query


class Query(AbstractContextManager["Query"]):
    """A streaming query that runs, or has run. As a context, it is stopped at the end.

    Args:
        spark: Spark's own handle, which stays usable.

    Attributes:
        given_up: Whether `stop` did not wait for the end of an epoch: it is not visible, and the
            next start does it again. With `timeout` and `idle` as well.
        was_unready: Whether `stop` has come before the query had once looked for rows.
    """

    def __init__(self, spark: StreamingQuery) -> None:
        self.spark = spark
        self.given_up = False
        self.was_unready = False

    def __repr__(self) -> str:
        return f"Query({self.name or self.id}, {self.status.state.value})"

    @property
    def id(self) -> str:
        """The id of the query, which is that of its checkpoint."""
        return str(self.spark.id)

    @property
    def run_id(self) -> str:
        """The id of this run."""
        return str(self.spark.runId)

    @property
    def name(self) -> str | None:
        """Spark's ``queryName``; None without one."""
        return self.spark.name

    @property
    def is_active(self) -> bool:
        """True if the query has not ended."""
        return bool(self.spark.isActive)

    @property
    def status(self) -> QueryStatus:
        """The current activity of the query."""
        failed = self.failure
        return status_of(self.spark, None if failed is None else str(failed))

    @property
    def failure(self) -> QueryFailed | None:
        """The error that ended the query; None if there is none."""
        error = None if self.is_active else self.spark.exception()
        if error is None:
            return None
        found = failure_of(error)
        made = QueryFailed(found.line, passes=found.passes, name=found.name)
        made.__cause__ = error
        return made

    @property
    def last_progress(self) -> Progress | None:
        """The newest epoch, or the newest time it was idle (`Progress.is_idle`); None at first."""
        told: Any = self.spark.lastProgress
        return None if told is None else Progress.of(told)

    @property
    def progress(self) -> list[Progress]:
        """The newest epochs, oldest first, among the hundred times, busy or idle, of Spark's."""
        told: Any = self.spark.recentProgress
        return [Progress.of(one) for one in told if not is_idle(one)]

    def await_termination(self, timeout: Seconds | None = None) -> bool:
        """Wait until it has ended.

        Args:
            timeout: How long at most, seconds; None for ever.

        Returns:
            Whether it has.

        Raises:
            QueryFailed: If it has ended with an error.
        """
        until_s = None if timeout is None else time.monotonic() + in_seconds(timeout)
        while self.is_active:
            # In steps: within Spark's own waiting Python takes no signal.
            left_s = 1.0 if until_s is None else min(1.0, until_s - time.monotonic())
            if left_s <= 0:
                return False
            self._wait(left_s)
        if (failed := self.failure) is not None:
            raise failed
        return True

    def process_all_available(self) -> None:
        """Wait until all rows that are there now are written. For tests: it may take for ever.

        Raises:
            QueryFailed: If it ends with an error meanwhile.
        """
        try:
            self.spark.processAllAvailable()
        except Exception:
            if (failed := self.failure) is not None:
                raise failed from failed.__cause__
            raise

    def stop(self, grace: Seconds = 60) -> bool:
        """Stop it between two epochs, if that is possible in time.

        An epoch that is stopped in the middle is given up: it is not visible, and the next start
        does it again. A query whose epochs always take longer than `grace` never goes on.

        Args:
            grace: How long the epoch under way may take, seconds.

        Returns:
            Whether it was stopped between two epochs.
        """
        until_s, begun = time.monotonic() + in_seconds(grace), self._newest()
        in_time = True
        while self.is_active and self._is_busy() and self._newest() == begun:
            in_time = time.monotonic() < until_s
            if not in_time:
                break
            time.sleep(POLL_S)
        status: Any = self.spark.status
        is_active, is_in_epoch = self.is_active, not in_time and status["isDataAvailable"]
        starts = status["message"].startswith("Initializing") or not in_time
        self.spark.stop()
        # The epoch may have ended meanwhile.
        self.given_up = bool(is_in_epoch and self._newest() == begun)
        self.was_unready = bool(is_active and starts and self.spark.lastProgress is None)
        return in_time

    @property
    def made_no_progress(self) -> bool:
        """True if it was stopped although there was work, and had reported no progress.

        It makes none at its next start either, unless it is given more time. A query that had found
        no rows before was up to date, so it has made progress.
        """
        return (self.given_up or self.was_unready) and self.spark.lastProgress is None

    def cancel(self) -> None:
        """Stop it now, in the middle of an epoch if there is one; see `stop`."""
        self.spark.stop()

    def stop_when(
        self, *, timeout: Seconds | None = None, idle: Seconds | None = None, grace: Seconds = 60
    ) -> None:
        """Stop the query in a thread that ends with it.

        Args:
            timeout: When it has run so long from now on, seconds.
            idle: When no row has come for so long, seconds.
            grace: As for `stop`.
        """
        watch = _Watch(self, timeout, idle, grace)
        threading.Thread(
            target=watch.run, name=f"stops {self.name or self.id}", daemon=True
        ).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Whoever has an error wants the end, and not to wait for an epoch.
        self.cancel() if kind is not None else self.stop()

    def _wait(self, seconds: float) -> None:
        try:
            self.spark.awaitTermination(max(1, round(seconds)))
        except Exception:
            if self.is_active:
                raise

    def _is_busy(self) -> bool:
        status: Any = self.spark.status
        return bool(status["isTriggerActive"])

    def _newest(self) -> int:
        told: Any = self.spark.lastProgress
        if told is None:
            return -1
        return int(told["batchId"]) - is_idle(told)


class _Watch:
    """Stops a query when its time is up."""

    def __init__(
        self, query: Query, timeout: Seconds | None, idle: Seconds | None, grace: Seconds
    ) -> None:
        self._query = query
        self._until_s = None if timeout is None else time.monotonic() + in_seconds(timeout)
        self._idle_s = None if idle is None else in_seconds(idle)
        self._idle = IdleTime(query.spark)
        self._grace = grace

    def run(self) -> None:
        """Look until it has ended, or should."""
        while self._query.is_active:
            if self._is_over():
                self._query.stop(self._grace)
                self._warn()
                return
            time.sleep(POLL_S)

    def _warn(self) -> None:
        if self._query.given_up or self._query.was_unready:
            _log.warning(
                "query %s: an epoch was given up after %g s; the next start does it again",
                self._query.name or self._query.id,
                in_seconds(self._grace),
            )

    def _is_over(self) -> bool:
        if self._until_s is not None and time.monotonic() >= self._until_s:
            return True
        return self._idle_s is not None and self._idle.look() >= self._idle_s
