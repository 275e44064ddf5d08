"""The embedded catalog: a file of SQLite in the warehouse, and file systems that must not have it.

SQLite keeps two drivers apart by locks of the file system. Those of network file systems cannot be
relied on (https://www.sqlite.org/howtocorrupt.html, section 2.1), so that two drivers on two
machines may both believe that their commit has happened.

A file that is deleted or renamed stays open in the processes that use it. `CatalogFile` notices
that: a commit must not go into a database that the catalog's path no longer leads to.

A catalog contains the absolute locations of its tables. In a warehouse that was moved or copied, a
table has the same path below the new folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, unquote

from krishiv_spark.errors import OptionError, StorageError
from krishiv_spark.iceberg.options import FORMAT, REGISTER, IcebergOptions
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.runtime.caches import LruCache

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from krishiv_spark.spark.checkpoint import SparkCheckpoint

__all__ = [
    "RELOCATED",
    "CatalogFile",
    "CatalogReplacedError",
    "check_locks",
    "check_not_relocated",
    "check_present",
    "describe_missing",
    "find_embedded",
    "find_mount",
    "find_table_folders",
    "get_catalog_file",
    "parse_sqlite_uri",
    "record_catalog",
]

_log = logging.getLogger(__name__)

_NETWORK = frozenset(
    {"afs", "cifs", "davfs", "ncpfs", "nfs", "nfs4", "smb3", "smbfs"}
    | {f"fuse.{name}" for name in ("blobfuse", "blobfuse2", "davfs", "gcsfuse", "goofys")}
    | {f"fuse.{name}" for name in ("mount-s3", "rclone", "s3fs", "sshfs")}
)
"""Network file systems, as Linux names their kinds."""

_MOUNTS = Path("/proc/self/mountinfo")
_SQLITE = re.compile(r"sqlite(?:\+\w+)?:///([^?]+)(?:\?(.*))?", re.DOTALL)
_FILE_URI = re.compile(r"file:(?://(?:localhost)?(?=/))?(.*)", re.DOTALL)
"""A name of a file as SQLite's own URI (https://www.sqlite.org/uri.html)."""

_IN_MEMORY = ":memory:"

_Identity = tuple[int, int]
"""Device and number of a file (``st_dev`` and ``st_ino``)."""

_RECORDS = "krishiv/iceberg.catalogs"
"""The folder of a checkpoint with one file for each catalog in SQLite that its query has used.

No log of a named batch has this name: it has a dot. A catalog is named by the digest of its path,
which may come from a reference to a secret, as the whole of 'catalog.uri' may."""

_RECORD = b"A catalog in SQLite that this query has used; its name is the SHA-256 of the path.\n"

_recorded: LruCache[SparkCheckpoint, tuple[str, _Identity | None]] = LruCache(256)
"""By checkpoint, the record that this process has read or written last, and the file's identity.

A warehouse and a checkpoint that were deleted together and recreated are recorded again."""


class CatalogReplacedError(OSError):
    """The path of a catalog in SQLite leads to another file than when it was opened, or to none.

    `explain_catalog_errors` turns it into `CatalogFailedError`, and a commit into `CommitRejected`.
    """


class CatalogFile(NamedTuple):
    """The identity of a catalog's file in SQLite when connections to it were opened. Driver.

    The number of a file is not reused as long as a connection has the file open.

    Attributes:
        path: Path of the file, as SQLite gets it.
        identity: Device and number; None if there is no file, as for ``:memory:``.
    """

    path: str
    identity: _Identity | None

    @classmethod
    def at(cls, path: str) -> CatalogFile:
        """Return the file that a path leads to now."""
        return cls(path, _get_identity(path))

    def is_replaced(self) -> bool:
        """Return True if the path leads to another file now, or to none. Costs one ``stat``."""
        return _get_identity(self.path) != self.identity

    def check(self) -> None:
        """Raise an error if the path leads to another file.

        Raises:
            CatalogReplacedError: If it does.
        """
        if self.is_replaced():
            raise CatalogReplacedError(
                f"the catalog {self.path} was removed, moved or replaced by another file while "
                "this process used it. Nothing was committed to it. Restart the query, which opens "
                "the catalog that is there then"
            )


def _get_identity(path: str | Path) -> _Identity | None:
    """Return the device and the number of a file; None if there is none.

    Raises:
        OSError: If the file system does not say whether there is one: that is no replaced file.
    """
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return found.st_dev, found.st_ino


def parse_sqlite_uri(uri: str) -> str | None:
    """Return the path in a URI of SQLite, as SQLAlchemy parses it.

    Returns:
        None for other databases, and for one in memory.
    """
    found = _SQLITE.match(uri)
    if found is None:
        return None
    path, query = found[1], dict(parse_qsl(found[2] or ""))
    named = _FILE_URI.fullmatch(path)
    if named is not None and query.get("uri") == "true":
        path = _IN_MEMORY if query.get("mode") == "memory" else unquote(named[1])
    return None if path == _IN_MEMORY else path


def get_catalog_file(table: Table) -> CatalogFile | None:
    """Return the file of the catalog that has loaded a table; None if it is not in SQLite."""
    found = getattr(table.catalog, "catalog_file", None)
    return found if isinstance(found, CatalogFile) else None


def find_embedded(file: Path, *, create: bool) -> None:
    """Check that the catalog exists, or create its folder.

    Args:
        file: The embedded catalog.
        create: True if a missing catalog may be created.

    Raises:
        OptionError: If it is missing and must not be created, its folder is that of a table, or
            the warehouse was relocated.
    """
    exists = file.is_file()
    if not exists:
        check_not_relocated(file)
    if not exists and _is_table(file.parent):
        raise OptionError(
            f"{FORMAT}: {file.parent} is the folder of one table, and tables are found by their "
            f"catalog. {REGISTER}"
        )
    if create:
        file.parent.mkdir(parents=True, exist_ok=True)
    elif not exists:
        raise OptionError(
            f"{FORMAT}: there is no catalog {file}: 'warehouse' must be the folder that tables "
            "were written with, or give 'catalog.*' for another catalog"
        )


def check_not_relocated(file: Path) -> None:
    """Refuse a warehouse that `krishiv-spark iceberg relocate` has moved.

    Args:
        file: The embedded catalog, which is missing.

    Raises:
        OptionError: If the warehouse was moved.
    """
    destination = read_destination(file.parent)
    if destination is not None:
        raise OptionError(
            f"{FORMAT}: the warehouse {file.parent} was relocated to {destination}: set the option "
            f"'warehouse' to that. To start a new warehouse here, remove {file.parent}/{RELOCATED}"
        )


def _is_table(folder: Path) -> bool:
    """Return True for the folder of a table in the layout of Hadoop's catalogs."""
    return next(folder.glob("metadata/*.metadata.json"), None) is not None


def check_locks(options: IcebergOptions) -> None:
    """Refuse an embedded catalog on a network file system; warn of one that 'catalog.uri' names.

    Planner. Does nothing where the kind of the file system is unknown, as on systems other than
    Linux.

    Raises:
        OptionError: If two drivers cannot be kept apart.
    """
    file = _get_sqlite_file(options)
    if file is None:
        return
    mount = find_mount(str(file), _MOUNTS)
    if mount is None or mount.kind not in _NETWORK:
        return
    reason = (
        f"{FORMAT}: the catalog {file} is on a network file system ({mount.kind}, mounted at "
        f"{mount.folder}), whose locks SQLite cannot rely on: with drivers on two machines, a "
        "commit may be lost"
    )
    if not options.is_embedded:
        _warn_once(f"{reason}; only one machine may ever open it")
        return
    raise OptionError(
        f"{reason}. Tables may stay there; give another catalog, such as 'catalog.uri' = "
        "'postgresql+psycopg2://...' or a REST catalog. If only one machine opens this one, "
        f"confirm it by its name: 'catalog.uri' = 'sqlite:///{file}'"
    )


def _get_sqlite_file(options: IcebergOptions) -> Path | None:
    """Return the file of a catalog in SQLite, embedded or named; None for another catalog."""
    if options.is_embedded:
        return options.embedded_file
    named = parse_sqlite_uri(options.catalog.values.get("uri", ""))
    return None if named is None else Path(named)


def check_present(options: IcebergOptions, checkpoint: SparkCheckpoint | None) -> None:
    """Refuse to create a catalog in SQLite where the query has used one before. Planner.

    A missing mount leaves its empty folder: a new catalog there, and a new table in it, would get
    the rows and be hidden as soon as the mount is back. Costs nothing if the file exists.

    Raises:
        OptionError: If the file is missing, and the checkpoint has its record.
        StorageError: If the record cannot be read.
    """
    file = _get_sqlite_file(options)
    if checkpoint is None or file is None or file.is_file():
        return
    name = _get_record_name(file)
    if read_destination(file.parent) is not None:
        return  # `find_embedded` names the new warehouse
    if checkpoint.folder(_RECORDS).read(name) is not None:
        raise OptionError(
            f"{FORMAT}: the catalog {file}, through which this query has written, is missing, "
            "and a new one would not have the rows of earlier epochs. Nothing was written. "
            "Mount or restore the warehouse, then restart the query. If it was moved, move it "
            "back, or change it with 'krishiv-spark iceberg relocate' and set 'warehouse' to "
            "the new folder. If it was removed for good, remove "
            f"{checkpoint.location}/{_RECORDS}/{name}: the query continues with a new table, "
            f"without the rows of earlier epochs; or use {NEW_CHECKPOINT}"
        )


def record_catalog(options: IcebergOptions, checkpoint: SparkCheckpoint | None) -> None:
    """Record in the checkpoint that its query uses this catalog in SQLite, once. Planner.

    If the checkpoint cannot be written, the query continues without the protection of
    `check_present`: that is logged.
    """
    file = _get_sqlite_file(options)
    if checkpoint is None or file is None:
        return
    name, identity = _get_record_name(file), None
    with contextlib.suppress(OSError):  # recorded by the next epoch
        identity = _get_identity(file)
    recorded = name, identity
    if identity is None:
        return  # without a file, none can be missing later
    if _recorded.get(checkpoint) == recorded:
        return
    folder = checkpoint.folder(_RECORDS)
    try:
        if folder.read(name) is None:
            folder.replace(name, _RECORD)
    except (OSError, StorageError) as error:
        _log.warning(
            "%s: the checkpoint %s cannot store that its query uses the catalog %s: %s. The "
            "query continues; but a missing mount will not be noticed",
            FORMAT,
            checkpoint.location,
            file,
            error,
        )
    _recorded.put(checkpoint, recorded)


def _get_record_name(file: Path) -> str:
    return hashlib.sha256(os.path.abspath(file).encode()).hexdigest()[:32]


@lru_cache(maxsize=64)
def _warn_once(text: str) -> None:
    """Log a warning once in a process."""
    _log.warning("%s", text)


class Mount(NamedTuple):
    """A mounted file system.

    Attributes:
        folder: The folder at which it is mounted.
        kind: Kind of the file system, as Linux names it.
    """

    folder: str
    kind: str


def find_mount(path: str, table: Path = _MOUNTS) -> Mount | None:
    """Return the file system of a path, which may not exist yet; None if it is unknown.

    Args:
        path: Absolute path, or relative to the current folder.
        table: Linux's list of mounts (``proc_pid_mountinfo(5)``).
    """
    try:
        lines = table.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    real = f"{os.path.realpath(path)}/"
    # Of two mounts at one folder, the later one hides the other.
    later_first = (_parse_mount(line) for line in reversed(lines))
    holding = (one for one in later_first if real.startswith(f"{one.folder.rstrip('/')}/"))
    return max(holding, key=lambda mount: len(mount.folder), default=None)


def _parse_mount(line: str) -> Mount:
    first, _, last = line.partition(" - ")
    # Spaces, tabs and backslashes are written in octal.
    folder = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), first.split()[4])
    return Mount(folder, last.split()[0])


# --- moved warehouses


RELOCATED = "catalog.db.relocated"
"""A file in a warehouse that `krishiv-spark iceberg relocate` has moved: names the new folder."""

_MOST_BYTES = 4096


def find_table_folders(warehouse: str, location: str, usual: str) -> Iterator[str]:
    """Yield the folders that a table may have in a warehouse, the likeliest first.

    Args:
        warehouse: A folder on a disk.
        location: The table's path, as its metadata contains it.
        usual: Path below the warehouse of a new table of this name.
    """
    parts = [part for part in location.split("/") if part]
    paths = [usual, *("/".join(parts[first:]) for first in range(len(parts)))]
    found = dict.fromkeys(f"{warehouse.rstrip('/')}/{path}" for path in paths)
    yield from (folder for folder in found if os.path.isdir(folder))


def describe_missing(missing: str, options: IcebergOptions) -> str:
    """Return the reason why a file that a catalog names is missing, and what to do.

    Args:
        missing: The file, as an error of the file system names it.
        options: Options that specify the catalog.
    """
    from krishiv_spark.iceberg.file_access import Location

    text = ": the catalog names it, but it does not exist"
    location = Location.parse(missing)
    warehouse = options.catalog_properties().get("warehouse", "")
    if location.store != "disk" or not warehouse.startswith("/"):
        return f"{text}. Was it removed, or is that another store?"
    parts = [part for part in location.path.split("/") if part]
    for first in range(1, len(parts)):
        rest = "/".join(parts[first:])
        if os.path.isfile(f"{warehouse}/{rest}"):
            old = f"/{'/'.join(parts[:first])}"
            return (
                f"{text}. The warehouse {old} was moved to {warehouse}: move it back, or change "
                f"its catalog and tables with 'krishiv-spark iceberg relocate {old} {warehouse}'"
            )
    return (
        f"{text}. If the warehouse was moved, move it back, or change its catalog and tables with "
        "'krishiv-spark iceberg relocate OLD NEW'. If files of it were removed, restore them "
        "together with the catalog"
    )


def read_destination(folder: str | os.PathLike[str]) -> str | None:
    """Return the warehouse to which this one was relocated; None if it was not."""
    try:
        with open(os.path.join(folder, RELOCATED), encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_BYTES).strip() or None
    except OSError:
        return None
