"""A warehouse of the embedded catalog that gets another folder. Operator.

All files are complete in the new folder before its catalog is: renaming the new database to
``catalog.db`` is the step that makes the new warehouse valid. A process that dies before it leaves
the old warehouse unchanged, and one that dies after it leaves the new one complete. The remaining
work is recorded in a file beside the new catalog, so that the same command completes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from krishiv_spark.durable import sync_folder
from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.embedded import RELOCATED
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.relocation.table_rewriter import (
    DELETED,
    RelocatedTable,
    TableRewriter,
    read_avro,
    read_metadata,
)
from krishiv_spark.iceberg.relocation.warehouse_files import (
    PathMap,
    WarehouseFiles,
    local_path,
    read_transferred,
)

__all__ = ["relocate"]

_PATIENCE_S = 10.0
_KEY = "catalog_name, table_namespace, table_name"


class CatalogRow(NamedTuple):
    """A table or a view in the catalog's database.

    Attributes:
        catalog: Name of the catalog.
        namespace: Levels of the namespace, with dots between them.
        table: Name of the table in it.
        metadata: Location of the metadata file.
        is_view: True for a view.
    """

    catalog: str
    namespace: str
    table: str
    metadata: str
    is_view: bool

    @property
    def name(self) -> str:
        """The full name, for messages."""
        return f"{self.namespace}.{self.table}"

    @property
    def key(self) -> str:
        """A key that identifies the table in its database."""
        return f"{self.catalog} {self.name}"


@contextlib.contextmanager
def open_database(file: Path, *, lock: bool) -> Iterator[sqlite3.Connection]:
    """Open a database for reading.

    Args:
        file: The database.
        lock: True to prevent other processes from writing to it until the end.

    Raises:
        OptionError: If it is missing, is not a catalog, or is used by another process.
    """
    if not file.is_file():
        raise OptionError(f"{FORMAT}: there is no catalog {file}")
    with contextlib.closing(
        sqlite3.connect(file, isolation_level=None, timeout=_PATIENCE_S)
    ) as connection:
        try:
            if lock:
                # SQLite would take a write-ahead log beside the file for that of the next one.
                connection.execute("PRAGMA journal_mode = DELETE")
                connection.execute("BEGIN IMMEDIATE")
            connection.execute("SELECT 1 FROM iceberg_tables").fetchone()
        except sqlite3.Error as error:
            raise OptionError(
                f"{FORMAT}: the catalog {file} cannot be used: {error}. Stop the queries that "
                "write to it, and run the command again"
            ) from error
        yield connection


def read_rows(connection: sqlite3.Connection) -> list[CatalogRow]:
    """Return the tables and views of all catalogs of a database."""
    columns = {row[1] for row in connection.execute("PRAGMA table_info(iceberg_tables)")}
    kind = "iceberg_type" if "iceberg_type" in columns else "NULL"
    found = connection.execute(
        f"SELECT {_KEY}, metadata_location, {kind} FROM iceberg_tables ORDER BY {_KEY}"  # noqa: S608
    )
    return [
        CatalogRow(catalog, namespace, table, metadata or "", kind == "VIEW")
        for catalog, namespace, table, metadata, kind in found
    ]


def create_database(
    source: Path,
    file: Path,
    locations: Mapping[CatalogRow, str],
    paths: PathMap,
) -> None:
    """Create a copy of a database with other locations, and sync it to the disk.

    Args:
        source: The old database. If it is not locked, tables that were added after `locations`
            were read are omitted: they name the old folder.
        file: The new database; an existing one is deleted first.
        locations: New location of the metadata file, by row. Other rows are omitted.
        paths: Translates the locations of namespaces.

    Raises:
        OptionError: If a table was renamed or dropped meanwhile.
    """
    file.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(file)) as target:
        # By a separate connection: one that has started a transaction would wait for itself.
        with contextlib.closing(sqlite3.connect(source, timeout=_PATIENCE_S)) as reader:
            reader.backup(target)
        known = {(row.catalog, row.namespace, row.table) for row in locations}
        where = "WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"
        for key in target.execute(f"SELECT {_KEY} FROM iceberg_tables").fetchall():  # noqa: S608
            if key not in known:
                target.execute(f"DELETE FROM iceberg_tables {where}", key)  # noqa: S608
        for row, location in locations.items():
            if location == row.metadata:
                continue  # unchanged
            key = (row.catalog, row.namespace, row.table)
            update = "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location"
            previous = paths.translate(row.metadata)
            done = target.execute(f"{update} = ? {where}", (location, previous, *key))
            if done.rowcount == 0:
                raise OptionError(
                    f"{FORMAT}: table {row.name} was renamed or dropped meanwhile. Nothing was "
                    "switched: run the command again"
                )
        found = target.execute(
            "SELECT rowid, property_value FROM iceberg_namespace_properties "
            "WHERE property_key = 'location'"
        ).fetchall()
        for rowid, location in found:
            target.execute(
                "UPDATE iceberg_namespace_properties SET property_value = ? WHERE rowid = ?",
                (paths.translate(location), rowid),
            )
        target.commit()
    os.sync()


_CATALOG = "catalog.db"
_STATE = "catalog.db.relocating"
_NEXT = "catalog.db.new"
_TRANSFERRED = "catalog.db.brought"
"""The record of the files that a relocation transferred, by their paths below the new folder."""

_MOVE = (
    "set the option 'warehouse' of queries and readers to the new folder; checkpoints stay valid"
)
_COPY = (
    "its tables have new UUIDs, and are independent of the original. A stream that reads one of "
    "them cannot use a checkpoint of the original: it reads all rows of the table again"
)


def relocate(old: str, new: str, *, copy: bool, dry_run: bool, say: Callable[[str], None]) -> None:
    """Move or copy a warehouse; complete a relocation that was started.

    Args:
        old: The folder that catalog and metadata name.
        new: The other folder. If it has a catalog already, the files were moved or copied there
            by other means, and only the names of the old folder are changed.
        copy: True if the old warehouse stays, so that the new tables need new UUIDs.
        dry_run: True to change nothing.
        say: Shows a line to the operator.

    Raises:
        OptionError: If the warehouse cannot be relocated; the old one is unchanged.
    """
    paths = PathMap(old, new)
    _check_apart(paths)
    state = _State.read(paths, copy=copy)
    is_switched = (paths.new / _CATALOG).exists() and state.is_started and not state.in_place
    if is_switched and _complete(paths, state, say, dry_run=dry_run):
        return
    _Relocation(paths, state, say).run(dry_run=dry_run)


def _mark_step(step: str) -> None:
    """Do nothing; tests end the process at each step."""
    del step


def _check_apart(paths: PathMap) -> None:
    old, new = os.path.realpath(paths.old), os.path.realpath(paths.new)
    is_same = os.path.exists(old) and os.path.exists(new) and os.path.samefile(old, new)
    if is_same or f"{old}/".startswith(f"{new}/") or f"{new}/".startswith(f"{old}/"):
        raise OptionError(
            f"{FORMAT}: {paths.new} and {paths.old} must be two folders, neither in the other"
        )


@dataclass
class _State:
    """The state of a relocation, which a file in the new folder records.

    Attributes:
        file: The file that records it.
        old: The old folder.
        copy: True if the old warehouse stays.
        in_place: True if the files were in the new folder before.
        is_started: True if the state was recorded.
        uuids: UUID of the new table, by that of the old one.
        before: Location of the metadata file in the old catalog, by table.
        after: Likewise in the new catalog.
    """

    file: Path
    old: str
    copy: bool
    in_place: bool
    is_started: bool = False
    uuids: dict[str, str] = field(default_factory=dict)
    before: dict[str, str] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, paths: PathMap, *, copy: bool) -> _State:
        """Read the state of a relocation that was started, or return a new one.

        Raises:
            OptionError: If another relocation was started.
        """
        file, old = paths.new / _STATE, str(paths.old)
        in_place = (paths.new / _CATALOG).exists()
        try:
            found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls(file, old, copy, in_place)
        except ValueError as error:
            raise OptionError(f"{FORMAT}: {file} is damaged: {error}. Remove it") from error
        if (found["old"], found["copy"]) != (old, copy):
            started = f"relocate {found['old']} {paths.new}{' --copy' * found['copy']}"
            raise OptionError(
                f"{FORMAT}: '{started}' was started, and must be completed first: run it again"
            )
        return cls(file, is_started=True, **found)

    def store(self) -> None:
        """Record the state; create the folder if it is missing."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        kept = {
            key: value for key, value in vars(self).items() if key not in {"file", "is_started"}
        }
        part = self.file.with_name(f"{_STATE}.part")
        part.write_text(json.dumps(kept), encoding="utf-8")
        os.replace(part, self.file)

    def uuid_for(self, old: str) -> str | None:
        """Return the UUID of a new table; None if the table keeps its own."""
        if not self.copy or old in self.uuids.values():
            return None
        return self.uuids.setdefault(old, str(uuid4()))


class _Relocation:
    """One run, up to the new catalog and, for a move, the deletion of the old one."""

    def __init__(self, paths: PathMap, state: _State, say: Callable[[str], None]) -> None:
        self._paths, self._state, self._say = paths, state, say
        is_move = not state.copy
        self._files = WarehouseFiles(
            paths, in_place=state.in_place, link=is_move and not state.in_place
        )

    def run(self, *, dry_run: bool) -> None:
        paths, state = self._paths, self._state
        if state.in_place and not state.copy and (paths.old / _CATALOG).exists():
            raise OptionError(
                f"{FORMAT}: {paths.old} has a catalog too, so {paths.new} is a copy: give --copy, "
                "and its tables become independent of the original"
            )
        base = (paths.new if state.in_place else paths.old) / _CATALOG
        is_locked = not dry_run and (state.in_place or not state.copy)
        with open_database(base, lock=is_locked) as connection:
            rows = read_rows(connection)
            concerned = self._choose(rows)
            if dry_run:
                for row in concerned:
                    self._say(f"table {row.name} would be relocated")
                return
            state.before = {row.key: row.metadata for row in rows}
            state.store()
            locations = self._rewrite(concerned)
            self._switch(base, rows, locations)
            if not state.copy and not state.in_place:
                _retire(paths)
        self.end()

    def end(self) -> None:
        """Delete the rest of the old warehouse, and the records of the relocation."""
        if not self._state.copy and not self._state.in_place:
            _delete_old_files(self._paths)
        _mark_step("deleted")
        (self._paths.new / RELOCATED).unlink(missing_ok=True)  # of an earlier move away from here
        (self._paths.new / _TRANSFERRED).unlink(missing_ok=True)
        self._state.file.unlink()
        self._say(f"the warehouse is {self._paths.new}: {_COPY if self._state.copy else _MOVE}")

    def _choose(self, rows: list[CatalogRow]) -> list[CatalogRow]:
        """Return the tables that name the old folder.

        Raises:
            OptionError: If there is a view, or no table names the old folder.
        """
        found = []
        for row in rows:
            if row.is_view:
                raise OptionError(
                    f"{FORMAT}: {row.name} is a view of another engine, which cannot be relocated: "
                    "drop it first, and create it again in the new warehouse"
                )
            if self._names_old_folder(row):
                found.append(row)
            elif not self._state.is_started:
                verb = "is not in the copy's catalog" if self._is_shared(row) else "stays there"
                self._say(f"table {row.name} has its metadata at {row.metadata}, and {verb}")
        if not found and not self._state.is_started:
            named = rows[0].metadata if rows else "it has no table"
            raise OptionError(
                f"{FORMAT}: no table of the catalog is in {self._paths.old}. Give the folder that "
                f"the catalog names: {named}"
            )
        return found

    def _names_old_folder(self, row: CatalogRow) -> bool:
        """Return True for a table whose catalog or metadata names the old folder."""
        path = local_path(row.metadata)
        if path is None or not self._files.exists(row.metadata):
            return path is not None and self._paths.is_below(row.metadata)
        metadata = read_metadata(self._files, row.metadata)
        if metadata["table-uuid"] in self._state.uuids.values():
            return True
        return any(map(self._paths.is_below, (row.metadata, metadata["location"])))

    def _is_shared(self, row: CatalogRow) -> bool:
        """Return True for a table outside of both folders, which would be in two catalogs."""
        new = PathMap(self._paths.new, self._paths.new)
        return self._state.copy and not new.is_below(row.metadata)

    def _rewrite(self, rows: list[CatalogRow]) -> dict[CatalogRow, str]:
        found = {}
        for row in rows:
            uuid = self._state.uuid_for(read_metadata(self._files, row.metadata)["table-uuid"])
            self._state.store()
            _mark_step("table")
            rewriter = TableRewriter(self._files, row.name, uuid)
            if self._state.in_place:
                rewriter.rewrite_others(row.metadata)
            table = rewriter.rewrite(row.metadata)
            verify_table(self._files, table, row.name)
            self._say(f"table {row.name}: {len(table.rows)} snapshots, all files are there")
            found[row] = table.metadata
        return found

    def _switch(
        self,
        base: Path,
        rows: list[CatalogRow],
        locations: dict[CatalogRow, str],
    ) -> None:
        """Make the new warehouse valid, by its catalog."""
        paths, others = self._paths, [row for row in rows if row not in locations]
        kept = {row: row.metadata for row in others if not self._is_shared(row)}
        new = {**kept, **locations}
        self._state.after = {row.key: location for row, location in new.items()}
        self._state.store()
        _mark_step("database")
        self._files.record_transferred(paths.new / _TRANSFERRED)
        create_database(base, paths.new / _NEXT, new, paths)
        _mark_step("switch")
        os.replace(paths.new / _NEXT, paths.new / _CATALOG)
        sync_folder(paths.new)
        _mark_step("switched")


def _retire(paths: PathMap) -> None:
    """Replace the catalog in the old folder by a file that names the new folder."""
    part = paths.old / f"{RELOCATED}.part"
    part.write_text(f"{paths.new}\n", encoding="utf-8")
    os.replace(part, paths.old / RELOCATED)
    _mark_step("noted")
    (paths.old / _CATALOG).unlink(missing_ok=True)
    sync_folder(paths.old)
    _mark_step("retired")


def _delete_old_files(paths: PathMap) -> None:
    """Delete the transferred files in the old folder, and folders that are then empty.

    A file of another program stays, also if the new folder has one of the same name.
    """
    transferred = set(read_transferred(paths.new / _TRANSFERRED))
    for folder, _, names in os.walk(paths.old, topdown=False):
        relative = os.path.relpath(folder, paths.old)
        for name in names:
            if os.path.normpath(f"{relative}/{name}") in transferred:
                os.unlink(f"{folder}/{name}")
        if folder != str(paths.old) and not os.listdir(folder):
            os.rmdir(folder)


def _complete(paths: PathMap, state: _State, say: Callable[[str], None], *, dry_run: bool) -> bool:
    """Complete a relocation whose new catalog exists; return False if it must start again.

    Raises:
        OptionError: If both warehouses have been changed since.
    """
    if dry_run:
        say(f"{paths.new} is complete: only the rest of the old one remains to be deleted")
        return True
    if not state.copy and (paths.old / _CATALOG).exists():
        with open_database(paths.old / _CATALOG, lock=True) as connection:
            before = {row.key: row.metadata for row in read_rows(connection)}
            if before != state.before:
                _check_new_unchanged(paths, state)
                (paths.new / _CATALOG).unlink()
                return False
            _retire(paths)
    _Relocation(paths, state, say).end()
    return True


def _check_new_unchanged(paths: PathMap, state: _State) -> None:
    with open_database(paths.new / _CATALOG, lock=True) as connection:
        after = {row.key: row.metadata for row in read_rows(connection)}
    if after != state.after:
        raise OptionError(
            f"{FORMAT}: both {paths.old} and {paths.new} have been written to since a "
            "relocation was started. Decide which of them counts: remove the other one's "
            f"{_CATALOG}, and, if it is the new one, {paths.new}/{_STATE}"
        )


def verify_table(files: WarehouseFiles, table: RelocatedTable, name: str) -> None:
    """Read a table in its new folder, and compare it with the old one.

    Raises:
        OptionError: If a file is missing, has another size or names the old folder, or a snapshot
            has other rows.
    """
    new = WarehouseFiles(files.paths, in_place=True, link=False)
    metadata = read_metadata(new, table.metadata)
    checked: dict[str, int] = {}
    for snapshot in metadata.get("snapshots") or []:
        rows = sum(
            _verify_manifest(files, path, name, checked) for path in _list_manifests(new, snapshot)
        )
        expected = table.rows[snapshot["snapshot-id"]]
        if rows != expected:
            raise _create_error(
                name, f"snapshot {snapshot['snapshot-id']} has {rows} rows, not {expected}"
            )


def _list_manifests(new: WarehouseFiles, snapshot: dict[str, Any]) -> Iterator[str]:
    if "manifest-list" not in snapshot:
        yield from snapshot.get("manifests", ())
        return
    for record in read_avro(new.read(snapshot["manifest-list"])).records:
        yield record["manifest_path"]


def _verify_manifest(
    files: WarehouseFiles, manifest: str, name: str, checked: dict[str, int]
) -> int:
    """Check that the files of a manifest exist; return the rows of its data files."""
    if manifest not in checked:
        rows = 0
        for entry in read_avro(Path(_verify_file(files, manifest, name)).read_bytes()).records:
            file = entry["data_file"]
            if entry["status"] != DELETED:
                _verify_file(files, file["file_path"], name)
                rows += 0 if file.get("content") else file["record_count"]
        checked[manifest] = rows
    return checked[manifest]


def _verify_file(files: WarehouseFiles, location: str, name: str) -> str:
    """Check the new location and the size of a file; return its path."""
    if files.paths.is_below(location):
        raise _create_error(name, f"{location} is in the old folder")
    path = files.source(location)
    if not Path(path).is_file() or Path(path).stat().st_size != files.sizes.get(path, -1):
        raise _create_error(name, f"{path} is missing, or has another size than the old file")
    return path


def _create_error(name: str, reason: str) -> OptionError:
    return OptionError(
        f"{FORMAT}: table {name} is not whole in its new folder: {reason}. Nothing was switched: "
        "was the old warehouse changed meanwhile? Run the command again"
    )
