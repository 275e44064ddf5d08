"""``krishiv-parquet`` as a sink: exactly once, for every reader of the folder.

Tasks stage files that no glob for Parquet finds. The driver logs an intent that names them, and
only then renames them to their final names. A reader that knows nothing of all this sees whole
files of logged epochs, and nothing else. The unit of parallelism is Spark's task.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import AliasChoices, Field

from krishiv_spark.arrow import STAND_INS, plain_schema, stands_for
from krishiv_spark.checkpoint import BATCH_PREFIX
from krishiv_spark.durable import exists, make_folder, sync_folder, sync_folders
from krishiv_spark.errors import (
    CommitRejected,
    CommitUnknown,
    Fenced,
    LogError,
    OptionError,
    SchemaError,
)
from krishiv_spark.names import twins
from krishiv_spark.nested import children
from krishiv_spark.offsets import EpochLog, open_log
from krishiv_spark.openfiles import chunks
from krishiv_spark.options import ByteSize, Names, Options
from krishiv_spark.parquet.identity import table_id, write_pointer
from krishiv_spark.parquet.layout import (
    DONE_SUFFIX,
    META,
    PATH_OPTION,
    is_before,
    log_folder,
    staged_folder,
    visible_files,
)
from krishiv_spark.parquet.names import DataFile, is_hidden, query_tag, staged_name
from krishiv_spark.parquet.progress import table_logs
from krishiv_spark.paths import local_path
from krishiv_spark.sinks.base import Epoch, OutputMode, Task
from krishiv_spark.sinks.logged import LoggedWriter
from krishiv_spark.sinks.parquet.files import (
    FileLayout,
    StagedFile,
    StagedFiles,
    TaskFiles,
    counted,
)
from krishiv_spark.sinks.parquet.targets import check_partitioning, make_targets

__all__ = ["ParquetSinkOptions", "ParquetWriter"]

_log = logging.getLogger(__name__)


class ParquetSinkOptions(Options):
    """Options of the sink."""

    path: str = Field(
        validation_alias=AliasChoices("path", "parquet.path"),
        description="Folder of the table, on a file system that every worker shares.",
    )
    partition_by: Names = Field(
        default=(), description="Columns that become folders, separated by commas."
    )
    compression: Literal["snappy", "zstd", "gzip", "lz4", "brotli", "none", "uncompressed"] = Field(
        default="snappy", description="Codec of the files."
    )
    max_records_per_file: int | None = Field(default=None, gt=0, description="Most rows in a file.")
    target_file_size: ByteSize | None = Field(
        default=None, gt=0, description="A file is closed when it has grown to this, as `512m`."
    )
    epoch_log: str | None = Field(
        default=None,
        description="Another place for the epoch log: a path, `s3://`, `gs://` or `az://`.",
    )

    def layout(self) -> FileLayout:
        """How rows are cut into files."""
        plain = self.compression in {"none", "uncompressed"}
        codec = "none" if plain else self.compression
        return FileLayout(
            self.partition_by, codec, self.max_records_per_file, self.target_file_size
        )


class ParquetWriter(LoggedWriter[StagedFiles]):
    """Files in a folder; an epoch is true when its intent is in the log under ``_krishiv/``."""

    options_type = ParquetSinkOptions
    staged_type = StagedFiles
    options: ParquetSinkOptions

    @cached_property
    def table(self) -> Path:
        """The table's folder."""
        return local_path(self.options.path, PATH_OPTION)

    def check(self) -> None:
        """Planner: the folder can be written, and the rows fit Parquet and what is there."""
        _check_columns(self.schema, self.options.partition_by)
        _check_writable(self.table)
        _check_same_types(self.table, self.schema)
        if self.mode is OutputMode.APPEND or self.streaming:
            check_partitioning(self.table, self.options.partition_by)

    def check_new(self, query: str) -> None:
        """Planner: a stream without a log must not have files in the table."""
        tag = query_tag(query)
        for path in visible_files(self.table) if self.streaming else ():
            name = DataFile.parse(path.name)
            if name is not None and name.tag == tag:
                raise LogError(
                    f"{path} is of this query, but its epoch log is empty: the log was removed, or "
                    "the option 'epochLog' has changed; put it back, or use a new checkpoint"
                )

    def log(self, query: str) -> EpochLog:
        """In the table's folder, or where the option ``epochLog`` says, one for each query."""
        elsewhere = self._elsewhere(query)
        return open_log(elsewhere or str(log_folder(self.table, query)), query)

    def _elsewhere(self, query: str) -> str | None:
        """Where the log of a query is that is not in the table's folder."""
        base = self.options.epoch_log
        return None if base is None else f"{base.rstrip('/')}/{query}"

    def target(self) -> str | None:
        """Planner: the table, by an id that lies in its folder; wherever that is mounted."""
        found = table_id(self.table) if self.streaming else None
        return None if found is None else f"Parquet table {found}"

    def stage(self, batches: Iterator[pa.RecordBatch], task: Task) -> StagedFiles | None:
        """Executor: write files, synced, under names that only this attempt uses."""
        folder = self._staged(task.query, task.generation)
        try:
            files = self._write(folder, batches, task)
        except FileNotFoundError as error:
            raise Fenced(
                f"what generation {task.generation} of query {task.query} staged in {folder} is "
                "gone: another driver on the same checkpoint took over and removed it"
            ) from error
        if not files:
            return None
        return StagedFiles(folder=folder.relative_to(self.table).as_posix(), files=files)

    def _write(
        self, folder: Path, batches: Iterator[pa.RecordBatch], task: Task
    ) -> tuple[StagedFile, ...]:
        name = DataFile(task.epoch, task.partition, 0, query_tag(task.query), task.nonce)
        with TaskFiles(folder, name, self.options.layout()) as files:
            for rows in chunks(batches):
                files.write(rows)
                del rows  # or the next row group is gathered beside it
            return files.close()

    def prepare(self, epoch: Epoch, staged: Sequence[StagedFiles]) -> Sequence[StagedFiles]:
        """Driver: the staged names reach the disk, final names say of how many files they are one.

        In mode REPLACE, look what will go.
        """
        folder = self._staged(epoch.query, epoch.generation)
        self._check_whole(folder, epoch, staged)
        sync_folder(folder)
        make_targets(folder, {self.table / file.folder for item in staged for file in item.files})
        whole = counted(staged)
        if self.mode is OutputMode.APPEND:
            return whole
        return [*whole, StagedFiles(removes=tuple(self._replaced(epoch)))]

    def finish(self, epoch: Epoch, staged: Sequence[StagedFiles]) -> None:
        """Driver: rename what is not renamed yet, remove what is replaced, then clean up."""
        folder = self._staged(epoch.query, epoch.generation)
        sync_folders(self._reveal(folder, staged))
        self._remove_replaced(staged)
        _remove_in_one_step(folder)

    def _remove_replaced(self, staged: Sequence[StagedFiles]) -> None:
        for item in staged:
            for name in item.removes:
                (self.table / name).unlink(missing_ok=True)

    def assume(self, epoch: Epoch, staged: Sequence[StagedFiles], *, committed: bool) -> None:
        """Operator: show the files that are there, or take away those that are visible already.

        Files that the epoch has replaced do not come back. When files are taken away, what is
        staged stays until the next generation: without its folder the epoch would count as
        finished before the log says that it is void.
        """
        folder = self._staged(epoch.query, epoch.generation)
        for item in staged:
            for file in item.files:
                target = self.table / file.folder / file.name
                if not committed:
                    target.unlink(missing_ok=True)
                elif exists(folder / staged_name(file.name)):
                    _reveal_one(folder / staged_name(file.name), target)
        if committed:
            self._remove_replaced(staged)
            _remove_in_one_step(folder)

    def check_adopted(self, query: str, epoch: int) -> None:
        """Operator: the names of files have the numbers of their epochs, by which they are read."""
        tag = query_tag(query)
        names = (DataFile.parse(path.name) for path in visible_files(self.table))
        newest = max((name.epoch for name in names if name and name.tag == tag), default=-1)
        if newest > epoch:
            raise LogError(
                f"{self.table} has files of epoch {newest} of query {query}, and epochs after "
                f"{epoch} would be written under numbers that are taken: who follows the folder "
                "would pass over them. Start with a new checkpoint, whose sources begin where the "
                "newest epoch ended, or where this checkpoint stands if rows may be there twice"
            )

    def finished(self, epoch: Epoch) -> bool:
        """Driver: `finish` takes the generation's folder away last, and in one step."""
        return not exists(self._staged(epoch.query, epoch.generation))

    def prepare_generation(self, query: str, generation: int, *, clean: bool) -> None:
        """Planner: earlier generations of this query can publish nothing any more."""
        del clean  # stragglers may stage files at any time
        if (elsewhere := self._elsewhere(query)) is not None:
            write_pointer(self.table, query, elsewhere)
        own = self._staged(query, generation)
        make_folder(own)
        for name in _listing(own.parent):
            if is_before(name, generation):
                shutil.rmtree(own.parent / name, ignore_errors=True)
        self._finish_batch_jobs()

    def forget(self, query: str) -> None:
        """Driver: a batch job is over; its folder goes.

        ``_krishiv`` stays: by it a source knows a table of ours from a copy of some of its files.
        """
        super().forget(query)
        shutil.rmtree(self.table / META / query, ignore_errors=True)

    def _finish_batch_jobs(self) -> None:
        """Finish jobs whose driver died after its intent; their logs are left to `vacuum`.

        A job that is alive finishes at the same time, which does no harm. One that cannot be
        finished is nobody's reason to stop.
        """
        for job in table_logs(self.table):
            if job.query.startswith(BATCH_PREFIX):
                try:
                    self.roll_forward(job.log, job.query, job.log.state())
                except Exception:  # noqa: BLE001  whatever its disk, its log or its store raise
                    _log.exception(
                        "%s has published into %s, but not all of it can be made visible",
                        job.query,
                        self.table,
                    )

    def discard(self, staged: Sequence[StagedFiles]) -> None:
        """Anywhere: remove staged files."""
        for item in staged:
            for file in item.files:
                (self.table / item.folder / staged_name(file.name)).unlink(missing_ok=True)

    def _check_whole(self, folder: Path, epoch: Epoch, staged: Sequence[StagedFiles]) -> None:
        there = set(_listing(folder))
        names = (staged_name(file.name) for item in staged for file in item.files)
        missing = next((name for name in names if name not in there), None)
        if missing is not None:
            self.check_owner(epoch)  # a driver that was taken over from is told so
            raise CommitRejected(
                f"epoch {epoch.number}: {folder / missing} was removed before it was published; "
                "nothing is visible of the epoch: restart the query, which stages it again"
            )

    def _staged(self, query: str, generation: int | None) -> Path:
        return staged_folder(self.table, query, generation or 0)

    def _reveal(self, folder: Path, staged: Sequence[StagedFiles]) -> Iterable[Path]:
        """Rename staged files to their final names; those that are gone were renamed before."""
        touched = set()
        for item in staged:
            for file in item.files:
                target = self.table / file.folder
                touched.update([target, *_between(self.table, target)])
                _reveal_one(folder / staged_name(file.name), target / file.name)
        return touched

    def _replaced(self, epoch: Epoch) -> Iterator[str]:
        """Files that go: of this query's earlier epochs, or all of them for a batch job."""
        tag = query_tag(epoch.query)
        for path in visible_files(self.table):
            name = DataFile.parse(path.name)
            if not self.streaming or (name is not None and name.tag == tag):
                yield path.relative_to(self.table).as_posix()


def _reveal_one(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.utime(source)  # it appears now: whoever follows the folder goes by this time
        os.rename(source, target)
    except FileNotFoundError:
        if exists(source):  # then it is the target's folder that somebody has removed
            raise
        if not exists(target) and exists(source.parent):
            raise CommitUnknown(
                f"{source}, which a logged epoch names, is gone, and {target} is not there: "
                "somebody has removed one of them. 'krishiv-spark log resolve --assume committed' "
                "passes over it, with 'aborted' it takes the epoch back, which is staged again"
            ) from None


def _remove_in_one_step(folder: Path) -> None:
    """Its absence says that an epoch is finished."""
    with contextlib.suppress(FileNotFoundError):  # another recovery was faster
        shutil.rmtree(folder.rename(f"{folder}{DONE_SUFFIX}"), ignore_errors=True)


def _between(table: Path, folder: Path) -> list[Path]:
    """The folders from a partition's folder up to the table: each may be new."""
    return [table / parent for parent in folder.relative_to(table).parents]


def _listing(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _check_columns(schema: pa.Schema, partition_by: Sequence[str]) -> None:
    for name in partition_by:
        if name not in schema.names:
            raise OptionError(
                f"krishiv-parquet: option 'partitionBy' names column {name!r}, but there are "
                f"{', '.join(schema.names)}"
            )
        _check_partition(name, schema.field(name).type)
    if len(set(partition_by)) == len(schema.names):
        raise OptionError("krishiv-parquet: 'partitionBy' leaves no column for the files")
    _check_fields(list(schema))


def _check_partition(name: str, kind: pa.DataType) -> None:
    reason = None
    if pa.types.is_nested(kind):
        reason = "is nested"
    elif pa.types.is_binary(kind):
        reason = "is binary (use hex(...): Spark's reader does not get all bytes back)"
    elif is_hidden(f"{name}="):
        reason = "has a name with a dot in front (readers pass over folders that begin with one)"
    if reason is not None:
        raise OptionError(f"krishiv-parquet: column {name!r} {reason} and cannot partition")


def _check_fields(fields: Sequence[pa.Field], above: str = "") -> None:
    """Refuse what Spark's own reader would not get back."""
    pair = twins(field.name for field in fields)
    if pair is not None:
        one, other = (above + name for name in pair)
        raise SchemaError(
            f"columns {one!r} and {other!r} differ by nothing but case, by which Spark's reader "
            "does not tell columns apart: rename one of them"
        )
    for field in fields:
        _check_type(above + field.name, field.type)


def _check_type(name: str, kind: pa.DataType) -> None:
    foreign = stands_for(kind)
    if pa.types.is_duration(kind):
        raise SchemaError(f"column {name!r} is an interval, which Parquet cannot hold: cast it")
    if foreign is not None:
        advice = STAND_INS[foreign]
        raise SchemaError(f"column {name!r} is a {foreign}, which this sink cannot hold: {advice}")
    if pa.types.is_struct(kind):
        _check_fields(children(kind), f"{name}.")
    elif pa.types.is_list(kind):
        _check_type(f"{name}.element", kind.value_type)
    elif pa.types.is_map(kind):
        _check_type(f"{name}.key", kind.key_type)
        _check_type(f"{name}.value", kind.item_type)


def _check_writable(table: Path) -> None:
    try:
        make_folder(table)
    except OSError as error:
        raise OptionError(f"krishiv-parquet: 'path' {table} cannot be made: {error}") from error
    if not os.access(table, os.W_OK | os.X_OK):
        raise OptionError(f"krishiv-parquet: 'path' {table} cannot be written: permission denied")


@lru_cache(maxsize=64)
def _check_same_types(table: Path, schema: pa.Schema) -> None:
    """Compare with one file that is there; once per process, the schema of a query is fixed."""
    existing = next(visible_files(table), None)
    if existing is None:
        return
    found = _schema_of(existing)
    for field in schema:
        index = found.get_field_index(field.name)
        if index >= 0 and found.field(index).type != field.type:
            raise SchemaError(
                f"column {field.name!r} is {field.type}, but {found.field(index).type} in "
                f"{existing}: cast it, or write into another folder"
            )


def _schema_of(file: Path) -> pa.Schema:
    try:
        return plain_schema(pq.read_schema(file))
    except (pa.ArrowException, OSError):
        return pa.schema([])  # a damaged file, or one that is just being removed, says nothing
