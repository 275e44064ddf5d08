"""The change data feed: the rows that a version inserts, deletes and updates, as files. Driver.

A version has files of changes (actions `cdc`), which its writer makes if it rewrites files with
unchanged rows. Without them, the rows of added files are inserted, and those of removed files are
deleted. Column names and types are those of delta-spark's ``readChangeFeed``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from krishiv_spark.delta.opening import open_table
from krishiv_spark.delta.options import FORMAT, DeltaOptions
from krishiv_spark.errors import OffsetError, SchemaError
from krishiv_spark.runtime.epoch_times import to_datetime
from krishiv_spark.sources.delta.chosen_versions import find_commit_time_ms
from krishiv_spark.sources.delta.table_files import (
    DeltaFile,
    VersionChanges,
    check_path,
    list_snapshot,
    to_constants,
)

__all__ = ["ChangeFeed", "add_feed_columns", "without_feed_columns"]

_TYPE, _VERSION, _TIME = "_change_type", "_commit_version", "_commit_timestamp"
_FEED = pa.schema(
    [
        (_TYPE, pa.string()),
        (_VERSION, pa.int64()),
        (_TIME, pa.timestamp("us", tz="UTC")),
    ]
)
_ENABLED = "delta.enableChangeDataFeed"
_INSERT, _DELETE = "insert", "delete"


def add_feed_columns(columns: pa.Schema) -> pa.Schema:
    """Return the columns of a change data feed.

    Raises:
        SchemaError: If the table has a column of one of the names.
    """
    names = {name.casefold() for name in columns.names}
    if twice := [name for name in _FEED.names if name in names]:
        raise SchemaError(
            f"{FORMAT}: the table has a column {twice[0]!r}, which 'readChangeFeed' adds: rename it"
        )
    return pa.schema([*columns, *_FEED])


def without_feed_columns(columns: pa.Schema) -> pa.Schema:
    """Return the columns that are those of the table."""
    return pa.schema([field for field in columns if field.name not in _FEED.names])


class ChangeFeed:
    """A lister of the files with the changes of a version.

    Args:
        options: Name the table.
    """

    def __init__(self, options: DeltaOptions) -> None:
        self._options = options

    def list_initial(self, version: int, files: Iterable[DeltaFile]) -> list[DeltaFile]:
        """Return the files of a first load, whose rows count as inserted by its version."""
        commit = self._commit_values(version)
        return [_tag(file, _INSERT, commit) for file in files]

    def list_changes(
        self, version: int, changes: VersionChanges, columns: pa.Schema, before: pa.Schema
    ) -> list[DeltaFile]:
        """Return the files with the changes of a version; each row of them is a change.

        Args:
            version: The version.
            changes: Its actions.
            columns: Columns of the table at it, for the types of partition columns.
            before: Columns of the version before it, which removed files have.

        Raises:
            OffsetError: If the version was written without change data and rewrites files.
            DataLossError, StorageError: If the log cannot be read.
        """
        if not (changes.adds or changes.removes or changes.cdc):
            return []
        commit = self._commit_values(version)
        if changes.cdc:
            return [
                replace(file, constants=(*file.constants, *commit))
                for file in self._to_files(changes.cdc, columns)
            ]
        if changes.kind == "change":
            self._check_recorded(version)
        added = {file.path: file for file in self._to_files(changes.adds, columns)}
        return list(self._list_rewritten(version, changes, added, before, commit))

    def _check_recorded(self, version: int) -> None:
        """Refuse a version that may have copied rows into other files without change data."""
        settings = open_table(self._options, version).metadata().configuration
        if settings.get(_ENABLED, "").lower() != "true":
            raise OffsetError(
                f"{FORMAT}: version {version} of {self._options.path} changes rows, and was "
                f"written without change data ({_ENABLED!r}): set 'startingVersion' to a later "
                "one, or read the whole table without 'readChangeFeed'"
            )

    def _list_rewritten(
        self,
        version: int,
        changes: VersionChanges,
        added: dict[str, DeltaFile],
        before: pa.Schema,
        commit: _Values,
    ) -> Iterator[DeltaFile]:
        """Yield files whose rows are all inserted or all deleted."""
        vectors = self._read_vectors(version, changes)
        known = self._list_before(version, changes)
        for action in changes.removes:
            path = self._path_of(action)
            old = known.get(path) or next(self._to_files([action], before))
            if path in added:
                yield from _compare(old, added.pop(path), vectors.get(path), commit)
            else:
                yield _tag(old, _DELETE, commit)
        for file in added.values():
            yield _tag(replace(file, deleted=vectors.get(file.path)), _INSERT, commit)

    def _read_vectors(self, version: int, changes: VersionChanges) -> dict[str, bytes]:
        """Return the positions of deleted rows after a version, by path."""
        if not changes.has_deleted:
            return {}
        files = self._list_at(version)
        return {file.path: file.deleted for file in files if file.deleted is not None}

    def _list_before(self, version: int, changes: VersionChanges) -> dict[str, DeltaFile]:
        """Return the files that a version removes, as the version before it has them.

        Most writers repeat in a removal all that is needed, so that the table is not opened.
        """
        if not any(map(_is_incomplete, changes.removes)):
            return {}
        return {file.path: file for file in self._list_at(version - 1)}

    def _list_at(self, version: int) -> list[DeltaFile]:
        table = open_table(self._options, version)
        return list_snapshot(self._options, table)

    def _to_files(
        self, actions: Sequence[Mapping[str, Any]], columns: pa.Schema
    ) -> Iterator[DeltaFile]:
        for action in actions:
            path = self._path_of(action)
            rows = json.loads(action.get("stats") or "{}").get("numRecords")
            constants = to_constants(action, columns, path)
            yield DeltaFile(path, action["size"], rows, constants)

    def _path_of(self, action: Mapping[str, Any]) -> str:
        return check_path(self._options, unquote(action["path"]))

    def _commit_values(self, version: int) -> _Values:
        time = to_datetime(find_commit_time_ms(self._options, version))
        return (
            (_VERSION, pa.scalar(version, _FEED.field(_VERSION).type)),
            (_TIME, pa.scalar(time, _FEED.field(_TIME).type)),
        )


_Values = tuple[tuple[str, pa.Scalar], ...]


def _is_incomplete(remove: Mapping[str, Any]) -> bool:
    has_all = remove.get("size") is not None and remove.get("partitionValues") is not None
    return not has_all or bool(remove.get("deletionVector"))


def _tag(file: DeltaFile, change: str, commit: _Values) -> DeltaFile:
    return replace(file, constants=(*file.constants, (_TYPE, pa.scalar(change)), *commit))


def _compare(
    old: DeltaFile, new: DeltaFile, vector: bytes | None, commit: _Values
) -> Iterator[DeltaFile]:
    """Yield the rows of a file that a version deletes by a vector, or restores."""
    before, now = (_to_positions(each) for each in (old.deleted, vector))
    for change, positions in ((_DELETE, now - before), (_INSERT, before - now)):
        if positions:
            only = np.array(sorted(positions), np.int64).tobytes()
            yield replace(_tag(new, change, commit), deleted=None, only=only)


def _to_positions(vector: bytes | None) -> set[int]:
    return set(np.frombuffer(vector or b"", np.int64).tolist())
