"""Copies of a table whose files another catalog may need. Driver.

A catalog contains the locations of its tables, and so does their metadata. After ``cp -r``, the
catalog of the copy still names the folders of the original: a query on it would write there, and a
vacuum or an expiry would delete files that the original needs. A location outside the warehouse
proves nothing: it may be intended, and a warehouse may be reached by a link or another mount. But a
copy has the table's folder twice. So a table is refused if the folder of its catalog, or the option
`warehouse`, has another folder for it whose metadata files name another location.

Two catalogs may also have one table in one folder: the database of a catalog was restored beside
the live one, or a metadata file was registered twice. Each catalog then continues with a history of
its own, and the files of the other look like orphans. Such a history is found by metadata files of
the table's UUID that are not in the history of its catalog.

A refused commit leaves such a file too, and that is common. It was made from the version that was
the newest then, at about the time of the faster commit; no other version was made from it; and if
it has an epoch of a query, the query repeats that epoch. A file without these properties belongs to
another history.

Metadata names a limited number of versions. Where older ones were deleted, as by
``write.metadata.delete-after-commit.enabled`` or by an interrupted vacuum, the remaining ones are
not connected to the history. They are former versions of the table, unless they have a snapshot
whose sequence number another snapshot of the table has.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyarrow import fs

from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.catalogs import open_table
from krishiv_spark.iceberg.embedded import CatalogFile, find_table_folders, get_catalog_file
from krishiv_spark.iceberg.file_access import Location
from krishiv_spark.iceberg.file_io import get_access, get_guarded_io
from krishiv_spark.iceberg.metadata_files import METADATA_SUFFIX, read_pieces
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.own_files import find_table_id, get_table_id
from krishiv_spark.iceberg.property_keys import EPOCH_PREFIX, parse_count
from krishiv_spark.runtime.caches import LruCache
from krishiv_spark.runtime.once import warn_once

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

__all__ = ["check_own_warehouse", "check_single_history", "has_other_history", "open_own_table"]

_METADATA_PATH = "write.metadata.path"

_MAX_READ = 3
"""Number of metadata files of a folder that are read: the newest by their names."""

_PASSED: LruCache[tuple[object, ...], CatalogFile] = LruCache(64)
"""Tables that this process has found in their own warehouse, and their catalogs."""

_log = logging.getLogger(__name__)

_SLACK_MS = 60 * 60 * 1000
"""Clocks of drivers differ, and a driver may be paused while it writes a metadata file."""

_REPEATED_S = 24 * 60 * 60.0
"""Time after which an epoch whose commit was refused is assumed to have been repeated."""

_VERDICTS: LruCache[tuple[str, str], bool] = LruCache(64)
"""True if this process found another history, by UUID and location of the table."""


def open_own_table(options: IcebergSinkOptions) -> Table:
    """Load a table whose files are to be written or deleted. Driver, operator.

    Raises:
        OptionError: As `open_table` and `check_own_warehouse`.
        CatalogFailedError: As `open_table`.
    """
    table = open_table(options)
    check_own_warehouse(table, options)
    return table


def check_own_warehouse(table: Table, options: IcebergSinkOptions) -> None:
    """Refuse a table whose catalog names the folders of another warehouse. Driver, operator.

    The folders are listed once in a process for each table and catalog.

    Raises:
        OptionError: If the warehouse was copied or moved, and no option allows that.
    """
    catalog = get_catalog_file(table)
    if catalog is None or options.copied_warehouse == "allow":
        return
    location = Location.parse(table.location())
    if location.store != "disk":
        return
    folder = table.metadata_location.rpartition("/")[0]
    key = (catalog, table.metadata.table_uuid, location, folder)
    if _PASSED.get(key) is not None:
        return
    found = _find_copy(table, location.path, Path(catalog.path).absolute().parent)
    if found is not None:
        raise _to_refusal(table, catalog.path, location.path, *found)
    _PASSED.put(key, catalog)


def _to_refusal(
    table: Table, catalog: str, location: str, copy: str, warehouse: str
) -> OptionError:
    rest = os.path.relpath(copy, warehouse)
    original = location.removesuffix(f"/{rest}")
    command = f"krishiv-spark iceberg relocate {original} {warehouse} --copy"
    return OptionError(
        f"{FORMAT}: table {'.'.join(table.name())} is in a copy of a warehouse: its catalog "
        f"{catalog} still names the folder {location}, and the table's folder was copied to "
        f"{copy}. Writes would go into the folder of the original, and deleted files would be "
        "missing there. Nothing was written or deleted. To make the tables of the copy "
        f"independent: '{command}'. To continue in the folder of the original, set the option "
        "'copiedWarehouse' = 'allow'"
    )


def _find_copy(table: Table, location: str, of_catalog: Path) -> tuple[str, str] | None:
    """Return a copy of the table's folder, and the warehouse that has it; None if there is none."""
    warehouse = get_access(table).access.warehouse
    given = None if warehouse is None else Location.parse(warehouse)
    warehouses = {str(of_catalog)}
    if given is not None and given.store == "disk":
        warehouses.add(given.path)
    *namespace, name = table.name()
    usual = f"{'.'.join(namespace)}/{name}"
    for around in sorted(warehouses):
        for folder in find_table_folders(around, location, usual):
            with contextlib.suppress(OSError):
                if os.path.samefile(folder, location):
                    break
            if _is_copy(table, folder, location):
                return folder, around
    return None


def _is_copy(table: Table, folder: str, location: str) -> bool:
    """Return True if a folder has metadata files of the table that name another location."""
    metadata_path = table.properties.get(_METADATA_PATH)
    if metadata_path is not None and _is_same(metadata_path, f"{folder}/metadata"):
        return False
    names = sorted(_list_metadata_names(f"{folder}/metadata"), reverse=True)
    for name in names[:_MAX_READ]:
        found = _read_identity(table, f"{folder}/metadata/{name}")
        if found is not None and found[0] == str(table.metadata.table_uuid):
            return Location.parse(found[1]).path == location
    return False


def _list_metadata_names(folder: str) -> Iterator[str]:
    with contextlib.suppress(OSError):
        yield from (name for name in os.listdir(folder) if name.endswith(METADATA_SUFFIX))


def _is_same(one: str, other: str) -> bool:
    location = Location.parse(one)
    with contextlib.suppress(OSError):
        return location.store == "disk" and os.path.samefile(location.path, other)
    return False


def _read_identity(table: Table, path: str) -> tuple[str, str] | None:
    """Return the UUID and the location in a metadata file; None if it is incomplete."""
    io = get_guarded_io(table)
    limit = io.access.access.max_metadata_bytes
    with contextlib.suppress(OSError, EOFError, ValueError, LookupError, TypeError):
        # The table does not name this file.
        found = json.loads(b"".join(read_pieces(io.inner.new_input(path), limit)))
        return str(found["table-uuid"]), str(found["location"])
    return None


class _Version(NamedTuple):
    """A metadata file.

    Attributes:
        path: Path in the table's metadata or in a listing.
        time_ms: Time of its commit.
        previous: The earlier versions that it names, oldest first.
        epochs: The newest epoch of each query; -1 for none yet.
        newest: Sequence number and id of its newest snapshot; None if it has none.
    """

    path: str
    time_ms: int
    previous: tuple[_Version, ...] = ()
    epochs: Mapping[str, int] = {}
    newest: tuple[int, int] | None = None

    @property
    def identity(self) -> Location:
        """The location, equal for all spellings of the path."""
        return Location.parse(self.path)


class _Listing(NamedTuple):
    """Metadata files of a table that its metadata does not name.

    Attributes:
        unnamed: Paths of these files.
        old: Files whose epochs have been repeated, if they were not committed.
        modified_s: By name, when metadata files were written, by the clock of the store.
    """

    unnamed: Collection[str] = ()
    old: Collection[str] = ()
    modified_s: Mapping[str, float] = {}


def check_single_history(
    table: Table, unnamed: Iterable[str], old: Collection[str], modified_s: Mapping[str, float]
) -> None:
    """Refuse to remove files of a table that another catalog may have too. Operator.

    Args:
        table: The table as its catalog has it.
        unnamed: Complete metadata files of its UUID that its metadata does not name.
        old: Files whose epochs have been repeated, if they were not committed.
        modified_s: By name, when metadata files were written, by the clock of the store.

    Raises:
        OptionError: If one of them belongs to another history.
    """
    found = _find_other_history(table, _Listing(list(unnamed), old, modified_s))
    if found is not None:
        raise OptionError(
            f"{FORMAT}: {found} is a version of this table (UUID {table.metadata.table_uuid}) "
            "that is not in the history of its catalog, whose newest is "
            f"{table.metadata_location}. So another catalog has the table too, as after a copy "
            "of a warehouse or a restore of a catalog's database, and its files cannot be "
            "distinguished from orphans. Nothing was removed. If no catalog uses that version "
            "any more, give --other-lines. If one does, make its tables independent first: "
            "'krishiv-spark iceberg relocate --copy'"
        )


def has_other_history(table: Table) -> bool:
    """Return True if another catalog seems to have the table too. Driver.

    Lists the folder of metadata files once in a process, and logs a warning if there is one.
    """
    key = (str(table.metadata.table_uuid), table.location())
    known = _VERDICTS.get(key)
    if known is None:
        found = _find_other_history(table, _list_metadata(table))
        known = found is not None
        _VERDICTS.put(key, known)
        if known:
            warn_once(
                _log,
                key,
                "%s: files of expired snapshots of table %s are not deleted: %s is a version of "
                "the table that its catalog does not have, so another catalog may need them. See "
                "'krishiv-spark iceberg vacuum'",
                FORMAT,
                ".".join(table.name()),
                found,
            )
    return known


def _list_metadata(table: Table) -> _Listing:
    """List metadata files with the table's id; empty where files cannot be listed."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    inner = get_guarded_io(table).inner
    if not isinstance(inner, PyArrowFileIO):
        return _Listing()
    folder = table.location_provider().metadata_path
    scheme, host, path = PyArrowFileIO.parse_location(folder)
    selector = fs.FileSelector(path, allow_not_found=True)
    listed: Any = inner.fs_by_scheme(scheme, host).get_file_info(selector)
    own = get_table_id(table.metadata.table_uuid)
    modified_s = {
        file.base_name: file.mtime.timestamp()
        for file in listed
        if file.base_name.endswith(METADATA_SUFFIX)
    }
    named = {_get_name(table.metadata_location)}
    named |= {_get_name(entry.metadata_file) for entry in table.metadata.metadata_log}
    unnamed = {name for name in modified_s if find_table_id(name) == own} - named
    before_s = time.time() - _REPEATED_S
    old = [f"{folder}/{name}" for name in unnamed if modified_s[name] < before_s]
    return _Listing([f"{folder}/{name}" for name in unnamed], old, modified_s)


def _get_name(path: str) -> str:
    return path.rpartition("/")[2]


def _find_other_history(table: Table, listing: _Listing) -> str | None:
    """Return a metadata file of another history; None if there is none."""
    if not listing.unnamed:
        return None
    history = _read_history(table)
    later = {one.identity: after for one, after in pairwise(history)}
    known = {one.identity for one in history}
    others = {
        location: version
        for path in sorted(listing.unnamed)
        if (location := Location.parse(path)) not in known
        and (version := _read_version(table, path)) is not None
    }
    roots = _find_roots(others)
    for location, version in others.items():
        if not version.previous:
            continue
        base = version.previous[-1].identity
        # A version that is older than the known history may have been refused long ago.
        limit = later.get(base) if base in known else history[0]
        is_late = limit is not None and _is_later(version, limit, listing.modified_s)
        if base in others and roots[location] not in known and not is_late:
            is_strange = _is_foreign(table, version)
        else:
            is_strange = base in others or is_late
        if is_strange or (version.path in listing.old and _has_more_epochs(table, version)):
            return version.path
    return None


def _find_roots(others: Mapping[Location, _Version]) -> dict[Location, Location]:
    """Return the root of each version: its first ancestor that is not among them."""
    roots: dict[Location, Location] = {}
    for start in others:
        passed, location = dict[Location, None](), start
        while location in others and others[location].previous and location not in roots:
            passed[location] = None
            location = others[location].previous[-1].identity
            if location in passed:  # a damaged file may name a later one
                break
        roots |= dict.fromkeys(passed, roots.get(location, location))
    return roots


def _is_later(version: _Version, limit: _Version, modified_s: Mapping[str, float]) -> bool:
    """Return True if a version is much later than another one, by both clocks.

    The clock of one writer may be ahead; the clock of the store dates all files.
    """
    if version.time_ms <= limit.time_ms + _SLACK_MS:
        return False
    written_s, limit_s = (modified_s.get(_get_name(one.path)) for one in (version, limit))
    return written_s is None or limit_s is None or written_s > limit_s + _SLACK_MS / 1000


def _is_foreign(table: Table, version: _Version) -> bool:
    """Return True if a version has a snapshot with the sequence number of another one."""
    if version.newest is None:
        return False
    number, snapshot_id = version.newest
    ours = {one.snapshot_id: one.sequence_number or 0 for one in table.metadata.snapshots}
    if snapshot_id in ours:
        return False
    # Format version 1 has no numbers.
    return number == 0 or number in ours.values()


def _has_more_epochs(table: Table, version: _Version) -> bool:
    """Return True if a version has a newer epoch of one of the table's queries.

    A query that the table does not know may be one whose property was removed on purpose.
    """
    now = _get_epochs(table.properties)
    return any(epoch > now.get(query, epoch) for query, epoch in version.epochs.items())


def _get_epochs(properties: Mapping[str, str]) -> dict[str, int]:
    """Return the newest epoch of each query; -1 for none yet, and for invalid numbers."""
    epochs = (pair for pair in properties.items() if pair[0].startswith(EPOCH_PREFIX))
    found = {name.removeprefix(EPOCH_PREFIX): parse_count(text) for name, text in epochs}
    return {query: -1 if epoch is None else epoch for query, epoch in found.items()}


def _read_history(table: Table) -> list[_Version]:
    """Return the versions that led to the catalog's newest, the oldest first.

    Metadata names a number of versions; the oldest of these names earlier ones, if it exists.
    """
    metadata = table.metadata
    found = [_Version(entry.metadata_file, entry.timestamp_ms) for entry in metadata.metadata_log]
    found.append(_Version(table.metadata_location, metadata.last_updated_ms))
    known = {one.identity for one in found}
    while (oldest := _read_version(table, found[0].path)) is not None:
        before = [one for one in oldest.previous if one.identity not in known]
        if not before:
            break
        known |= {one.identity for one in before}
        found = [*before, *found]
    return found


def _read_version(table: Table, path: str) -> _Version | None:
    """Read a metadata file; None if it does not exist or is incomplete."""
    limit = get_guarded_io(table).access.access.max_metadata_bytes
    # OptionError, of a file that is too large, is a ValueError.
    with contextlib.suppress(FileNotFoundError, EOFError, ValueError, LookupError, TypeError):
        found = json.loads(b"".join(read_pieces(table.io.new_input(path), limit)))
        log = found.get("metadata-log") or []
        named = (_Version(one["metadata-file"], int(one["timestamp-ms"])) for one in log)
        epochs = _get_epochs(found.get("properties") or {})
        snapshots = found.get("snapshots") or []
        numbers = ((int(one.get("sequence-number") or 0), one["snapshot-id"]) for one in snapshots)
        newest = max(numbers, default=None)
        return _Version(path, int(found["last-updated-ms"]), tuple(named), epochs, newest)
    return None
