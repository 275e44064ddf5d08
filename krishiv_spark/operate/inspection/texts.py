"""What was found, as lines for people: none is longer than what a source says of itself."""

from __future__ import annotations

from collections.abc import Iterator

from krishiv_spark.operate.inspection.checkpoints import CheckpointStatus, EpochStatus, LogStatus
from krishiv_spark.operate.inspection.live import LiveStatus
from krishiv_spark.operate.inspection.positions import time_of
from krishiv_spark.operate.inspection.tables import TableStatus
from krishiv_spark.operate.inspection.watching import EpochPace

__all__ = ["epoch_line", "epoch_lines", "pace_cells", "pace_line", "status_lines"]


def status_lines(status: CheckpointStatus, live: LiveStatus) -> list[str]:
    """A query, a line for each thing."""
    return list(_status_lines(status, live))


def _status_lines(status: CheckpointStatus, live: LiveStatus) -> Iterator[str]:
    yield f"query       {status.query}"
    yield f"checkpoint  {status.location}"
    for output, target in status.targets.items():
        yield f"writes to   {f'{output}: ' if output else ''}{target}"
    if status.newest is None:
        yield "newest      no epoch was planned yet"
    else:
        yield f"newest      {_summary(status.newest)}"
        yield from _sources(status.newest)
        yield from _watermarks(status.newest)
    yield from _live(live, several=status.newest is not None and len(status.newest.sources) > 1)
    yield from _log(status.log, live) if status.table is None else _table(status.table)
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


def _live(live: LiveStatus, *, several: bool) -> Iterator[str]:
    for lag in live.lags:
        of_source = f"of source {lag.source}: " if several else ""
        where = f"topic {lag.topic}, {lag.partitions} partitions"
        held = f"; {lag.held_back} more are held back by open transactions" if lag.held_back else ""
        yield f"lag         {of_source}{lag.waiting} offsets after the newest epoch, {where}{held}"
    if live.staged_files is not None:
        size = live.staged_bytes
        yield f"staged      {live.staged_files} files of {size} bytes, which nobody sees"
    if live.transactions is not None:
        yield from (f"open        {line}" for line in live.transactions or ("no transaction",))
    yield from (f"not known   {why}" for why in live.unknown)


def pace_line(pace: EpochPace) -> str:
    """One epoch, and how fast it was."""
    _, _, _, moved, per_s, mark = pace_cells(pace)
    fast = f", {per_s} in a second" if per_s else ""
    parts = (
        epoch_line(pace.epoch),
        moved and f"{moved} offsets{fast}",
        mark and f"watermark {mark}",
    )
    return "; ".join(filter(None, parts))


def pace_cells(pace: EpochPace) -> tuple[str, str, str, str, str, str]:
    """The same as number, end, time when it was planned, offsets, in a second, and watermark."""
    epoch = pace.epoch
    spark = () if epoch.watermark_ms is None else (epoch.watermark_ms,)
    marks = (*spark, *epoch.source_watermarks_ms)
    return (
        str(epoch.epoch),
        "over" if epoch.is_over else "not over",
        "" if epoch.planned_ms is None else time_of(epoch.planned_ms),
        "" if pace.moved is None else str(pace.moved),
        "" if pace.per_second is None else f"{pace.per_second:.1f}",
        time_of(min(marks)) if marks else "",
    )


def _log(log: LogStatus | None, live: LiveStatus) -> Iterator[str]:
    if log is None:
        yield (
            "epoch log   none here: give --table or --epoch-log, or of krishiv-iceberg, which has "
            "none, the options that name its table"
        )
        return
    held = "no epoch" if log.held is None else f"epoch {log.held}"
    files = f"{log.files} files of {log.size} bytes"
    yield f"epoch log   {log.place}: {log.entries} entries in {files}; it holds {held}"
    if log.open_epoch is not None:
        # Files are moved out of the staging folder, and transactions end, when it becomes visible.
        is_all_moved = live.staged_files == 0 or live.transactions == ()
        rest = "nothing of it is left to show" if is_all_moved else (
            "may not be visible everywhere yet"
        )  # fmt: skip
        yield f"            epoch {log.open_epoch} is true, and {rest}"
    since = "" if log.owner_ms is None else f", since {time_of(log.owner_ms)}"
    yield f"last owner  {log.owner or 'nobody'}{since}"
    if log.target is not None:
        yield f"target      {log.target}"


def _table(table: TableStatus) -> Iterator[str]:
    if table.unknown is not None:
        yield f"not known   what {table.name} holds: {table.unknown}"
    elif not table.is_there:
        yield f"table       {table.name}: there is none yet"
    else:
        held = "no epoch of the query" if table.held is None else f"epoch {table.held}"
        newest = "no snapshot" if table.snapshot is None else f"snapshot {table.snapshot}"
        yield f"table       {table.name} holds {held}; at {newest}"
