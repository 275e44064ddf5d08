"""The files of a table that no snapshot names: deletion of staged files, and vacuum.

Staged files are deleted only after all snapshots were read, since a commit may have succeeded.

``krishiv-spark iceberg vacuum`` deletes the remains of failed attempts from the table's folders. It
keeps the files of an epoch that a fan-out has not finished (`find_unfinished`). The table does not
contain the location of the epoch log with the intent. But a property or a tag has the number of the
newest epoch of each query in the table, and the name of a staged file has the end of its query's id
and the number of its epoch. An intent may name any file of a later epoch.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from pyarrow import fs

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.catalogs import explain_catalog_errors, open_table
from krishiv_spark.iceberg.file_access import Location, redact_errors
from krishiv_spark.iceberg.file_io import get_guarded_io
from krishiv_spark.iceberg.metadata_files import METADATA_SUFFIX, read_table_uuid
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.own_files import find_table_id, get_table_id, read_store_time_s
from krishiv_spark.iceberg.property_keys import EPOCH_KEY, EPOCH_PREFIX, parse_count
from krishiv_spark.sinks.iceberg.manifest_writers import read_unlisted_manifest
from krishiv_spark.sinks.iceberg.table_copies import check_single_history, open_own_table
from krishiv_spark.sinks.iceberg.task_table import StagedDataFiles, query_in_file_name
from krishiv_spark.storage.disk import aging_time_s

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

    from krishiv_spark.iceberg.options import IcebergOptions
    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
    from krishiv_spark.sinks.iceberg.task_table import StagedDataFiles

__all__ = [
    "OrphanFile",
    "Orphans",
    "delete_unnamed",
    "delete_unused",
    "find_orphans",
    "make_deleter",
]

# The id of a streaming query without the option 'queryId': it has hyphens, and is no route.
_STREAM = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_STAGED = re.compile(
    r"\d{5}-\d+-(?P<query>[\w-]+)-(?P<epoch>\d+)-[0-9a-f]{12}-t[0-9a-f]{12}(?:-\d+\.parquet|\.changes)"
)

_NO_EPOCH = -1


def delete_unused(options: IcebergSinkOptions, staged: Sequence[StagedDataFiles]) -> None:
    """Delete staged files, except those that a snapshot names: a commit may have succeeded.

    Raises:
        OptionError, CatalogFailedError: If the table cannot be asked; then nothing is removed.
    """
    delete_unnamed(options, {path for item in staged for path in item.paths}, staged)


def delete_unnamed(
    options: IcebergSinkOptions, wanted: set[str], staged: Sequence[StagedDataFiles]
) -> None:
    """Delete files, except those that a snapshot names.

    Args:
        options: Name the table.
        wanted: Paths of files that were written after the tasks were planned.
        staged: The staged files of the epoch, with the sequence number of that time.

    Raises:
        OptionError, CatalogFailedError: If the table cannot be asked; then nothing is removed.
    """
    if not wanted:
        return
    table = open_table(options)
    after = min((item.after for item in staged), default=0)
    with redact_errors(table.io, "remove staged files"):
        for path in wanted - {path for path in list_named_files(table, after) if path in wanted}:
            with contextlib.suppress(OSError):  # it was deleted already
                table.io.delete(path)


def list_named_files(table: Table, after: int = 0) -> Iterator[str]:
    """Return every data and delete file that snapshots of a table name. See `list_manifests`."""
    for manifest in list_manifests(table, after):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            yield entry.data_file.file_path


def list_manifests(table: Table, after: int = 0) -> Iterator[ManifestFile]:
    """Return the manifests of all snapshots, each once.

    Args:
        table: The table.
        after: If not 0, only manifests that were written for snapshots with a higher sequence
            number: later additions to the table are in these, wherever they are listed.
    """
    seen: set[str] = set()
    for snapshot in reversed(table.metadata.snapshots):
        if after and (snapshot.sequence_number or 0) <= after:
            continue
        for manifest in snapshot.manifests(table.io):
            is_later = not after or (manifest.sequence_number or 0) > after
            if is_later and manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                yield manifest


@dataclass(frozen=True)
class OrphanFile:
    """A file that no snapshot names.

    Attributes:
        path: Its path, with a scheme if the table's location has one.
        size: Bytes.
    """

    path: str
    size: int

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True)
class Orphans:
    """The files that can be deleted from a table's folders.

    Attributes:
        files: The files that can be deleted.
        foreign: Number of other files that no snapshot names, without the table's id in the name.
        unfinished: Number of files that no snapshot names yet, but an intent of a fan-out may.
    """

    files: tuple[OrphanFile, ...]
    foreign: int
    unfinished: int


class _FolderFile(NamedTuple):
    """A file of a folder.

    Attributes:
        path: Location that the table's FileIO takes, with the scheme of the folder.
        identity: See `_identity`.
        size: Bytes.
        modified_s: Seconds since 1970.
    """

    path: str
    identity: str
    size: int
    modified_s: float


def find_orphans(
    options: IcebergSinkOptions,
    older_than_s: float,
    *,
    foreign_names: bool = False,
    unfinished: bool = False,
    other_lines: bool = False,
) -> Orphans:
    """Find the orphans in a table's folders ``data`` and ``metadata``. Anywhere; reads manifests.

    Files are listed before the table is loaded, so that files committed meanwhile are named.

    Args:
        options: Name the table and its catalog.
        older_than_s: Guard age in seconds, by the file's modification time: younger files may
            belong to an epoch that is being written. See `aging_time_s`.
        foreign_names: Include files without the table's id in the name, as other programs and early
            versions of this package wrote them. Files with the id of another table remain.
        unfinished: Include files of epochs that a fan-out has not finished in this table.
        other_lines: Include files that another catalog needs if it has the table too.

    Raises:
        OptionError: If there is no such table, its files cannot be listed or belong to others too,
            or may, since the folder is outside the table's location and `foreign_names` is not
            given; or another catalog has the table, or its warehouse was copied.
        CatalogFailedError: If the catalog or a manifest cannot be read.
    """
    _real_folder.cache_clear()  # links may have changed since the last call
    found = list(_list_files(open_own_table(options), foreign_names=foreign_names))
    listed = {file.identity: file for file in found}  # one folder may be in the other
    table = open_table(options)
    before = aging_time_s(partial(read_store_time_s, table), table.location()) - older_than_s
    with explain_catalog_errors(options, f"read the manifests of table {options.table_name}"):
        locations = set(_iter_named_files(table))
        named = set(map(_identity, locations))
        unnamed = [file for identity, file in listed.items() if identity not in named]
        inside = dict(_read_uuids(table, [file.path for file in unnamed]))
    _check_alone(table, inside)
    old = [file for file in unnamed if file.modified_s < before]
    if not other_lines:
        modified_s = {os.path.basename(file.path): file.modified_s for file in found}
        check_single_history(table, inside, {file.path for file in old}, modified_s)
    if old:
        live = {number for location in locations if (number := _inode(location)) is not None}
        old = [file for file in old if _inode(file.path) not in live]
    owners = [_find_owner(table, file.path, inside.get(file.path)) for file in old]
    ours = {get_table_id(table.metadata.table_uuid), *([None] if foreign_names else [])}
    deletable = [file for file, own in zip(old, owners, strict=True) if own in ours]
    kept = set[str]() if unfinished else _find_kept(table, options, deletable)
    files = (OrphanFile(file.path, file.size) for file in deletable if file.path not in kept)
    return Orphans(tuple(files), len(old) - len(deletable), len(kept))


def _find_kept(table: Table, options: IcebergOptions, files: Iterable[_FolderFile]) -> set[str]:
    with explain_catalog_errors(options, f"read the manifests of table {options.table_name}"):
        return find_unfinished(table.io, table.metadata, (file.path for file in files))


def make_deleter(options: IcebergOptions) -> Callable[[OrphanFile], None]:
    """Return a function that deletes an orphan of a table.

    Raises:
        OptionError, CatalogFailedError: As `open_table`; when an orphan cannot be removed, too.
    """
    io = open_table(options).io

    def remove(orphan: OrphanFile) -> None:
        with explain_catalog_errors(options, f"remove {orphan.path}"):
            io.delete(orphan.path)

    return remove


def _check_alone(table: Table, found: Mapping[str, str]) -> None:
    """Refuse folders that another table uses: its files would all be orphans.

    A table that is renamed keeps its location, and a new one of its old name gets the same. So do
    tables of one name in two catalogs over one warehouse.

    Args:
        table: The table of the folders.
        found: The UUID of the table of each metadata file, by path.
    """
    for path, owner in found.items():
        if owner != str(table.metadata.table_uuid):
            raise OptionError(
                f"{FORMAT}: {path} belongs to another table (UUID {owner}), whose files cannot "
                "be distinguished from orphans. If the table was renamed, or is in another "
                "catalog, no file can be removed here. If it was dropped, remove its metadata "
                "files first"
            )


def _find_owner(table: Table, path: str, inside: str | None) -> str | None:
    """Return the id of the table of a file; None if neither its name nor its content has it.

    Args:
        table: In the names of metadata files only its own id is recognised, see `find_table_id`.
        path: The path of the file.
        inside: The table's UUID in a metadata file; None for other files.
    """
    own, named = get_table_id(table.metadata.table_uuid), find_table_id(path)
    is_data = not path.endswith((".avro", METADATA_SUFFIX))
    if named == own or inside is not None:  # those of others have been refused
        return own
    return named if is_data else None


def _read_uuids(table: Table, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Return the complete metadata files, each with the UUID of its table."""
    for path in paths:
        if (
            path.endswith(METADATA_SUFFIX)
            and (found := read_table_uuid(table.io, path)) is not None
        ):
            yield path, found


def _iter_named_files(table: Table) -> Iterator[str]:
    """Return every file that the table, or one of its snapshots, names."""
    metadata = table.metadata
    yield table.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (snapshot.manifest_list for snapshot in metadata.snapshots if snapshot.manifest_list)
    yield from (manifest.manifest_path for manifest in list_manifests(table))
    yield from list_named_files(table)
    for statistics in (*metadata.statistics, *metadata.partition_statistics):
        yield statistics.statistics_path


def _check_folder(table: Table, folder: str, *, foreign_names: bool) -> None:
    """Refuse a folder that other tables may use.

    Raises:
        OptionError: If the folder is outside the table's location, or shared by a property.
    """
    if table.properties.get("gc.enabled", "true").lower() == "false":
        raise OptionError(
            f"{FORMAT}: the table's property 'gc.enabled' is 'false', because other tables use "
            "its files too: none of them may be removed"
        )
    inside, location = (_resolve(location) for location in (folder, table.location()))
    if not foreign_names and not f"{inside}/".startswith(f"{location}/"):
        raise OptionError(
            f"{FORMAT}: {folder} is outside the table's location {table.location()}, so other "
            "tables may have files there: if no other table has or had files there, give "
            "--foreign-names"
        )


def _list_files(table: Table, *, foreign_names: bool) -> Iterator[_FolderFile]:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    io = get_guarded_io(table).inner
    if not isinstance(io, PyArrowFileIO):
        raise OptionError(
            f"{FORMAT}: files of {table.location()} cannot be listed with {type(io).__name__}"
            ": set 'catalog.py-io-impl' to pyiceberg.io.pyarrow.PyArrowFileIO"
        )
    provider = table.location_provider()
    for folder in (provider.data_path, provider.metadata_path):
        _check_folder(table, folder, foreign_names=foreign_names)
        scheme, host, path = PyArrowFileIO.parse_location(folder)
        selector = fs.FileSelector(path, allow_not_found=True, recursive=True)
        files: Any = io.fs_by_scheme(scheme, host).get_file_info(selector)
        found = [file for file in files if file.type is fs.FileType.File]
        linked = _linked_folders(path, found) if scheme == "file" else frozenset[str]()
        prefix = _get_prefix(folder)
        for file in found:
            if os.path.dirname(file.path) not in linked:
                full = f"{prefix}{file.path}"
                modified_s = file.mtime.timestamp()
                yield _FolderFile(full, _identity(full), file.size, modified_s)


def _linked_folders(root: str, files: Iterable[fs.FileInfo]) -> frozenset[str]:
    """Return the folders of a disk that a link below `root` leads to: they belong to others."""
    real = os.path.realpath(root)
    folders = {os.path.dirname(file.path) for file in files}
    return frozenset(
        folder
        for folder in folders
        if os.path.realpath(folder) != os.path.normpath(f"{real}/{os.path.relpath(folder, root)}")
    )


def _resolve(location: str) -> str:
    """Return the path of a folder as its file system knows it; on a disk, without links."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    scheme, _, path = PyArrowFileIO.parse_location(location)
    return os.path.realpath(path) if scheme == "file" else posixpath.normpath(path)


def _get_prefix(location: str) -> str:
    """Return the prefix of a folder's files that listings of its file system omit.

    It is empty for a location without a scheme, which is listed by absolute paths.
    """
    from pyiceberg.io.pyarrow import PyArrowFileIO

    scheme = urlsplit(location).scheme
    if not scheme:
        return ""
    inner = PyArrowFileIO.parse_location(location)[2]
    return location[: -len(inner)] if location.endswith(inner) else f"{scheme}://"


def _identity(location: str) -> str:
    """Return the same text for all spellings of a path, with ``//``, ``..`` and links.

    In object stores, each spelling is another key.
    """
    from pyiceberg.io.pyarrow import PyArrowFileIO

    scheme, _, path = PyArrowFileIO.parse_location(location)
    if scheme == "file":
        folder, name = os.path.split(path)
        return f"{_real_folder(folder)}/{name}"
    if scheme in {"abfs", "abfss", "wasb", "wasbs"}:
        parsed = Location.parse(location)  # one store has a host for each of its two interfaces
        return f"{parsed.host}{parsed.path}"
    return posixpath.normpath(path) if scheme in {"hdfs", "viewfs"} else path


def _inode(location: str) -> tuple[int, int] | None:
    """Return device and inode of a file on a disk, the same under each of its names; else None.

    A live file may be a link to a file beside it, or a folder be mounted twice.
    """
    from pyiceberg.io.pyarrow import PyArrowFileIO

    scheme, _, path = PyArrowFileIO.parse_location(location)
    if scheme != "file":
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


@lru_cache(maxsize=4096)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)


def find_unfinished(io: FileIO, metadata: TableMetadata, paths: Iterable[str]) -> set[str]:
    """Return the files that an unfinished epoch of a fan-out may need. Anywhere.

    Args:
        io: Reads manifests.
        metadata: Metadata of the table.
        paths: Files that no snapshot names.

    Raises:
        OSError: If a manifest cannot be read.
    """
    wanted = set(paths)
    newest = _find_newest_epochs(metadata)
    kept = {path for path in wanted if _is_later(_get_name(path), newest)}
    if kept:
        names = set(map(_get_name, kept))  # a location may have several spellings
        kept |= {
            path for path in wanted if path.endswith(".avro") and _read_names(io, path) & names
        }
    return kept


def _get_name(path: str) -> str:
    return path.rpartition("/")[2]


def _find_newest_epochs(metadata: TableMetadata) -> dict[str, int]:
    """Return the newest epoch in the table of each route, by what file names have of its query."""
    found: dict[str, int] = {}
    marks = {ref: _read_tagged_epoch(metadata, ref) for ref in metadata.refs}
    marks |= {key: parse_count(text) for key, text in metadata.properties.items()}
    for key, number in marks.items():
        query = key.removeprefix(EPOCH_PREFIX)
        if query != key and _may_be_route(query):
            name, epoch = query_in_file_name(query), _NO_EPOCH if number is None else number
            found[name] = min(epoch, found.get(name, epoch))  # a long route may end several ids
    return found


def _read_tagged_epoch(metadata: TableMetadata, ref: str) -> int | None:
    """Return the epoch of the snapshot of a tag, where the catalog keeps no properties."""
    snapshot = metadata.snapshot_by_id(metadata.refs[ref].snapshot_id)
    summary = None if snapshot is None else snapshot.summary
    return None if summary is None else parse_count(summary.get(EPOCH_KEY))


def _may_be_route(query: str) -> bool:
    """Return True if the id may be that of a route: the id of its query, a hyphen and its name.

    A name that a user has given to a query or a batch without a fan-out may look like that, too:
    then a vacuum keeps the files of its failed epoch until the next epoch is committed.
    """
    return "-" in query and _STREAM.fullmatch(query) is None


def _is_later(name: str, newest: Mapping[str, int]) -> bool:
    staged = _STAGED.fullmatch(name)
    return staged is not None and int(staged["epoch"]) > newest.get(
        staged["query"], int(staged["epoch"])
    )


def _read_names(io: FileIO, path: str) -> set[str]:
    """Return the names of the data files in a manifest; none if the file is no manifest."""
    try:
        return {_get_name(file.file_path) for file in read_unlisted_manifest(io, path, spec_id=0)}
    except (ValueError, LookupError, TypeError):  # a list of manifests, or a damaged file
        return set()
