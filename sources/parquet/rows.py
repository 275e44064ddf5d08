"""The rows of files: byte ranges on the driver, record batches on executors."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from urllib.parse import unquote

import pyarrow as pa

from krishiv_spark.arrow.compute import Convert
from krishiv_spark.arrow.conform import conform, places
from krishiv_spark.arrow.schemas import has_shredded_variant, stands_for
from krishiv_spark.errors import SchemaError
from krishiv_spark.parquet.calendars import Calendar, TimeRules, make_corrections
from krishiv_spark.parquet.footers import (
    BadFileError,
    ChangedError,
    FileVersion,
    GoneError,
    UnsupportedFileError,
    check_supported,
    describe_shredded,
    open_file,
)
from krishiv_spark.parquet.inputs import ParquetInput
from krishiv_spark.parquet.layout import check_shared
from krishiv_spark.parquet.partition_folders import NULL_VALUE, from_partition_text
from krishiv_spark.parquet.row_groups import read_row_groups, split_size
from krishiv_spark.runtime.workers import name_rows
from krishiv_spark.sources.parquet.offset_store import SkippedRange, record_skipped_range
from krishiv_spark.storage import Files, Folder, Identity
from krishiv_spark.storage.disk import DISK

__all__ = [
    "FilePart",
    "FileRange",
    "ReadRules",
    "name_file",
    "partition_fields",
    "partition_values",
    "read_part",
    "split_file",
]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileRange:
    """A part of one file: the row groups whose midpoint is in a range of bytes.

    Attributes:
        path: Whole path or URL.
        start: First byte.
        end: Byte after the last one.
        identity: Identity of the whole file.
        values: Partition columns and their texts.
        fingerprint: Fingerprint of the file's footer, by `krishiv_spark.parquet.file_end`; None if
            it is not known.
    """

    path: str
    start: int
    end: int
    identity: Identity
    values: tuple[tuple[str, str | None], ...] = ()
    fingerprint: int | None = field(default=None, compare=False)

    @property
    def version(self) -> FileVersion:
        """The evidence that the file still has the rows that the task is to read."""
        is_whole = self.start == 0 and self.end >= self.identity.size
        return FileVersion(self.identity, self.fingerprint, is_whole)


@dataclass(frozen=True)
class FilePart:
    """The files, or parts of files, that one task reads.

    Attributes:
        ranges: The parts of files.
        skipped: Folder for notes about skipped data (`record_skipped_range`), None for none.
        folder: Folder of the files on a disk, if the driver found it when the batch was planned: a
            machine without it does not share it. None for a store, or if the driver did not find
            it.
    """

    ranges: tuple[FileRange, ...]
    skipped: Folder | None = field(default=None, compare=False)
    folder: str | None = field(default=None, compare=False)


@dataclass(frozen=True)
class ReadRules:
    """The rules by which files become rows.

    Attributes:
        schema: Schema of the batches. Columns are found by name, ignoring case if necessary; a
            column that a file does not have is null.
        skip_bad: True if damaged files are skipped.
        skip_gone: True if deleted files are skipped.
        times: Rules for times that lack a zone or a calendar.
        files: Files of the store.
        waits: True if a file that cannot be read, and was written a moment ago, is read again when
            no program writes it any more. A program may write the end of a file before its middle.
    """

    schema: pa.Schema
    skip_bad: bool = False
    skip_gone: bool = False
    waits: bool = False
    times: TimeRules = field(default_factory=TimeRules)
    files: Files = DISK


def split_file(whole: FileRange, most: int) -> list[FileRange]:
    """Split a file into ranges of at most `most` bytes."""
    return [replace(whole, start=a, end=b) for a, b in split_size(whole.identity.size, most)]


def read_part(part: FilePart, rules: ReadRules) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task. Executor; needs memory for a page of each column and one batch.

    For a file in a store, up to 64 MiB of its following bytes are in memory as well.

    Raises:
        BadFileError: If a file is damaged, unless such files are skipped; the rows before the
            damage have been yielded then.
        GoneError: If a file was deleted, unless such files are skipped.
        OptionError: If a file is missing because this machine does not share the folder.
        ChangedError: If a file has changed since the task was planned.
        SchemaError: If a file's columns do not fit.
        UnsupportedFileError: If a file, or a column of the schema, has a form that is not
            supported. It is not skipped: the file may be good.
    """
    skipped = 0
    for piece in part.ranges:
        rows = 0
        try:
            for batch in name_rows(piece.path, _read_when_written(piece, rules)):
                yield batch
                rows += batch.num_rows
        except (BadFileError, GoneError) as error:
            if part.folder is not None:  # a file that only this machine lacks must not be skipped
                check_shared(part.folder)
            if not (rules.skip_bad if isinstance(error, BadFileError) else rules.skip_gone):
                raise _with_advice(error) from error
            _log.warning("skipped: %s", error)
            record_skipped_range(
                part.skipped, SkippedRange(piece.path, piece.start, piece.end, rows, str(error))
            )
            skipped += 1
    if skipped:
        _log.warning("skipped %d of the %d file ranges of a task", skipped, len(part.ranges))


def _with_advice(error: BadFileError | GoneError) -> BadFileError | GoneError:
    if isinstance(error, GoneError):
        return GoneError(
            f"{error}; put it back. The option 'failOnDataLoss' = 'false' continues without it: "
            "its rows are then lost"
        )
    return BadFileError(
        f"{error}. Repair it, and start the query once with 'failOnDataLoss' = 'false', because "
        "the file has changed then: meanwhile rows of other deleted files are lost without an "
        "error. Or the option 'badFiles' = 'skip' continues without it: its rows are lost, "
        "unless it is repaired and put there under another name"
    )


def _read_when_written(piece: FileRange, rules: ReadRules) -> Iterator[pa.RecordBatch]:
    """Read a range; if it is being written, wait and read it again, unless it has yielded rows."""
    started = False
    try:
        for batch in _read_range(piece, rules):
            started = True
            yield batch
    except BadFileError as error:
        if not (rules.waits and _is_written_later(piece, rules.files)):
            raise
        if started:
            raise ChangedError(
                f"{piece.path} was written while it was read: restart the query when it is complete"
            ) from error
    else:
        return
    yield from _read_range(piece, rules)


def _is_written_later(piece: FileRange, files: Files) -> bool:
    """Wait while a file is being written; return True if it has changed since it was listed.

    Returns at once for an older file, and in a store, where files appear when they are complete.
    """
    before = piece.identity
    if files.is_remote:
        return False
    until_ns = time.time_ns() + _MOST_WAIT_NS
    while True:
        found, now_ns = files.identity(piece.path), time.time_ns()
        age_ns = _QUIET_NS if found is None else now_ns - found.modified_ns
        if not 0 <= age_ns < _QUIET_NS or now_ns >= until_ns:
            return found is not None and found != before
        time.sleep(_POLL_S)


_QUIET_NS, _MOST_WAIT_NS, _POLL_S = 3_000_000_000, 60_000_000_000, 0.1


def _read_range(piece: FileRange, rules: ReadRules) -> Iterator[pa.RecordBatch]:
    with open_file(piece.path, piece.version, rules.files) as file, name_file(piece.path):
        projection = FileProjection.of(file.parquet, piece, rules)
        columns = sorted(set(projection.columns.values()))
        size = piece.identity.size
        for _, batch in read_row_groups(file.parquet, piece, size, columns, expect=file.expect):
            yield projection.fit(batch)


@dataclass(frozen=True)
class FileProjection:
    """A projection of the batches of one file onto a schema.

    Attributes:
        rules: The rules, with the schema.
        columns: Names of the file's columns, by the columns of the schema.
        constants: Values of partition columns.
        corrections: Functions that correct the times of the file's columns.
    """

    rules: ReadRules
    columns: Mapping[str, str]
    constants: Mapping[str, pa.Scalar]
    corrections: Mapping[str, Convert]

    @classmethod
    def of(cls, file: ParquetInput, piece: FileRange, rules: ReadRules) -> FileProjection:
        """Return the projection of a file.

        Raises:
            SchemaError: If it has a column twice.
            UnsupportedFileError: If a column of the schema cannot be read.
        """
        values, schema, zone = dict(piece.values), rules.schema, rules.times.zone
        folders = _match_names(schema.names, list(values))
        stored = [name for name in schema.names if name not in folders]
        columns = _match_names(stored, [*file.schema.names, *file.unsupported])
        check_supported(piece.path, file, columns.values())
        for name, column in columns.items():
            is_variant = stands_for(schema.field(name).type) == "variant"
            if is_variant and has_shredded_variant(file.schema.field(column).type):
                raise UnsupportedFileError(describe_shredded(piece.path, column))
        constants = {
            name: from_partition_text(values[folder], schema.field(name), piece.path, zone)
            for name, folder in folders.items()
        }
        calendar = Calendar.of(file.metadata, rules.times)
        return cls(rules, columns, constants, make_corrections(file, calendar))

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch of the file to the schema."""
        arrays = {name: self._correct(batch, column) for name, column in self.columns.items()}
        for name, value in self.constants.items():
            arrays[name] = pa.repeat(value, batch.num_rows)
        rows = batch  # has the number of rows, if there are no columns
        if arrays:
            rows = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
        return conform(rows, self.rules.schema, fill=True, zone=self.rules.times.zone)

    def _correct(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        column = batch.column(name)
        correction = self.corrections.get(name)
        return column if correction is None else correction(column)


def _match_names(wanted: Sequence[str], stored: Sequence[str]) -> dict[str, str]:
    """Return the stored name for each wanted name that has one."""
    pairs = zip(wanted, places(wanted, stored), strict=True)
    return {name: stored[index] for name, index in pairs if index is not None}


@contextmanager
def name_file(path: str) -> Iterator[None]:
    """Name the file in errors of its columns."""
    try:
        yield
    except SchemaError as error:
        if str(error).startswith(path):
            raise
        raise SchemaError(f"{path}: {error}") from error


# --- partition columns: names and texts in the folders of a path

# Any number of so many digits fits into 64 bits.
_INTEGER = re.compile(r"[+-]?\d{1,18}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def partition_values(path: str) -> dict[str, str | None]:
    """Return the partition columns in a relative path, outermost first; None for Hive's null."""
    pairs = (part.partition("=") for part in path.split("/")[:-1])
    return {
        unquote(name): None if value == NULL_VALUE else unquote(value)
        for name, equals, value in pairs
        if equals and name
    }


def partition_fields(paths: Iterable[str]) -> list[pa.Field]:
    """Return the partition columns of many files and their types.

    A column whose values are all whole numbers is an int64, one whose values are all dates
    (``2013-01-01``) a date, and any other a string. Nulls do not count.
    """
    texts: dict[str, set[str | None]] = {}
    for folder in {os.path.dirname(path) for path in paths}:
        for name, text in partition_values(f"{folder}/").items():
            texts.setdefault(name, set()).add(text)
    return [pa.field(name, _type_of(found - {None})) for name, found in sorted(texts.items())]


def _type_of(texts: set[str | None]) -> pa.DataType:
    for pattern, kind in ((_INTEGER, pa.int64()), (_DATE, pa.date32())):
        if texts and all(pattern.fullmatch(text or "") for text in texts):
            return kind
    return pa.string()
