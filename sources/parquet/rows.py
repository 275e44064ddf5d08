"""From files to rows: byte ranges on the driver, record batches on executors."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from krishiv_spark.arrow.column_names import places
from krishiv_spark.arrow.nested import Convert
from krishiv_spark.arrow.schemas import conform, has_shredded_variant, stands_for
from krishiv_spark.errors import SchemaError
from krishiv_spark.parquet.calendars import Calendar, TimeRules
from krishiv_spark.parquet.corrections import corrections
from krishiv_spark.parquet.footers import (
    BadFileError,
    ChangedError,
    FileVersion,
    GoneError,
    UnsupportedFileError,
    check_supported,
    opened,
    shredded_text,
)
from krishiv_spark.parquet.inputs import ParquetInput
from krishiv_spark.parquet.layout import check_shared
from krishiv_spark.parquet.ranges import read_row_groups, spans
from krishiv_spark.parquet.texts import value_of
from krishiv_spark.runtime.crashes import name_rows
from krishiv_spark.sources.parquet.skips import Skip, note_skip
from krishiv_spark.storage import Files, Folder, Identity
from krishiv_spark.storage.disk_files import DISK

__all__ = ["FilePart", "FileRange", "ReadRules", "cut", "naming", "read_part"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileRange:
    """A part of one file: the row groups whose midpoint lies in a range of bytes.

    Attributes:
        path: Whole path or URL.
        start: First byte.
        end: Byte after the last one.
        identity: Of the whole file.
        values: Partition columns and their texts.
        fingerprint: Of the file's footer (`krishiv_spark.parquet.tails.fingerprint`); None if it
            is not known.
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
    """What one task reads.

    Attributes:
        ranges: The parts of files.
        skips: Folder for notes about what is skipped; see `skips`. None for none.
        folder: Of a disk, where the driver has found something when the batch was planned: a
            machine without it does not share it. None for a store, or if the driver found nothing.
    """

    ranges: tuple[FileRange, ...]
    skips: Folder | None = field(default=None, compare=False)
    folder: str | None = field(default=None, compare=False)


@dataclass(frozen=True)
class ReadRules:
    """How files become rows.

    Attributes:
        schema: What to yield. Columns are found by name, if need be whatever their case; one that
            a file does not have is null.
        skip_bad: Whether damaged files are skipped.
        skip_gone: Whether files that are no longer there are skipped.
        times: How times are read that do not say enough of themselves.
        files: Of the store that they are in.
        waits: Whether a file that cannot be read, and was written a moment ago, is read again when
            it is no longer written. A program may write the end of a file before its middle.
    """

    schema: pa.Schema
    skip_bad: bool = False
    skip_gone: bool = False
    waits: bool = False
    times: TimeRules = field(default_factory=TimeRules)
    files: Files = DISK


def cut(whole: FileRange, most: int) -> list[FileRange]:
    """A file in ranges of at most `most` bytes."""
    return [replace(whole, start=a, end=b) for a, b in spans(whole.identity.size, most)]


def read_part(part: FilePart, rules: ReadRules) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task. Executor; holds about a page of each column and one batch.

    Of a file in a store, up to 64 MiB of what comes next in it are held besides.

    Raises:
        BadFileError: If a file is damaged, unless such files are skipped; the rows in front of
            the damage have been yielded then.
        GoneError: If a file is no longer there, unless such files are skipped.
        OptionError: If it is not there since this machine does not share the folder.
        ChangedError: If a file is no longer what it was when the task was planned.
        SchemaError: If a file's columns do not fit.
        UnsupportedFileError: If a file, or a column that is wanted, has a form that is not read
            here. It is not skipped: the file may be good.
    """
    skipped = 0
    for piece in part.ranges:
        rows = 0
        try:
            for batch in name_rows(piece.path, _read_when_written(piece, rules)):
                yield batch
                rows += batch.num_rows
        except (BadFileError, GoneError) as error:
            if part.folder is not None:  # or what only this machine has not would be skipped
                check_shared(part.folder)
            if not (rules.skip_bad if isinstance(error, BadFileError) else rules.skip_gone):
                raise _advised(error) from error
            _log.warning("skipped: %s", error)
            note_skip(part.skips, Skip(piece.path, piece.start, piece.end, rows, str(error)))
            skipped += 1
    if skipped:
        _log.warning("skipped %d of the %d file ranges of a task", skipped, len(part.ranges))


def _advised(error: BadFileError | GoneError) -> BadFileError | GoneError:
    if isinstance(error, GoneError):
        return GoneError(
            f"{error}; put it back. The option 'failOnDataLoss' = 'false' goes on without it: its "
            "rows are lost then"
        )
    return BadFileError(
        f"{error}. Mend it, and start the query once with 'failOnDataLoss' = 'false', since it has "
        "changed then: meanwhile rows of other files that are gone are lost without an error. Or "
        "the option 'badFiles' = 'skip' goes on without it: its rows are lost, unless it is mended "
        "and put there under another name"
    )


def _read_when_written(piece: FileRange, rules: ReadRules) -> Iterator[pa.RecordBatch]:
    """Read a range; if it is being written, wait and read it again, unless it has given rows."""
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
                f"{piece.path} was written while it was read: start the query again when it is "
                "whole"
            ) from error
    else:
        return
    yield from _read_range(piece, rules)


def _is_written_later(piece: FileRange, files: Files) -> bool:
    """Wait while a file is being written; return True if it has changed since it was listed.

    An older file is not waited for. Files of stores appear when they are whole.
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
    with opened(piece.path, piece.version, rules.files) as file, naming(piece.path):
        projection = FileProjection.of(file.parquet, piece, rules)
        columns = sorted(set(projection.columns.values()))
        size = piece.identity.size
        for _, batch in read_row_groups(file.parquet, piece, size, columns, expect=file.expect):
            yield projection.fit(batch)


@dataclass(frozen=True)
class FileProjection:
    """How the batches of one file become those that are wanted.

    Attributes:
        rules: What is wanted.
        columns: Names of the file's columns, by the wanted ones that they are read as.
        constants: Values of partition columns.
        corrections: What puts the times of a file's column right.
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
            UnsupportedFileError: If a column that is wanted cannot be read.
        """
        values, schema, zone = dict(piece.values), rules.schema, rules.times.zone
        folders = _found(schema.names, list(values))
        stored = [name for name in schema.names if name not in folders]
        columns = _found(stored, [*file.schema.names, *file.unsupported])
        check_supported(piece.path, file, columns.values())
        for name, held in columns.items():
            is_variant = stands_for(schema.field(name).type) == "variant"
            if is_variant and has_shredded_variant(file.schema.field(held).type):
                raise UnsupportedFileError(shredded_text(piece.path, held))
        constants = {
            name: value_of(values[folder], schema.field(name), piece.path, zone)
            for name, folder in folders.items()
        }
        calendar = Calendar.of(file.metadata, rules.times)
        return cls(rules, columns, constants, corrections(file, calendar))

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """One batch of the file in the schema that is wanted."""
        arrays = {name: self._stored(batch, held) for name, held in self.columns.items()}
        for name, value in self.constants.items():
            arrays[name] = pa.repeat(value, batch.num_rows)
        rows = batch  # of no columns, but so many rows
        if arrays:
            rows = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
        return conform(rows, self.rules.schema, fill=True, zone=self.rules.times.zone)

    def _stored(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        column = batch.column(name)
        correction = self.corrections.get(name)
        return column if correction is None else correction(column)


def _found(wanted: Sequence[str], held: Sequence[str]) -> dict[str, str]:
    """The names that are meant by those wanted ones that are there."""
    pairs = zip(wanted, places(wanted, held), strict=True)
    return {name: held[place] for name, place in pairs if place is not None}


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Name the file in what is wrong with its columns."""
    try:
        yield
    except SchemaError as error:
        if str(error).startswith(path):
            raise
        raise SchemaError(f"{path}: {error}") from error
