"""What becomes visible in a folder of a disk, and when. Driver."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from krishiv_spark.checkpoint import BATCH_PREFIX
from krishiv_spark.durable import exists, make_folder, remove_file, sync_folder, sync_folders
from krishiv_spark.errors import CommitRejected, CommitUnknown
from krishiv_spark.parquet.layout import (
    DONE_SUFFIX,
    META,
    is_before,
    staged_folder,
    staged_within,
)
from krishiv_spark.parquet.names import staged_name
from krishiv_spark.parquet.progress import TableLog, table_logs
from krishiv_spark.sinks.base import Epoch, OutputMode
from krishiv_spark.sinks.parquet.options import ParquetSinkOptions
from krishiv_spark.sinks.parquet.participant import TableLogView, TableParticipant
from krishiv_spark.sinks.parquet.tables import DiskTable
from krishiv_spark.sinks.parquet.targets import make_targets
from krishiv_spark.sinks.parquet.values import StagedFile, StagedFiles, counted

__all__ = ["DiskParticipant"]


class DiskParticipant(TableParticipant[StagedFiles]):
    """Renames staged files to their final names.

    Args:
        options: Of the sink.
        table: The table.
        mode: Whether epochs add or replace.
        view: Of the log.
        streaming: Whether epochs follow one another.
    """

    staged_type = StagedFiles
    may_lose = False

    def __init__(
        self,
        options: ParquetSinkOptions,
        table: DiskTable,
        mode: OutputMode,
        view: TableLogView,
        *,
        streaming: bool,
    ) -> None:
        super().__init__(table, options, view, streaming=streaming)
        self._table = table.path
        self._mode = mode

    # --- committer

    def prepare(
        self, epoch: Epoch, staged: Sequence[StagedFiles], salvaged: Sequence[StagedFiles]
    ) -> Sequence[StagedFiles]:
        """Committer: names reach the disk, and final ones say of how many files they are one.

        In mode REPLACE, look what will go.
        """
        del salvaged  # no part of an epoch is ever lost
        folder = self._staged(epoch.query, epoch.generation)
        # All that may fail for good fails here (docs/design.md, rule 5). Contents are on the disk
        # since the tasks closed their files; now their names are.
        _check_whole(folder, epoch, staged)
        sync_folder(folder)
        make_targets(folder, set(map(self._path, _folders(staged))))
        whole = counted(staged)
        if self._mode is OutputMode.APPEND:
            return whole
        return [*whole, StagedFiles(removes=tuple(self.replaced(epoch)))]

    def finish(self, epoch: Epoch, staged: Sequence[StagedFiles]) -> None:
        """Driver: rename what is not renamed yet, remove what is replaced, then clean up."""
        folder = self._staged(epoch.query, epoch.generation)
        # The new names are on the disk before an old one goes, or a power cut could leave neither.
        # The staged folder goes last: as long as it is there, all of this is done again.
        self._reveal(folder, staged)
        touched = {path for each in _folders(staged) for path in self._up_to_table(each)}
        # Another process may have finished the epoch meanwhile, and a folder be gone since: what
        # becomes of published files is their owner's business.
        sync_folders(filter(exists, touched))
        self._remove_replaced(staged)
        _remove_in_one_step(folder)

    def _remove_replaced(self, staged: Sequence[StagedFiles]) -> None:
        removed = [self._path(name) for item in staged for name in item.removes]
        for file in removed:
            remove_file(file)
        # Before the log says that all is done: after a power cut nobody would remove them again.
        sync_folders(filter(exists, set(map(os.path.dirname, removed))))

    def is_finished(self, epoch: Epoch) -> bool:
        """Driver: `finish` takes the generation's folder away last, and in one step."""
        return not exists(self._staged(epoch.query, epoch.generation))

    def discard(self, staged: Sequence[StagedFiles]) -> None:
        """Anywhere: remove staged files."""
        for item in staged:
            for file in item.files:
                remove_file(f"{self._path(item.folder)}/{staged_name(file.name)}")

    def forget(self, query: str) -> None:
        """Driver: a batch job is over; its folder goes.

        ``_krishiv`` stays: by it a source knows a table of ours from a copy of some of its files.
        """
        shutil.rmtree(self._table / META / query, ignore_errors=True)

    # --- planner

    def sweep(self, query: str, generation: int, *, clean: bool) -> None:
        """Planner: earlier generations of this query can publish nothing any more."""
        del clean  # stragglers may stage files at any time
        self._point_to_log(query)
        own = staged_folder(self._table, query, generation)
        # By the planner alone: a straggler that made it again would make the generation look
        # unfinished.
        make_folder(own)
        for name in _listing(own.parent):
            if is_before(name, generation):
                # What is left now, the next planner removes: nothing can publish it.
                shutil.rmtree(own.parent / name, ignore_errors=True)

    def unattended(self) -> Iterator[TableLog]:
        """Planner: batch jobs, whose drivers may have died; streams have a next driver."""
        return table_logs(self._table, BATCH_PREFIX)

    # --- operator

    def assume(self, epoch: Epoch, staged: Sequence[StagedFiles], *, committed: bool) -> None:
        """Operator: show the files that are there, or take away those that are visible already.

        Files that the epoch has replaced do not come back. When files are taken away, what is
        staged stays until the next generation: without its folder the epoch would count as
        finished before the log says that it is void.
        """
        folder = self._staged(epoch.query, epoch.generation)
        for item in staged:
            for file in item.files:
                source, target = f"{folder}/{staged_name(file.name)}", self._final(file)
                if not committed:
                    remove_file(target)
                elif exists(source):
                    _reveal_one(source, target)
        if committed:
            self._remove_replaced(staged)
            _remove_in_one_step(folder)

    # --- files; as text, since a path is made for each file of an epoch, and again in each step

    def _path(self, name: str) -> str:
        """Of a name relative to the table; of the table itself if it is empty."""
        return f"{self._table}/{name}" if name else str(self._table)

    def _final(self, file: StagedFile) -> str:
        return f"{self._path(file.folder)}/{file.name}"

    def _up_to_table(self, folder: str) -> Iterator[str]:
        """A partition's folder, and those above it up to the table: each may be new."""
        while folder:
            yield self._path(folder)
            folder = folder.rpartition("/")[0]
        yield self._path("")

    def _staged(self, query: str, generation: int | None) -> str:
        return self._path(staged_within(query, generation or 0))

    def _reveal(self, folder: str, staged: Sequence[StagedFiles]) -> None:
        """Rename staged files to their final names; those that are gone were renamed before."""
        for item in staged:
            for file in item.files:
                _reveal_one(f"{folder}/{staged_name(file.name)}", self._final(file))


def _folders(staged: Sequence[StagedFiles]) -> set[str]:
    """Into which files go, relative to the table."""
    return {file.folder for item in staged for file in item.files}


def _check_whole(folder: str, epoch: Epoch, staged: Sequence[StagedFiles]) -> None:
    there = set(_listing(folder))
    names = (staged_name(file.name) for item in staged for file in item.files)
    missing = next((name for name in names if name not in there), None)
    if missing is not None:
        raise CommitRejected(
            f"epoch {epoch.number}: {folder}/{missing} was removed before it was published; "
            "nothing is visible of the epoch: restart the query, which stages it again"
        )


def _reveal_one(source: str, target: str) -> None:
    try:
        try:
            _appear(source, target)
        except FileNotFoundError:
            if not exists(source):
                raise
            # `prepare` has made the target's folder, and somebody has removed it.
            os.makedirs(os.path.dirname(target), exist_ok=True)
            _appear(source, target)
    except FileNotFoundError:
        if exists(source):  # the folder has gone once more
            raise
        # Without the generation's folder another process has finished the epoch, and what became of
        # a published file since is its owner's business.
        if not exists(target) and exists(os.path.dirname(source)):
            raise CommitUnknown(
                f"{source}, which a logged epoch names, is gone, and {target} is not there: "
                "somebody has removed one of them. 'krishiv-spark log resolve --assume committed' "
                "passes over it, with 'aborted' it takes the epoch back, which is staged again"
            ) from None


def _appear(source: str, target: str) -> None:
    os.utime(source)  # it appears now: whoever follows the folder goes by this time
    os.rename(source, target)


def _remove_in_one_step(folder: str) -> None:
    """Its absence says that an epoch is finished."""
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        pass  # another recovery was faster
    except OSError:  # attempts that lost have left something in it
        # What is left under the second name, the next planner takes away (`is_before`).
        with contextlib.suppress(FileNotFoundError):
            os.rename(folder, f"{folder}{DONE_SUFFIX}")
            shutil.rmtree(f"{folder}{DONE_SUFFIX}", ignore_errors=True)


def _listing(folder: str | Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
