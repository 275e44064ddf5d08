"""The counts of each query, from Spark's events. Driver."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from krishiv_spark.queries.failures import failure_of
from krishiv_spark.queries.handle import QueryState
from krishiv_spark.queries.progress import Progress, SourceProgress, count_dead_letters
from krishiv_spark.runtime.once import warn_once

__all__ = ["QueryRecord", "QueryRecords"]

_log = logging.getLogger(__name__)

_ENDED_KEPT = 100
"""Maximum number of ended queries to keep: each start of a query without a name and a checkpoint is
a new query."""

_OVER = frozenset({QueryState.STOPPED, QueryState.FAILED})

_NO_CONDITION = "other"

ParsedT = TypeVar("ParsedT")


@dataclass
class QueryRecord:
    """The counts of one query since the listener was added.

    Attributes:
        query: The id of the query, which its checkpoint contains.
        name: Spark's ``queryName``; the id if it has none.
        run: The id of its newest run.
        left: Earlier runs whose end Spark has not reported yet.
        state: The state by the events so far.
        seen_s: Time of Spark's last report of a completed epoch or an idle trigger, seconds since
            1970.
        progressed_s: Time of the last report of a completed epoch; None before the first.
        epochs: Number of completed epochs.
        rows: Number of rows read.
        written: Number of rows written, as Spark counts them; None if Spark does not.
        late: Number of late rows that Spark's operators dropped.
        dead_letters: Number of rows that became dead letters, by rule.
        phases: Seconds in each phase of the epochs, by Spark's names.
        source_rows: Number of rows read from each source, by its index.
        failures: Number of failures, by condition.
        told: Spark's newest progress report.
        looked: The sources in Spark's newest idle report since then.
        sources: The sources in `looked`, or in `told`, as values.
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
    dead_letters: dict[str, int] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    source_rows: dict[int, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    told: Mapping[str, Any] | None = None
    looked: Sequence[Mapping[str, Any]] | None = None
    sources: tuple[SourceProgress, ...] = ()

    def count(self, told: Mapping[str, Any]) -> None:
        """Add a completed epoch. Offsets are not parsed here, since they may be long."""
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
        for rule, bad in count_dead_letters(told).items():
            self.dead_letters[rule] = self.dead_letters.get(rule, 0) + bad
        self.told, self.looked = told, None

    def look(self, told: Mapping[str, Any]) -> None:
        """Store the newest positions of the sources; the counts stay unchanged."""
        found, known = told.get("sources") or (), (self.told or {}).get("sources") or ()
        if known and len(known) != len(found):
            return
        newest = ({"latestOffset": one.get("latestOffset")} for one in found)
        self.looked = [{**one, **more} for one, more in zip(known or found, newest, strict=True)]

    def copy(self) -> QueryRecord:
        """Return a copy."""
        return replace(
            self,
            left=set(self.left),
            dead_letters=dict(self.dead_letters),
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

    def record_start(self, query: object, name: str | None, run: object) -> None:
        """Record the start of a query."""
        with self._lock:
            if name:
                self._forget_others(str(query), name)
            self._see(str(query), name, str(run), QueryState.STARTING)

    def record_progress(self, told: Mapping[str, Any]) -> None:
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
            run: The id of the run.
            told: Spark's report of the idle trigger; None if it is unknown.
        """
        with self._lock:
            record = self._see(str(query), None, str(run), QueryState.IDLE)
            if told is not None and told.get("runId") == str(run):
                record.look(told)

    def record_end(
        self, query: object, run: object, error: str | None, error_class: str | None
    ) -> None:
        """Record the end of a query's run.

        Args:
            query: The id of the query.
            run: The id of the run.
            error: The text of the error, as Spark shows it; None if it has not failed.
            error_class: Spark's error class, if it has one.
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
            for old in self._list_ended()[:-_ENDED_KEPT]:
                del self._records[old.query]

    def record_stop(self) -> None:
        """Record that all running queries ended with their session: Spark reports no end."""
        with self._lock:
            for record in self._records.values():
                if record.state not in _OVER:
                    record.state = QueryState.STOPPED

    def list_unended(self) -> set[str]:
        """Return the ids of queries whose end was not reported."""
        with self._lock:
            return self._records.keys() - {record.query for record in self._list_ended()}

    def _forget_others(self, query: str, name: str) -> None:
        """Drop a query whose name a query with a new checkpoint has taken over."""
        for other in self._list_ended():
            if other.name == name and other.query != query:
                del self._records[other.query]

    def _is_replaced(self, ended: QueryRecord) -> bool:
        """Return True if a new query of that name started before this end was reported."""
        over = {ended.query, *(record.query for record in self._list_ended())}
        others = (record for record in self._records.values() if record.query not in over)
        return any(record.name == ended.name for record in others)

    def _see(self, query: str, name: str | None, run: str, state: QueryState) -> QueryRecord:
        # The newest record is the last one.
        record = self._records.pop(query, None) or QueryRecord(query, name or query)
        if name:
            record.name = name
        self._records[query] = record
        # Spark reports a start at once, and other events with a delay. The next run may have
        # started already, and events of this one say nothing about it.
        if run not in record.left:
            if record.run not in {"", run} and record.state not in _OVER:
                record.left.add(record.run)
            record.run, record.state, record.seen_s = run, state, time.time()
        return record

    def _list_ended(self) -> list[QueryRecord]:
        return [record for record in self._records.values() if record.state in _OVER]

    # --- totals

    def all(self) -> list[tuple[QueryRecord, Progress | None]]:
        """Return each query in its current state, with its newest epoch."""
        with self._lock:
            records = [record.copy() for record in self._records.values()]
        # Each epoch is parsed once, for any number of readings, since offsets may be long.
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
    except Exception:  # noqa: BLE001  its form may be unknown
        _log.debug("a progress report of Spark cannot be parsed", exc_info=True)
        warn_once(_log, "progress", "metrics: a progress report of Spark cannot be parsed")
        return None


def _positive(count: Any) -> int:
    """Return a count; Spark reports -1 for an unknown one, and Connect nothing for 0."""
    return 0 if count is None else max(int(count), 0)
