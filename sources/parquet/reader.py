"""The source ``krishiv-parquet``: it follows a folder of Parquet files, each row exactly once.

A file is read once, whenever it appears; files that appear late with an older time are not missed.
An offset names the files of its batch and the exact set of files that were read before: a small set
in the offset, a larger one in immutable files. So a repeated batch reads the same files without a
listing, and however the folder has changed. Epochs of the Parquet sink are read whole and in their
order. The unit of parallelism is a range of bytes of a file; small files share a task.

A file that is being written is left until it is complete.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa

from krishiv_spark.arrow.schemas import select_columns
from krishiv_spark.errors import DataLossError, OptionError
from krishiv_spark.offsets import Start, Watermark
from krishiv_spark.offsets.watermark import (
    EventTimeLimit,
    EventTimes,
    WatermarkPlanner,
    epoch_ms,
)
from krishiv_spark.parquet.file_end import read_end, read_file_status
from krishiv_spark.parquet.footers import Footer, read_footer, read_schema
from krishiv_spark.parquet.partition_folders import from_partition_text
from krishiv_spark.parquet.row_groups import pack
from krishiv_spark.runtime.once import warn_once
from krishiv_spark.sources.base import Limit, StreamReader
from krishiv_spark.sources.parquet.completeness import reconcile_changed_file
from krishiv_spark.sources.parquet.folder_stream import FolderStream
from krishiv_spark.sources.parquet.listing import FoundFile, SourcePath
from krishiv_spark.sources.parquet.offset import ParquetOffset
from krishiv_spark.sources.parquet.offset_store import SKIPPED_FOLDER, OffsetLimits, OffsetStore
from krishiv_spark.sources.parquet.options import ParquetSourceOptions, check_same_path
from krishiv_spark.sources.parquet.rows import (
    FilePart,
    FileRange,
    ReadRules,
    name_file,
    partition_fields,
    partition_values,
    read_part,
    split_file,
)
from krishiv_spark.sources.parquet.unread_files import take_batch
from krishiv_spark.storage import Identity

__all__ = ["ParquetOffset", "ParquetReader", "ParquetSourceOptions"]

_log = logging.getLogger(__name__)
_NOT_BY_LOG = (
    "krishiv-parquet: %s was written by Spark's own file sink. It may contain files of failed "
    "tasks in addition to the files in its _spark_metadata, and all of them are read: rows may "
    "be there twice. Spark's own source reads only the files in that log"
)
_LONGEST_PATH = 500  # an offset must stay small, and a path may be long


class ParquetReader(StreamReader[ParquetOffset, FilePart]):
    """A reader of Parquet files, in streams and batches.

    Attributes:
        limits: The most that an offset contains.
    """

    limits: ClassVar[OffsetLimits] = OffsetLimits()
    options_type = ParquetSourceOptions
    offset_type = ParquetOffset

    options: ParquetSourceOptions

    def __init__(
        self, options: ParquetSourceOptions, schema: pa.Schema | None, *, streaming: bool
    ) -> None:
        super().__init__(options, schema, streaming=streaming)
        self._path = SourcePath.parse(options.path, options.storage)
        self._state_location = options.state_location_of(self._path)
        self._reset()

    def _reset(self) -> None:
        """Make the caches of the driver again, without files and state."""
        options = self.options
        skips = options.bad_files == "skip" or not options.fail_on_data_loss
        self._store = OffsetStore(
            self._state_location, bounded=self.streaming, always=skips, limits=self.limits
        )
        self._stream = FolderStream(
            self._path, options.rules(streaming=self.streaming), self._store
        )
        self._chosen: ParquetOffset | None = None
        self._backlog: dict[str, Any] = {}
        self._watermarks = WatermarkPlanner(options.watermark_delay, options.max_event_time_ahead)

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles the reader with every batch; executors do not need the driver's caches.
        caches = {"_store", "_stream", "_chosen", "_backlog", "_watermarks"}
        return {name: value for name, value in self.__dict__.items() if name not in caches}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reset()

    # --- schema

    def infer_schema(self) -> pa.Schema:
        """Return the columns of the newest file, then the partition columns. See `StreamReader`."""
        files = self._stream.list_all()
        partitions = self._partition_fields(files)
        path, newest = self._newest_schema(files)
        inside = [field for field in newest if field.name not in partitions]
        schema = pa.schema([*inside, *partitions.values()])
        with name_file(path):
            return select_columns(schema, self.options.columns, "krishiv-parquet")

    def _partition_fields(self, files: Iterable[FoundFile]) -> dict[str, pa.Field]:
        if self.options.recursive_file_lookup:
            return {}
        return {field.name: field for field in partition_fields(file.path for file in files)}

    def _newest_schema(self, files: Iterable[FoundFile]) -> tuple[str, pa.Schema]:
        unit_ns = self._path.files.resolution_ns
        newest_first = sorted(
            files, key=lambda file: (file.modified_ns // unit_ns, file.path), reverse=True
        )
        why = ""
        for file in newest_first:
            path = self._path.absolute(file.path)
            try:
                return path, read_schema(path, self._path.files, self.options.columns)
            except DataLossError as error:
                if self.options.bad_files == "fail" and self._is_complete(file):
                    raise
                _log.warning("not used for the schema: %s", error)
                why = why or f", and {error}"
        raise OptionError(
            f"krishiv-parquet: there are no Parquet files in {self.options.path} to infer the "
            f"schema from{why}: set one with .schema(...)"
        )

    def _is_complete(self, file: FoundFile) -> bool:
        try:
            return read_file_status(self._path.absolute(file.path), self._path.files).whole
        except FileNotFoundError:
            return False

    # --- positions

    def initial(self) -> ParquetOffset | Start:
        """Return the first position of a new query. See `StreamReader`.

        Raises:
            OptionError: If a batch read is to start with the latest files.
        """
        if self.options.starting_offsets == "earliest":
            return ParquetOffset()
        if not self.streaming:
            raise OptionError(
                "krishiv-parquet: option 'startingOffsets' = 'latest' is for streams; a batch "
                "read starts with the oldest file"
            )
        return Start(at="latest")

    def resolve(self, start: Start) -> ParquetOffset:
        """Count every file that exists as read. See `SupportsMovingStart`."""
        del start
        return self._with_root(self._stream.mark_all_read())

    def latest(self, start: ParquetOffset, limit: Limit) -> ParquetOffset:
        """Choose the files of the next batch. See `StreamReader`.

        Each file is checked once; footers are read only if rows or times count.
        """
        check_same_path(start, self._path, self.options.moved_from)
        try:
            self._chosen = self._choose(start, limit)
        # Also on an interruption: units were taken from the queue for a batch that will not exist.
        except BaseException:
            self._stream.reset()
            raise
        self._backlog = {**self._stream.backlog(self._chosen), **self._watermarks.report()}
        return self._chosen

    def _choose(self, start: ParquetOffset, limit: Limit) -> ParquetOffset:
        if self._chosen is None and self._path.has_sink_log():
            warn_once(_log, self._path.root, _NOT_BY_LOG, self._path.root)
        self._stream.refresh(start, limit)
        time_limit = self._watermarks.limit()
        footers = self._footers(time_limit)
        store = self._store
        taken = take_batch(
            self._stream, limit, lambda file: footers(file).rows, store.cost_of, store.room
        )
        if not taken:
            return start
        files = [file for unit in taken for file in unit.files]
        watermark = self._watermark(start, files, footers, time_limit)
        return self._with_root(self._stream.offset_after(start, taken), watermark)

    def _with_root(
        self, offset: ParquetOffset, watermark: Watermark | None = None
    ) -> ParquetOffset:
        return offset.model_copy(update={"watermark": watermark, "root": self._path.root})

    def freeze(self) -> None:
        """Ignore files that appear from now on. See `SupportsAvailableNow`."""
        self._stream.freeze()

    def backlog(self) -> Mapping[str, Any]:
        """Return the backlog after the batch that was chosen last, and the skipped files.

        See `SupportsBacklog`.
        """
        return self._backlog

    # --- event time

    def _footers(self, limit: EventTimeLimit) -> Callable[[FoundFile], Footer]:
        """Return a function that reads footers, and caches them while one batch is chosen."""
        event_time = self.options.event_time if self.streaming else None
        wanted = None if event_time is None else self._schema().field(event_time).type
        cache: dict[str, Footer] = {}

        def footer(file: FoundFile) -> Footer:
            if file.path not in cache:
                path = self._path.absolute(file.path)
                times, files = self.options.times(), self._path.files
                cache[file.path] = read_footer(path, event_time, times, wanted, files, limit=limit)
            return cache[file.path]

        return footer

    def _watermark(
        self,
        start: ParquetOffset,
        files: Sequence[FoundFile],
        footers: Callable[[FoundFile], Footer],
        limit: EventTimeLimit,
    ) -> Watermark | None:
        if self.options.event_time is None or not self.streaming:
            return None
        name = self.options.event_time
        timed = partial(self._read_times, name=name, footers=footers, limit=limit)
        facts = [*self._path.files.map(timed, files)]
        times = EventTimes.merge(fact.times for fact in facts)
        unknown = next(
            (fact.unknown[:_LONGEST_PATH] for fact in facts if fact.unknown is not None), None
        )
        return self._watermarks.advance(start.watermark, times, limit, unknown)

    def _read_times(
        self,
        file: FoundFile,
        name: str,
        footers: Callable[[FoundFile], Footer],
        limit: EventTimeLimit,
    ) -> Footer:
        values = self._values(file)
        if name not in values:
            return footers(file)
        column = self._schema().field(name)
        path = self._path.absolute(file.path)
        time = from_partition_text(values[name], column, path, self.options.time_zone)
        return Footer.with_times(0, limit.sort([epoch_ms(time)] if time.is_valid else []))

    # --- rows

    def plan(self, start: ParquetOffset, end: ParquetOffset) -> Sequence[FilePart]:
        """Plan the tasks of a batch, from `end` or the state that it names. See `StreamReader`.

        When a batch is planned again, files that have changed meanwhile are reconciled.
        """
        if start == end:
            return []
        check_same_path(end, self._path, self.options.moved_from)
        files = self._store.files(end)
        if end != self._chosen and self.streaming:
            files = tuple(self._path.files.map(lambda file: self._reconcile(file, end), files))
        state = self._store.state_of(end)
        skipped = None if state is None else state.folder(SKIPPED_FOLDER)
        most = self.options.max_partition_bytes
        pieces = (piece for file in files for piece in split_file(self._range_of(file), most))
        folder = self._path.present_folder()
        return [FilePart(part, skipped, folder) for part in pack(pieces, most)]

    def _reconcile(self, file: FoundFile, end: ParquetOffset) -> FoundFile:
        return reconcile_changed_file(
            file,
            self._path,
            was_checked=end.newest is not None,  # version 1 has none, and did not check files
            fail_on_loss=self.options.fail_on_data_loss,
        )

    def read(self, partition: FilePart) -> Iterator[pa.RecordBatch]:
        """Read a part. See `StreamReader` and `read_part`."""
        skip_bad = self.options.bad_files == "skip"
        skip_gone = not self.options.fail_on_data_loss
        rules = ReadRules(
            self._schema(),
            skip_bad,
            skip_gone,
            waits=self.streaming,
            times=self.options.times(),
            files=self._path.files,
        )
        return read_part(partition, rules)

    def _range_of(self, file: FoundFile) -> FileRange:
        values = tuple(self._values(file).items())
        return FileRange(
            self._path.absolute(file.path),
            0,
            file.size,
            Identity(file.size, file.modified_ns),
            values,
            self._fingerprint(file),
        )

    def _fingerprint(self, file: FoundFile) -> int | None:
        """Return the fingerprint of a file that several tasks read: all must read one version.

        A file that one task reads is the same for it as long as it has the same size.
        """
        known = self._stream.fingerprint(file)
        if known is not None or file.size <= self.options.max_partition_bytes:
            return known
        try:
            return read_end(self._path.absolute(file.path), self._path.files).fingerprint
        except (FileNotFoundError, PermissionError):
            return None  # the task reports it

    def _values(self, file: FoundFile) -> dict[str, str | None]:
        return {} if self.options.recursive_file_lookup else partition_values(file.path)

    def _schema(self) -> pa.Schema:
        if self.schema is None:
            self.schema = self.infer_schema()
        return self.schema
