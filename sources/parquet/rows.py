"""From files to rows: byte ranges on the driver, record batches on executors."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_spark.arrow import conform
from krishiv_spark.crashes import name_rows
from krishiv_spark.errors import SchemaError
from krishiv_spark.names import places
from krishiv_spark.nested import Convert
from krishiv_spark.parquet.calendars import Calendar, TimeRules
from krishiv_spark.parquet.corrections import corrections
from krishiv_spark.parquet.footers import BadFileError, GoneError, opened
from krishiv_spark.parquet.layout import check_shared
from krishiv_spark.parquet.ranges import read_row_groups, spans
from krishiv_spark.parquet.texts import value_of
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
    """

    path: str
    start: int
    end: int
    identity: Identity
    values: tuple[tuple[str, str | None], ...] = ()


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
    """

    schema: pa.Schema
    skip_bad: bool = False
    skip_gone: bool = False
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
    """
    skipped = 0
    for piece in part.ranges:
        rows = 0
        try:
            for batch in name_rows(piece.path, _read_range(piece, rules)):
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


def _read_range(piece: FileRange, rules: ReadRules) -> Iterator[pa.RecordBatch]:
    with opened(piece.path, piece.identity, rules.files) as file:
        projection = FileProjection.of(file.parquet, piece, rules)
        columns = sorted(set(projection.columns.values()))
        size = piece.identity.size
        for _, batch in read_row_groups(file.parquet, piece, size, columns, expect=file.expect):
            yield projection.fit(batch)


@dataclass(frozen=True)
class FileProjection:
    """How the batches of one file become those that are wanted.

    Attributes:
        path: Of the file, for messages.
        rules: What is wanted.
        columns: Names of the file's columns, by the wanted ones that they are read as.
        constants: Values of partition columns.
        corrections: What puts the times of a file's column right.
    """

    path: str
    rules: ReadRules
    columns: Mapping[str, str]
    constants: Mapping[str, pa.Scalar]
    corrections: Mapping[str, Convert]

    @classmethod
    def of(cls, file: pq.ParquetFile, piece: FileRange, rules: ReadRules) -> FileProjection:
        values, schema, zone = dict(piece.values), rules.schema, rules.times.zone
        with naming(piece.path):
            folders = _found(schema.names, list(values))
            stored = [name for name in schema.names if name not in folders]
            columns = _found(stored, file.schema_arrow.names)
        constants = {
            name: value_of(values[folder], schema.field(name), piece.path, zone)
            for name, folder in folders.items()
        }
        calendar = Calendar.of(file.metadata, rules.times)
        return cls(piece.path, rules, columns, constants, corrections(file, calendar))

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """One batch of the file in the schema that is wanted."""
        with naming(self.path):
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
        raise SchemaError(f"{path}: {error}") from error
