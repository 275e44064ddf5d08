"""A query looked at again and again from outside: what is new, and how fast it goes. Reads only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from krishiv_spark.operate.inspection.checkpoints import (
    CheckpointStatus,
    EpochStatus,
    epoch_status,
    look_at,
)
from krishiv_spark.operate.inspection.live import LiveStatus, look_live
from krishiv_spark.operate.inspection.topic_offsets import offsets_by_topic
from krishiv_spark.spark.checkpoint import SparkCheckpoint

__all__ = ["EpochPace", "QuerySight", "QueryWatcher", "new_paces"]


@dataclass(frozen=True)
class EpochPace:
    """An epoch, and how fast its sources went.

    Attributes:
        epoch: What Spark wrote down for it.
        moved: Offsets between its begin and its end, of sources that count them, without
            partitions that are new in it; None if none counts, or if the epoch before is not
            there any more.
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
        newest: How many epochs are looked at, if no more are new.
    """

    checkpoint: SparkCheckpoint
    given: Mapping[str, str] = field(default_factory=dict)
    table: str | None = None
    epoch_log: str | None = None
    newest: int = 10
    _over: dict[int, EpochStatus] = field(default_factory=dict)

    def look(self, after: int | None = None) -> QuerySight:
        """What there is now.

        Args:
            after: An epoch that was told of; all later ones are looked at.

        Raises:
            OptionError: If there is no checkpoint, or an option is not known.
            StorageError: If a store cannot be asked.
            LogError: If the epoch log is damaged.
        """
        status = look_at(
            self.checkpoint, table=self.table, epoch_log=self.epoch_log, given=self.given
        )
        live = look_live(status, self.given, table=self.table)
        kept = self.checkpoint.epochs()
        count = self.newest if after is None else sum(number > after for number in kept)
        count = max(self.newest, count)
        # One more, from whose end the oldest of them began.
        epochs = [self._epoch(number) for number in kept[-count - 1 :]]
        self._over = {one.epoch: one for one in epochs if one.is_over}
        paces = [_pace(*pair) for pair in zip([None, *epochs], epochs, strict=False)]
        return QuerySight(status, live, tuple(paces[-count:]))

    def _epoch(self, number: int) -> EpochStatus:
        # What is over does not change any more.
        return self._over.get(number) or epoch_status(self.checkpoint, number)


def _pace(before: EpochStatus | None, epoch: EpochStatus) -> EpochPace:
    if before is None or before.epoch != epoch.epoch - 1:
        return EpochPace(epoch, None, None)
    counted = [_moved(before.offsets.get(name), text) for name, text in epoch.offsets.items()]
    known = [each for each in counted if each is not None]
    moved = sum(known) if known else None
    took_ms = (epoch.planned_ms or 0) - (before.planned_ms or 0)
    has_pace = moved is not None and before.planned_ms is not None and took_ms > 0
    return EpochPace(epoch, moved, moved * 1000 / took_ms if has_pace and moved else None)


def _moved(before: str | None, now: str) -> int | None:
    """How far a source went, if it is one that counts."""
    then, there = _counts(before), _counts(now)
    # Where a partition that is new began is not written down, and one that is gone went nowhere.
    both = then.keys() & there.keys()
    return sum(there[key] - then[key] for key in both) if both else None


def _counts(text: str | None) -> dict[tuple[str, int], int]:
    """What an offset counts up to, by topic and partition; nothing of a source of another kind."""
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


def new_paces(sight: QuerySight, after: int) -> Sequence[EpochPace]:
    """Those of epochs that are over, later than one."""
    return [pace for pace in sight.paces if pace.epoch.is_over and pace.epoch.epoch > after]
