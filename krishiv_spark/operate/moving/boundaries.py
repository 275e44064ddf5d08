"""The ends of completed epochs, from which a checkpoint can continue."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from krishiv_spark.errors import OptionError
from krishiv_spark.offsets import PlannedOffsets
from krishiv_spark.spark.checkpoint import SparkCheckpoint
from krishiv_spark.spark.offset_log import OffsetSeq, with_offsets

__all__ = [
    "STATE",
    "Newest",
    "RestorePoint",
    "check_version",
    "incomplete_marker",
    "is_incomplete_marker",
    "is_later",
    "is_new_checkpoint_marker",
    "is_replay_marker",
    "newest_restore_point",
    "replay_marker",
    "restore_point_at",
    "restore_point_to_move",
    "version_of",
]


_BEGIN = b"unfinished: "
_COMMAND = "'krishiv-spark checkpoint"
_REPLAY = "'krishiv-spark replay' has taken back only a part of what was written"


def incomplete_marker(verb: str) -> bytes:
    """Return the entry that marks an incomplete checkpoint.

    Args:
        verb: The command after ``krishiv-spark checkpoint``.
    """
    text = f"{_COMMAND} {verb}' has not got through here: run it again"
    return _BEGIN + text.encode()


def replay_marker(command: str, record: str) -> bytes:
    """Return an entry that prevents every start until a replay is finished.

    Args:
        command: The command that finishes it.
        record: JSON of the replay, for the process that finishes it.
    """
    return _BEGIN + f"{_REPLAY}: run this again to finish it: {command}\n{record}".encode()


def is_replay_marker(entry: bytes) -> bool:
    """Return True if an entry marks an unfinished replay."""
    return entry.startswith(_BEGIN + _REPLAY.encode())


def is_incomplete_marker(entry: bytes) -> bool:
    """Return True if an entry of an offset log is one of these markers."""
    return entry.startswith(_BEGIN)


def is_new_checkpoint_marker(entry: bytes) -> bool:
    """Return True for the marker of a new checkpoint. A rewind's marker is in an old one."""
    is_new = not entry.startswith(_BEGIN + f"{_COMMAND} rewind ".encode())
    return is_incomplete_marker(entry) and is_new and not is_replay_marker(entry)


STATE = "state"
"""The folder of state stores in a checkpoint. A query without state may lack it."""

# HDFSBackedStateStoreProvider and RocksDBFileManager: a complete version, or the changes since the
# previous one; with a unique id in checkpoints of version 2. ``.crc``:
# ChecksumCheckpointFileManager.
_FILE = re.compile(
    r"(?P<version>\d+)(?P<id>_[\w-]+)?\.(?P<kind>delta|snapshot|changelog|zip)(?P<sum>\.crc)?"
)
_WHOLE = {"snapshot", "zip"}


class _Versions(NamedTuple):
    whole: set[int]
    changes: set[int]

    def has(self, version: int) -> bool:
        """Return True if a version can be loaded, from a complete one and all changes since."""
        while version > 0 and version not in self.whole:
            if version not in self.changes:
                return False
            version -= 1
        return True


def version_of(path: str) -> int | None:
    """Return the version that a file belongs to; None for a file of no version.

    Args:
        path: Path of a file, relative to the checkpoint.
    """
    folder, _, name = path.rpartition("/")
    found = _FILE.fullmatch(name) if folder.split("/")[0] == STATE else None
    return None if found is None else int(found["version"])


def is_later(path: str, version: int) -> bool:
    """Return True if a file belongs to a later version of a state store."""
    found = version_of(path)
    return found is not None and found > version


def check_version(paths: Iterable[str], version: int, location: str) -> int:
    """Refuse a version that one of the state stores cannot load.

    Args:
        paths: Paths of the files of a checkpoint, relative to it.
        version: The version; the first epoch creates version 1.
        location: The location of the checkpoint, for the message.

    Returns:
        The number of state stores.

    Raises:
        OptionError: If a store lacks the version, or changes that lead to it.
    """
    stores: dict[str, _Versions] = defaultdict(lambda: _Versions(set(), set()))
    for path in paths:
        folder, _, name = path.rpartition("/")
        found = _FILE.fullmatch(name) if folder.split("/")[0] == STATE else None
        if found is not None and not found["sum"]:
            kind = stores[folder]
            (kind.whole if found["kind"] in _WHOLE else kind.changes).add(int(found["version"]))
    missing = sorted(folder for folder, versions in stores.items() if not versions.has(version))
    if missing:
        raise OptionError(
            f"{location}/{missing[0]} cannot be loaded in version {version}, which its query had "
            f"at the end of epoch {version - 1}: Spark keeps those of the newest epochs "
            "('spark.sql.streaming.minBatchesToRetain')"
        )
    return len(stores)


Newest = Literal["published", "unpublished"]
"""The outcome of the newest epoch, as the user has determined it; as for ``krishiv-spark log
adopt``."""

_NO_WATERMARK = 'v1\n{"nextBatchWatermarkMs":0}'
"""An entry of the commit log. Spark takes the maximum of this watermark and that in the offset
log."""


@dataclass(frozen=True)
class RestorePoint:
    """The end of an epoch.

    Attributes:
        epoch: Its number.
        offsets: The texts of ``offsets/<epoch>`` and, except for epoch 0, of the previous one.
            Spark starts from these two (``MicroBatchExecution.populateStartOffsets``).
        commit: The text of ``commits/<epoch>``.
        planned: A later epoch that was planned and is not completed; None for none.
    """

    epoch: int
    offsets: Mapping[int, str]
    commit: str
    planned: int | None = None

    @property
    def sources(self) -> Mapping[str, str]:
        """The offset of each source at the end of the epoch, by name or index."""
        return OffsetSeq.parse(self.offsets[self.epoch]).sources

    @property
    def state_version(self) -> int:
        """The version of state stores at the end of the epoch (``StateStore``)."""
        return self.epoch + 1

    def identity(self) -> PlannedOffsets:
        """Return the epoch's planned offsets, by which a sink of this package identifies it."""
        before = self.offsets.get(self.epoch - 1)
        begins = {} if before is None else OffsetSeq.parse(before).sources
        return PlannedOffsets.of(self.epoch, begins, self.sources)

    def with_sources(self, changes: Mapping[int, Mapping[str, str]]) -> RestorePoint:
        """Return the same epoch with other offsets for some sources.

        Args:
            changes: New offsets by epoch of `offsets` and by source.
        """
        changed = {n: with_offsets(text, changes.get(n, {})) for n, text in self.offsets.items()}
        return replace(self, offsets=changed)


def newest_restore_point(checkpoint: SparkCheckpoint) -> RestorePoint:
    """Return the end of the newest completed epoch.

    Raises:
        OptionError: If there is none, or the checkpoint lacks entries that Spark needs to start
            there.
    """
    checkpoint.query_id()  # raises if it is not a checkpoint
    over = checkpoint.committed_epochs()
    if not over:
        raise OptionError(
            f"no epoch of {checkpoint.location} is completed, so it has no position yet: start "
            "the query with an empty checkpoint, with the options that specify where its "
            "sources start"
        )
    return restore_point_at(checkpoint, over[-1])


def restore_point_at(checkpoint: SparkCheckpoint, epoch: int) -> RestorePoint:
    """Return the end of an epoch.

    Raises:
        OptionError: If it is not completed, or the checkpoint lacks entries that Spark needs to
            start there.
    """
    commit = checkpoint.folder("commits").read(str(epoch))
    if commit is None:
        over = checkpoint.committed_epochs()
        which = f"epochs {over[0]} to {over[-1]} are" if over else "none is"
        raise OptionError(f"commits/{epoch} is not in {checkpoint.location}: {which} over there")
    needed = [epoch] if epoch == 0 else [epoch - 1, epoch]
    offsets = {number: _offsets(checkpoint, number) for number in needed}
    later = checkpoint.epochs()[-1]
    return RestorePoint(epoch, offsets, commit.decode(), later if later > epoch else None)


def _offsets(checkpoint: SparkCheckpoint, epoch: int) -> str:
    data = checkpoint.folder("offsets").read(str(epoch))
    if data is None:
        raise OptionError(
            f"offsets/{epoch} is not in {checkpoint.location}, and Spark needs it to start "
            "there: it keeps as many epochs as 'spark.sql.streaming.minBatchesToRetain' "
            "specifies"
        )
    if is_incomplete_marker(data):
        raise OptionError(f"{checkpoint.location} is not whole: {data.decode()}")
    try:
        OffsetSeq.parse(data.decode())
    except ValueError as error:
        raise OptionError(f"offsets/{epoch} in {checkpoint.location}: {error}") from error
    return data.decode()


def restore_point_to_move(checkpoint: SparkCheckpoint, newest: Newest | None) -> RestorePoint:
    """Return the point at which another query continues a stopped one.

    Args:
        checkpoint: The checkpoint of the query, which does not run.
        newest: The outcome of an epoch that was planned and is not completed.

    Raises:
        OptionError: As `newest_restore_point`. Also if there is such an epoch and `newest` is None,
            or state stores cannot be used at its end.
    """
    is_first = checkpoint.epochs() == [0] and not checkpoint.has_commits()
    if is_first and newest != "unpublished":
        checkpoint.query_id()  # raises if it is not a checkpoint
        return _end_of_first_epoch(checkpoint, newest)
    boundary = newest_restore_point(checkpoint)
    planned = boundary.planned
    if planned is None or newest == "unpublished":
        return replace(boundary, planned=None)
    _check_outcome(planned, newest)
    if planned > boundary.epoch + 1:
        raise OptionError(
            f"epoch {planned} was planned, but {boundary.epoch} is the newest completed one: "
            f"{checkpoint.location} has lost entries of its commit log"
        )
    # Later versions name files of state stores: the second, and the third of Spark 4.3.
    if not boundary.commit.startswith("v1\n"):
        raise _unknown_state(planned)
    offsets = {n: _offsets(checkpoint, n) for n in (boundary.epoch, planned)}
    return RestorePoint(planned, offsets, _NO_WATERMARK)


def _end_of_first_epoch(checkpoint: SparkCheckpoint, newest: Newest | None) -> RestorePoint:
    """Return the end of epoch 0, which was planned and is not recorded as completed.

    No earlier entry of the commit log shows its version; the names of state files do.
    """
    _check_outcome(0, newest)
    names = (path.rpartition("/")[2] for path in checkpoint.folder(STATE).iter_files())
    if any(found["id"] for found in map(_FILE.fullmatch, names) if found is not None):
        raise _unknown_state(0)
    return RestorePoint(0, {0: _offsets(checkpoint, 0)}, _NO_WATERMARK)


def _unknown_state(planned: int) -> OptionError:
    return OptionError(
        f"commits/{planned} must name files of state stores, which are unknown: start the "
        "old query once more, which finishes the epoch"
    )


def _check_outcome(planned: int, newest: Newest | None) -> None:
    """Refuse an epoch without a record of its end, unless the user has determined its outcome."""
    if newest is None:
        raise OptionError(
            f"the query was not stopped between two epochs: epoch {planned} was planned, and "
            "Spark has not recorded it as completed, so its rows may be in the sink or not. "
            "Preferably start the old query once more, which finishes the epoch, and stop it "
            "cleanly (trigger(availableNow=True)). Or check whether its rows are in the sink, "
            "and give --newest published (if they are not, they are LOST) or --newest "
            "unpublished (if they are, they will be there TWICE)"
        )
