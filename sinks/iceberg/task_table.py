"""The specification of a table for tasks, and their reports of staged files.

The specification is small: it contains no catalog, no secrets and no snapshots.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.own_files import add_table_id
from krishiv_spark.iceberg.property_keys import parse_count
from krishiv_spark.sinks.base import Task

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.locations import LocationProvider
    from pyiceberg.table.metadata import TableMetadata

__all__ = [
    "StagedDataFiles",
    "TaskTableSpec",
    "file_name_prefix",
    "query_in_file_name",
    "task_table_spec",
    "to_staged",
]

_CODEC, _LEVEL = "write.parquet.compression-codec", "write.parquet.compression-level"
_LEVELS = re.compile(r"-?[0-9]{1,3}")
_NOT_COMPRESSED = frozenset({"none", "uncompressed"})

_MINIMUMS = {
    "write.parquet.row-group-limit": 1_000,
    "write.parquet.page-row-limit": 100,
    "write.parquet.page-size-bytes": 1_024,
    "write.parquet.dict-size-bytes": 0,
}
"""Numbers for PyArrow's writer, with their minimum: it crashes at a page of -1 rows, and writes a
thousand rows per second if each is a separate row group."""

_MAXIMUM = 2**31 - 1
_METRICS = "write.metadata.metrics."
_TARGET_FILE_SIZE = "write.target-file-size-bytes"

# Iceberg's (``TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT``).
_DEFAULT_FILE_SIZE = 512 * 2**20


@dataclass(frozen=True)
class TaskTableSpec:
    """The table as the planner has loaded it, sent to the tasks.

    Attributes:
        metadata: Schema, partition spec, sort order and properties; no snapshots.
        io: Accesses the object store.
        locations: Provides paths of new files.
        file_size: Approximate maximum size of a file, in bytes.
    """

    metadata: TableMetadata
    io: FileIO
    locations: LocationProvider
    file_size: int


@dataclass(frozen=True)
class StagedDataFiles:
    """The files that one task has staged.

    Attributes:
        table: UUID of the table.
        spec_id: Partition spec that the files were written for.
        after: Sequence number of the planner's newest snapshot: only later ones can name these
            files. 0 if there was none, or the table's format version has no such numbers.
        files: Data files, durable and in no manifest.
        changes: Paths of staged changes, see `stage_changes`.
        schema_id: Id of the schema of files and changes. None for data files from an intent: they
            were compared with the table before it was logged.
        columns: The columns of the changes, serialized, if they may be more than the table's, or
            wider: the committer adapts the table to them.
        at_s: Time of staging in epoch seconds, by the clock of the task's machine. 0 for files
            from the intent of an earlier driver: any time may have passed.
    """

    table: str
    spec_id: int
    after: int
    files: tuple[DataFile, ...]
    changes: tuple[str, ...] = ()
    schema_id: int | None = None
    columns: bytes | None = None
    at_s: float = 0.0

    @property
    def paths(self) -> list[str]:
        """The paths of all files."""
        return [*(file.file_path for file in self.files), *self.changes]


def to_staged(target: TaskTableSpec, *files: DataFile) -> StagedDataFiles:
    """Return the report of a task that has staged these files now."""
    metadata = target.metadata
    after = int(getattr(metadata, "last_sequence_number", 0))
    return StagedDataFiles(
        str(metadata.table_uuid),
        metadata.default_spec_id,
        after,
        files,
        schema_id=metadata.current_schema_id,
        at_s=time.time(),
    )


def file_name_prefix(target: TaskTableSpec, task: Task) -> str:
    """Return a prefix for the file names of an attempt, which no other attempt uses.

    It has only letters, digits, ``_`` and ``-``: PyIceberg cuts paths with a scheme at ``#`` and
    ``?``, so that two files would be one.
    """
    query = query_in_file_name(task.query)
    attempt = f"{task.partition:05d}-{task.attempt}-{query}-{task.epoch}-{task.nonce}"
    return add_table_id(attempt, target.metadata.table_uuid)


def query_in_file_name(query: str) -> str:
    """Return the part of a query's id that is in the names of its files."""
    return re.sub(r"[^\w-]", "_", query[-12:], flags=re.ASCII)


def task_table_spec(table: Table, file_size: int | None) -> TaskTableSpec:
    """Return the specification of a table for tasks. Planner.

    Args:
        table: The table as a guarded catalog has loaded it.
        file_size: Approximate maximum size of a file, in bytes; None for the table's own limit.

    Raises:
        OptionError: If a property of the table is not a number, or names a folder outside.
        SchemaError: If the table is partitioned or sorted by a column that it does not have.
    """
    from krishiv_spark.iceberg.file_io import create_worker_io, get_access

    size = table.metadata.properties.get(_TARGET_FILE_SIZE, str(_DEFAULT_FILE_SIZE))
    own_size = parse_count(size)
    if file_size is None and not own_size:  # with 0, a task would write empty files endlessly
        raise OptionError(
            f"{FORMAT}: table property {_TARGET_FILE_SIZE!r} is {size[:100]!r}: it must be a "
            "number greater than 0. Correct it, or give 'targetFileSize'"
        )
    metadata = _strip_history(table.metadata)
    _check_columns(metadata)
    locations = get_access(table).location_provider(metadata)
    return TaskTableSpec(metadata, create_worker_io(table), locations, file_size or own_size or 0)


def _check_columns(metadata: TableMetadata) -> None:
    """Refuse properties, partitions and orders of columns that tasks could not apply.

    Raises:
        OptionError: If a mode of metrics is unknown.
        SchemaError: If a column of the partitions or the order is missing or has another type.
    """
    from pyiceberg.exceptions import ValidationError
    from pyiceberg.io.pyarrow import compute_statistics_plan

    if any(key.startswith(_METRICS) for key in metadata.properties):
        try:
            compute_statistics_plan(metadata.schema(), metadata.properties)
        except ValueError as error:
            raise OptionError(f"{FORMAT}: table property '{_METRICS}…': {error}") from error
    try:
        metadata.spec().check_compatible(metadata.schema())
        metadata.sort_order().check_compatible(metadata.schema())
    except (ValidationError, ValueError) as error:
        raise SchemaError(
            f"{FORMAT}: the table at {metadata.location!r} is partitioned or sorted by a column "
            f"that it does not have, or that has another type: {error}"
        ) from error


def _strip_history(metadata: TableMetadata) -> TableMetadata:
    """Return the metadata without the table's history: 325 kB become less than 2."""
    return metadata.model_copy(
        update={
            "current_snapshot_id": None,
            "snapshots": [],
            "snapshot_log": [],
            "metadata_log": [],
            "refs": {},
            "statistics": [],
            "partition_statistics": [],
            "schemas": [metadata.schema()],
            "partition_specs": [metadata.spec()],
            "sort_orders": [metadata.sort_order()],
            "properties": _get_writer_properties(metadata.properties),
        }
    )


def _get_writer_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties for tasks, with numbers that PyArrow's writer can use.

    Raises:
        OptionError: If a number is invalid, or a codec is unknown.
    """
    # No task reads the epochs and offsets of queries.
    found = {key: text for key, text in properties.items() if not key.startswith("krishiv.")}
    for key, least in _MINIMUMS.items():
        if (text := found.get(key)) is not None:
            number = parse_count(text)
            if number is None or number < min(least, 1):
                raise _to_property_error(key, text, "a number greater than 0")
            found[key] = str(min(max(number, least), _MAXIMUM))
    level, codec = found.get(_LEVEL, "0"), found.get(_CODEC, "none")
    if not _LEVELS.fullmatch(level):
        raise _to_property_error(_LEVEL, level, "a number")
    if codec.lower() not in _NOT_COMPRESSED and not _has_codec(codec):
        raise _to_property_error(_CODEC, codec, "a codec that PyArrow has, such as 'zstd'")
    return found


def _has_codec(name: str) -> bool:
    try:
        return bool(pa.Codec.is_available(name.lower()))
    except ValueError:
        return False


def _to_property_error(key: str, text: str, wanted: str) -> OptionError:
    return OptionError(f"{FORMAT}: table property {key!r} is {text[:100]!r}: it must be {wanted}")
