"""Event time: how a watermark moves, and which rows it makes late."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

from krishiv_spark.compute import pc
from krishiv_spark.errors import SchemaError
from krishiv_spark.offsets.offset import Watermark

__all__ = ["LATE_COLUMN", "LatePolicy", "advance", "check_event_time", "epoch_ms", "judge"]

LATE_COLUMN = "_late"
LatePolicy = Literal["keep", "flag", "drop"]


def advance(
    previous: Watermark | None, newest_ms: int | None, delay_ms: int, held: str | None = None
) -> Watermark:
    """The watermark after a batch. Never moves back, never reads a clock.

    Args:
        previous: The watermark before the batch.
        newest_ms: Newest event time in the batch, from metadata; None when it is not known.
        delay_ms: How late a row may be, in event time, before it counts as late; milliseconds.
        held: Why part of the batch could not be taken into account.
    """
    before = None if previous is None else previous.ms
    if newest_ms is None:
        return Watermark(ms=before, held=held or "no event time in the batch")
    reached = newest_ms - delay_ms
    return Watermark(ms=reached if before is None else max(before, reached), held=held)


def check_event_time(column: str, schema: pa.Schema) -> None:
    """Refuse an event time column that is missing or holds no time.

    Raises:
        SchemaError: If it is missing, or neither a timestamp nor a date.
    """
    if column not in schema.names:
        raise SchemaError(
            f"option 'eventTime' names column {column!r}, but there are {', '.join(schema.names)}"
        )
    kind = schema.field(column).type
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise SchemaError(
            f"option 'eventTime' names column {column!r} of type {kind}; an event time is a "
            "timestamp or a date"
        )


def epoch_ms(time: pa.Scalar) -> int:
    """A timestamp or date as whole milliseconds since 1970 UTC, rounded down."""
    if pa.types.is_timestamp(time.type) and time.type.unit == "ns":
        return int(time.value // 1_000_000)  # a cast would refuse what lies between microseconds
    return int(time.cast(pa.timestamp("us")).value // 1000)


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


def _late(times: pa.Array, watermark_ms: int | None) -> pa.Array:
    if watermark_ms is None:
        return pa.repeat(pa.scalar(value=False), len(times))
    limit = pa.scalar(watermark_ms, pa.timestamp("ms")).cast(pa.timestamp("us"))
    instants = times.cast(pa.timestamp("us"))
    return pc.fill_null(pc.less(instants, limit), fill_value=False)
