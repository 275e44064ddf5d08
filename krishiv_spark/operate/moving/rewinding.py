"""A rewind of a checkpoint to the end of an earlier epoch. Removed files are backed up first.

Spark's position is the newest entry of the offset log. If several entries are removed, no store
removes them in one step. So the newest one is first replaced by a text that Spark refuses; then the
others are removed, with all files of later epochs; and when it is removed as the last one, the
checkpoint is at the earlier epoch. If only one entry is removed, there is no such interval: before
its removal Spark would repeat its epoch, as after a crash.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from krishiv_spark.errors import OptionError
from krishiv_spark.operate.moving.boundaries import (
    RestorePoint,
    check_version,
    incomplete_marker,
    is_incomplete_marker,
    is_later,
    is_replay_marker,
    restore_point_at,
)
from krishiv_spark.operate.moving.copying import copy_files, files_of
from krishiv_spark.sinks.numbered import records_at
from krishiv_spark.spark.checkpoint import REWOUND, SparkCheckpoint
from krishiv_spark.storage import StoreUrl

__all__ = ["CheckpointRewind"]


@dataclass(frozen=True)
class CheckpointRewind:
    """The rewind of a checkpoint to the end of an epoch. Its query does not run.

    Attributes:
        checkpoint: The checkpoint.
        epoch: The newest epoch that is kept.
        replay: The folder of the replay, relative to the checkpoint. The replay's own entry of the
            offset log is the newest one. None for ``checkpoint rewind``, which refuses a checkpoint
            with such an entry, since it would not rewind the target.
    """

    checkpoint: SparkCheckpoint
    epoch: int
    replay: str | None = None

    @cached_property
    def boundary(self) -> RestorePoint:
        """The end of the epoch that is kept.

        Raises:
            OptionError: As `restore_point_at`.
        """
        return restore_point_at(self.checkpoint, self.epoch)

    def check(self) -> int:
        """Check that the rewind can be done; change nothing.

        Returns:
            The number of state stores that are rewound too.

        Raises:
            OptionError: As `restore_point_at`; or if the checkpoint is at that epoch already, or
                state stores no longer have that version.
        """
        self.checkpoint.query_id()  # raises if it is not a checkpoint
        self._check_no_replay()
        _ = self.boundary
        if not self.offsets and not self.commits:
            raise OptionError(
                f"{self.checkpoint.location} is at the end of epoch {self.epoch} already"
            )
        return self.check_state()

    def check_state(self) -> int:
        """Return the number of state stores that are rewound too; changes nothing.

        Raises:
            OptionError: As `restore_point_at`; or if state stores no longer have that version.
        """
        version = self.boundary.state_version
        return check_version(self._files, version, self.checkpoint.location)

    def _check_no_replay(self) -> None:
        newest = self._newest_entry()
        if self.replay is None and is_replay_marker(newest):
            text = newest.decode().splitlines()[0]
            raise OptionError(f"{self.checkpoint.location} is in the middle of a replay: {text}")

    def _newest_entry(self) -> bytes:
        epochs = self.checkpoint.epochs()
        folder = self.checkpoint.folder("offsets")
        return folder.read(str(epochs[-1])) or b"" if epochs else b""

    @cached_property
    def offsets(self) -> list[int]:
        """The epochs that were planned later, in ascending order."""
        return [number for number in self.checkpoint.epochs() if number > self.epoch]

    @cached_property
    def commits(self) -> list[int]:
        """The later epochs that are completed, in ascending order."""
        return [number for number in self.checkpoint.committed_epochs() if number > self.epoch]

    @cached_property
    def state(self) -> list[str]:
        """The files of later versions of state stores, relative to the checkpoint."""
        version = self.boundary.state_version
        return [path for path in self._files if is_later(path, version)]

    @cached_property
    def records(self) -> Mapping[str, bytes | None]:
        """The records of later batches in targets of ``foreachBatch``: see `records_at`."""
        return records_at(self.checkpoint, self.epoch)

    @cached_property
    def _files(self) -> list[str]:
        return files_of(self.checkpoint)

    def run(self) -> str:
        """Rewind the checkpoint.

        Returns:
            The folder with the removed files, by paths relative to the checkpoint.

        Raises:
            OptionError: As `check`.
        """
        self.check()
        place = self._copy_aside()
        if len(self.offsets) > 1:
            self._replace(self.offsets[-1])
        for number in reversed(self.commits):
            self._remove(f"commits/{number}")
        # This comes after the commits: a query that repeats the one removed epoch needs none of
        # these.
        for path in self.state:
            self._remove(path)
        for path, text in self.records.items():
            self._put(path, text)
        # This order matters: the newest entry determines the position of the query.
        for number in self.offsets:
            self._remove(f"offsets/{number}")
        return place

    def _copy_aside(self) -> str:
        went = [f"offsets/{number}" for number in self.offsets if not self._is_replaced(number)]
        went += [*(f"commits/{number}" for number in self.commits), *self.state, *self.records]
        place = self._begun() or self._aside(
            f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-to-{self.epoch}"
        )
        copy_files(self.checkpoint, SparkCheckpoint(str(place), self.checkpoint.storage), went)
        return str(place)

    def _begun(self) -> StoreUrl | None:
        """Return the folder of an interrupted attempt, the only one with the files it removed.

        It is identified by the newest entry, which each attempt copies, and removes last. Entries
        contain the time when their epoch was planned, so another epoch with the same number has
        another entry.
        """
        if self.replay is not None:
            return StoreUrl.parse(self.checkpoint.location) / self.replay
        name = max(self.checkpoint.folder(REWOUND).names(), default=None)
        if name is None or not self.offsets:
            return None
        place, newest = self._aside(name), str(self.offsets[-1])
        kept = self.checkpoint.storage.folder(place / "offsets").read(newest)
        now = self.checkpoint.folder("offsets").read(newest)
        is_same = kept is not None and (kept == now or self._is_replaced(self.offsets[-1]))
        return place if is_same else None

    def _aside(self, name: str) -> StoreUrl:
        return StoreUrl.parse(self.checkpoint.location) / f"{REWOUND}/{name}"

    def _is_replaced(self, number: int) -> bool:
        """Return True if an entry is the marker of another attempt."""
        return is_incomplete_marker(self.checkpoint.folder("offsets").read(str(number)) or b"")

    def _replace(self, number: int) -> None:
        if self._is_replaced(number):
            return
        folder = self.checkpoint.folder("offsets")
        # Otherwise Hadoop would report a wrong checksum instead of the text.
        folder.remove([_checksum(str(number))])
        folder.replace(str(number), incomplete_marker(f"rewind --to {self.epoch}"))

    def _put(self, path: str, text: bytes | None) -> None:
        """Replace a file; remove it if the text is None."""
        if text is None:
            self._remove(path)
            return
        folder, _, name = path.rpartition("/")
        self.checkpoint.folder(folder).replace(name, text)

    def _remove(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        # Hadoop's checksum of a file on a disk would not fit a new file of this name. It is removed
        # first, since a second run would not find one that remained alone.
        self.checkpoint.folder(folder).remove([_checksum(name), name])


def _checksum(name: str) -> str:
    return f".{name}.crc"
