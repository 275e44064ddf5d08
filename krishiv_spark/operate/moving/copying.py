"""The creation of a checkpoint, which becomes valid for Spark by one single step.

The steps, in this order: write a text that Spark refuses as the newest entry of the offset log;
write everything else; replace that entry by the true one. A crash before the last step leaves a
checkpoint that Spark refuses with that text, and that the same command creates again.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from krishiv_spark.errors import LogError, OptionError
from krishiv_spark.messages.suggestions import line_of_id
from krishiv_spark.offsets import Claim, open_log
from krishiv_spark.operate.moving.boundaries import (
    STATE,
    RestorePoint,
    check_version,
    incomplete_marker,
    is_later,
    is_new_checkpoint_marker,
)
from krishiv_spark.spark.checkpoint import BEGIN_FILE, KRISHIV, QUERY_ID_FILE, SparkCheckpoint
from krishiv_spark.storage import StoreUrl

__all__ = ["SOURCES", "CheckpointCopy", "NewCheckpoint", "copy_files", "files_of"]


_OWN = {"commits", "metadata", "offsets", "sources", STATE, KRISHIV}

_log = logging.getLogger(__name__)


class NewCheckpoint:
    """A new checkpoint that starts at the end of an epoch of another one.

    Args:
        checkpoint: Its location, which must be empty.
        verb: The command after ``krishiv-spark checkpoint``, for the text in an incomplete one.

    Attributes:
        query: The new id of its query.
        has_log: True if an epoch log was created in it; None before the attempt.
    """

    def __init__(self, checkpoint: SparkCheckpoint, verb: str) -> None:
        self.query = str(uuid.uuid4())
        self.has_log: bool | None = None
        self._checkpoint = checkpoint
        self._verb = verb

    def verify_free(self) -> None:
        """Refuse a location that is not empty, unless it contains an incomplete checkpoint.

        Raises:
            OptionError: If it contains other files.
        """
        there = [path for path in self._checkpoint.folder().iter_files() if not _is_hidden(path)]
        if there and not self._is_half_made():
            raise OptionError(
                f"{self._checkpoint.location} is not empty ({min(there)} is there): name a folder "
                "that is, or that does not exist"
            )

    def _is_half_made(self) -> bool:
        epochs = self._checkpoint.epochs()
        folder = self._checkpoint.folder("offsets")
        return bool(epochs) and is_new_checkpoint_marker(folder.read(str(epochs[-1])) or b"")

    def write(
        self, boundary: RestorePoint, old: SparkCheckpoint, files: Iterable[str], *, keeps: bool
    ) -> None:
        """Write the checkpoint; the last step makes it complete.

        Args:
            boundary: The end of the epoch at which it starts.
            old: The checkpoint from which files are copied.
            files: Their paths, relative to it, without those of the offset log and the commit log.
            keeps: True to copy earlier epochs too, so that the checkpoint can be rewound to them.

        Raises:
            OptionError: As `verify_free`; or if the files lack that version of a state store.
        """
        self._begin(boundary.epoch)
        copy_files(old, self._checkpoint, files)
        # The old query may have removed some of them since.
        check_version(files_of(self._checkpoint), boundary.state_version, self._checkpoint.location)
        if keeps:
            copy_files(old, self._checkpoint, _earlier(old, boundary.epoch))
        self._put("commits", str(boundary.epoch), boundary.commit)
        for epoch in sorted(boundary.offsets.keys() - {boundary.epoch}):
            self._put("offsets", str(epoch), boundary.offsets[epoch])
        self._put("", "metadata", line_of_id(self.query))
        # As `SparkCheckpoint.record_query_id` does: the copy is a separate query from the start.
        self._put(KRISHIV, QUERY_ID_FILE, f"{line_of_id(self.query)}\n")
        # A replay cannot undo the epochs that the old query has written.
        self._put(KRISHIV, BEGIN_FILE, json.dumps({"after": boundary.epoch}))
        self._begin_log(boundary)
        # From here on it is complete: Spark reads the newest entry first.
        self._put("offsets", str(boundary.epoch), boundary.offsets[boundary.epoch])

    def _begin(self, epoch: int) -> None:
        self.verify_free()
        # This comes first, so that Spark never finds files that it would take for complete.
        self._checkpoint.folder("offsets").replace(str(epoch), incomplete_marker(self._verb))
        for path in list(self._checkpoint.folder().iter_files()):
            # Files of an interrupted copy, or checksums of files that existed before.
            if path != f"offsets/{epoch}" and _is_of_checkpoint(path):
                folder, _, name = path.rpartition("/")
                self._checkpoint.folder(folder).remove([name])

    def _begin_log(self, boundary: RestorePoint) -> None:
        """Create the epoch log for sinks that have it here, with the epoch as committed.

        It has the content that ``krishiv-spark log adopt`` writes, but names no target: the first
        start records it.
        """
        place = StoreUrl.parse(self._checkpoint.location) / KRISHIV
        log = open_log(str(place), self.query, self._checkpoint.storage)
        try:
            taken = log.begin(Claim(query=self.query))
            log.adopt(taken, Claim(query=self.query, offsets=boundary.identity()))
        except LogError as error:  # the store cannot contain a log, and not every sink needs one
            _log.warning("no epoch log was started: %s", error)
            self.has_log = False
        else:
            self.has_log = True

    def _put(self, folder: str, name: str, text: str) -> None:
        self._checkpoint.folder(folder).replace(name, text.encode())


def _is_of_checkpoint(path: str) -> bool:
    """Return True for files that this module writes, and their backups.

    No others may be deleted.
    """
    first = path.split("/", maxsplit=1)[0]
    return first in _OWN or first.startswith(".metadata.")


def _is_hidden(path: str) -> bool:
    """Return True for a file that Hadoop, or an interrupted write, has left."""
    return any(part.startswith(".") for part in path.split("/")) or path.endswith("/")


def files_of(checkpoint: SparkCheckpoint) -> list[str]:
    """Return the files of a checkpoint, relative, without checksums and temporary files."""
    return sorted(path for path in checkpoint.folder().iter_files() if not _is_hidden(path))


def _earlier(checkpoint: SparkCheckpoint, epoch: int) -> list[str]:
    """Return the entries of epochs before one, except the offsets of the previous one."""
    offsets = [f"offsets/{n}" for n in checkpoint.epochs() if n < epoch - 1]
    return offsets + [f"commits/{n}" for n in checkpoint.committed_epochs() if n < epoch]


def copy_files(
    old: SparkCheckpoint,
    new: SparkCheckpoint,
    paths: Iterable[str],
    names: Mapping[str, str] | None = None,
) -> None:
    """Copy files. Missing ones are skipped, since a running query removes old files.

    Args:
        old: The checkpoint that contains them.
        new: The checkpoint to copy them to.
        paths: Paths relative to the old checkpoint.
        names: Other paths in the new checkpoint, by path in the old one.
    """
    copy = partial(_copy, old, new, names or {})
    for _ in old.storage.files(old.location).map(copy, list(paths)):
        pass


def _copy(old: SparkCheckpoint, new: SparkCheckpoint, names: Mapping[str, str], path: str) -> None:
    folder, _, name = path.rpartition("/")
    data = old.folder(folder).read(name)
    if data is not None:
        to, _, as_name = names.get(path, path).rpartition("/")
        new.folder(to).replace(as_name, data)


SOURCES = "sources"
"""The folder of a checkpoint in which Spark's sources store their state."""


@dataclass(frozen=True)
class CheckpointCopy:
    """A copy of a checkpoint. Any process that reaches both.

    Attributes:
        old: The checkpoint that is copied; its query may run.
        new: The location of the copy.
        boundary: The end of the epoch at which the copy starts.
        without: Sources whose folders are omitted, by name or index.
        keeps: True to copy the epochs before the boundary too.
        verb: As for `NewCheckpoint`.
    """

    old: SparkCheckpoint
    new: SparkCheckpoint
    boundary: RestorePoint
    without: Collection[str] = ()
    keeps: bool = True
    verb: str = "copy"

    def check(self) -> int:
        """Check that the copy can be made; change nothing.

        Returns:
            The number of state stores that are copied.

        Raises:
            OptionError: If the new location is not empty, or state stores cannot be loaded.
        """
        NewCheckpoint(self.new, self.verb).verify_free()
        return check_version(files_of(self.old), self.boundary.state_version, self.old.location)

    def run(self) -> NewCheckpoint:
        """Make the copy.

        Raises:
            OptionError: As `check`; or if files of state stores were removed since.
        """
        self.check()
        made = NewCheckpoint(self.new, self.verb)
        made.write(self.boundary, self.old, self._files(), keeps=self.keeps)
        return made

    def _files(self) -> list[str]:
        left_out = tuple(f"{SOURCES}/{name}/" for name in self.without)
        version = self.boundary.state_version
        return [
            path
            for path in files_of(self.old)
            if path.startswith((f"{STATE}/", f"{SOURCES}/")) and not path.startswith(left_out)
            if not is_later(path, version)
        ]
