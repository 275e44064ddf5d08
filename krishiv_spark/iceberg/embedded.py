"""The embedded catalog: a file of SQLite in the warehouse, and where it must not be.

SQLite keeps two drivers apart by locks of the file system. Those of network file systems cannot be
relied on (https://www.sqlite.org/howtocorrupt.html, section 2.1), so that two drivers on two
machines may both believe that their commit has happened.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from krishiv_spark.advice import NEW_CHECKPOINT
from krishiv_spark.errors import OptionError, StorageError
from krishiv_spark.iceberg.options import FORMAT, REGISTER, IcebergOptions
from krishiv_spark.lru import LruCache

if TYPE_CHECKING:
    from krishiv_spark.checkpoint import SparkCheckpoint

__all__ = ["check_locks", "check_present", "find_embedded", "mount_of", "record_catalog"]

_log = logging.getLogger(__name__)

_NETWORK = frozenset(
    {"afs", "cifs", "davfs", "ncpfs", "nfs", "nfs4", "smb3", "smbfs"}
    | {f"fuse.{name}" for name in ("blobfuse", "blobfuse2", "davfs", "gcsfuse", "goofys")}
    | {f"fuse.{name}" for name in ("mount-s3", "rclone", "s3fs", "sshfs")}
)
"""Kinds of file systems, as Linux names them."""

_MOUNTS = Path("/proc/self/mountinfo")
_SQLITE = re.compile(r"sqlite(?:\+\w+)?:///([^?]+)")

_RECORDS = "krishiv/iceberg.catalogs"
"""The folder of a checkpoint with one file for each catalog in SQLite that its query has used.

No log of a named batch has this name: it has a dot. A catalog is named by the digest of its path,
which may come from a reference to a secret, as the whole of 'catalog.uri' may."""

_RECORD = b"A catalog in SQLite that this query has used; its name is the SHA-256 of the path.\n"

_recorded: LruCache[SparkCheckpoint, str] = LruCache(256)
"""By checkpoint, the record that this process has seen or written last."""


def find_embedded(file: Path, *, create: bool) -> None:
    """Look whether the catalog is there, or make its folder.

    Raises:
        OptionError: If it is not there and none is to be made, or its folder is that of a table.
    """
    if not file.is_file() and _is_table(file.parent):
        raise OptionError(
            f"{FORMAT}: {file.parent} is the folder of one table, and tables are found by their "
            f"catalog. {REGISTER}"
        )
    if create:
        file.parent.mkdir(parents=True, exist_ok=True)
    elif not file.is_file():
        raise OptionError(
            f"{FORMAT}: there is no catalog {file}: 'warehouse' must be the folder that tables "
            "were written with, or give 'catalog.*' for another catalog"
        )


def _is_table(folder: Path) -> bool:
    """Return True for the folder of a table, as Hadoop's catalogs have it."""
    return next(folder.glob("metadata/*.metadata.json"), None) is not None


def check_locks(options: IcebergOptions) -> None:
    """Refuse an embedded catalog on a network file system; warn of one that is named. Planner.

    Where the kind of a file system is not known, as on systems other than Linux, nothing is said.

    Raises:
        OptionError: If two drivers cannot be kept apart.
    """
    file = _file_of(options)
    if file is None:
        return
    mount = mount_of(str(file), _MOUNTS)
    if mount is None or mount.kind not in _NETWORK:
        return
    reason = (
        f"{FORMAT}: the catalog {file} is on a network file system ({mount.kind}, mounted at "
        f"{mount.place}), whose locks SQLite cannot rely on: with drivers on two machines, a "
        "commit may be lost"
    )
    if not options.is_embedded:
        _warn(f"{reason}; only one machine may ever open it")
        return
    raise OptionError(
        f"{reason}. Tables may stay there; give another catalog, such as 'catalog.uri' = "
        "'postgresql+psycopg2://...' or a REST catalog. If only one machine ever opens this one, "
        f"say so by its name: 'catalog.uri' = 'sqlite:///{file}'"
    )


def _file_of(options: IcebergOptions) -> Path | None:
    """Return the file of a catalog in SQLite, embedded or named; None for another catalog."""
    if options.is_embedded:
        return options.embedded_file
    named = _SQLITE.match(options.catalog.values.get("uri", ""))
    return None if named is None else Path(named[1])


def check_present(options: IcebergOptions, checkpoint: SparkCheckpoint | None) -> None:
    """Refuse to create a catalog in SQLite where the query has used one before. Planner.

    A mount that is away leaves its empty folder: a new catalog there, and a new table in it, would
    take the rows and be hidden as soon as the mount is back. Costs nothing where the file is there.

    Raises:
        OptionError: If the file is away, and the checkpoint has its record.
        StorageError: If the record cannot be read.
    """
    file = _file_of(options)
    if checkpoint is None or file is None or file.is_file():
        return
    name = _name_of_record(file)
    if checkpoint.folder(_RECORDS).read(name) is not None:
        raise OptionError(
            f"{FORMAT}: the catalog {file}, through which this query has written, is away, and a "
            "new one would not have the rows of earlier epochs. Nothing was written. Mount or "
            "restore the warehouse, then restart the query. If it was removed for good, remove "
            f"{checkpoint.location}/{_RECORDS}/{name}: the query goes on into a new table, "
            f"without the rows of earlier epochs; or use {NEW_CHECKPOINT}"
        )


def record_catalog(options: IcebergOptions, checkpoint: SparkCheckpoint | None) -> None:
    """Store in the checkpoint which catalog in SQLite its query uses, once. Planner.

    A checkpoint that cannot be written keeps its query, which is then not protected by
    `check_present`: that is logged.
    """
    file = _file_of(options)
    if checkpoint is None or file is None:
        return
    name = _name_of_record(file)
    if _recorded.get(checkpoint) == name:
        return
    folder = checkpoint.folder(_RECORDS)
    try:
        if folder.read(name) is None:
            folder.replace(name, _RECORD)
    except (OSError, StorageError) as error:
        _log.warning(
            "%s: the checkpoint %s cannot store that its query uses the catalog %s: %s. The query "
            "goes on; but a mount that is away will not be noticed",
            FORMAT,
            checkpoint.location,
            file,
            error,
        )
    _recorded.put(checkpoint, name)


def _name_of_record(file: Path) -> str:
    return hashlib.sha256(os.path.abspath(file).encode()).hexdigest()[:32]


@lru_cache(maxsize=64)
def _warn(text: str) -> None:
    """Say something once in a process."""
    _log.warning("%s", text)


class Mount(NamedTuple):
    """Where a file system is mounted, and what kind it is."""

    place: str
    kind: str


def mount_of(path: str, table: Path = _MOUNTS) -> Mount | None:
    """The file system of a path, which need not be there yet; None if it is not known.

    Args:
        path: Absolute, or relative to the current folder.
        table: What is mounted, as Linux tells it (``proc_pid_mountinfo(5)``).
    """
    try:
        lines = table.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    real = f"{os.path.realpath(path)}/"
    later_first = (
        _parsed(line) for line in reversed(lines)
    )  # of two at one place it hides the other
    holding = (one for one in later_first if real.startswith(f"{one.place.rstrip('/')}/"))
    return max(holding, key=lambda mount: len(mount.place), default=None)


def _parsed(line: str) -> Mount:
    known, _, last = line.partition(" - ")
    # Spaces, tabs and backslashes stand there in octal.
    place = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), known.split()[4])
    return Mount(place, last.split()[0])
