"""From files to rows: byte ranges on the driver, record batches on executors."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from krishiv_spark.arrow import conform
from krishiv_spark.errors import SchemaError
from krishiv_spark.parquet.folders import typed
from krishiv_spark.parquet.footers import BadFileError, GoneError, Identity, opened
from krishiv_spark.parquet.ranges import batch_rows, midpoint, spans
from krishiv_spark.parquet.skips import Skip, note_skip

__all__ = ["FilePart", "FileRange", "ReadRules", "cut", "read_part"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileRange:
    """A part of one file: the row groups whose midpoint lies in a range of bytes.

    Attributes:
        path: Absolute path.
        start: First byte.
        end: Byte behind the last one.
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
    """

    ranges: tuple[FileRange, ...]
    skips: str | None = None


@dataclass(frozen=True)
class ReadRules:
    """How files become rows.

    Attributes:
        schema: What to yield. Columns are found by name, if need be whatever their case; one that
            a file does not have is null.
        skip_bad: Whether damaged files are skipped.
        skip_gone: Whether files that are no longer there are skipped.
    """

    schema: pa.Schema
    skip_bad: bool = False
    skip_gone: bool = False


def cut(whole: FileRange, most: int) -> list[FileRange]:
    """A file in ranges of at most `most` bytes."""
    return [replace(whole, start=a, end=b) for a, b in spans(whole.identity.size, most)]


def read_part(part: FilePart, rules: ReadRules) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task. Executor; holds about a page of each column and one batch.

    Raises:
        BadFileError: If a file is damaged, unless such files are skipped; the rows in front of
            the damage have been yielded then.
        GoneError: If a file is no longer there, unless such files are skipped.
        ChangedError: If a file is no longer what it was when the task was planned.
        SchemaError: If a file's columns do not fit.
    """
    skipped = 0
    for piece in part.ranges:
        rows = 0
        try:
            for batch in _read_range(piece, rules.schema):
                yield batch
                rows += batch.num_rows
        except (BadFileError, GoneError) as error:
            if not (rules.skip_bad if isinstance(error, BadFileError) else rules.skip_gone):
                raise _advised(error) from error
            _log.warning("skipped: %s", error)
            note_skip(part.skips, Skip(piece.path, piece.start, piece.end, rows, str(error)))
            skipped += 1
    if skipped:
        _log.warning("skipped %d of the %d file ranges of a task", skipped, len(part.ranges))


def _advised(error: BadFileError | GoneError) -> BadFileError | GoneError:
    if isinstance(error, GoneError):
        return GoneError(f"{error}; the option 'failOnDataLoss' = 'false' goes on without it")
    return BadFileError(
        f"{error}; mend it, and start the query once with 'failOnDataLoss' = 'false', since it has "
        "changed then; or the option 'badFiles' = 'skip' goes on without it, and when it is mended "
        "it can be read under another name"
    )


def _read_range(piece: FileRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with opened(piece.path, piece.identity) as file:
        shape = _Shape.of(schema, file.schema_arrow.names, piece)
        columns = sorted(set(shape.columns.values()))
        for index in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(index)
            if group.num_rows and piece.start <= midpoint(group, piece.identity.size) < piece.end:
                size = batch_rows(group, columns)
                for batch in file.iter_batches(size, [index], columns, use_threads=False):
                    yield shape.fit(batch)


@dataclass(frozen=True)
class _Shape:
    """How the batches of one file become those that are wanted."""

    path: str
    schema: pa.Schema
    columns: Mapping[str, str]
    constants: Mapping[str, pa.Scalar]

    @classmethod
    def of(cls, schema: pa.Schema, names: Sequence[str], piece: FileRange) -> _Shape:
        values = dict(piece.values)
        constants = {
            name: typed(values[folder], schema.field(name), piece.path)
            for name, folder in _matches(schema.names, values).items()
        }
        stored = [name for name in schema.names if name not in constants]
        columns = _matches(stored, names)
        return cls(piece.path, schema, columns, constants)

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """One batch of the file in the schema that is wanted."""
        arrays = [self._array(field, batch) for field in self.schema]
        try:
            # Built without the schema, whose types `conform` casts to.
            rows = pa.RecordBatch.from_arrays(arrays, names=self.schema.names)
            return conform(rows, self.schema)
        except SchemaError as error:
            raise SchemaError(f"{self.path}: {error}") from error

    def _array(self, field: pa.Field, batch: pa.RecordBatch) -> pa.Array:
        if field.name in self.constants:
            array = pa.repeat(self.constants[field.name], batch.num_rows)
        elif field.name in self.columns:
            array = _unwrapped(batch.column(self.columns[field.name]))
        else:
            array = pa.nulls(batch.num_rows, field.type)
        if array.null_count and not field.nullable:
            raise SchemaError(f"{self.path}: column {field.name!r} is NOT NULL, but has nulls")
        return array


def _matches(wanted: Iterable[str], names: Collection[str]) -> dict[str, str]:
    """For each wanted name the one that is meant by it: the same, or else the same in any case."""
    folded = {name.lower(): name for name in names}
    return {
        name: name if name in names else folded[name.lower()]
        for name in wanted
        if name.lower() in folded
    }


def _unwrapped(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array
