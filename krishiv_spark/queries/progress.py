"""Progress of queries as values, and listeners for it. Driver."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener
from typing_extensions import Self

from krishiv_spark.errors import QueryFailed
from krishiv_spark.messages.exception_chains import scrub
from krishiv_spark.queries.failures import failure_of
from krishiv_spark.runtime.epoch_times import to_datetime
from krishiv_spark.sinks.fanout.letter_rules import OBSERVED_LETTERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Listening",
    "Progress",
    "SourceProgress",
    "count_dead_letters",
    "listen",
]


_WAITING = "_waiting"
"""Suffix of keys by which this package's sources report their lag in the newest position."""


@dataclass(frozen=True)
class SourceProgress:
    """The progress of one source.

    Attributes:
        description: Spark's description of the source.
        kind: The kind of the source: "kafka", "parquet" and so on for this package's, the name of
            Spark's class for others.
        start: Offset at the start of the epoch, as parsed JSON; None at the beginning of the
            source.
        end: Offset at the end of the epoch.
        latest: The newest position that the source reports; None before Spark 4.2, or if it reports
            none.
        rows: Number of rows read.
        rows_per_s: Rows per second of the time since the previous epoch; None if it is unknown.
        waiting: The lag after `end` by unit, as in `latest`: "rows", "offsets", "files", "bytes",
            "snapshots". Empty if it is not reported.
        watermark: The watermark in `end`, for this package's sources with event time.
    """

    description: str
    kind: str
    start: Any
    end: Any
    latest: Any
    rows: int
    rows_per_s: float | None
    waiting: Mapping[str, int]
    watermark: datetime | None

    @property
    def lag(self) -> int | None:
        """The number of rows, or offsets, after `end`, if it is reported; None otherwise."""
        return self.waiting.get("rows", self.waiting.get("offsets"))

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """Return the values of Spark's own report of a source."""
        end, latest = _parse_json(told.get("endOffset")), _parse_json(told.get("latestOffset"))
        description = str(told.get("description", ""))
        return cls(
            description=description,
            kind=_kind(description, end),
            start=_parse_json(told.get("startOffset")),
            end=end,
            latest=latest,
            rows=_count(told.get("numInputRows")) or 0,
            rows_per_s=_rate(told.get("inputRowsPerSecond")),
            waiting=_waiting(end, latest),
            watermark=_source_watermark(end),
        )


@dataclass(frozen=True)
class Progress:
    """The work of a query in one epoch, or a trigger without new rows.

    Attributes:
        query: Permanent id of the query.
        run: Id of this run of the query.
        name: Name of the query; None if it has none.
        epoch: Number of the epoch (Spark's batch id); of the next one, if the query is idle.
        is_idle: True if Spark found no new rows. Spark reports that every ten seconds
            (``spark.sql.streaming.noDataProgressEventInterval``).
        began: Time when its trigger fired.
        duration: Duration until Spark has logged the epoch as completed.
        phases: Duration of each phase, by Spark's names.
        rows: Number of rows read.
        rows_per_s: Rows processed per second; None if it is unknown.
        watermark: Event time before which no more rows are expected; None if there is none.
        sources: The progress of each source, in Spark's order.
        written: Number of rows written, as Spark counts them; None if it does not.
        state_rows: Number of rows in the state of all of Spark's operators.
        state_bytes: Memory for this state, as Spark reports it.
        dead_letters: Number of rows that became dead letters, by rule, as `with_rules` counts them;
            "(bad record)" for those without a rule.
    """

    query: str
    run: str
    name: str | None
    epoch: int
    is_idle: bool
    began: datetime
    duration: timedelta
    phases: Mapping[str, timedelta]
    rows: int
    rows_per_s: float | None
    watermark: datetime | None
    sources: tuple[SourceProgress, ...]
    written: int | None
    state_rows: int
    state_bytes: int
    dead_letters: Mapping[str, int] = field(default_factory=dict)

    @property
    def event_time_lag(self) -> timedelta | None:
        """The delay of the watermark after the clock; None without one."""
        return None if self.watermark is None else self.began - self.watermark

    @property
    def lag(self) -> int | None:
        """The total lag in rows or offsets of all sources that report it; None if none does."""
        known = [source.lag for source in self.sources if source.lag is not None]
        return sum(known) if known else None

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """Return the values of Spark's ``StreamingQueryProgress``, or of its JSON as a mapping."""
        durations: Mapping[str, Any] = told.get("durationMs") or {}
        written = _count((told.get("sink") or {}).get("numOutputRows"))
        watermark = (told.get("eventTime") or {}).get("watermark")
        return cls(
            query=str(told["id"]),
            run=str(told["runId"]),
            name=told.get("name"),
            epoch=int(told["batchId"]),
            is_idle=is_idle(told),
            began=_time(told["timestamp"]),
            duration=timedelta(milliseconds=int(durations.get("triggerExecution", 0))),
            phases={name: timedelta(milliseconds=int(ms)) for name, ms in durations.items()},
            rows=_count(told.get("numInputRows")) or 0,
            rows_per_s=_rate(told.get("processedRowsPerSecond")),
            # Spark shows 1970 while there is no watermark.
            watermark=_time(watermark) if watermark and not watermark.startswith("1970") else None,
            sources=tuple(SourceProgress.of(one) for one in told.get("sources") or ()),
            written=written,
            state_rows=_total(told, "numRowsTotal"),
            state_bytes=_total(told, "memoryUsedBytes"),
            dead_letters=count_dead_letters(told),
        )


def count_dead_letters(told: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of dead letters in Spark's report of an epoch, by rule."""
    found: dict[str, int] = {}
    for name, values in (told.get("observedMetrics") or {}).items():
        if name.startswith(OBSERVED_LETTERS):
            # A Row, or its JSON as a mapping.
            counts = values.asDict() if hasattr(values, "asDict") else values
            for rule, count in counts.items():
                found[rule] = found.get(rule, 0) + (_count(count) or 0)
    return {rule: count for rule, count in found.items() if count}


def is_idle(told: Mapping[str, Any]) -> bool:
    """Return True if a report of Spark states that there was nothing to do.

    It then contains the number of the next epoch (Spark's ``ProgressContext``).
    """
    return "addBatch" not in (told.get("durationMs") or {})


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _count(given: Any) -> int | None:
    """Return a count; Spark reports -1 for an unknown one, and Connect nothing for 0."""
    return None if given is None or int(given) < 0 else int(given)


def _rate(given: Any) -> float | None:
    # An epoch that took no time has a rate of NaN or infinity.
    return None if given is None or not abs(float(given)) < float("inf") else float(given)


def _parse_json(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except ValueError:
        return given


def _kind(description: str, end: Any) -> str:
    own = end.get("kind") if isinstance(end, Mapping) else None
    if isinstance(own, str):
        return own
    # The description is "KafkaV2[Subscribe[orders]]", for example, or a class with its package and
    # an address.
    return re.split(r"[^\w.]", description, maxsplit=1)[0].rpartition(".")[2]


def _source_watermark(end: Any) -> datetime | None:
    mark = end.get("watermark") if isinstance(end, Mapping) else None
    ms = mark.get("ms") if isinstance(mark, Mapping) else None
    return to_datetime(ms) if isinstance(ms, int) else None


def _total(told: Mapping[str, Any], key: str) -> int:
    """Return the sum over all operators with a state."""
    return sum(_count(one.get(key)) or 0 for one in told.get("stateOperators") or ())


def _waiting(end: Any, latest: Any) -> Mapping[str, int]:
    if isinstance(latest, Mapping) and any(str(key).endswith(_WAITING) for key in latest):
        ours = ((str(key), count) for key, count in latest.items())
        return {key.removesuffix(_WAITING): n for key, n in ours if key.endswith(_WAITING)}
    distance = _distance(end, latest)
    return {} if distance is None else {"offsets": distance}


def _distance(end: Any, latest: Any) -> int | None:
    """Return the difference between the numbers of two offsets of the same form."""
    if isinstance(end, bool) or isinstance(latest, bool):
        return None
    if isinstance(end, int) and isinstance(latest, int):
        return max(latest - end, 0)
    if not (isinstance(end, Mapping) and isinstance(latest, Mapping)):
        return None
    parts = [_distance(end.get(key, 0), more) for key, more in latest.items()]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


_log = logging.getLogger(__name__)


def listen(
    spark: SparkSession,
    *,
    started: Callable[[str, str | None], object] | None = None,
    progress: Callable[[Progress], object] | None = None,
    ended: Callable[[str, QueryFailed | None], object] | None = None,
) -> Listening:
    """Call functions for all queries of a session, in a thread of Spark's.

    Their errors are logged, and no query fails because of them.

    Args:
        spark: The session.
        started: Called with the id and the name of a query when it starts.
        progress: Called with each epoch when it is completed.
        ended: Called with the id of a query, and its error if it has failed.

    Returns:
        A handle. The functions are called until it is removed, or its ``with`` block ends.
    """
    return Listening(spark, _Listener(started, progress, ended))


class Listening(AbstractContextManager["Listening"]):
    """A registration of functions that are called until `remove`.

    Args:
        spark: The session.
        listener: Spark's listener.
    """

    def __init__(self, spark: SparkSession, listener: StreamingQueryListener) -> None:
        self._spark = spark
        self._listener = listener
        spark.streams.addListener(listener)

    def remove(self) -> None:
        """Stop the calls. It may be called repeatedly."""
        self._spark.streams.removeListener(self._listener)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


class _Listener(StreamingQueryListener):
    """A listener that converts Spark's events to values."""

    def __init__(
        self,
        started: Callable[[str, str | None], object] | None,
        progress: Callable[[Progress], object] | None,
        ended: Callable[[str, QueryFailed | None], object] | None,
    ) -> None:
        self._started = started
        self._progress = progress
        self._ended = ended

    def onQueryStarted(self, event: Any) -> None:
        """Report the start of a query. Spark: driver."""
        if self._started is not None:
            _call(self._started, str(event.id), event.name)

    def onQueryProgress(self, event: Any) -> None:
        """Report an epoch. Spark: driver."""
        if self._progress is not None:
            _call(self._progress, Progress.of(event.progress))

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing: the query is idle. Spark: driver."""

    def onQueryTerminated(self, event: Any) -> None:
        """Report the end of a query. Spark: driver."""
        if self._ended is not None:
            _call(self._ended, str(event.id), _parse_failure(event.exception))


def _parse_failure(text: str | None) -> QueryFailed | None:
    if text is None:
        return None
    found = failure_of(RuntimeError(text))
    return QueryFailed(found.line, passes=found.passes, name=found.name)


def _call(function: Callable[..., object], *given: object) -> None:
    try:
        function(*given)
    except Exception as error:  # noqa: BLE001  a listener must not stop a query
        _log.error("a listener of queries has failed", exc_info=scrub(error))
