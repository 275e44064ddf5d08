"""Files of a table: their names, and which of them may be deleted for the table's sake. Driver.

Several tables may have their files in one folder, and a file that no snapshot of one table names
may be another table's. So the names of data files, manifests and metadata files that this package
writes contain a part of the table's UUID, which stays the same if the table is renamed.

A table's metadata can name any file. Only files in the table's own folders
(`TableAccess.is_own_folder`) that bear the table's id are deleted.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from krishiv_spark.iceberg.file_access import Location
from krishiv_spark.iceberg.metadata_files import METADATA_SUFFIX, read_table_uuid

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

    from krishiv_spark.iceberg.file_io import GuardedFileIO

__all__ = [
    "OwnFiles",
    "add_table_id",
    "create_metadata_uuid",
    "delete_old_metadata",
    "find_table_id",
    "get_table_id",
    "read_store_time_s",
]

_DELETE_AFTER_COMMIT = "write.metadata.delete-after-commit.enabled"
_DATA_PATH, _METADATA_PATH = "write.data.path", "write.metadata.path"


# --- names

# Number of random digits before the version digit of a UUID (RFC 9562).
_DIGITS = 12
_DATA = re.compile(rf"-t([0-9a-f]{{{_DIGITS}}})(?:-\d+(?:-deletes)?\.parquet|\.changes)$")
_METADATA = re.compile(
    r"(?:^|-)([0-9a-f]{8})-([0-9a-f]{4})(?:-[0-9a-f]{4}){2}-[0-9a-f]{12}"
    r"(?:(?:-m\d+)?\.avro|(?:\.gz)?\.metadata\.json)$"
)


def get_table_id(table: uuid.UUID) -> str:
    """Return the part of a table's UUID that names of its files contain, in hexadecimal."""
    return table.hex[:_DIGITS]


def add_table_id(stem: str, table: uuid.UUID) -> str:
    """Add the table's id to the first part of a data file's name, before its number and suffix."""
    return f"{stem}-t{get_table_id(table)}"


def create_metadata_uuid(table: uuid.UUID) -> uuid.UUID:
    """Create a random UUID for names of metadata, which starts with the table's id.

    PyIceberg names manifests by the UUID of their commit, and has no other way to name them.
    """
    return uuid.UUID(f"{get_table_id(table)}{uuid.uuid4().hex[_DIGITS:]}")


def find_table_id(path: str) -> str | None:
    """Return the table's id in the name of a file; None for names of other programs.

    Manifests of other programs start with random digits, which look like an id.
    """
    name = path.rpartition("/")[2]
    data, metadata = _DATA.search(name), _METADATA.search(name)
    if data is not None:
        return data[1]
    return None if metadata is None else metadata[1] + metadata[2]


# --- deletion


class OwnFiles:
    """The files of one table that may be deleted for its sake.

    Args:
        io: The FileIO that reaches them.
        metadata: Metadata of the table.
        metadata_folders: Folders of its metadata files and manifests.
        data_folders: Folders of its data files.
    """

    def __init__(
        self,
        io: FileIO,
        metadata: TableMetadata,
        metadata_folders: Iterable[str],
        data_folders: Iterable[str],
    ) -> None:
        self._io = io
        self._uuid = str(metadata.table_uuid)
        self._id = get_table_id(metadata.table_uuid)
        self._metadata = [Location.parse(folder) for folder in metadata_folders]
        self._data = data_folders

    @classmethod
    def from_metadata(cls, metadata: TableMetadata, io: GuardedFileIO) -> OwnFiles:
        """Return the files that the table's metadata may name, which cannot be trusted.

        Files below `write.data.path` and `write.metadata.path` count only if these are below the
        table's location, or the user allowed them by `dataFilesWithin`: such a folder may be
        another table's.
        """
        location, properties = metadata.location.rstrip("/"), metadata.properties
        folders = (
            [f"{location}/{usual}", *([own] if (own := properties.get(key)) else [])]
            for usual, key in (("metadata", _METADATA_PATH), ("data", _DATA_PATH))
        )
        of_metadata, of_data = (filter(io.access.is_own_folder, found) for found in folders)
        return cls(io, metadata, of_metadata, of_data)

    @classmethod
    def for_staging(cls, table: Table) -> OwnFiles:
        """Return the files that the sink may have staged for a table, as epoch logs name them.

        Raises:
            OptionError: If the table names folders for new files that the user did not allow.
        """
        provider = table.location_provider()
        return cls(table.io, table.metadata, [provider.metadata_path], [provider.data_path])

    @cached_property
    def _folders(self) -> list[Location]:
        """All folders. Parsing them costs system calls, and metadata files need fewer."""
        return [*self._metadata, *map(Location.parse, self._data)]

    def __contains__(self, path: str) -> bool:
        """Return True if the file is in the table's own folders and its name has the table's id."""
        return find_table_id(path) == self._id and _is_below(path, self._folders)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete those of several files that are the table's; a missing file is no error.

        Raises:
            OSError: If the store refuses one.
        """
        from pyiceberg.utils.concurrent import ExecutorFactory

        own = [path for path in paths if path in self]
        list(ExecutorFactory.get_or_create().map(partial(_delete, self._io), own))

    def has_metadata_file(self, path: str) -> bool:
        """Return True if a metadata file is the table's; reads one that another program named."""
        if not path.endswith(METADATA_SUFFIX) or not _is_below(path, self._metadata):
            return False
        return find_table_id(path) == self._id or read_table_uuid(self._io, path) == self._uuid


def _is_below(path: str, folders: list[Location]) -> bool:
    found = Location.parse(path)
    return any(found.is_below(folder) for folder in folders)


def _delete(io: FileIO, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # another driver has deleted it
        io.delete(path)


def delete_old_metadata(io: GuardedFileIO, base: TableMetadata, metadata: TableMetadata) -> None:
    """Delete the metadata files that a commit dropped from the table's log; best effort.

    PyIceberg and Java do so where `write.metadata.delete-after-commit.enabled` is set. Here only
    the table's own files are deleted: its log can name any file.

    Args:
        io: The FileIO that reaches the files.
        base: Metadata of the table before the commit.
        metadata: Metadata of the table after it.
    """
    if metadata.properties.get(_DELETE_AFTER_COMMIT, "false").lower() != "true":
        return
    kept = {entry.metadata_file for entry in metadata.metadata_log}
    dropped = {entry.metadata_file for entry in base.metadata_log} - kept
    if not dropped:
        return
    own = OwnFiles.from_metadata(metadata, io)
    for path in sorted(dropped):
        with contextlib.suppress(OSError):
            if own.has_metadata_file(path):
                io.delete(path)


def read_store_time_s(table: Table) -> float:
    """Return the time that a table's store assigns to a file that is written now. Operator.

    Raises:
        Exception: Of PyArrow or the store, if no file can be written.
    """
    from pyiceberg.io.pyarrow import PyArrowFileIO

    # If the process dies, vacuum recognizes the file by the table's id in its name.
    name = f"{create_metadata_uuid(table.metadata.table_uuid)}-clock"
    location = table.location_provider().new_metadata_location(name)
    io: Any = table.io
    scheme, host, path = PyArrowFileIO.parse_location(location)
    store = io.inner.fs_by_scheme(scheme, host)
    store.open_output_stream(path).close()
    try:
        written_s: float = store.get_file_info(path).mtime.timestamp()
    finally:
        store.delete_file(path)
    return written_s
