"""A replay: target, epoch log and checkpoint are rewound, so that epochs are processed again.

The plan has five steps, and each of them may be repeated:

1. Finish the newest epoch in the target, as the next start would. 2. Create the entry of the next
epoch in Spark's offset log, with the record of the replay in it.
   Spark refuses an entry of this form, so no query starts from here on; and a running driver cannot
   plan its next epoch, since the entry exists.
3. Take the epochs back from the target, and reset the epoch log. 4. Copy everything that is removed
from the checkpoint into the folder of the replay, and remove it. 5. Remove the entry of step 2, as
the last one.

Before step 2 nothing has changed. After it, the same command reads the record and does the rest.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cached_property

from krishiv_spark.errors import NotExclusiveError, OptionError
from krishiv_spark.offsets import Value, open_log
from krishiv_spark.operate.inspection.positions import format_moment
from krishiv_spark.operate.moving.boundaries import (
    RestorePoint,
    is_replay_marker,
    replay_marker,
    restore_point_at,
)
from krishiv_spark.operate.moving.replay_sources import SourceCheck
from krishiv_spark.operate.moving.replay_targets import ReplayTarget
from krishiv_spark.operate.moving.rewinding import CheckpointRewind
from krishiv_spark.sinks.participant import Replay
from krishiv_spark.spark.checkpoint import KRISHIV, SparkCheckpoint
from krishiv_spark.spark.offset_log import OffsetSeq
from krishiv_spark.storage import StoreUrl

__all__ = ["REPLAYS", "QueryReplay", "ReplayRecord", "find_first", "is_epoch", "pending_replay"]

REPLAYS = "krishiv-replays"
"""The folder of a checkpoint with a folder for each replay, which contains the removed files."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

_LEAST_MS = 10**11
"""A number from here on is a time, milliseconds since 1970 UTC; it is a day in 1973."""


class ReplayRecord(Value):
    """The record of an unfinished replay, in the entry that stops the query.

    Attributes:
        v: Version of this form.
        name: Name of the folders that contain removed data.
        query: Id of the query.
        first: The first epoch that is processed again.
        newest: The newest epoch that was planned.
        target: The text that identifies the query's target.
    """

    v: int = 1
    name: str
    query: str
    first: int
    newest: int
    target: str


def pending_replay(checkpoint: SparkCheckpoint) -> ReplayRecord | None:
    """Return the unfinished replay of a checkpoint; None for none.

    Raises:
        OptionError: If its record is damaged, or of a newer version.
    """
    epochs = checkpoint.epochs()
    entry = checkpoint.folder("offsets").read(str(epochs[-1])) or b"" if epochs else b""
    if not is_replay_marker(entry):
        return None
    try:
        record = ReplayRecord.model_validate_json(entry.decode().partition("\n")[2])
    except ValueError as error:
        raise OptionError(
            f"{checkpoint.location}/offsets/{epochs[-1]} is the record of a replay, and cannot be "
            f"read: {error}. If a newer version of krishiv-spark has written it, use that one"
        ) from error
    return record


def is_epoch(start: str) -> bool:
    """Return True if a text is the number of an epoch, and not a time."""
    return start.isascii() and start.isdigit() and int(start) < _LEAST_MS


def find_first(checkpoint: SparkCheckpoint, start: str) -> int:
    """Return the first epoch that is to be processed again.

    Args:
        checkpoint: The checkpoint of the query.
        start: The number of an epoch; or a time, as ISO 8601 with a zone or as milliseconds since
            1970, which selects the first epoch that Spark planned at that time or later.

    Raises:
        OptionError: If it is neither, or the checkpoint does not record the time. Also if an entry
            cannot be read: the epoch after it would be chosen, and its rows would stay.
        OSError, StorageError: If the checkpoint cannot be read.
    """
    if is_epoch(start):
        return int(start)
    moment_ms = _parse_time(start)
    kept = checkpoint.epochs()
    planned = {epoch: _read_planned_ms(checkpoint, epoch) for epoch in kept}
    found = [epoch for epoch, ms in planned.items() if ms >= moment_ms]
    shown = ", ".join(
        f"{n} at {format_moment(planned[n])}" for n in sorted({*kept[:1], *kept[-1:]})
    )
    if not found:
        raise OptionError(
            f"no epoch of {checkpoint.location} was planned at {format_moment(moment_ms)} or "
            f"later: there are {shown or 'none'}"
        )
    if found[0] == kept[0] > 0:
        raise OptionError(
            f"{checkpoint.location} no longer records which epochs were planned since "
            f"{format_moment(moment_ms)}: it has those from {shown}. {_KEEP_MORE}"
        )
    return found[0]


_KEEP_MORE = (
    "Spark keeps the newest 100 unless 'spark.sql.streaming.minBatchesToRetain' is greater; "
    "set it to as many epochs as a replay may need"
)


def _parse_time(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        # Python 3.10 does not accept the Z.
        moment = datetime.fromisoformat(text[:-1] + "+00:00" if text[-1:] in "zZ" else text)
    except ValueError as error:
        raise OptionError(
            f"--from {text!r} is neither the number of an epoch nor a time: write "
            "2026-11-24T09:00:00Z, or milliseconds since 1970"
        ) from error
    if moment.tzinfo is None:
        whole = moment.isoformat()  # a date alone means its midnight
        raise OptionError(
            f"--from {text!r} has no time zone: write {whole}Z for UTC, or an offset such as "
            f"{whole}+01:00"
        )
    # The number is whole and rounded up: a binary fraction would differ from the time that the user
    # has written.
    return -((_EPOCH - moment) // timedelta(milliseconds=1))


def _read_planned_ms(checkpoint: SparkCheckpoint, epoch: int) -> int:
    ms = _planned_ms(checkpoint.read_offset_seq(epoch))
    if ms is None:
        raise OptionError(
            f"offsets/{epoch} in {checkpoint.location} does not record when the epoch was planned: "
            "give --from with the number of an epoch"
        )
    return ms


def _planned_ms(entry: OffsetSeq | None) -> int | None:
    ms = None if entry is None else entry.metadata.get("batchTimestampMs")
    return ms if isinstance(ms, int) else None


@dataclass(frozen=True)
class QueryReplay:
    """A replay of a query. No driver of the query runs.

    Attributes:
        checkpoint: The checkpoint of the query.
        target: The target of the query.
        first: The first epoch that is processed again.
        command: The command that finishes the replay, without secrets.
        sources: Options of the query's sources.
        is_stopped: True if the user confirms that no driver runs.
        pending: The record of the same replay, which was interrupted; None for a new one.
    """

    checkpoint: SparkCheckpoint
    target: ReplayTarget
    first: int
    command: str
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_stopped: bool = False
    pending: ReplayRecord | None = None

    @cached_property
    def boundary(self) -> RestorePoint:
        """The end of the last epoch that is kept.

        Raises:
            OptionError: If the checkpoint cannot be rewound to it.
        """
        if self.first == 0:
            raise OptionError(
                "there is no epoch before epoch 0 to rewind to: start the query with a new "
                "checkpoint and a new target, and all rows are read again"
            )
        try:
            return restore_point_at(self.checkpoint, self.first - 1)
        except OptionError as error:
            raise OptionError(f"{error}. {_KEEP_MORE}") from error

    @cached_property
    def record(self) -> ReplayRecord:
        """The content of the entry that stops the query."""
        if self.pending is not None:
            return self.pending
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        return ReplayRecord(
            name=f"{stamp}-from-{self.first}",
            query=self.checkpoint.query_id(),
            first=self.first,
            newest=self.checkpoint.epochs()[-1],
            target=self.target.identity(),
        )

    @property
    def folder(self) -> str:
        """The folder for the files that are removed from the checkpoint, relative to it."""
        return f"{REPLAYS}/{self.record.name}"

    @cached_property
    def _replay(self) -> Replay:
        record = self.record
        location, before = self.checkpoint.location, self.boundary.identity()
        return Replay(location, record.query, record.name, before)

    @cached_property
    def _rewinding(self) -> CheckpointRewind:
        return CheckpointRewind(self.checkpoint, self.first - 1, self.folder)

    def lines(self) -> list[str]:
        """Return a line for each action of `run`; changes nothing.

        Raises:
            OptionError: If the query seems to run, if a source no longer has the rows, or if the
                target, a state store or the checkpoint cannot be rewound.
            KrishivError: If a source or the target cannot be reached.
        """
        boundary, record = self.boundary, self.record
        stores = self._rewinding.check_state()
        if self.pending is not None:
            self._check_same_target()
            begun = f"the replay {record.name}, which has not finished, continues"
            return [begun, *self._target_lines(), self._checkpoint_line(stores)]
        self._check_stopped()
        self._check_own_epochs()
        asked = SourceCheck(self.checkpoint, boundary, record.newest, self.sources)
        return [
            self._epochs_line(),
            *asked.lines(),
            *self._target_lines(),
            self._checkpoint_line(stores),
        ]

    def _target_lines(self) -> Sequence[str]:
        return self.target.lines(self._replay)

    def _epochs_line(self) -> str:
        first, newest = self.first, self.record.newest
        if newest < first:
            return f"query {self.record.query}: the checkpoint is at the end of epoch {newest}"
        planned = _planned_ms(self.checkpoint.offset_seq(first))
        since = "" if planned is None else f", the first one planned at {format_moment(planned)}"
        return f"query {self.record.query}: epochs {first} to {newest} are processed again{since}"

    def _checkpoint_line(self, stores: int) -> str:
        state = f", with {stores} state stores" if stores else ""
        return (
            f"checkpoint {self.checkpoint.location}: is rewound to the end of epoch "
            f"{self.first - 1}{state}; removed files are kept in "
            f"{self.checkpoint.location}/{self.folder}"
        )

    def _check_stopped(self) -> None:
        newest = self.record.newest
        if self.is_stopped or self.checkpoint.is_committed(newest):
            return
        raise OptionError(
            f"epoch {newest} was planned and is not completed: either the query runs, or it was "
            "killed in the middle of that epoch. Stop it. If no driver of it runs any more, "
            "confirm that with --stopped: the epoch is processed again with the others"
        )

    def _check_own_epochs(self) -> None:
        """Refuse epochs that were written by the query from which this checkpoint was copied."""
        begins_after = self._begins_after()
        if begins_after is None or self.first > begins_after:
            return
        location = self.checkpoint.location
        raise OptionError(
            f"{location} was copied from the checkpoint of another query at the end of epoch "
            f"{begins_after}: that query has written the epochs up to there, under its own id, "
            "and they remain in its target. If they were processed again here, their rows "
            f"would be there TWICE. Nothing was changed: replay from epoch {begins_after + 1} "
            "or later; or, for a target that has none of these rows, 'krishiv-spark checkpoint "
            f"copy {location} NEW --to {self.first - 1}' creates a checkpoint that starts there"
        )

    def _begins_after(self) -> int | None:
        """Return the epoch after which a copy starts; None for a checkpoint that is not a copy."""
        recorded = self.checkpoint.begins_after()
        if recorded is not None:
            return recorded
        # Copies by earlier versions do not record it, but have an epoch log that was created there.
        # Most sinks have their log elsewhere, and leave this one unchanged.
        place = StoreUrl.parse(self.checkpoint.location) / KRISHIV
        state = open_log(str(place), self.record.query, self.checkpoint.storage).state()
        is_untouched = state.number == 2 and state.intent is None  # noqa: PLR2004  the entries of begin and adopt
        is_of_copy = is_untouched and state.claim is not None and state.claim.target is None
        return state.committed_epoch if is_of_copy else None

    def _check_same_target(self) -> None:
        if (found := self.target.identity()) != self.record.target:
            raise OptionError(
                f"the replay {self.record.name} was started with the target "
                f"{self.record.target}, and the options name {found}: give the same options as "
                "before"
            )

    def run(self) -> str:
        """Rewind the query. A second run completes an interrupted first one.

        Returns:
            The folder with the files that were removed from the checkpoint.

        Raises:
            OptionError: As `lines`; or if the query has planned an epoch since.
            KrishivError: If the target or a store does not respond: run it again.
        """
        if self.pending is None:
            self.target.settle()
            self._stop_starts()
        self._keep_record()
        self.target.take_back(self._replay)
        return self._rewinding.run()

    def _stop_starts(self) -> None:
        """Create the entry of the next epoch.

        From here on no query starts, and none plans an epoch.
        """
        name = str(self.record.newest + 1)
        # A table of an early version has its id since `settle` only.
        record = self.record.model_copy(update={"target": self.target.identity()})
        text = replay_marker(self.command, record.model_dump_json())
        folder = self.checkpoint.folder("offsets")
        try:
            # If the answer of a store is lost, its client asks again, and the name is taken.
            is_created = folder.create(name, text) or folder.read(name) == text
        except NotExclusiveError:
            # Such a store cannot separate two drivers either, so that a check has to suffice.
            is_created = folder.read(name) is None
            if is_created:
                folder.replace(name, text)
        if not is_created:
            raise OptionError(
                f"the query runs: it has just planned epoch {name}. Nothing was changed: stop it "
                "first"
            )

    def _keep_record(self) -> None:
        """Store the record in the folder of the replay, for operators."""
        folder = self.checkpoint.folder(self.folder)
        folder.replace("replay.json", self.record.model_dump_json(indent=2).encode())
