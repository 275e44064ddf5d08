"""The record of each query, counted from Spark's events. Driver."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from krishiv_spark.queries.failures import failure_of
from krishiv_spark.queries.handle import QueryState
from krishiv_spark.queries.progress import Progress, SourceProgress
from krishiv_spark.runtime.once import warn_once

__all__ = ["QueryRecord", "QueryRecords"]

_log = logging.getLogger(__name__)

_ENDED_KEPT = 100
"""Queries that have ended, the newest: without a name and a checkpoint each start is a new one."""

_OVER = frozenset({QueryState.STOPPED, QueryState.FAILED})

_NO_CONDITION = "other"

ParsedT = TypeVar("ParsedT")


@dataclass
class QueryRecord:
    """One query, since somebody has been listening.

    Attributes:
        query: The id of the query, that of its checkpoint.
        name: Spark's ``queryName``; its id without one.
        run: The id of its newest run.
        left: Runs before it whose end Spark has not told of yet.
        state: As far as events tell.
        seen_s: When Spark last said that an epoch is over, or that there is nothing to do;
            seconds since 1970.
        progressed_s: When it last said that an epoch is over; None before.
        epochs: That are over.
        rows: That were read.
        written: Rows that were written, as Spark counts them; None if it says that it does not.
        late: Rows that Spark's operators dropped since they were late.
        phases: Seconds in each part of the epochs, by Spark's names for them.
        source_rows: Read of each source, by its place.
        failures: How often it has ended with an error, by condition.
        told: The newest progress, as Spark tells it.
        looked: Its sources, as Spark has told since, when there was nothing to do.
        sources: The same, or those of the newest progress, as values.
    """

    query: str
    name: str
    run: str = ""
    left: set[str] = field(default_factory=set)
    state: QueryState = QueryState.STARTING
    seen_s: float = 0
    progressed_s: float | None = None
    epochs: int = 0
    rows: int = 0
    written: int | None = 0
    late: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    source_rows: dict[int, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    told: Mapping[str, Any] | None = None
    looked: Sequence[Mapping[str, Any]] | None = None
    sources: tuple[SourceProgress, ...] = ()

    def count(self, told: Mapping[str, Any]) -> None:
        """Add an epoch that is over. No offset is looked into here: they may be long."""
        self.epochs += 1
        self.rows += _positive(told.get("numInputRows"))
        written = (told.get("sink") or {}).get("numOutputRows")
        if written is not None and int(written) < 0:
            self.written = None
        elif self.written is not None:
            self.written += _positive(written)
        for name, ms in (told.get("durationMs") or {}).items():
            self.phases[name] = self.phases.get(name, 0) + ms / 1000
        for place, source in enumerate(told.get("sources") or ()):
            read = _positive(source.get("numInputRows"))
            self.source_rows[place] = self.source_rows.get(place, 0) + read
        for operator in told.get("stateOperators") or ():
            self.late += _positive(operator.get("numRowsDroppedByWatermark"))
        self.told, self.looked = told, None

    def look(self, told: Mapping[str, Any]) -> None:
        """Note what is newest in the sources; what the newest epoch did stays as it was."""
        found, known = told.get("sources") or (), (self.told or {}).get("sources") or ()
        if known and len(known) != len(found):
            return
        newest = ({"latestOffset": one.get("latestOffset")} for one in found)
        self.looked = [{**one, **more} for one, more in zip(known or found, newest, strict=True)]

    def copied(self) -> QueryRecord:
        """As it is now."""
        return replace(
            self,
            left=set(self.left),
            phases=dict(self.phases),
            source_rows=dict(self.source_rows),
            failures=dict(self.failures),
        )


class QueryRecords:
    """The records of all queries of a session. Its methods may be called in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[str, QueryRecord] = {}
        self._parsed: dict[str, _ParsedTold] = {}

    # --- events

    def found(self, query: object, name: str | None, run: object) -> None:
        """Record a query that was running before this listener."""
        with self._lock:
            if str(query) not in self._records:
                self._see(str(query), name, str(run), QueryState.STARTING)

    def started(self, query: object, name: str | None, run: object) -> None:
        """Record the start of a query."""
        with self._lock:
            if name:
                self._forget_others(str(query), name)
            self._see(str(query), name, str(run), QueryState.STARTING)

    def progressed(self, told: Mapping[str, Any]) -> None:
        """Record a completed epoch."""
        with self._lock:
            query, run = str(told["id"]), str(told["runId"])
            record = self._see(query, told.get("name"), run, QueryState.RUNNING)
            record.progressed_s = time.time()
            record.count(told)

    def idle(self, query: object, run: object, told: Mapping[str, Any] | None = None) -> None:
        """Record that a query polled its sources and found nothing to do.

        Args:
            query: The id of the query.
            run: That of the run.
            told: Its progress of that look, as Spark tells it; None if that is not known.
        """
        with self._lock:
            record = self._see(str(query), None, str(run), QueryState.IDLE)
            if told is not None and told.get("runId") == str(run):
                record.look(told)

    def ended(self, query: object, run: object, error: str | None, error_class: str | None) -> None:
        """Record the end of a query's run.

        Args:
            query: The id of the query.
            run: That of the run.
            error: What it has failed with, as Spark shows it; None if it has not.
            error_class: Spark's, if it has one for that.
        """
        with self._lock:
            record = self._records.get(str(query))
            if record is None or record.run == str(run):
                state = QueryState.STOPPED if error is None else QueryState.FAILED
                record = self._see(str(query), None, str(run), state)
                if self._is_replaced(record):
                    del self._records[record.query]
            record.left.discard(str(run))
            if error is not None:
                condition = failure_of(RuntimeError(error)).name or error_class or _NO_CONDITION
                record.failures[condition] = record.failures.get(condition, 0) + 1
            for old in self._ended()[:-_ENDED_KEPT]:
                del self._records[old.query]

    def stopped(self) -> None:
        """Record that all running queries ended with their session: Spark reports no end."""
        with self._lock:
            for record in self._records.values():
                if record.state not in _OVER:
                    record.state = QueryState.STOPPED

    def unended(self) -> set[str]:
        """Return the ids of queries whose end was not reported."""
        with self._lock:
            return self._records.keys() - {record.query for record in self._ended()}

    def _forget_others(self, query: str, name: str) -> None:
        """Drop a query whose name a query with a new checkpoint has taken over."""
        for other in self._ended():
            if other.name == name and other.query != query:
                del self._records[other.query]

    def _is_replaced(self, ended: QueryRecord) -> bool:
        """Return True if a new query of that name started before this end was reported."""
        over = {ended.query, *(record.query for record in self._ended())}
        others = (record for record in self._records.values() if record.query not in over)
        return any(record.name == ended.name for record in others)

    def _see(self, query: str, name: str | None, run: str, state: QueryState) -> QueryRecord:
        # The newest comes last.
        record = self._records.pop(query, None) or QueryRecord(query, name or query)
        if name:
            record.name = name
        self._records[query] = record
        # Spark tells of a start at once, of all else when it comes to it: the next run may be there
        # already, and what this one did says nothing of it.
        if run not in record.left:
            if record.run not in {"", run} and record.state not in _OVER:
                record.left.add(record.run)
            record.run, record.state, record.seen_s = run, state, time.time()
        return record

    def _ended(self) -> list[QueryRecord]:
        return [record for record in self._records.values() if record.state in _OVER]

    # --- what they add up to

    def all(self) -> list[tuple[QueryRecord, Progress | None]]:
        """Return each query in its current state, with its newest epoch."""
        with self._lock:
            records = [record.copied() for record in self._records.values()]
        # Once for an epoch, however often somebody looks: offsets may be long.
        before, self._parsed = self._parsed, {}
        found = []
        for record in records:
            parsed = before.get(record.query)
            if parsed is None or not parsed.is_of(record):
                parsed = _ParsedTold.of(record)
            self._parsed[record.query] = parsed
            found.append((replace(record, sources=parsed.sources), parsed.progress))
        return found


@dataclass(frozen=True)
class _ParsedTold:
    """The reported properties of a query, as values."""

    told: Mapping[str, Any] | None
    looked: Sequence[Mapping[str, Any]] | None
    progress: Progress | None
    sources: tuple[SourceProgress, ...]

    @classmethod
    def of(cls, record: QueryRecord) -> _ParsedTold:
        told, looked = record.told, record.looked
        progress = None if told is None else _understood(lambda: Progress.of(told))
        sources = () if progress is None else progress.sources
        if looked is not None:
            sources = _understood(lambda: tuple(map(SourceProgress.of, looked))) or sources
        return cls(told, looked, progress, sources)

    def is_of(self, record: QueryRecord) -> bool:
        return self.told is record.told and self.looked is record.looked


def _understood(parse: Callable[[], ParsedT]) -> ParsedT | None:
    """Return None for a progress that cannot be parsed, so that earlier counts stay available."""
    try:
        return parse()
    except Exception:  # noqa: BLE001  of whatever form it is
        _log.debug("a progress of Spark's is not understood", exc_info=True)
        warn_once(_log, "progress", "metrics: a progress of Spark's is not understood")
        return None


def _positive(count: Any) -> int:
    """Return a count; Spark reports -1 for an unknown one, and Connect nothing for 0."""
    return 0 if count is None else max(int(count), 0)
