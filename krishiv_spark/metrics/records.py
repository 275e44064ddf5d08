"""What is known of each query, counted as Spark's events come. Driver."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from krishiv_spark.once import warn_once
from krishiv_spark.queries.failures import failure_of
from krishiv_spark.queries.progress import Progress
from krishiv_spark.queries.status import QueryState

__all__ = ["QueryRecord", "QueryRecords"]

_log = logging.getLogger(__name__)

_ENDED_KEPT = 100
"""Queries that have ended, the newest: without a name and a checkpoint each start is a new one."""

_NO_CONDITION = "other"


@dataclass
class QueryRecord:
    """One query, since somebody has been listening.

    Attributes:
        query: The id of the query, that of its checkpoint.
        name: Spark's ``queryName``; its id without one.
        run: The id of its newest run.
        state: As far as events tell.
        seen_s: When Spark last said that an epoch is over, or that there is nothing to do;
            seconds since 1970.
        progressed_s: When it last said that an epoch is over; None before.
        epochs: That are over.
        rows: That were read.
        written: Rows that were written, as Spark counts them.
        late: Rows that Spark's operators dropped since they were late.
        phases: Seconds in each part of the epochs, by Spark's names for them.
        source_rows: Read of each source, by its place.
        failures: How often it has ended with an error, by condition.
        told: The newest progress, as Spark tells it.
    """

    query: str
    name: str
    run: str = ""
    state: QueryState = QueryState.STARTING
    seen_s: float = 0
    progressed_s: float | None = None
    epochs: int = 0
    rows: int = 0
    written: int = 0
    late: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    source_rows: dict[int, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    told: Mapping[str, Any] | None = None

    def count(self, told: Mapping[str, Any]) -> None:
        """Add an epoch that is over. No offset is looked into here: they may be long."""
        self.epochs += 1
        self.rows += _positive(told.get("numInputRows"))
        self.written += _positive((told.get("sink") or {}).get("numOutputRows"))
        for name, ms in (told.get("durationMs") or {}).items():
            self.phases[name] = self.phases.get(name, 0) + ms / 1000
        for place, source in enumerate(told.get("sources") or ()):
            read = _positive(source.get("numInputRows"))
            self.source_rows[place] = self.source_rows.get(place, 0) + read
        for operator in told.get("stateOperators") or ():
            self.late += _positive(operator.get("numRowsDroppedByWatermark"))
        self.told = told

    def copied(self) -> QueryRecord:
        """As it is now."""
        return replace(
            self,
            phases=dict(self.phases),
            source_rows=dict(self.source_rows),
            failures=dict(self.failures),
        )


class QueryRecords:
    """The records of all queries of a session. Its methods may be called in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[str, QueryRecord] = {}
        self._parsed: dict[str, tuple[Mapping[str, Any], Progress | None]] = {}

    # --- events

    def found(self, query: object, name: str | None, run: object) -> None:
        """A query runs already."""
        with self._lock:
            if str(query) not in self._records:
                self._see(str(query), name, str(run), QueryState.STARTING)

    def started(self, query: object, name: str | None, run: object) -> None:
        """A query starts."""
        with self._lock:
            if name:
                self._forget_others(str(query), name)
            self._see(str(query), name, str(run), QueryState.STARTING)

    def progressed(self, told: Mapping[str, Any]) -> None:
        """An epoch is over."""
        with self._lock:
            query, run = str(told["id"]), str(told["runId"])
            record = self._see(query, told.get("name"), run, QueryState.RUNNING)
            record.progressed_s = record.seen_s
            record.count(told)

    def idle(self, query: object, run: object) -> None:
        """A query looked, and there was nothing to do."""
        with self._lock:
            self._see(str(query), None, str(run), QueryState.IDLE)

    def ended(self, query: object, run: object, error: str | None, error_class: str | None) -> None:
        """A run of a query has ended.

        Args:
            query: The id of the query.
            run: That of the run.
            error: What it has failed with, as Spark shows it; None if it has not.
            error_class: Spark's, if it has one for that.
        """
        with self._lock:
            record = self._records.get(str(query))
            # Spark tells of a start at once, of an end when it comes to it: the next run may be
            # there already.
            if record is None or record.run == str(run):
                state = QueryState.STOPPED if error is None else QueryState.FAILED
                record = self._see(str(query), None, str(run), state)
            if error is not None:
                condition = failure_of(RuntimeError(error)).name or error_class or _NO_CONDITION
                record.failures[condition] = record.failures.get(condition, 0) + 1
            for old in self._ended()[:-_ENDED_KEPT]:
                del self._records[old.query]

    def _forget_others(self, query: str, name: str) -> None:
        """A new checkpoint under the same name: nobody asks for the old one any more."""
        for other in self._ended():
            if other.name == name and other.query != query:
                del self._records[other.query]

    def _see(self, query: str, name: str | None, run: str, state: QueryState) -> QueryRecord:
        # The newest comes last.
        record = self._records.pop(query, None) or QueryRecord(query, name or query)
        if name:
            record.name = name
        record.run, record.state, record.seen_s = run, state, time.time()
        self._records[query] = record
        return record

    def _ended(self) -> list[QueryRecord]:
        over = {QueryState.STOPPED, QueryState.FAILED}
        return [record for record in self._records.values() if record.state in over]

    # --- what they add up to

    def all(self) -> list[tuple[QueryRecord, Progress | None]]:
        """Each query as it is now, with its newest epoch."""
        with self._lock:
            records = [record.copied() for record in self._records.values()]
        # Once for an epoch, however often somebody looks: offsets may be long.
        before, self._parsed = self._parsed, {}
        for record in records:
            if record.told is not None:
                known = before.get(record.query)
                is_known = known is not None and known[0] is record.told
                new = known if known and is_known else (record.told, _parse(record.told))
                self._parsed[record.query] = new
        nothing = (None, None)
        return [(record, self._parsed.get(record.query, nothing)[1]) for record in records]


def _parse(told: Mapping[str, Any]) -> Progress | None:
    """None for a progress that is not understood: what was counted is worth having."""
    try:
        return Progress.of(told)
    except Exception:  # noqa: BLE001  of whatever form it is
        _log.debug("a progress of Spark's is not understood", exc_info=True)
        warn_once(_log, "progress", "metrics: a progress of Spark's is not understood")
        return None


def _positive(count: Any) -> int:
    """Spark says -1 for what is not known, and Connect nothing for 0."""
    return 0 if count is None else max(int(count), 0)
