"""The contents of footers: schema, number of rows, newest event time; and the errors of files."""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_spark.arrow.cast import UTC, localize
from krishiv_spark.arrow.compute import children, is_list
from krishiv_spark.arrow.conform import lacks_zone
from krishiv_spark.arrow.schemas import has_shredded_variant, plain_schema
from krishiv_spark.errors import DataLossError, KrishivError, OptionError, SchemaError
from krishiv_spark.offsets.watermark import EventTimeLimit, EventTimes, epoch_ms
from krishiv_spark.parquet.calendars import Calendar, TimeRules, corrected_schema
from krishiv_spark.parquet.file_end import fingerprint
from krishiv_spark.parquet.inputs import ParquetInput, open_input
from krishiv_spark.runtime.memory_limits import describe_memory_limits
from krishiv_spark.runtime.workers import name_call
from krishiv_spark.storage.disk import DISK
from krishiv_spark.storage.files import Files, Identity, OpenedFile

__all__ = [
    "BadFileError",
    "ChangedError",
    "FileVersion",
    "Footer",
    "GoneError",
    "OpenedParquet",
    "TooLargeError",
    "UnsupportedFileError",
    "check_supported",
    "describe_shredded",
    "is_readable",
    "open_file",
    "read_footer",
    "read_schema",
    "translate_file_errors",
]

_log = logging.getLogger(__name__)

_DAY_MS = 86_400_000
_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


class BadFileError(DataLossError):
    """A file is damaged or is not Parquet; its rows cannot be read."""


class UnsupportedFileError(KrishivError):
    """A file, or one of its required columns, has a form that is not supported.

    The file may be good, and another program may read it. So it is never skipped as a damaged one.
    """


class GoneError(DataLossError):
    """A file that was listed no longer exists."""


class TooLargeError(DataLossError):
    """A file needs more memory than the process may have. It is not skipped as a damaged one."""


class ChangedError(DataLossError):
    """A file has changed since its batch was planned; planning it again may help."""


class Footer(NamedTuple):
    """The facts of a file that batches and watermarks depend on.

    Attributes:
        rows: Number of rows.
        newest_ms: Newest event time, milliseconds since 1970 UTC, rounded down; None if there is
            none or it is not known.
        unknown: Reason why the newest event time is not known; None if it is, or if there is none.
        ahead: Number of row groups with a newest event time past the limit; they do not count.
        farthest_ms: The newest of these times.
    """

    rows: int
    newest_ms: int | None = None
    unknown: str | None = None
    ahead: int = 0
    farthest_ms: int | None = None

    @classmethod
    def with_times(cls, rows: int, times: EventTimes) -> Footer:
        """Return the facts of a file whose event times are known."""
        return cls(rows, times.newest_ms, None, times.ahead, times.farthest_ms)

    @property
    def times(self) -> EventTimes:
        """The event times of the file."""
        return EventTimes(self.newest_ms, self.ahead, self.farthest_ms)


class FileVersion(NamedTuple):
    """The version of a file that a batch contains.

    Attributes:
        identity: Identity of the file when it was listed.
        fingerprint: Fingerprint of its footer (`krishiv_spark.parquet.file_end.fingerprint`); None
            if it is not known.
        is_read_whole: True if one task reads the whole file. If several tasks read its parts, all
            must read the same version.
    """

    identity: Identity
    fingerprint: int | None = None
    is_read_whole: bool = True


class OpenedParquet(NamedTuple):
    """An open file.

    Attributes:
        parquet: The file.
        expect: Takes the ranges of bytes that will be read; see `OpenedFile`.
    """

    parquet: ParquetInput
    expect: Callable[[Sequence[tuple[int, int]]], None] | None


@contextmanager
def open_file(
    path: str, wanted: FileVersion | None = None, files: Files = DISK
) -> Iterator[OpenedParquet]:
    """Open a file for reading in little memory, within `translate_file_errors`.

    Args:
        path: Whole path or URL.
        wanted: The version that was listed; None for the current one.
        files: Files of the store.

    Raises:
        GoneError: If it does not exist.
        ChangedError: If it has changed since it was listed.
        BadFileError: If it is damaged.
        OptionError: If it may not be read.
        StorageError: If its store fails.
    """
    size = None if wanted is None else wanted.identity.size
    with translate_file_errors(path), files.open(path, size) as found:
        # The identity of the open file: another file could take the name after a check of the path.
        if wanted is not None and found.identity != wanted.identity:
            _check_same_rows(path, wanted, found, files)
        yield OpenedParquet(open_input(found.source), found.expect)


def _check_not_shredded(path: str, schema: pa.Schema, columns: Collection[str]) -> None:
    for field in schema:
        if (not columns or field.name in columns) and has_shredded_variant(field.type):
            raise UnsupportedFileError(describe_shredded(path, field.name))


def describe_shredded(path: str, column: str) -> str:
    """Return the text of the error for a variant whose values are in separate columns."""
    return (
        f"{path}: column {column!r} is not supported: it is a variant, of which each file has the "
        "values in other columns (it is shredded). Leave it out, with the option 'columns' or with "
        "a schema; or have Spark write it as text, by to_json(...)"
    )


def check_supported(path: str, file: ParquetInput, columns: Iterable[str]) -> None:
    """Check that columns of a file can be read.

    Raises:
        UnsupportedFileError: If one of them cannot.
    """
    for name in columns:
        if name in file.unsupported:
            raise UnsupportedFileError(
                f"{path}: column {name!r} is not supported: {file.unsupported[name].reason}. "
                f"{_READ_OTHERS}"
            )


_READ_OTHERS = (
    "The file may be good: read the other columns, with the option 'columns' or with a schema, or "
    "have a program that can read it write it again without that"
)


@contextmanager
def translate_file_errors(path: str) -> Iterator[None]:
    """Translate errors with a file into errors of this package.

    Raises:
        GoneError: If it does not exist.
        ChangedError: If it was replaced while it was read.
        BadFileError: If it is damaged.
        UnsupportedFileError: If PyArrow does not support its content.
        TooLargeError: If there is not enough memory for it.
        OptionError: If it may not be read.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise GoneError(f"{path} was listed, but no longer exists") from error
    except PermissionError as error:
        raise OptionError(f"may not read {path}: {error}") from error
    except MemoryError as error:
        raise TooLargeError(
            f"{path} cannot be read with the memory that this process may have: {error}. "
            f"{describe_memory_limits()}. Or remove the file: a small one can claim any size"
        ) from error
    except pa.ArrowNotImplementedError as error:
        raise UnsupportedFileError(
            f"{path} has something that is not supported: {error}. {_READ_OTHERS}"
        ) from error
    except (pa.ArrowInvalid, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno == errno.ESTALE:
            raise ChangedError(f"{path} was replaced while it was read: {_START_AGAIN}") from error
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk failed, not the file: another attempt of the task may succeed
        raise BadFileError(f"{path} cannot be read as Parquet: {error}") from error


_START_AGAIN = (
    "restart the query; it continues if the file is complete and only its time has changed, or "
    "reports what to do"
)


def _check_same_rows(path: str, wanted: FileVersion, found: OpenedFile, files: Files) -> None:
    """Check that only the time of a file has changed since it was listed.

    A program may set a file's time right after it has written the file, as ``cp -p`` does.

    Raises:
        ChangedError: If it has another size or footer, or is another version in its store.
    """
    before, now = wanted.identity, found.identity
    is_same = (
        now.size == before.size
        and (now.modified_ns - before.modified_ns) % files.resolution_ns == 0
    )
    if is_same and wanted.fingerprint is not None:
        is_same = fingerprint(found.source) == wanted.fingerprint
    elif is_same:
        is_same = wanted.is_read_whole
    if not is_same:
        raise ChangedError(
            f"{path} was {before} when it was listed and is {now} now: {_START_AGAIN}"
        )
    _log.info("only the time of %s has changed since it was listed", path)


def is_readable(path: str, files: Files = DISK) -> bool:
    """Return False if the footer of a file cannot be read. A deleted file counts as readable.

    Raises:
        OptionError: If the file may not be read.
    """
    try:
        with open_file(path, files=files):
            return True
    except BadFileError:
        return False
    except GoneError:
        return True  # the task that reads it reports it


def read_footer(  # noqa: PLR0913  all but two have defaults
    path: str,
    event_time: str | None,
    times: TimeRules = TimeRules(),  # noqa: B008  frozen
    wanted: pa.DataType | None = None,
    files: Files = DISK,
    *,
    limit: EventTimeLimit | None = None,
) -> Footer:
    """Read the facts of one file; a file that cannot be read counts as one without rows.

    The task that reads the file reports it, and decides whether it is skipped.

    Args:
        path: Whole path or URL.
        event_time: Column of the event time, None if its newest time is not needed.
        times: Rules for times that lack a zone or a calendar.
        wanted: The type that the column is read as; None for its own type.
        files: Files of the store.
        limit: Limit of the event times that count; None for all.

    Raises:
        OptionError: If the file may not be read.
    """

    def read() -> Footer:
        with open_file(path, files=files) as file:
            metadata = file.parquet.metadata
            if event_time is None:
                return Footer(metadata.num_rows)
            return _read_times(metadata, event_time, path, _TimeReading(times, wanted, limit))

    try:
        return name_call(path, read)
    except (DataLossError, UnsupportedFileError) as error:
        return Footer(0, unknown=str(error))


class _TimeReading(NamedTuple):
    """The arguments of `read_footer` for the event time."""

    times: TimeRules
    wanted: pa.DataType | None
    limit: EventTimeLimit | None


def _read_times(
    metadata: pq.FileMetaData, event_time: str, path: str, reading: _TimeReading
) -> Footer:
    index = _find_column(metadata, event_time)
    if index is None or not metadata.num_rows:
        return Footer(metadata.num_rows)
    kind = _time_type(metadata.schema.column(index))
    if kind is None:
        physical = metadata.schema.column(index).physical_type
        return Footer(metadata.num_rows, unknown=f"{path}: {event_time} is stored as {physical}")
    found: list[int] = []
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        chunk = group.column(index)
        if chunk.physical_type != metadata.schema.column(index).physical_type:
            # PyArrow would end the process if it were asked for these statistics.
            return Footer(metadata.num_rows, unknown=f"{path}: {event_time} has two physical types")
        statistics = chunk.statistics
        if statistics is not None and statistics.has_min_max:
            # The raw value, since datetime would lose nanoseconds, and ends with the year 9999.
            found.append(statistics.max_raw)
        elif not _has_only_nulls(statistics, group.num_rows):
            return Footer(metadata.num_rows, unknown=f"{path}: no statistics of {event_time}")
    try:
        calendar = Calendar.of(metadata, reading.times)
        times = _sort_times(found, kind, calendar, reading, event_time)
        return Footer.with_times(metadata.num_rows, times)
    except SchemaError as error:
        return Footer(metadata.num_rows, unknown=f"{path}: {error}")


def _sort_times(
    found: Sequence[int], kind: pa.DataType, calendar: Calendar, reading: _TimeReading, name: str
) -> EventTimes:
    """Sort the stored newest times of row groups into those that count and others."""
    limit = reading.limit
    # First by the stored values: a zone or calendar moves no time of today by a day, and times at
    # the end of the range cannot be moved.
    certain = limit and EventTimeLimit(limit.newest_ms + _DAY_MS, limit.ahead_ms)
    stored = {raw: epoch_ms(_to_scalar(raw, kind)) for raw in found}
    far = EventTimes() if certain is None else certain.sort(stored[raw] for raw in found)
    near = [raw for raw in found if certain is None or certain.admits(stored[raw])]
    if limit is None:
        return EventTimes(_read_as(max(near), kind, calendar, reading, name) if near else None)
    rest = limit.sort(_read_as(raw, kind, calendar, reading, name) for raw in near)
    return EventTimes.merge((rest, far._replace(newest_ms=None)))


def _to_scalar(raw: int, kind: pa.DataType) -> pa.Scalar:
    return _to_array([raw], kind)[0]


def _to_array(raws: Sequence[int], kind: pa.DataType) -> pa.Array:
    return pa.array(raws, pa.int32() if pa.types.is_date(kind) else pa.int64()).cast(kind)


def _read_as(
    newest: int, kind: pa.DataType, calendar: Calendar, reading: _TimeReading, name: str
) -> int:
    """Return the newest time as its row will have it, in milliseconds."""
    time = _to_array([newest], kind)
    time = calendar.correct(time, name)
    zone, wanted = reading.times.zone, reading.wanted
    if zone is not None and wanted is not None and lacks_zone(kind, wanted):
        time = localize(time, zone)
    return epoch_ms(time[0])


def _has_only_nulls(statistics: Any, rows: int) -> bool:
    if statistics is None:
        return rows == 0
    return bool(statistics.has_null_count and statistics.null_count == rows)


def _find_column(metadata: pq.FileMetaData, name: str) -> int | None:
    paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    if name in paths:
        return paths.index(name)
    folded = [path.lower() for path in paths]
    return folded.index(name.lower()) if name.lower() in folded else None


def _time_type(column: Any) -> pa.DataType | None:
    """Return the type of a time or date column; None if its values have no usable order."""
    logical = json.loads(column.logical_type.to_json())
    if logical["Type"] == "Date":
        return pa.date32()
    if logical["Type"] != "Timestamp":
        return None
    return pa.timestamp(_UNITS[logical["timeUnit"]], UTC if logical["isAdjustedToUTC"] else None)


def read_schema(path: str, files: Files = DISK, columns: Collection[str] = ()) -> pa.Schema:
    """Return the columns of a file, in types that Spark has; every one may be null.

    Args:
        path: Whole path or URL.
        files: Files of the store.
        columns: Required columns; empty for all. The others need not be supported.

    Raises:
        DataLossError: If the file is damaged or deleted.
        UnsupportedFileError: If a required column cannot be read.
        OptionError: If it may not be read.
    """

    def read() -> pa.Schema:
        with open_file(path, files=files) as file:
            check_supported(path, file.parquet, columns or file.parquet.unsupported)
            schema = plain_schema(pa.schema(map(_to_nullable, corrected_schema(file.parquet))))
        _check_not_shredded(path, schema, columns)
        return schema

    return name_call(path, read)


def _to_nullable(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _to_nullable_type(field.type), nullable=True)


def _to_nullable_type(kind: Any) -> pa.DataType:
    """Return a type with nullable parts, without extension types, which Spark does not know."""
    if isinstance(kind, pa.BaseExtensionType):
        return _to_nullable_type(kind.storage_type)
    if pa.types.is_struct(kind):
        return pa.struct(list(map(_to_nullable, children(kind))))
    if pa.types.is_map(kind):
        return pa.map_(_to_nullable_type(kind.key_type), _to_nullable(kind.item_field))
    return pa.list_(_to_nullable(kind.value_field)) if is_list(kind) else kind
