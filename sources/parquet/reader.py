"""``krishiv-parquet`` as a source: follows a folder of Parquet files, each row exactly once.

A file is read once, whenever it appears; files that appear late with an older time are not missed.
An offset names the files of its batch and says exactly which were read before, in itself while
that is little and in immutable files otherwise. So a replay reads the same files without listing
the folder again, and however the folder has changed. Epochs of this project's sink are read whole
and in their order. The unit of parallelism is a range of bytes of a file; small files share a task.

A file that is still being written is left until it is whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa

from krishiv_spark.arrow.schemas import pruned
from krishiv_spark.errors import DataLossError, OptionError
from krishiv_spark.offsets import Start, Watermark
from krishiv_spark.offsets.watermark import (
    EventTimeLimit,
    EventTimes,
    WatermarkPlanner,
    epoch_ms,
)
from krishiv_spark.parquet.footers import Footer, file_schema, read_footer
from krishiv_spark.parquet.ranges import pack
from krishiv_spark.parquet.tails import look, read_end
from krishiv_spark.parquet.texts import value_of
from krishiv_spark.runtime.once import warn_once
from krishiv_spark.sources.base import Limit, StreamReader
from krishiv_spark.sources.parquet.books import Books, Bounds
from krishiv_spark.sources.parquet.folders import folder_fields, folder_values
from krishiv_spark.sources.parquet.healing import as_it_is
from krishiv_spark.sources.parquet.moved import check_place
from krishiv_spark.sources.parquet.options import ParquetSourceOptions
from krishiv_spark.sources.parquet.places import FoundFile, Place
from krishiv_spark.sources.parquet.position import ParquetOffset
from krishiv_spark.sources.parquet.rows import (
    FilePart,
    FileRange,
    ReadRules,
    cut,
    naming,
    read_part,
)
from krishiv_spark.sources.parquet.skips import FOLDER
from krishiv_spark.sources.parquet.stream import FolderStream
from krishiv_spark.sources.parquet.waiting import take
from krishiv_spark.storage import Identity

__all__ = ["ParquetOffset", "ParquetReader", "ParquetSourceOptions"]

_log = logging.getLogger(__name__)
_NOT_BY_LOG = (
    "krishiv-parquet: %s was written by Spark's own file sink. Files of tasks that failed may lie "
    "beside those that its _spark_metadata names, and all are read: rows may be there twice. "
    "Spark's own source goes by that log"
)
_MOST_HELD = 500  # an offset shall stay small, and a path may be long


class ParquetReader(StreamReader[ParquetOffset, FilePart]):
    """Reads Parquet files, in streams and batches.

    Attributes:
        bounds: How much an offset may hold.
    """

    bounds: ClassVar[Bounds] = Bounds()
    options_type = ParquetSourceOptions
    offset_type = ParquetOffset

    options: ParquetSourceOptions

    def __init__(
        self, options: ParquetSourceOptions, schema: pa.Schema | None, *, streaming: bool
    ) -> None:
        super().__init__(options, schema, streaming=streaming)
        self._place = Place.of(options.path, options.storage)
        self._state_place = options.state_place(self._place)
        self._begin()

    def _begin(self) -> None:
        """Remember nothing: neither files nor what was read of the state."""
        options = self.options
        skips = options.bad_files == "skip" or not options.fail_on_data_loss
        self._books = Books(
            self._state_place, bounded=self.streaming, always=skips, bounds=self.bounds
        )
        self._stream = FolderStream(
            self._place, options.rules(streaming=self.streaming), self._books
        )
        self._chosen: ParquetOffset | None = None
        self._backlog: dict[str, Any] = {}
        self._watermarks = WatermarkPlanner(options.watermark_delay, options.max_event_time_ahead)

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles the reader with every batch; executors need nothing that was remembered.
        remembered = {"_books", "_stream", "_chosen", "_backlog", "_watermarks"}
        return {name: value for name, value in self.__dict__.items() if name not in remembered}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    # --- schema

    def infer_schema(self) -> pa.Schema:
        """Columns of the newest file, then the partition columns. See `StreamReader`."""
        files = self._stream.everything()
        partitions = self._partition_fields(files)
        path, newest = self._newest_schema(files)
        inside = [field for field in newest if field.name not in partitions]
        schema = pa.schema([*inside, *partitions.values()])
        with naming(path):
            return pruned(schema, self.options.columns, "krishiv-parquet")

    def _partition_fields(self, files: Iterable[FoundFile]) -> dict[str, pa.Field]:
        if self.options.recursive_file_lookup:
            return {}
        return {field.name: field for field in folder_fields(file.path for file in files)}

    def _newest_schema(self, files: Iterable[FoundFile]) -> tuple[str, pa.Schema]:
        unit_ns = self._place.files.resolution_ns
        newest_first = sorted(
            files, key=lambda file: (file.modified_ns // unit_ns, file.path), reverse=True
        )
        why = ""
        for file in newest_first:
            path = self._place.absolute(file.path)
            try:
                return path, file_schema(path, self._place.files, self.options.columns)
            except DataLossError as error:
                if self.options.bad_files == "fail" and self._is_whole(file):
                    raise
                _log.warning("not used for the schema: %s", error)
                why = why or f", and {error}"
        raise OptionError(
            f"krishiv-parquet: there are no Parquet files in {self.options.path} whose schema "
            f"could be taken{why}: give one with .schema(...)"
        )

    def _is_whole(self, file: FoundFile) -> bool:
        try:
            return look(self._place.absolute(file.path), self._place.files).whole
        except FileNotFoundError:
            return False

    # --- positions

    def initial(self) -> ParquetOffset | Start:
        """See `StreamReader`."""
        if self.options.starting_offsets == "earliest":
            return ParquetOffset()
        if not self.streaming:
            raise OptionError(
                "krishiv-parquet: option 'startingOffsets' = 'latest' is for streams; a batch "
                "read begins with the oldest file"
            )
        return Start(at="latest")

    def resolve(self, start: Start) -> ParquetOffset:
        """All that is there now counts as read. See `SupportsMovingStart`."""
        del start
        return self._here(self._stream.count_all())

    def latest(self, start: ParquetOffset, limit: Limit) -> ParquetOffset:
        """See `StreamReader`. One look at each file; footers only if rows or times count."""
        check_place(start, self._place, self.options.moved_from)
        try:
            self._chosen = self._choose(start, limit)
        # An interruption too: units were taken out of the queue for a batch that will not be.
        except BaseException:
            self._stream.forget()
            raise
        self._backlog = {**self._stream.backlog(self._chosen), **self._watermarks.report()}
        return self._chosen

    def _choose(self, start: ParquetOffset, limit: Limit) -> ParquetOffset:
        if self._chosen is None and self._place.has_sink_log():
            warn_once(_log, self._place.root, _NOT_BY_LOG, self._place.root)
        self._stream.look(start, limit)
        time_limit = self._watermarks.limit()
        footers = self._footers(time_limit)
        taken = take(self._stream, limit, lambda file: footers(file).rows, self._books.room)
        if not taken:
            return start
        files = [file for unit in taken for file in unit.files]
        watermark = self._watermark(start, files, footers, time_limit)
        return self._here(self._stream.reached(start, taken), watermark)

    def _here(self, offset: ParquetOffset, watermark: Watermark | None = None) -> ParquetOffset:
        return offset.model_copy(update={"watermark": watermark, "root": self._place.root})

    def freeze(self) -> None:
        """See `SupportsAvailableNow`."""
        self._stream.freeze()

    def backlog(self) -> Mapping[str, Any]:
        """What waits after the batch that was chosen last, and what is passed over and why.

        See `SupportsBacklog`.
        """
        return self._backlog

    # --- event time

    def _footers(self, limit: EventTimeLimit) -> Callable[[FoundFile], Footer]:
        """A look at footers that remembers them for as long as one batch is being chosen."""
        event_time = self.options.event_time if self.streaming else None
        wanted = None if event_time is None else self._schema().field(event_time).type
        cache: dict[str, Footer] = {}

        def footer(file: FoundFile) -> Footer:
            if file.path not in cache:
                path = self._place.absolute(file.path)
                times, files = self.options.times(), self._place.files
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
        timed = partial(self._timed, name=name, footers=footers, limit=limit)
        facts = [*self._place.files.each(timed, files)]
        times = EventTimes.merge(fact.times for fact in facts)
        held = next((fact.unknown[:_MOST_HELD] for fact in facts if fact.unknown is not None), None)
        return self._watermarks.advance(start.watermark, times, limit, held)

    def _timed(
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
        path = self._place.absolute(file.path)
        time = value_of(values[name], column, path, self.options.time_zone)
        return Footer.timed(0, limit.sort([epoch_ms(time)] if time.is_valid else []))

    # --- rows

    def plan(self, start: ParquetOffset, end: ParquetOffset) -> Sequence[FilePart]:
        """See `StreamReader`. Everything is in `end`, or in the state that it names.

        When a batch is planned again, files that have changed meanwhile are looked at.
        """
        if start == end:
            return []
        check_place(end, self._place, self.options.moved_from)
        files = self._books.files(end)
        if end != self._chosen and self.streaming:
            files = tuple(self._place.files.each(lambda file: self._as_it_is(file, end), files))
        state = self._books.state(end)
        skips = None if state is None else state.inside(FOLDER)
        most = self.options.max_partition_bytes
        pieces = (piece for file in files for piece in cut(self._whole(file), most))
        folder = self._place.present_folder()
        return [FilePart(part, skips, folder) for part in pack(pieces, most)]

    def _as_it_is(self, file: FoundFile, end: ParquetOffset) -> FoundFile:
        return as_it_is(
            file,
            self._place,
            was_whole=end.newest is not None,  # version 1 has none, and took what was there
            fail_on_loss=self.options.fail_on_data_loss,
        )

    def read(self, partition: FilePart) -> Iterator[pa.RecordBatch]:
        """See `StreamReader` and `read_part`."""
        skip_bad = self.options.bad_files == "skip"
        skip_gone = not self.options.fail_on_data_loss
        rules = ReadRules(
            self._schema(),
            skip_bad,
            skip_gone,
            waits=self.streaming,
            times=self.options.times(),
            files=self._place.files,
        )
        return read_part(partition, rules)

    def _whole(self, file: FoundFile) -> FileRange:
        values = tuple(self._values(file).items())
        return FileRange(
            self._place.absolute(file.path),
            0,
            file.size,
            Identity(file.size, file.modified_ns),
            values,
            self._fingerprint(file),
        )

    def _fingerprint(self, file: FoundFile) -> int | None:
        """Return what identifies the version of a file that several tasks read.

        A file that one task reads is the same for it as long as it has the same size.
        """
        known = self._stream.fingerprint(file)
        if known is not None or file.size <= self.options.max_partition_bytes:
            return known
        try:
            return read_end(self._place.absolute(file.path), self._place.files).fingerprint
        except (FileNotFoundError, PermissionError):
            return None  # the task says so

    def _values(self, file: FoundFile) -> dict[str, str | None]:
        return {} if self.options.recursive_file_lookup else folder_values(file.path)

    def _schema(self) -> pa.Schema:
        if self.schema is None:
            self.schema = self.infer_schema()
        return self.schema
