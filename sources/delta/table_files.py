"""The files of a table: all of a version, or those that a version adds. Driver.

A version never changes, so the files of two offsets are the same in each replay.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.conform import places
from krishiv_spark.delta.commit_log import list_actions, read_commit
from krishiv_spark.delta.opening import explain_errors
from krishiv_spark.delta.options import FORMAT, DeltaOptions
from krishiv_spark.delta.partition_texts import from_text
from krishiv_spark.errors import DataLossError, OffsetError, StorageError
from krishiv_spark.sources.delta.data_skipping import skip_files
from krishiv_spark.storage.paths import check_name_within

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = [
    "DeltaFile",
    "VersionChanges",
    "check_path",
    "list_snapshot",
    "read_changes",
    "read_snapshot_table",
    "to_constants",
]


@dataclass(frozen=True)
class DeltaFile:
    """A file of a table.

    Attributes:
        path: Its path within the table.
        size: Bytes.
        rows: Number of its rows by the log; None if it is not known.
        constants: Names and values of partition columns.
        deleted: Positions of deleted rows, ascending, as bytes of int64; None for none.
        only: Positions of the only rows that are read, in the same form; None for all.
    """

    path: str
    size: int
    rows: int | None
    constants: tuple[tuple[str, pa.Scalar], ...]
    deleted: bytes | None = None
    only: bytes | None = None


def read_snapshot_table(table: DeltaTable) -> pa.Table:
    """Return the files of a version with their statistics, in a permanent order."""
    found = pa.table(table.get_add_actions())
    # The names of a table's columns are in structs, so that these two are unique.
    return found.sort_by([("modification_time", "ascending"), ("path", "ascending")])


def list_snapshot(
    options: DeltaOptions, table: DeltaTable, filters: Iterable[Any] = ()
) -> list[DeltaFile]:
    """Return the files of a version.

    Args:
        options: Name the table.
        table: The table at that version.
        filters: Conditions of Spark: files that cannot have rows under them are left out.

    Raises:
        OffsetError: If a file is outside of the table.
        StorageError: If the deleted rows cannot be assigned to files.
    """
    every = read_snapshot_table(table)
    deleted = _read_deleted(options, table, every)
    found = skip_files(every, filters)
    has_partition = "partition" in found.column_names
    columns = ("path", "size_bytes", "num_records")
    rows = zip(*(found.column(name).to_pylist() for name in columns), strict=True)
    files = []
    for number, (encoded, size, count) in enumerate(rows):
        path = unquote(encoded)  # the library lists it as the log has it
        constants = tuple(found.column("partition")[number].items()) if has_partition else ()
        vector = deleted.get(path)
        files.append(DeltaFile(check_path(options, path), size, count, constants, vector))
    return files


def to_constants(
    action: Mapping[str, Any], columns: pa.Schema, path: str
) -> tuple[tuple[str, pa.Scalar], ...]:
    """Return the values of partition columns in an action of the log.

    Args:
        action: The action of a file.
        columns: Columns of the table at the version of the action.
        path: The file, for messages.

    Raises:
        SchemaError: If a text is not valid for the type of its column.
    """
    texts: Mapping[str, str | None] = action.get("partitionValues") or {}
    found = zip(texts.items(), places(list(texts), columns.names), strict=True)
    return tuple(
        # A name without a column keeps its text: a null would be another value.
        (name, from_text(text, _TEXT if place is None else columns.field(place), path))
        for (name, text), place in found
    )


_TEXT = pa.field("text", pa.string())


def check_path(options: DeltaOptions, path: str) -> str:
    """Refuse a file outside of the table: another user may have written the log.

    Raises:
        OffsetError: If its path leads elsewhere, as in a shallow clone.
    """
    try:
        if urlsplit(path).scheme:
            raise ValueError("it is a URL")
        return check_name_within(path)
    except ValueError as error:
        raise OffsetError(
            f"{FORMAT}: the log of {options.path} names the file {path!r}, which is not within the "
            f"table: {error}. Shallow clones and tables with files elsewhere cannot be read; use "
            "delta-spark for it"
        ) from error


def _read_deleted(options: DeltaOptions, table: DeltaTable, files: pa.Table) -> dict[str, bytes]:
    """Return the positions of deleted rows by the file's path within the table.

    Args:
        options: Name the table.
        table: The table at a version.
        files: All files of the version.

    Raises:
        StorageError: If they cannot be read, or belong to none of the table's files: those of
            another one would appear again.
    """
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return {}
    with explain_errors(options, "read the deletion vectors of"):
        vectors = pa.table(table.deletion_vectors())
    root = options.url.path.strip("/") + "/"
    paths = set(map(unquote, files.column("path").to_pylist()))
    found: dict[str, bytes] = {}
    pairs = zip(vectors.column("filepath"), vectors.column("selection_vector"), strict=True)
    for place, keeps in pairs:
        path = unquote(urlsplit(place.as_py()).path).lstrip("/")
        kept = np.asarray(keeps.values.to_numpy(zero_copy_only=False), dtype=bool)
        within = path.removeprefix(root)
        if within == path or within not in paths:
            raise StorageError(
                f"{FORMAT}: deleted rows of {options.path} belong to {path}, which is none of its "
                "files: no row was read; use delta-spark for it"
            )
        found[within] = np.flatnonzero(~kept).astype(np.int64).tobytes()
    return found


# --- one version


@dataclass(frozen=True)
class VersionChanges:
    """The changes of one version.

    Attributes:
        kind: "append" if it only adds rows, "delete" if it only deletes them, "change" if it does
            both, "none" if the rows stay the same, as in a compaction.
        adds: The actions of the files that it adds with new rows.
        removes: The actions of the files that it removes with their rows.
        cdc: The actions of its files of changes, which only a change data feed reads.
        alters: True if it changes the columns of the table, its settings or its protocol.
    """

    kind: Literal["append", "delete", "change", "none"]
    adds: Sequence[Mapping[str, Any]] = ()
    removes: Sequence[Mapping[str, Any]] = ()
    cdc: Sequence[Mapping[str, Any]] = ()
    alters: bool = False

    def list_files(
        self, options: DeltaOptions, columns: pa.Schema, deleted: Mapping[str, bytes]
    ) -> Iterator[DeltaFile]:
        """Yield the files, in the order of the log."""
        for add in self.adds:
            path = check_path(options, unquote(add["path"]))
            constants = to_constants(add, columns, path)
            rows = json.loads(add.get("stats") or "{}").get("numRecords")
            yield DeltaFile(path, add["size"], rows, constants, deleted.get(path))

    @property
    def has_deleted(self) -> bool:
        """True if a file that it adds has deleted rows."""
        return any(add.get("deletionVector") for add in self.adds)


def read_changes(options: DeltaOptions, version: int) -> VersionChanges:
    """Return the changes of a version.

    Raises:
        DataLossError: If the log does not have it any more.
        OffsetError: If it is damaged.
        StorageError: If it cannot be read.
    """
    commit = read_commit(options, version)
    if commit is None:
        raise DataLossError(
            f"{FORMAT}: version {version} of {options.path} is not in the log any more: it was "
            "cleaned up before it was read ('delta.logRetentionDuration'). Start with another "
            "checkpoint, and keep the log for longer than a query may be down"
        )
    found: dict[str, list[Mapping[str, Any]]] = {"add": [], "remove": [], "cdc": []}
    alters = False
    try:
        for kind, body in list_actions(commit):
            if kind == "cdc" or (kind in found and body["dataChange"]):
                found[kind].append(body)
            alters = alters or kind in {"metaData", "protocol"}
    except (ValueError, LookupError, TypeError) as error:
        raise OffsetError(
            f"{FORMAT}: version {version} of {options.path} is damaged: {error}. Restore "
            "the file of the log"
        ) from error
    kinds: dict[tuple[bool, bool], Literal["append", "delete", "change", "none"]] = {
        (True, False): "append",
        (False, True): "delete",
        (True, True): "change",
    }
    adds, removes, cdc = found.values()
    kind = kinds.get((bool(adds), bool(removes)), "none")
    return VersionChanges(kind, adds, removes, cdc, alters)
