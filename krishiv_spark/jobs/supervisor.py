"""A supervisor of a job's queries: restarts, limits, and a stop between two epochs. Driver."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from krishiv_spark.errors import KrishivError, QueryFailed
from krishiv_spark.jobs.models import JobSpec
from krishiv_spark.queries.failures import failure_of
from krishiv_spark.queries.handle import POLL_S, IdleTime, Query
from krishiv_spark.queries.restarting import Restarts
from krishiv_spark.spark.checkpoint import SparkCheckpoint

__all__ = ["QueryMaker", "Supervisor", "describe_pending_restart", "restart_policy_of"]


@dataclass(frozen=True)
class QueryMaker:
    """A function that starts one query.

    Attributes:
        make: The function.
        checkpoint: The checkpoint of the query.
    """

    make: Callable[[], Query]
    checkpoint: SparkCheckpoint

    def __call__(self) -> Query:
        """Start the query."""
        return self.make()


class Supervisor:
    """A supervisor that runs the queries of one job until all end, or one fails permanently.

    Driver.

    Args:
        job: The job, which specifies limits, restarts and the grace time.
        makes: A function for each query that starts it, with its checkpoint if that is known.
        stop: An event that stops all queries when it is set; between two epochs if there is time.
        again: Called with a query that ended without an error; returns True to start it again.
        say: Called with each line of the report.

    Attributes:
        stalled: Names of the queries that were stopped before they completed an epoch, although
            there was work.
    """

    def __init__(
        self,
        job: JobSpec,
        makes: Sequence[Callable[[], Query] | QueryMaker],
        stop: threading.Event,
        again: Callable[[Query], bool],
        say: Callable[[str], object],
    ) -> None:
        self._say = say
        self._job = job
        self._stop = stop
        self._again = again
        self._grace_s = job.grace_time / 1000
        self._runs = [
            _Run(
                make,
                restart_policy_of(job),
                make.checkpoint if isinstance(make, QueryMaker) else None,
            )
            for make in makes
        ]
        self.stalled: list[str] = []

    def run(self) -> None:
        """Run the queries until all have ended, or the job is to end.

        Raises:
            QueryFailed: If a query has failed permanently; the others are stopped first. Also if
                the job's time ended before a failed query could be restarted.
            PySparkException: If a query cannot be started.
        """
        try:
            was_told = self._watch()
        finally:
            self._end()
        for run in self._runs:
            failed = None if run.is_over else run.failure
            if failed is None:
                continue
            if not was_told or not failed.passes:
                raise failed
            self._say(describe_pending_restart(str(failed)))
            if not run.has_progressed:
                self.stalled.append("a query that had failed")

    def _watch(self) -> bool:
        """Watch the queries until the job is to end; return True if `stop` was set."""
        until_s = None if self._job.timeout is None else _from_now(self._job.timeout)
        while any(not run.is_over for run in self._runs):
            if self._stop.is_set():
                return True
            for run in self._runs:
                run.step(self._again)
            is_late = until_s is not None and time.monotonic() >= until_s
            if is_late or self._is_idle():
                return False
            self._stop.wait(POLL_S)
        return False

    def _is_idle(self) -> bool:
        if self._job.stop_after_idle is None:
            return False
        idle = [run.idle_s() for run in self._runs if not run.is_over]
        return bool(idle) and min(idle) >= self._job.stop_after_idle / 1000

    def _end(self) -> None:
        """Stop the active queries."""
        active = [run.query for run in self._runs if run.query is not None and run.query.is_active]
        if active:
            self._stop_all(active)
            self._report(active)

    def _report(self, stopped: Sequence[Query]) -> None:
        """Report the epochs that were given up, and record the queries that have completed none."""
        for run in self._runs:
            query = run.query
            if query not in stopped or query is None or not (query.given_up or query.was_unready):
                continue
            name = query.name or query.id
            if query.given_up:
                epoch = run.name_epoch()
                self._say(
                    f"{name}: {epoch} was aborted after {self._grace_s:g} s ('graceTime'); the "
                    "next start repeats it"
                )
            else:
                self._say(f"{name}: it was stopped before it had polled its sources")
            if query.made_no_progress and not run.has_progressed:
                self.stalled.append(name)

    def _stop_all(self, queries: Sequence[Query]) -> None:
        with ThreadPoolExecutor(len(queries)) as pool:
            try:
                list(pool.map(lambda query: query.stop(self._grace_s), queries))
            except KeyboardInterrupt:  # a second interrupt skips the grace time
                for query in queries:
                    query.cancel()
                raise


@dataclass
class _Run:
    """One query of the job, with its restarts."""

    make: Callable[[], Query]
    restarts: Restarts
    checkpoint: SparkCheckpoint | None
    query: Query | None = None
    idle: IdleTime | None = None
    next_start_s: float = 0
    is_over: bool = False
    failed: QueryFailed | None = None
    """The error of its last end. A new start alone does not clear it."""
    has_progressed: bool = False
    """True if it has completed an epoch, or was idle, before its last restart."""

    def name_epoch(self) -> str:
        """Return the name of the epoch that was given up, with its number if that can be read."""
        with suppress(KrishivError, OSError):
            epochs = () if self.checkpoint is None else self.checkpoint.epochs()
            if epochs:
                return f"epoch {epochs[-1]}"
        return "the epoch under way"

    @property
    def failure(self) -> QueryFailed | None:
        """The error that ended the query, unless it has made progress since."""
        if self.query is None:
            return self.failed
        works = self.query.last_progress is not None
        return self.query.failure or (None if works else self.failed)

    def step(self, again: Callable[[Query], bool]) -> None:
        """Start the query if it is time, or handle its end."""
        if self.is_over or time.monotonic() < self.next_start_s:
            return
        if self.query is None:
            self._start()
        elif not self.query.is_active:
            self._handle_end(self.query, again)

    def idle_s(self) -> float:
        """Return the seconds without work; 0 while the query waits to be restarted."""
        return 0 if self.idle is None else self.idle.look()

    def _start(self) -> None:
        try:
            self.query = self.make()
        except Exception as error:  # noqa: BLE001  `pause_after` raises a permanent one
            pause_s = self.restarts.pause_after(error, "of the job", progressed=False)
            self.next_start_s = time.monotonic() + pause_s
            self.failed = _to_query_failed(error)
        else:
            self.idle = IdleTime(self.query.spark)

    def _handle_end(self, query: Query, again: Callable[[Query], bool]) -> None:
        failed: QueryFailed | None = query.failure
        progressed = query.last_progress is not None
        if failed is not None:
            name = query.name or query.id
            pause_s = self.restarts.pause_after(failed, name, progressed=progressed)
            self.next_start_s = time.monotonic() + pause_s
        elif not again(query):
            self.is_over = True
            return
        self.has_progressed = self.has_progressed or progressed
        self.query, self.idle, self.failed = None, None, failed


def _to_query_failed(error: Exception) -> QueryFailed:
    if isinstance(error, QueryFailed):
        return error
    found = failure_of(error)
    return QueryFailed(found.line, passes=found.passes, name=found.name)


def describe_pending_restart(line: str) -> str:
    """Return the line for a job that was stopped while a failed query waited for its restart."""
    return f"asked to end while it waited for a restart, which the next run does, after: {line}"


def restart_policy_of(job: JobSpec) -> Restarts:
    """Return the restart policy of a job and its queries."""
    given = job.restart
    return Restarts(given.attempts, given.pause / 1000, given.longest_pause / 1000)


def _from_now(milliseconds: int) -> float:
    return time.monotonic() + milliseconds / 1000
