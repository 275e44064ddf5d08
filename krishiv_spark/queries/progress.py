"""What a query has done in an epoch, as values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from typing_extensions import Self

from krishiv_spark.runtime.epoch_times import to_datetime

__all__ = ["Progress", "SourceProgress"]

_WAITING = "_waiting"
"""What our sources say of what is newest ends so, where it counts what is still to be read."""


@dataclass(frozen=True)
class SourceProgress:
    """What was read of one source.

    Attributes:
        description: Spark's words for the source.
        kind: What kind of source it is, in one word: of ours "kafka", "parquet" and the like, of
            others the name of Spark's class.
        start: Offset before the epoch, from JSON; None at the beginning.
        end: Offset behind it.
        latest: What the source says of what is newest there; None before Spark 4.2, and if it says
            nothing.
        rows: That were read.
        rows_per_s: Read in a second of the time since the epoch before; None if not known.
        waiting: What there is behind `end`, by kind, as `latest` says: "rows", "offsets", "files",
            "bytes", "snapshots". Empty if it does not say.
        watermark: Of a source of ours with event time: that of `end`.
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
        """Rows behind `end`, or positions, where these are counted; None otherwise."""
        return self.waiting.get("rows", self.waiting.get("offsets"))

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """From Spark's own."""
        end, latest = _parsed(told.get("endOffset")), _parsed(told.get("latestOffset"))
        description = str(told.get("description", ""))
        return cls(
            description=description,
            kind=_kind(description, end),
            start=_parsed(told.get("startOffset")),
            end=end,
            latest=latest,
            rows=_count(told.get("numInputRows")) or 0,
            rows_per_s=_rate(told.get("inputRowsPerSecond")),
            waiting=_waiting(end, latest),
            watermark=_source_watermark(end),
        )


@dataclass(frozen=True)
class Progress:
    """What a query has done in one epoch, or that there was nothing to do.

    Attributes:
        query: Id of the query, the same for ever.
        run: Id of this run of it.
        name: Of the query; None without one.
        epoch: Number of the epoch (Spark's batch id); of the one that comes next, if it is idle.
        is_idle: Whether Spark has only looked for rows: it tells of that every ten seconds
            (``spark.sql.streaming.noDataProgressEventInterval``).
        began: When its trigger fired.
        duration: How long it took, until Spark has written down that it is over.
        phases: How long each part took, by Spark's names for them.
        rows: That were read.
        rows_per_s: Processed in a second; None if not known.
        watermark: Event time before which no row is waited for; None without one.
        sources: By source, in Spark's order.
        written: Rows that were written, as Spark counts them; None if it does not.
        state_rows: In the state of all of Spark's operators.
        state_bytes: Memory that this state takes, as Spark says.
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

    @property
    def event_time_lag(self) -> timedelta | None:
        """How far the watermark was behind the clock; None without one."""
        return None if self.watermark is None else self.began - self.watermark

    @property
    def lag(self) -> int | None:
        """Rows or positions behind this epoch, of all sources that tell; None if none does."""
        known = [source.lag for source in self.sources if source.lag is not None]
        return sum(known) if known else None

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """From Spark's own ``StreamingQueryProgress``, or its JSON as a dictionary."""
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
            # Spark shows 1970 as long as it knows none.
            watermark=_time(watermark) if watermark and not watermark.startswith("1970") else None,
            sources=tuple(SourceProgress.of(one) for one in told.get("sources") or ()),
            written=written,
            state_rows=_total(told, "numRowsTotal"),
            state_bytes=_total(told, "memoryUsedBytes"),
        )


def is_idle(told: Mapping[str, Any]) -> bool:
    """Whether a progress of Spark's is of a time when there was nothing to do.

    It has the number of the epoch that comes next then (Spark's ``ProgressContext``).
    """
    return "addBatch" not in (told.get("durationMs") or {})


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _count(given: Any) -> int | None:
    """Spark says -1 for what is not known, and Connect nothing for 0."""
    return None if given is None or int(given) < 0 else int(given)


def _rate(given: Any) -> float | None:
    # NaN and infinity of an epoch that took no time.
    return None if given is None or not abs(float(given)) < float("inf") else float(given)


def _parsed(given: Any) -> Any:
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
    # As "KafkaV2[Subscribe[orders]]", or a class with its package and an address.
    return re.split(r"[^\w.]", description, maxsplit=1)[0].rpartition(".")[2]


def _source_watermark(end: Any) -> datetime | None:
    mark = end.get("watermark") if isinstance(end, Mapping) else None
    ms = mark.get("ms") if isinstance(mark, Mapping) else None
    return to_datetime(ms) if isinstance(ms, int) else None


def _total(told: Mapping[str, Any], key: str) -> int:
    """Of all operators with a state."""
    return sum(_count(one.get(key)) or 0 for one in told.get("stateOperators") or ())


def _waiting(end: Any, latest: Any) -> Mapping[str, int]:
    if isinstance(latest, Mapping) and any(str(key).endswith(_WAITING) for key in latest):
        ours = ((str(key), count) for key, count in latest.items())
        return {key.removesuffix(_WAITING): n for key, n in ours if key.endswith(_WAITING)}
    distance = _distance(end, latest)
    return {} if distance is None else {"offsets": distance}


def _distance(end: Any, latest: Any) -> int | None:
    """How much higher the numbers of one offset are than those of another of its form."""
    if isinstance(end, bool) or isinstance(latest, bool):
        return None
    if isinstance(end, int) and isinstance(latest, int):
        return max(latest - end, 0)
    if not (isinstance(end, Mapping) and isinstance(latest, Mapping)):
        return None
    parts = [_distance(end.get(key, 0), more) for key, more in latest.items()]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None
