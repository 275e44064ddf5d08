"""Repeated readings of a query's state, and the lines that show them. This module only reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from krishiv_spark.operate.inspection.live import LiveStatus, inspect_live_systems
from krishiv_spark.operate.inspection.positions import format_moment, offsets_by_topic
from krishiv_spark.operate.inspection.query_status import (
    CheckpointStatus,
    EpochStatus,
    LetterStatus,
    LogStatus,
    TableStatus,
    inspect_checkpoint,
    read_epoch_status,
)
from krishiv_spark.spark.checkpoint import SparkCheckpoint

__all__ = [
    "EpochRate",
    "ObservedQuery",
    "QueryWatcher",
    "completed_rates_after",
    "epoch_line",
    "epoch_lines",
    "rate_cells",
    "rate_line",
    "status_lines",
]


@dataclass(frozen=True)
class EpochRate:
    """An epoch, and the rate of its sources.

    Attributes:
        epoch: The record of the epoch in Spark's logs.
        moved: Number of offsets between its start and its end, for sources with numeric offsets,
            without partitions that are new in it; None if no source has any, or if the previous
            epoch is no longer recorded.
        per_second: The same per second of the time since the previous epoch was planned.
    """

    epoch: EpochStatus
    moved: int | None
    per_second: float | None


@dataclass(frozen=True)
class ObservedQuery:
    """The result of one reading of a query's state.

    Attributes:
        status: The state by its folders.
        live: The state that live systems report.
        paces: The rates of its newest epochs, oldest first.
    """

    status: CheckpointStatus
    live: LiveStatus
    paces: tuple[EpochRate, ...]


@dataclass
class QueryWatcher:
    """A reader of a query's state.

    Attributes:
        checkpoint: The checkpoint of the query.
        given: As for `inspect_checkpoint` and `inspect_live_systems`.
        table: As for `inspect_checkpoint`.
        epoch_log: As for `inspect_checkpoint`.
        newest: Number of epochs to read if no more are new.
    """

    checkpoint: SparkCheckpoint
    given: Mapping[str, str] = field(default_factory=dict)
    table: str | None = None
    epoch_log: str | None = None
    newest: int = 10
    _over: dict[int, EpochStatus] = field(default_factory=dict)

    def look(self, after: int | None = None) -> ObservedQuery:
        """Return the query's current state.

        Args:
            after: The newest epoch that was reported; all later ones are read.

        Raises:
            OptionError: If there is no checkpoint, or an option is unknown.
            StorageError: If a store cannot be reached.
            LogError: If the epoch log is damaged.
        """
        status = inspect_checkpoint(
            self.checkpoint, table=self.table, epoch_log=self.epoch_log, given=self.given
        )
        live = inspect_live_systems(status, self.given, table=self.table)
        kept = self.checkpoint.epochs()
        count = self.newest if after is None else sum(number > after for number in kept)
        count = max(self.newest, count)
        # One more is read, since the oldest epoch starts at the end of the one before.
        epochs = [self._epoch(number) for number in kept[-count - 1 :]]
        self._over = {one.epoch: one for one in epochs if one.is_over}
        paces = [_pace(*pair) for pair in zip([None, *epochs], epochs, strict=False)]
        return ObservedQuery(status, live, tuple(paces[-count:]))

    def _epoch(self, number: int) -> EpochStatus:
        # The record of a completed epoch does not change.
        return self._over.get(number) or read_epoch_status(self.checkpoint, number)


def _pace(before: EpochStatus | None, epoch: EpochStatus) -> EpochRate:
    if before is None or before.epoch != epoch.epoch - 1:
        return EpochRate(epoch, None, None)
    counted = [
        _count_advance(before.offsets.get(name), text) for name, text in epoch.offsets.items()
    ]
    known = [each for each in counted if each is not None]
    moved = sum(known) if known else None
    took_ms = (epoch.planned_ms or 0) - (before.planned_ms or 0)
    has_pace = moved is not None and before.planned_ms is not None and took_ms > 0
    return EpochRate(epoch, moved, moved * 1000 / took_ms if has_pace and moved else None)


def _count_advance(before: str | None, now: str) -> int | None:
    """Return the number of offsets that a source advanced; None without numeric offsets."""
    then, there = _counts(before), _counts(now)
    # The start of a new partition is not recorded, and a deleted one did not advance.
    both = then.keys() & there.keys()
    return sum(there[key] - then[key] for key in both) if both else None


def _counts(text: str | None) -> dict[tuple[str, int], int]:
    """Return numbers by topic and partition; empty for a source without numeric offsets."""
    try:
        offset: Any = json.loads(text or "")
    except ValueError:
        return {}
    if isinstance(offset, int):
        return {("", 0): offset}
    return {
        (topic, partition): number
        for topic, numbers in offsets_by_topic(offset).items()
        for partition, number in numbers.items()
    }


def completed_rates_after(sight: ObservedQuery, after: int) -> Sequence[EpochRate]:
    """Return the rates of the completed epochs after an epoch."""
    return [pace for pace in sight.paces if pace.epoch.is_over and pace.epoch.epoch > after]


def status_lines(status: CheckpointStatus, live: LiveStatus) -> list[str]:
    """Return the lines that show a query."""
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
    """Return one line for an epoch."""
    return f"{_summary(status)}: {'; '.join(status.sources.values())}"


def epoch_lines(status: EpochStatus) -> list[str]:
    """Return all lines of an epoch."""
    offsets = (f"offset      {name}: {text}" for name, text in status.offsets.items())
    return [_summary(status), *_sources(status), *_watermarks(status), *offsets]


def _summary(status: EpochStatus) -> str:
    planned = "" if status.planned_ms is None else f", planned {format_moment(status.planned_ms)}"
    return f"epoch {status.epoch}, {_progress(status)}{planned}"


def _progress(status: EpochStatus) -> str:
    return "completed" if status.is_over else "not completed"


def _sources(status: EpochStatus) -> Iterator[str]:
    for name, said in status.sources.items():
        yield f"source {name:<5}{said}"


def _watermarks(status: EpochStatus) -> Iterator[str]:
    if status.watermark_ms is not None:
        yield f"watermark   {format_moment(status.watermark_ms)} (Spark's)"
    for ms in status.source_watermarks_ms:
        yield f"watermark   {format_moment(ms)} (of a source)"


def _live(live: LiveStatus, *, several: bool) -> Iterator[str]:
    for lag in live.lags:
        of_source = f"of source {lag.source}: " if several else ""
        where = f"topic {lag.topic}, {lag.partitions} partitions"
        held = f"; {lag.held_back} more are blocked by open transactions" if lag.held_back else ""
        yield f"lag         {of_source}{lag.waiting} offsets after the newest epoch, {where}{held}"
    yield from (f"schema      {line}" for line in live.schemas)
    if live.staged_files is not None:
        size = live.staged_bytes
        yield f"staged      {live.staged_files} files of {size} bytes, invisible to readers"
    if live.transactions is not None:
        yield from (f"open        {line}" for line in live.transactions or ("no transaction",))
    yield from (f"not known   {why}" for why in live.unknown)


def rate_line(pace: EpochRate) -> str:
    """Return one line for an epoch, with its rate."""
    _, _, _, moved, per_s, mark = rate_cells(pace)
    fast = f", {per_s} per second" if per_s else ""
    parts = (
        epoch_line(pace.epoch),
        moved and f"{moved} offsets{fast}",
        mark and f"watermark {mark}",
    )
    return "; ".join(filter(None, parts))


def rate_cells(pace: EpochRate) -> tuple[str, str, str, str, str, str]:
    """Return the cells number, end, planned time, offsets, offsets per second and watermark."""
    epoch = pace.epoch
    spark = () if epoch.watermark_ms is None else (epoch.watermark_ms,)
    marks = (*spark, *epoch.source_watermarks_ms)
    return (
        str(epoch.epoch),
        _progress(epoch),
        "" if epoch.planned_ms is None else format_moment(epoch.planned_ms),
        "" if pace.moved is None else str(pace.moved),
        "" if pace.per_second is None else f"{pace.per_second:.1f}",
        format_moment(min(marks)) if marks else "",
    )


def _log(log: LogStatus | None, live: LiveStatus) -> Iterator[str]:
    if log is None:
        yield (
            "epoch log   none here: give --table or --epoch-log; or the options that name the "
            "target, such as -o path=…, for a sink without a log: its target has the epochs"
        )
        return
    held = "no epoch" if log.held is None else f"epochs up to {log.held}"
    files = f"{log.files} files of {log.size} bytes"
    yield f"epoch log   {log.place}: {log.entries} entries in {files}; committed: {held}"
    if log.open_epoch is not None:
        # When it becomes visible, files leave the staging folder, and transactions end.
        is_all_moved = live.staged_files == 0 or live.transactions == ()
        rest = "is visible" if is_all_moved else (
            "may not be visible everywhere yet"
        )  # fmt: skip
        yield f"            epoch {log.open_epoch} is committed, and {rest}"
    since = "" if log.owner_ms is None else f", since {format_moment(log.owner_ms)}"
    yield f"last owner  {log.owner or 'none'}{since}"
    if log.target is not None:
        yield f"target      {log.target}"
    if log.letters is not None:
        yield from _letters(log.letters)


def _letters(letters: LetterStatus) -> Iterator[str]:
    bad, total = sum(letters.bad.values()), sum(letters.total.values())
    yield f"dead        {bad} of the {letters.rows} rows of the newest epoch, {total} of all epochs"
    for reason, count in letters.total.items():
        yield f"            {count}  {reason}"


def _table(table: TableStatus) -> Iterator[str]:
    held = "no epoch of the query" if table.held is None else f"epochs up to {table.held}"
    if table.format != "krishiv-iceberg":
        shown = held if table.unknown is None else f"not known: {table.unknown}"
        yield f"target      {table.format} {table.name}: committed: {shown}"
    elif table.unknown is not None:
        yield f"not known   the epoch of table {table.name}: {table.unknown}"
    elif not table.is_there:
        yield f"table       {table.name} does not exist yet"
    else:
        newest = "no snapshot" if table.snapshot is None else f"snapshot {table.snapshot}"
        yield f"table       {table.name}: committed: {held}; {newest}"
