"""Event time: the movement of a watermark, and late rows."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.errors import OffsetError, SchemaError
from krishiv_spark.offsets.offset import Watermark
from krishiv_spark.runtime.epoch_times import format_time

__all__ = [
    "LATE_COLUMN",
    "EventTimeLimit",
    "EventTimes",
    "LatePolicy",
    "WatermarkPlanner",
    "advance",
    "check_event_time",
    "check_watermark",
    "epoch_ms",
    "is_ahead",
    "judge",
]

_log = logging.getLogger(__name__)

LATE_COLUMN = "_late"
LatePolicy = Literal["keep", "flag", "drop"]

_DAY_MS = 86_400_000
_CLOCKS_MS = 600_000
"""Largest difference of a clock from the one by which a watermark was planned: it may have been
set, or be another machine's."""
_INT64 = -(2**63), 2**63 - 1

_MILLISECONDS = {"s": (1_000, 1), "ms": (1, 1), "us": (1, 1_000), "ns": (1, 1_000_000)}
"""By the unit of a timestamp, its number of milliseconds as a fraction."""


# --- movement of a watermark


class EventTimes(NamedTuple):
    """Event times of some rows, sorted by whether they may move a watermark.

    Attributes:
        newest_ms: The newest one that may move it, in milliseconds since 1970 UTC; None without
            one.
        ahead: Number of those that may not, since they are too far ahead of the clock.
        farthest_ms: The newest of these.
    """

    newest_ms: int | None = None
    ahead: int = 0
    farthest_ms: int | None = None

    @classmethod
    def merge(cls, parts: Iterable[EventTimes]) -> EventTimes:
        """Return the event times of all rows together."""
        found = list(parts)
        return cls(
            max((one.newest_ms for one in found if one.newest_ms is not None), default=None),
            sum(one.ahead for one in found),
            max((one.farthest_ms for one in found if one.farthest_ms is not None), default=None),
        )


@dataclass(frozen=True)
class EventTimeLimit:
    """The newest event time that may move a watermark. Driver.

    Read the clock once for each batch, when its end is planned. The resulting watermark is in the
    offset, so that a replay reads no clock.

    Attributes:
        newest_ms: Milliseconds since 1970 UTC.
        ahead_ms: Its distance from the clock.
    """

    newest_ms: int
    ahead_ms: int

    @classmethod
    def now(cls, ahead_ms: int) -> EventTimeLimit:
        """Read the clock of this process."""
        return cls(time.time_ns() // 1_000_000 + ahead_ms, ahead_ms)

    def admits(self, ms: int) -> bool:
        """Return True if an event time may move a watermark."""
        return ms <= self.newest_ms

    def sort(self, times: Iterable[int]) -> EventTimes:
        """Sort event times into those that may move a watermark and those that may not."""
        found = list(times)
        ahead = [ms for ms in found if not self.admits(ms)]
        counted = max((ms for ms in found if self.admits(ms)), default=None)
        return EventTimes(counted, len(ahead), max(ahead, default=None))

    def explain(self, times: EventTimes) -> str | None:
        """Return the reason that some event times do not move a watermark; None if all do."""
        if times.farthest_ms is None:
            return None
        return (
            f"{times.ahead} event times more than {self.ahead_ms / _DAY_MS:g} days ahead of the "
            "clock (option 'maxEventTimeAhead') are ignored, up to "
            f"{format_time(times.farthest_ms)}"
        )


def advance(
    previous: Watermark | None,
    newest_ms: int | None,
    delay_ms: int,
    held: str | None = None,
    *,
    max_ahead_ms: int | None = None,
) -> Watermark:
    """Return the watermark after a batch, which never decreases.

    Args:
        previous: The watermark before the batch.
        newest_ms: Newest event time in the batch, from metadata; None if it is not known.
        delay_ms: The allowed lateness in event time, in milliseconds.
        held: The reason that a part of the batch was not considered.
        max_ahead_ms: The option ``maxEventTimeAhead``: a newest event time that is further ahead of
            the clock does not move the watermark. None reads no clock.
    """
    if newest_ms is not None and max_ahead_ms is not None:
        limit = EventTimeLimit.now(max_ahead_ms)
        times = limit.sort([newest_ms])
        newest_ms, held = times.newest_ms, held or limit.explain(times)
    before = None if previous is None else previous.ms
    if newest_ms is None:
        return Watermark(ms=before, held=held or "no event time in the batch")
    reached = newest_ms - delay_ms
    return Watermark(ms=reached if before is None else max(before, reached), held=held)


class WatermarkPlanner:
    """Plans the watermarks of a query from batch to batch. Driver; for the life of a reader.

    Args:
        delay_ms: The option ``watermarkDelay``.
        max_ahead_ms: The option ``maxEventTimeAhead``.

    Attributes:
        ahead: Number of event times so far that were too far ahead of the clock.
    """

    def __init__(self, delay_ms: int, max_ahead_ms: int) -> None:
        self._delay_ms = delay_ms
        self._max_ahead_ms = max_ahead_ms
        self.ahead = 0

    def limit(self) -> EventTimeLimit:
        """Read the clock, and return the limit for the batch that is planned now."""
        return EventTimeLimit.now(self._max_ahead_ms)

    def advance(
        self,
        previous: Watermark | None,
        times: EventTimes,
        limit: EventTimeLimit,
        held: str | None = None,
    ) -> Watermark:
        """Return the watermark after a batch, and count the event times that do not move it.

        Args:
            previous: The watermark before the batch.
            times: The event times of the batch, sorted by `limit`.
            limit: The limit of this batch.
            held: The reason that a part of the batch was not considered.
        """
        why = limit.explain(times)
        if why is not None:
            level = logging.INFO if self.ahead else logging.WARNING
            _log.log(level, "the watermark does not include all rows: %s", why)
            self.ahead += times.ahead
        return advance(previous, times.newest_ms, self._delay_ms, why or held)

    def report(self) -> dict[str, int]:
        """Return the count for the query's progress; empty as long as it is 0."""
        return {"event_times_ahead": self.ahead} if self.ahead else {}


def check_watermark(watermark: Watermark | None, policy: LatePolicy, max_ahead_ms: int) -> None:
    """Refuse to drop or flag rows by a watermark that is too far ahead of the clock. Driver.

    Args:
        watermark: The watermark at the start of a batch that is planned now.
        policy: The option ``lateRows``.
        max_ahead_ms: The option ``maxEventTimeAhead``.

    Raises:
        OffsetError: If it would cause rows to be dropped or flagged.
    """
    ms = None if watermark is None else watermark.ms
    limit = EventTimeLimit.now(max_ahead_ms + _CLOCKS_MS)
    if policy == "keep" or ms is None or limit.admits(ms):
        return
    raise OffsetError(
        f"the watermark in the checkpoint, {format_time(ms)}, is more than "
        f"{max_ahead_ms / _DAY_MS:g} days ahead of the clock of this machine, and 'lateRows' = "
        f"'{policy}' would {policy} nearly all rows: no batch was planned. A release of "
        "krishiv-spark without the option 'maxEventTimeAhead' let one wrong event time move it "
        "there, or the clock is wrong. If the event times are right, set 'maxEventTimeAhead' "
        "to a longer time, such as '3650 days'; otherwise correct the clock, set 'lateRows' to "
        "'keep', or rewind the checkpoint to an epoch before that event time (krishiv-spark "
        "checkpoint rewind)"
    )


# --- late rows


def check_event_time(column: str, schema: pa.Schema) -> None:
    """Refuse an event time column that is missing or contains no times.

    Raises:
        SchemaError: If it is missing, or neither a timestamp nor a date.
    """
    if column not in schema.names:
        raise SchemaError(
            f"option 'eventTime' names column {column!r}, but the columns are "
            f"{', '.join(schema.names)}"
        )
    kind = schema.field(column).type
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise SchemaError(
            f"option 'eventTime' names column {column!r} of type {kind}; an event time must be "
            "a timestamp or a date"
        )


def epoch_ms(time: pa.Scalar) -> int:
    """Return a timestamp or date as whole milliseconds since 1970 UTC, rounded down."""
    # With Python's integers: Arrow's casts overflow for dates and times that Spark supports.
    per, of = _milliseconds(time.type)
    return int(time.value) * per // of


def judge(
    batch: pa.RecordBatch, column: str, policy: LatePolicy, watermark_ms: int | None
) -> pa.RecordBatch:
    """Apply the late-row policy to rows of a batch that began at a watermark.

    A row is late when its event time is strictly below the watermark; a null time never is.

    Returns:
        The same rows with `_late` added ("flag"), or without the late ones ("drop").
    """
    if policy == "keep" or (policy == "drop" and watermark_ms is None):
        return batch
    late = _late(batch.column(column), watermark_ms)
    if policy == "flag":
        return batch.append_column(pa.field(LATE_COLUMN, pa.bool_(), nullable=False), late)
    return batch.filter(pc.invert(late))


def is_ahead(times: pa.Array, limit: EventTimeLimit) -> pa.Array:
    """Return for each event time True if it is after a limit; a null time never is."""
    # Times that are not below the first millisecond after the limit.
    not_below = pc.invert(_are_below(times, limit.newest_ms + 1))
    return pc.and_(not_below, times.is_valid())


def _late(times: pa.Array, watermark_ms: int | None) -> pa.Array:
    if watermark_ms is None:
        return pa.repeat(pa.scalar(value=False), len(times))
    return _are_below(times, watermark_ms)


def _are_below(times: pa.Array, limit_ms: int) -> pa.Array:
    """Return for each time True if it is below a limit; a null time never is."""
    per, of = _milliseconds(times.type)
    # The least number in the column's unit that is not below the limit.
    limit = -(-limit_ms * of // per)
    if limit > _INT64[1]:
        return times.is_valid()
    numbers = times.cast(pa.int32() if pa.types.is_date32(times.type) else pa.int64())
    below = pc.less(numbers.cast(pa.int64()), pa.scalar(max(limit, _INT64[0]), pa.int64()))
    return pc.fill_null(below, fill_value=False)


def _milliseconds(kind: pa.DataType) -> tuple[int, int]:
    """Return the number of milliseconds in the unit of a timestamp or date, as a fraction."""
    if pa.types.is_date32(kind):
        return _DAY_MS, 1
    return (1, 1) if pa.types.is_date64(kind) else _MILLISECONDS[kind.unit]
