"""A query looked at again and again from outside: what is new, and how fast it goes. Reads only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from krishiv_spark.checkpoint import SparkCheckpoint
from krishiv_spark.inspection.checkpoints import (
    CheckpointStatus,
    EpochStatus,
    epoch_status,
    look_at,
)
from krishiv_spark.inspection.live import LiveStatus, look_live
from krishiv_spark.topics import offsets_by_topic

__all__ = ["EpochPace", "QuerySight", "QueryWatcher", "new_paces"]


@dataclass(frozen=True)
class EpochPace:
    """An epoch, and how fast its sources went.

    Attributes:
        epoch: What Spark wrote down for it.
        moved: Offsets between its begin and its end, of sources that count them; None if none
            does, or if the epoch before is not there any more.
        per_second: The same in a second of the time since the epoch before was planned.
    """

    epoch: EpochStatus
    moved: int | None
    per_second: float | None


@dataclass(frozen=True)
class QuerySight:
    """A query, at one look.

    Attributes:
        status: What its folders say.
        live: What live systems say.
        paces: Of its newest epochs, oldest first.
    """

    status: CheckpointStatus
    live: LiveStatus
    paces: tuple[EpochPace, ...]


@dataclass
class QueryWatcher:
    """Looks at a query.

    Attributes:
        checkpoint: Of the query.
        given: As for `look_at` and `look_live`.
        table: As for `look_at`.
        epoch_log: As for `look_at`.
        newest: How many epochs are looked at.
    """

    checkpoint: SparkCheckpoint
    given: Mapping[str, str] = field(default_factory=dict)
    table: str | None = None
    epoch_log: str | None = None
    newest: int = 10
    _over: dict[int, EpochStatus] = field(default_factory=dict)

    def look(self) -> QuerySight:
        """What there is now.

        Raises:
            OptionError: If there is no checkpoint, or an option is not known.
            StorageError: If a store cannot be asked.
            LogError: If the epoch log is damaged.
        """
        status = look_at(
            self.checkpoint, table=self.table, epoch_log=self.epoch_log, given=self.given
        )
        live = look_live(status, self.given, table=self.table)
        epochs = [self._epoch(number) for number in self.checkpoint.epochs()[-self.newest - 1 :]]
        self._over = {one.epoch: one for one in epochs if one.is_over}
        paces = [_pace(*pair) for pair in zip([None, *epochs], epochs, strict=False)]
        return QuerySight(status, live, tuple(paces[-self.newest :]))

    def _epoch(self, number: int) -> EpochStatus:
        # What is over does not change any more.
        return self._over.get(number) or epoch_status(self.checkpoint, number)


def _pace(before: EpochStatus | None, epoch: EpochStatus) -> EpochPace:
    if before is None or before.epoch != epoch.epoch - 1:
        return EpochPace(epoch, None, None)
    counted = [
        now - then
        for name, text in epoch.offsets.items()
        if (now := _sum(text)) is not None and (then := _sum(before.offsets.get(name))) is not None
    ]
    moved = sum(counted) if counted else None
    took_ms = (epoch.planned_ms or 0) - (before.planned_ms or 0)
    has_pace = moved is not None and before.planned_ms is not None and took_ms > 0
    return EpochPace(epoch, moved, moved * 1000 / took_ms if has_pace and moved else None)


def _sum(text: str | None) -> int | None:
    """What an offset counts up to, if it is of a source that counts."""
    try:
        offset: Any = json.loads(text or "")
    except ValueError:
        return None
    if isinstance(offset, int):
        return offset
    topics = offsets_by_topic(offset)
    return sum(sum(each.values()) for each in topics.values()) if topics else None


def new_paces(sight: QuerySight, after: int) -> Sequence[EpochPace]:
    """Those of epochs that are over, later than one."""
    return [pace for pace in sight.paces if pace.epoch.is_over and pace.epoch.epoch > after]
