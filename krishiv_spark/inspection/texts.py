"""What was found, as lines for people: none is longer than what a source says of itself."""

from __future__ import annotations

from collections.abc import Iterator

from krishiv_spark.inspection.checkpoints import CheckpointStatus, EpochStatus, LogStatus
from krishiv_spark.inspection.positions import time_of

__all__ = ["epoch_line", "epoch_lines", "status_lines"]


def status_lines(status: CheckpointStatus) -> list[str]:
    """A query, a line for each thing."""
    return list(_status_lines(status))


def _status_lines(status: CheckpointStatus) -> Iterator[str]:
    yield f"query       {status.query}"
    yield f"checkpoint  {status.location}"
    if status.newest is None:
        yield "newest      no epoch was planned yet"
    else:
        yield f"newest      {_summary(status.newest)}"
        yield from _sources(status.newest)
        yield from _watermarks(status.newest)
    yield from _log(status.log)
    yield f"next start  {status.next}"


def epoch_line(status: EpochStatus) -> str:
    """One epoch."""
    return f"{_summary(status)}: {'; '.join(status.sources.values())}"


def epoch_lines(status: EpochStatus) -> list[str]:
    """One epoch whole."""
    offsets = (f"offset      {name}: {text}" for name, text in status.offsets.items())
    return [_summary(status), *_sources(status), *_watermarks(status), *offsets]


def _summary(status: EpochStatus) -> str:
    planned = "" if status.planned_ms is None else f", planned {time_of(status.planned_ms)}"
    return f"epoch {status.epoch}, {'over' if status.is_over else 'not over'}{planned}"


def _sources(status: EpochStatus) -> Iterator[str]:
    for name, said in status.sources.items():
        yield f"source {name:<5}{said}"


def _watermarks(status: EpochStatus) -> Iterator[str]:
    if status.watermark_ms is not None:
        yield f"watermark   {time_of(status.watermark_ms)} (Spark's)"
    for ms in status.source_watermarks_ms:
        yield f"watermark   {time_of(ms)} (of a source)"


def _log(log: LogStatus | None) -> Iterator[str]:
    if log is None:
        yield "epoch log   none here (krishiv-iceberg has none; else give --table or --epoch-log)"
        return
    held = "no epoch" if log.held is None else f"epoch {log.held}"
    yield f"epoch log   {log.place}: {log.entries} entries in {log.files} files; it holds {held}"
    if log.open_epoch is not None:
        yield f"            epoch {log.open_epoch} is true, and may not be visible everywhere yet"
    since = "" if log.owner_ms is None else f", since {time_of(log.owner_ms)}"
    yield f"last owner  {log.owner or 'nobody'}{since}"
    if log.target is not None:
        yield f"target      {log.target}"
