"""A checkpoint that is being made: whole for Spark from one single step on.

The steps, in this order: a text that Spark refuses in the place of the newest entry of the offset
log; everything else; then the true entry in its place. Whatever dies before the last step leaves a
checkpoint that Spark refuses with that text, and that the same command begins anew.
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
    """A checkpoint that begins at the end of an epoch of another one.

    Args:
        checkpoint: Where it will be; nothing may be there yet.
        verb: Of ``krishiv-spark checkpoint``, for the message in one that is not whole.

    Attributes:
        query: The id of its query, a new one.
        has_log: Whether an epoch log was begun in it; None before that was tried.
    """

    def __init__(self, checkpoint: SparkCheckpoint, verb: str) -> None:
        self.query = str(uuid.uuid4())
        self.has_log: bool | None = None
        self._checkpoint = checkpoint
        self._verb = verb

    def verify_free(self) -> None:
        """Refuse a place where something is, unless it is a checkpoint that was half made.

        Raises:
            OptionError: If there is something else.
        """
        there = [path for path in self._checkpoint.folder().below() if not _is_hidden(path)]
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
        """Make it, and make it whole in the end.

        Args:
            boundary: Where it begins.
            old: The checkpoint that files are taken from.
            files: Their paths, relative to it; none is of the log of offsets or of commits.
            keeps: Whether earlier epochs are taken too, so that one can go back to them.

        Raises:
            OptionError: As `verify_free`; or if the files have no such version of a state store.
        """
        self._begin(boundary.epoch)
        copy_files(old, self._checkpoint, files)
        # The old query may have removed some of them meanwhile.
        check_version(files_of(self._checkpoint), boundary.state_version, self._checkpoint.location)
        if keeps:
            copy_files(old, self._checkpoint, _earlier(old, boundary.epoch))
        self._put("commits", str(boundary.epoch), boundary.commit)
        for epoch in sorted(boundary.offsets.keys() - {boundary.epoch}):
            self._put("offsets", str(epoch), boundary.offsets[epoch])
        self._put("", "metadata", line_of_id(self.query))
        # As `SparkCheckpoint.record_query_id` does: the copy is a query of its own from the start.
        self._put(KRISHIV, QUERY_ID_FILE, f"{line_of_id(self.query)}\n")
        # A replay cannot take back what the old query has written.
        self._put(KRISHIV, BEGIN_FILE, json.dumps({"after": boundary.epoch}))
        self._begin_log(boundary)
        # Whole from here on: the newest entry is the first that Spark reads.
        self._put("offsets", str(boundary.epoch), boundary.offsets[boundary.epoch])

    def _begin(self, epoch: int) -> None:
        self.verify_free()
        # First of all, so that at no time something is there that Spark would take for whole.
        self._checkpoint.folder("offsets").replace(str(epoch), incomplete_marker(self._verb))
        for path in list(self._checkpoint.folder().below()):
            # Of a copy that was begun before, or of what was there once and has left a checksum.
            if path != f"offsets/{epoch}" and _is_of_checkpoint(path):
                folder, _, name = path.rpartition("/")
                self._checkpoint.folder(folder).remove([name])

    def _begin_log(self, boundary: RestorePoint) -> None:
        """Create the epoch log for sinks that have theirs here, with the epoch as committed.

        As ``krishiv-spark log adopt`` does it. No target is named in it: the first start says which
        one it is.
        """
        place = StoreUrl.parse(self._checkpoint.location) / KRISHIV
        log = open_log(str(place), self.query, self._checkpoint.storage)
        try:
            taken = log.begin(Claim(query=self.query))
            log.adopt(taken, Claim(query=self.query, offsets=boundary.identity()))
        except LogError as error:  # a store that cannot hold one, which not every sink needs
            _log.warning("no epoch log was started: %s", error)
            self.has_log = False
        else:
            self.has_log = True

    def _put(self, folder: str, name: str, text: str) -> None:
        self._checkpoint.folder(folder).replace(name, text.encode())


def _is_of_checkpoint(path: str) -> bool:
    """Return True for files that this module writes, or their backups: no other may be deleted."""
    first = path.split("/", maxsplit=1)[0]
    return first in _OWN or first.startswith(".metadata.")


def _is_hidden(path: str) -> bool:
    """Return True for a file that Hadoop, or an interrupted write, has left."""
    return any(part.startswith(".") for part in path.split("/")) or path.endswith("/")


def files_of(checkpoint: SparkCheckpoint) -> list[str]:
    """Return the files of a checkpoint, relative, without checksums and temporary files."""
    return sorted(path for path in checkpoint.folder().below() if not _is_hidden(path))


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
    """Copy files; those that are gone are passed over, since Spark removes old ones as it runs.

    Args:
        old: Where they are.
        new: Where they go.
        paths: Relative to the old checkpoint.
        names: By such a path, another one relative to the new checkpoint.
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
"""The folder of a checkpoint in which sources of Spark's keep what they remember."""


@dataclass(frozen=True)
class CheckpointCopy:
    """The content of a new checkpoint. Any process that reaches both.

    Attributes:
        old: The checkpoint that is copied; its query may run.
        new: Where the copy will be.
        boundary: Where it begins.
        without: Sources whose folders are left out, by name or place.
        keeps: Whether epochs before the boundary are copied too.
        verb: As `NewCheckpoint`.
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
            How many state stores are copied.

        Raises:
            OptionError: If something is at the new place, or state stores cannot be loaded.
        """
        NewCheckpoint(self.new, self.verb).verify_free()
        return check_version(files_of(self.old), self.boundary.state_version, self.old.location)

    def run(self) -> NewCheckpoint:
        """Make it.

        Raises:
            OptionError: As `check`; or if files of state stores were removed meanwhile.
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
