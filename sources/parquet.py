"""``krishiv-parquet`` as a source: follows a folder of Parquet files, each row exactly once.

A file is read once, whenever it appears; files that appear late with an older time are not missed.
An offset names the files of its batch and carries all that is known about earlier ones, so a
replay reads the same files without looking at the folder again, and however the folder has
changed. Epochs of this project's sink are read whole and in their order. The unit of parallelism
is a range of bytes of a file; small files share a task.

Writers of other programs must move finished files into the folder, as for Spark's own file source.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa
from pydantic import AliasChoices, Field

from krishiv_spark.arrow import pruned
from krishiv_spark.errors import DataLossError, OptionError
from krishiv_spark.offsets import Start, Watermark
from krishiv_spark.offsets.watermark import advance, epoch_ms
from krishiv_spark.options import ByteSize, Duration, Names
from krishiv_spark.parquet.folders import folder_fields, folder_values, typed
from krishiv_spark.parquet.follower import Follower
from krishiv_spark.parquet.footers import Footer, Identity, file_schema, read_footer
from krishiv_spark.parquet.listing import FoundFile, Place
from krishiv_spark.parquet.position import ParquetOffset
from krishiv_spark.parquet.ranges import pack
from krishiv_spark.parquet.rows import FilePart, FileRange, ReadRules, cut, read_part
from krishiv_spark.parquet.units import Unit, in_order, take
from krishiv_spark.sources.base import Limit, SourceOptions, StreamReader

__all__ = ["ParquetOffset", "ParquetReader", "ParquetSourceOptions"]

_log = logging.getLogger(__name__)
_NS_PER_MS = 1_000_000


class ParquetSourceOptions(SourceOptions):
    """Options of the source."""

    path: str = Field(
        validation_alias=AliasChoices("path", "parquet.path"),
        description="Folder, file or glob, on a file system that every worker shares: a path or "
        "`file:` URL. In a glob, `*`, `?`, `[ab]` and `{a,b}` are wildcards.",
    )
    max_files_per_trigger: int | None = Field(
        default=10_000,
        gt=0,
        description="Most files in a batch; an offset names each of them, which is why there is "
        "a default.",
    )
    max_file_age: Duration = Field(
        default=7 * 86_400_000,
        ge=0,
        description="A file that appears with a time further than this behind the newest file "
        "that was read is ignored. Never compared with the clock, so a backlog is not skipped. "
        "Without effect with `latestFirst` and in batch reads.",
    )
    latest_first: bool = Field(
        default=False,
        description="Read the newest files first. Offsets then remember every file for ever.",
    )
    recursive_file_lookup: bool = Field(
        default=False,
        description="Go into every sub-folder; folders such as `day=2013-01-01` are then no "
        "partition columns.",
    )
    columns: Names = Field(
        default=(),
        description="Columns to read, separated by commas. Where a schema is given, it decides.",
    )
    fail_on_data_loss: bool = Field(
        default=True,
        description="Fail when a file that was listed is gone or has changed before it was read; "
        "otherwise it is skipped with a warning.",
    )
    bad_files: Literal["fail", "skip"] = Field(
        default="fail",
        description="What happens at a damaged file: fail, or skip it with a warning.",
    )
    max_partition_bytes: ByteSize = Field(
        default=128 * 2**20,
        gt=0,
        description="About the most bytes that one task reads; larger files are split.",
    )
    starting_offsets: Literal["earliest", "latest"] = Field(
        default="earliest",
        description="Where a new query begins; with `latest`, the files that are there when it "
        "first runs count as read.",
    )


class ParquetReader(StreamReader[ParquetOffset, FilePart]):
    """Reads Parquet files, in streams and batches."""

    options_type = ParquetSourceOptions
    offset_type = ParquetOffset

    options: ParquetSourceOptions

    def __init__(
        self, options: ParquetSourceOptions, schema: pa.Schema | None, *, streaming: bool
    ) -> None:
        super().__init__(options, schema, streaming=streaming)
        self._place = Place.of(options.path)
        self._follower = self._new_follower()
        self._backlog: dict[str, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles the reader with every batch; executors need nothing that was remembered.
        return {**self.__dict__, "_follower": self._new_follower()}

    def _new_follower(self) -> Follower:
        return Follower(self._place, recursive=self.options.recursive_file_lookup)

    # --- schema

    def infer_schema(self) -> pa.Schema:
        """Columns of the newest file, then the partition columns. See `StreamReader`."""
        files = self._follower.everything()
        partitions = self._partition_fields(files)
        inside = [field for field in self._newest_schema(files) if field.name not in partitions]
        schema = pa.schema([*inside, *partitions.values()])
        return pruned(schema, self.options.columns, "krishiv-parquet")

    def _partition_fields(self, files: Iterable[FoundFile]) -> dict[str, pa.Field]:
        if self.options.recursive_file_lookup:
            return {}
        return {field.name: field for field in folder_fields(file.path for file in files)}

    def _newest_schema(self, files: Iterable[FoundFile]) -> pa.Schema:
        newest_first = sorted(files, key=lambda file: (file.modified_ns, file.path), reverse=True)
        for file in newest_first:
            try:
                return file_schema(self._place.absolute(file.path))
            except DataLossError as error:
                if self.options.bad_files == "fail":
                    raise
                _log.warning("not used for the schema: %s", error)
        raise OptionError(
            f"krishiv-parquet: there are no Parquet files in {self.options.path} whose schema "
            "could be taken: give one with .schema(...)"
        )

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
        nothing = ParquetOffset()
        # In this order: an epoch that is visible only now must not count as read without its files.
        visible = self._follower.visible_epochs()
        reached = self._reached(nothing, self._follower.unread(nothing))
        epochs = {tag: epoch for tag, epoch in visible.items() if epoch >= 0}
        return reached.model_copy(update={"files": (), "epochs": {**epochs, **reached.epochs}})

    def latest(self, start: ParquetOffset, limit: Limit) -> ParquetOffset:
        """See `StreamReader`. One listing, and a footer per file where rows or times count."""
        newest_first = self.options.latest_first
        waiting = in_order(self._follower.unread(start), newest_first=newest_first)
        footers = self._footers()
        taken = take(waiting, limit, lambda file: footers(file).rows)
        end = start
        if taken:
            end = self._reached(start, taken)
            end = end.model_copy(update={"watermark": self._watermark(start, end.files, footers)})
        self._backlog = _backlog(waiting[len(taken) :], end)
        return end

    def freeze(self) -> None:
        """See `SupportsAvailableNow`."""
        self._follower.freeze()

    def backlog(self) -> Mapping[str, Any]:
        """What waits behind the batch that was chosen last. See `SupportsBacklog`."""
        return self._backlog

    def _reached(self, start: ParquetOffset, taken: Sequence[Unit]) -> ParquetOffset:
        """The position behind some units, without the watermark."""
        files = tuple(file for unit in taken for file in unit.files)
        single = [file for unit in taken if unit.origin is None for file in unit.files]
        floor = self._floor(start, files)
        seen = self._follower.adding(start, single, floor)
        epochs = dict(start.epochs)
        for tag, epoch in (unit.origin for unit in taken if unit.origin is not None):
            epochs[tag] = max(epoch, epochs.get(tag, epoch))
        return ParquetOffset(files=files, seen=dict(seen.packed), floor=floor, epochs=epochs)

    def _floor(self, start: ParquetOffset, files: Sequence[FoundFile]) -> int | None:
        if self.options.latest_first or not files:
            return start.floor
        newest = max(file.modified_ns for file in files)
        reached = newest - self.options.max_file_age * _NS_PER_MS
        return reached if start.floor is None else max(start.floor, reached)

    # --- event time

    def _footers(self) -> Callable[[FoundFile], Footer]:
        """A look at footers that remembers them for as long as one batch is being chosen."""
        event_time = self.options.event_time if self.streaming else None
        cache: dict[str, Footer] = {}

        def footer(file: FoundFile) -> Footer:
            if file.path not in cache:
                cache[file.path] = read_footer(self._place.absolute(file.path), event_time)
            return cache[file.path]

        return footer

    def _watermark(
        self,
        start: ParquetOffset,
        files: Iterable[FoundFile],
        footers: Callable[[FoundFile], Footer],
    ) -> Watermark | None:
        if self.options.event_time is None or not self.streaming:
            return None
        facts = [self._timed(file, self.options.event_time, footers) for file in files]
        newest = max((fact.newest_ms for fact in facts if fact.newest_ms is not None), default=None)
        held = next((fact.unknown for fact in facts if fact.unknown is not None), None)
        return advance(start.watermark, newest, self.options.watermark_delay, held)

    def _timed(
        self, file: FoundFile, event_time: str, footers: Callable[[FoundFile], Footer]
    ) -> Footer:
        values = self._values(file)
        if event_time not in values:
            return footers(file)
        column = self._schema().field(event_time)
        time = typed(values[event_time], column, self._place.absolute(file.path))
        return Footer(0, epoch_ms(time) if time.is_valid else None)

    # --- rows

    def plan(self, start: ParquetOffset, end: ParquetOffset) -> Sequence[FilePart]:
        """See `StreamReader`. Everything is in `end`, so it touches no file."""
        if start == end:
            return []
        most = self.options.max_partition_bytes
        pieces = (piece for file in end.files for piece in cut(self._whole(file), most))
        return [FilePart(part) for part in pack(pieces, most)]

    def read(self, partition: FilePart) -> Iterator[pa.RecordBatch]:
        """See `StreamReader` and `read_part`."""
        skip_bad = self.options.bad_files == "skip"
        skip_gone = not self.options.fail_on_data_loss
        return read_part(partition, ReadRules(self._schema(), skip_bad, skip_gone))

    def _whole(self, file: FoundFile) -> FileRange:
        values = tuple(self._values(file).items())
        return FileRange(
            self._place.absolute(file.path),
            0,
            file.size,
            Identity(file.size, file.modified_ns),
            values,
        )

    def _values(self, file: FoundFile) -> dict[str, str | None]:
        return {} if self.options.recursive_file_lookup else folder_values(file.path)

    def _schema(self) -> pa.Schema:
        if self.schema is None:
            self.schema = self.infer_schema()
        return self.schema


def _backlog(waiting: Sequence[Unit], end: ParquetOffset) -> dict[str, int]:
    files = [file for unit in waiting for file in unit.files]
    result = {"files_waiting": len(files), "bytes_waiting": sum(file.size for file in files)}
    times = [file.modified_ns for file in (*files, *end.files)]
    if times:
        result["newest_modified_ms"] = max(times) // _NS_PER_MS
    if end.watermark is not None and end.watermark.ms is not None:
        result["watermark_ms"] = end.watermark.ms
    return result
