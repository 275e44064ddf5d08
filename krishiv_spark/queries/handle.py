"""A handle of one query of Spark: its state, its progress, its end. Driver."""

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
    """It has completed no epoch yet, and none is running."""
    RUNNING = "running"
    """An epoch is running, or due."""
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
        state: The stage of its life.
        message: Spark's message; for a failed query, the reason.
    """

    state: QueryState
    message: str


def status_of(query: StreamingQuery, why: str | None) -> QueryStatus:
    """Return the status of a query.

    Args:
        query: Spark's handle.
        why: The reason why the query has failed; None if it has not.
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
"""Interval of polling a query: Spark's handles send no notification."""


class IdleTime:
    """A timer of a query's idle time, which polls the query.

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
        # By Spark's flags, a starting query is neither active nor idle. While it polls its sources,
        # its trigger is active, which takes most of the time on a busy machine.
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
    """Start a query, if its sink accepts it.

    Args:
        writer: A writer from ``frame.writeStream``, with its format or function, options and
            trigger.
        timeout: Maximum run time in seconds, after which it is stopped as by `Query.stop`.
        idle: Maximum time without a row in seconds, after which it is stopped in the same way.
        grace: Maximum time that the current epoch may then take, in seconds.
        check: True to check the query with its sink first, by `krishiv_spark.queries.check`.

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
    """A streaming query that is active or has ended.

    As a context manager, it is stopped at the end.

    Args:
        spark: Spark's own handle, which remains usable.

    Attributes:
        given_up: True if `stop` did not wait for the end of an epoch, which is then not visible;
            the next start repeats it. Also with `timeout` and `idle`.
        was_unready: True if `stop` was called before the query had polled its sources once.
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
        """Spark's ``queryName``; None if there is none."""
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
        """The newest epoch or idle report (`Progress.is_idle`); None before the first."""
        told: Any = self.spark.lastProgress
        return None if told is None else Progress.of(told)

    @property
    def progress(self) -> list[Progress]:
        """The newest epochs, oldest first, among the hundred reports that Spark keeps."""
        told: Any = self.spark.recentProgress
        return [Progress.of(one) for one in told if not is_idle(one)]

    def await_termination(self, timeout: Seconds | None = None) -> bool:
        """Wait until the query has ended.

        Args:
            timeout: Maximum wait in seconds; None for no limit.

        Returns:
            True if the query has ended.

        Raises:
            QueryFailed: If it has ended with an error.
        """
        until_s = None if timeout is None else time.monotonic() + in_seconds(timeout)
        while self.is_active:
            # Waits are short, since Python handles no signal within Spark's own wait.
            left_s = 1.0 if until_s is None else min(1.0, until_s - time.monotonic())
            if left_s <= 0:
                return False
            self._wait(left_s)
        if (failed := self.failure) is not None:
            raise failed
        return True

    def process_all_available(self) -> None:
        """Wait until all available rows are written.

        For tests: with a busy source it may never return.

        Raises:
            QueryFailed: If the query fails before that.
        """
        try:
            self.spark.processAllAvailable()
        except Exception:
            if (failed := self.failure) is not None:
                raise failed from failed.__cause__
            raise

    def stop(self, grace: Seconds = 60) -> bool:
        """Stop the query between two epochs, if that is possible in time.

        An epoch that is stopped in the middle is given up: it is not visible, and the next start
        repeats it. A query whose epochs always take longer than `grace` makes no progress.

        Args:
            grace: Maximum time that the current epoch may take, in seconds.

        Returns:
            True if it was stopped between two epochs.
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
        # The epoch may have ended since.
        self.given_up = bool(is_in_epoch and self._newest() == begun)
        self.was_unready = bool(is_active and starts and self.spark.lastProgress is None)
        return in_time

    @property
    def made_no_progress(self) -> bool:
        """True if the query was stopped although there was work, and had reported no progress.

        It makes none at its next start either, unless it gets more time. A query that had found no
        new rows was up to date, so it has made progress.
        """
        return (self.given_up or self.was_unready) and self.spark.lastProgress is None

    def cancel(self) -> None:
        """Stop the query now, even in the middle of an epoch; see `stop`."""
        self.spark.stop()

    def stop_when(
        self, *, timeout: Seconds | None = None, idle: Seconds | None = None, grace: Seconds = 60
    ) -> None:
        """Stop the query later, in a thread that ends with it.

        Args:
            timeout: Maximum run time from now on, in seconds.
            idle: Maximum time without a row, in seconds.
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
        # After an error, the caller wants the end, and not to wait for an epoch.
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
    """A watcher that stops a query when its time is over."""

    def __init__(
        self, query: Query, timeout: Seconds | None, idle: Seconds | None, grace: Seconds
    ) -> None:
        self._query = query
        self._until_s = None if timeout is None else time.monotonic() + in_seconds(timeout)
        self._idle_s = None if idle is None else in_seconds(idle)
        self._idle = IdleTime(query.spark)
        self._grace = grace

    def run(self) -> None:
        """Poll the query until it has ended, or must be stopped."""
        while self._query.is_active:
            if self._is_over():
                self._query.stop(self._grace)
                self._warn()
                return
            time.sleep(POLL_S)

    def _warn(self) -> None:
        if self._query.given_up or self._query.was_unready:
            _log.warning(
                "query %s: an epoch was aborted after %g s; the next start repeats it",
                self._query.name or self._query.id,
                in_seconds(self._grace),
            )

    def _is_over(self) -> bool:
        if self._until_s is not None and time.monotonic() >= self._until_s:
            return True
        return self._idle_s is not None and self._idle.look() >= self._idle_s
