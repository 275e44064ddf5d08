"""A table on a disk: its folder, and the participant that renames staged files. Driver."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pyarrow as pa

from krishiv_spark.durable import exists, explain_refusal, make_folder, remove_file
from krishiv_spark.errors import CommitRejected, CommitUnknown, LinkError, OptionError
from krishiv_spark.parquet.calendars import corrected_schema
from krishiv_spark.parquet.inputs import open_input
from krishiv_spark.parquet.layout import (
    DONE_SUFFIX,
    KEEP,
    META,
    SINK_LOG,
    done_generations,
    linked_folders,
    staged_name,
    staged_within,
    visible_files,
)
from krishiv_spark.parquet.table_logs import TableLog, find_table_logs
from krishiv_spark.sinks.base import Epoch, OutputMode
from krishiv_spark.sinks.parquet.options import ParquetSinkOptions
from krishiv_spark.sinks.parquet.participant import TableLogView, TableParticipant
from krishiv_spark.sinks.parquet.staging import StagedFiles, add_counts
from krishiv_spark.sinks.parquet.target_folders import make_target_folders
from krishiv_spark.sinks.participant import advise_retry
from krishiv_spark.spark.checkpoint import BATCH_PREFIX
from krishiv_spark.storage import Folder, Storage
from krishiv_spark.storage.disk import DISK, DiskFolder
from krishiv_spark.storage.no_links import (
    list_folder,
    make_folder_in,
    open_folder,
    remove_tree,
    status_in,
)

__all__ = ["DiskParticipant", "DiskTable"]


@dataclass(frozen=True)
class DiskTable:
    """A `TableFolder` on a disk.

    Attributes:
        path: Absolute path.
    """

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def check_writable(self, *, makes: bool = True) -> None:
        """Check that the folder can be written; create it if it does not exist."""
        if not makes and not self.path.is_dir():
            self._check_makeable()
            return
        try:
            make_folder(self.path)
        except OSError as error:
            why = f"{error}{self._hint_of_link()}"
            raise OptionError(f"krishiv-parquet: 'path' {self} cannot be created: {why}") from error
        if not os.access(self.path, os.W_OK | os.X_OK):
            why = explain_refusal(self.path)
            raise OptionError(f"krishiv-parquet: 'path' {self} cannot be written: {why}")

    def _hint_of_link(self) -> str:
        """Return the end of a message about a broken link."""
        if not self.path.is_symlink() or self.path.exists():
            return ""
        return (
            f". It is a link to {self.path.readlink()}, which does not exist: is its disk mounted?"
        )

    def _check_makeable(self) -> None:
        nearest = next(path for path in (self.path, *self.path.parents) if path.exists())
        why = explain_refusal(nearest) if nearest.is_dir() else f"{nearest} is not a folder"
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            raise OptionError(f"krishiv-parquet: 'path' {self} cannot be created: {why}")

    def visible(self) -> Iterator[str]:
        """Yield the relative paths of the files that an ordinary reader sees."""
        for path in visible_files(self.path):
            yield path.relative_to(self.path).as_posix()

    def links(self) -> Iterator[str]:
        """Yield the relative paths of linked folders."""
        for path in linked_folders(self.path):
            yield path.relative_to(self.path).as_posix()

    def schema_of(self, name: str) -> pa.Schema:
        """Return the readable columns of a file."""
        try:
            with DISK.open(f"{self.path}/{name}") as file:
                return corrected_schema(open_input(file.source))
        except (pa.ArrowException, OSError):
            return pa.schema([])

    def has_sink_log(self) -> bool:
        """Return True if the folder has a log of Spark's own file sink."""
        return bool(DiskFolder(self.path / SINK_LOG).names())

    def meta(self, *names: str) -> Folder:
        """Return ``_krishiv``, or a folder below it."""
        return DiskFolder(self.path.joinpath(META, *names))

    def logs(self, epoch_logs: tuple[str, ...], storage: Storage) -> Iterator[TableLog]:
        """Yield the logs of the queries and jobs that write the table."""
        return find_table_logs(self.path, "", epoch_logs, storage)

    def check_movable(self, names: Sequence[str]) -> None:
        """Check nothing: a rename does not depend on the size of a file."""

    def move(self, name: str, to: str) -> None:
        """Move a file within the folder."""
        DiskFolder(self.path).move(name, to)


class DiskParticipant(TableParticipant[StagedFiles]):
    """A participant that renames staged files to their final names.

    Args:
        options: Options of the sink.
        table: The table.
        mode: The output mode, by which epochs add rows or replace them.
        view: View of the log.
        streaming: True for a stream, whose epochs follow one another.
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
        self._emptied = ""
        """The folder of the generation, if it contains only the files that its intent names."""

    # --- committer

    def prepare(
        self, epoch: Epoch, staged: Sequence[StagedFiles], salvaged: Sequence[StagedFiles]
    ) -> Sequence[StagedFiles]:
        """Committer: sync the names of staged files, and add the number of files to final names.

        In mode REPLACE, find the files to delete.
        """
        del salvaged  # no part of an epoch is ever lost
        folder = self._staged_folder(epoch)
        # A permanent failure must occur here (docs/design/epoch-log.md, rule 5). The contents are
        # on the disk since the tasks closed their files; now the names are synced.
        with _rejecting_links(epoch), self._open_staged(epoch, staged) as (descriptor, is_all):
            self._emptied = folder if is_all else ""
            os.fsync(descriptor)
            make_target_folders(self._table, folder, descriptor, _group_by_folder(staged))
        final = add_counts(staged)
        if self._mode is OutputMode.APPEND:
            return final
        return [*final, StagedFiles(removes=tuple(self.find_replaced(epoch)))]

    def finish(self, epoch: Epoch, staged: Sequence[StagedFiles]) -> None:
        """Driver: rename the files not renamed yet, remove replaced files, then clean up.

        Raises:
            CommitUnknown: If a file is missing, or a link is in the way; or if the table was
                restored from a copy without the epoch.
        """
        folder = self._staged_folder(epoch)
        # The new names are synced before an old one is removed, or a power cut could leave neither.
        # The staged folder is removed last: as long as it exists, all of this is repeated.
        with _delayed_by_links(epoch):
            if not self._reveal(folder, staged):
                self._check_done(epoch, staged)
            folders = _group_by_folder(staged)
            self._sync(each for name in folders for each in _find_parents(name))
            self._remove_replaced(staged)
            self._end_generation(folder)

    def _check_done(self, epoch: Epoch, staged: Sequence[StagedFiles]) -> None:
        """Check that the table has the folder of a generation, or a trace of its end."""
        if self.contains(epoch, staged) is False:
            raise CommitUnknown(
                f"epoch {epoch.number} of query {epoch.query}: its intent is logged, but "
                f"{self._table} has nothing of it: the table was restored from an older copy. "
                "Put the newest copy back and restart the query. Or, without it, "
                "'krishiv-spark log resolve --assume aborted' writes the epoch again, and "
                "'--assume committed' skips it"
            )

    def _remove_replaced(self, staged: Sequence[StagedFiles]) -> None:
        removed: dict[str, list[str]] = {}
        for item in staged:
            for path in item.removes:
                folder, _, name = path.rpartition("/")
                removed.setdefault(folder, []).append(name)
        for folder, names in removed.items():
            with suppress(FileNotFoundError), open_folder(self._table, folder) as descriptor:
                for name in names:
                    remove_file(name, folder=descriptor)
        # Before the log records the end: after that, a power cut would leave them permanently.
        self._sync(removed)

    def is_finished(self, epoch: Epoch) -> bool:
        """Driver: return True if `finish` has renamed the generation's folder, its last step.

        Earlier versions, and batch jobs, remove the folder.
        """
        generation = epoch.generation or 0
        names = self._generations(epoch.query)
        if str(generation) in names:
            return False
        done = done_generations(names)
        return done[-1] >= generation if done else self._has_started(epoch.query)

    def discard(self, staged: Sequence[StagedFiles]) -> None:
        """Any process: remove staged files."""
        for item in staged:
            with suppress(FileNotFoundError), open_folder(self._table, item.folder) as folder:
                for file in item.files:
                    remove_file(staged_name(file.name), folder=folder)

    def forget(self, query: str) -> None:
        """Driver: remove the folder of a batch job that has ended.

        ``_krishiv`` stays: by it a source distinguishes a table from a copy of some of its files.
        """
        remove_tree(self._table, f"{META}/{query}")

    # --- planner

    def sweep(self, query: str, generation: int, *, clean: bool) -> None:
        """Planner: create the generation's folder, and remove those of earlier generations."""
        del clean  # stragglers may stage files at any time
        self._point_to_log(query)
        own = staged_within(query, generation)
        above = os.path.dirname(own)
        with open_folder(self._table, above, make=True) as descriptor:
            # Only the planner creates it: if a straggler created it again, the generation would
            # appear unfinished.
            make_folder_in(descriptor, f"{self._table}/{own}")
            names = os.listdir(descriptor)
            outdated = [*self._find_outdated(names, query, generation)]
            filled = [name for name in outdated if not _remove_empty(descriptor, name)]
        for name in filled:
            # If this process dies here, the next planner removes the rest: it cannot be published.
            remove_tree(self._table, f"{above}/{name}")

    def _find_outdated(self, names: Sequence[str], query: str, generation: int) -> Iterator[str]:
        """Yield the names of earlier generations, except the newest that is done.

        It stays until the next one is done: it shows the age of the table (`newest_generation`).
        """
        yield from (name for name in names if name.isdecimal() and int(name) < generation)
        done = done_generations(names)
        earlier = [number for number in done if number < generation]
        yield from (f"{number}{DONE_SUFFIX}" for number in earlier[:-1])
        # Later ones are of a later driver, or of a log that was removed before this one started.
        if len(earlier) < len(done) and self._view.is_owner(Epoch(query, -1, generation)):
            yield from (f"{number}{DONE_SUFFIX}" for number in done[len(earlier) :])

    def newest_generation(self, query: str) -> int | None:
        """Planner: return the generation in a folder's name; None in tables of earlier versions."""
        return max(done_generations(self._generations(query)), default=None)

    def contains(self, epoch: Epoch, staged: Sequence[StagedFiles]) -> bool | None:
        """Planner: return True by the newest generation that is done, or by the epoch's files.

        Files that were deleted, moved or compacted since do not matter, as long as ``_krishiv`` is
        unchanged.
        """
        generation = epoch.generation or 0
        names = self._generations(epoch.query)
        done = done_generations(names)
        if done[-1] >= generation if done else self._has_started(epoch.query):
            return True
        paths = [*_paths(staged)]
        if not paths:
            return None
        visible = (exists(f"{self._table}/{path}") for path in paths)
        # A power cut may revert the last rename. A copy that was made in the middle of the epoch
        # has this folder too, and not all of the files.
        return all(visible) if str(generation) in names else any(visible)

    def _generations(self, query: str) -> list[str]:
        return list_folder(self._table, os.path.dirname(staged_within(query, 0)))

    def orphaned_jobs(self) -> Iterator[TableLog]:
        """Planner: yield batch jobs, whose drivers may have died; streams have a next driver.

        A job whose log is in another store that the option ``epochLog`` does not name is left
        alone, with a warning.
        """
        given = self._options
        jobs = find_table_logs(self._table, BATCH_PREFIX, given.epoch_logs, given.storage)
        return (job for job in jobs if job.may_be_finished())

    # --- operator

    def force_outcome(
        self, epoch: Epoch, staged: Sequence[StagedFiles], *, committed: bool
    ) -> None:
        """Operator: rename the files that exist, or remove the staged and the visible ones.

        Files that the epoch has replaced do not return. If files are removed, the staged folder
        stays until the next generation: without it the epoch would count as finished before the
        log records that it is void. Staged files are removed first, so that a driver that sleeps
        in `finish` makes nothing visible afterwards.
        """
        folder = self._staged_folder(epoch)
        with _delayed_by_links(epoch):
            if committed:
                self._reveal(folder, staged, must_exist=False)
                self._remove_replaced(staged)
                self._end_generation(folder, must_exist=False)
                return
            grouped = _group_by_folder(staged)
            with suppress(FileNotFoundError), open_folder(self._table, folder) as source:
                for file in chain.from_iterable(grouped.values()):
                    remove_file(staged_name(file), folder=source)
            for name, files in grouped.items():
                with suppress(FileNotFoundError), open_folder(self._table, name) as target:
                    for file in files:
                        remove_file(file, folder=target)

    # --- files: by descriptors, below which no link is followed

    @staticmethod
    def _staged_folder(epoch: Epoch) -> str:
        """Return the folder in which an epoch's files are staged, relative to the table."""
        return staged_within(epoch.query, epoch.generation or 0)

    @contextmanager
    def _open_staged(
        self, epoch: Epoch, staged: Sequence[StagedFiles]
    ) -> Iterator[tuple[int, bool]]:
        """Open the folder in which an epoch's files are staged, if all of them are in it.

        Yields:
            Its descriptor; and whether it contains nothing else.
        """
        folder = self._staged_folder(epoch)
        names = [staged_name(file.name) for item in staged for file in item.files]
        with ExitStack() as opened:
            try:
                descriptor = opened.enter_context(open_folder(self._table, folder))
            except FileNotFoundError:
                raise self._removed_error(epoch, folder) from None
            present = frozenset(os.listdir(descriptor))
            missing = next((name for name in names if name not in present), None)
            if missing is not None:
                raise self._removed_error(epoch, f"{folder}/{missing}")
            yield descriptor, len(present) == len(names)

    def _removed_error(self, epoch: Epoch, path: str) -> CommitRejected:
        return CommitRejected(
            f"epoch {epoch.number}: {self._table}/{path} was removed before it was published; "
            "nothing is visible of the epoch: restart the query, which stages it again"
        )

    def _reveal(
        self, folder: str, staged: Sequence[StagedFiles], *, must_exist: bool = True
    ) -> bool:
        """Rename staged files to their final names; missing ones were renamed before.

        Args:
            folder: Folder in which they are staged.
            staged: The staged files in the intent.
            must_exist: True if it is an error that a file has neither name.

        Returns:
            False if the folder does not exist.
        """
        try:
            with open_folder(self._table, folder) as source:
                for name, files in _group_by_folder(staged).items():
                    # `prepare` has created the folder, and another process may have removed it,
                    # also since it was opened here: then it is created once more.
                    try:
                        missing = self._reveal_in(source, name, files)
                    except FileNotFoundError:
                        missing = self._reveal_in(source, name, files)
                    if must_exist:
                        self._check_revealed(folder, name, missing)
        except FileNotFoundError:
            if exists(f"{self._table}/{folder}"):  # the folder of a partition was removed once more
                raise
            return False
        return True

    def _reveal_in(self, source: int, folder: str, names: Sequence[str]) -> list[str]:
        """Rename the files of one folder, durably; return the files that have neither name."""
        with open_folder(self._table, folder, make=True) as target:
            unstaged = [name for name in names if not _reveal_file(source, target, name)]
            os.fsync(target)
            return [name for name in unstaged if status_in(target, name) is None]

    def _check_revealed(self, staged: str, folder: str, missing: Sequence[str]) -> None:
        """Check that no file is neither staged nor published.

        Without the generation's folder, another process has finished the epoch, and its published
        files may have been deleted since.
        """
        if missing and exists(f"{self._table}/{staged}"):
            path = f"{folder}/{missing[0]}".lstrip("/")
            raise CommitUnknown(
                f"{self._table}/{staged}/{staged_name(missing[0])}, which a logged epoch names, "
                f"is missing, and {self._table}/{path} does not exist: another program has "
                "removed one of them. 'krishiv-spark log resolve --assume committed' skips it; "
                "'--assume aborted' reverts the epoch, which is staged again"
            )

    def _sync(self, folders: Iterable[str]) -> None:
        """Sync the names in folders to the disk.

        Another process may have finished the epoch meanwhile, and its published files and folders
        may have been deleted since.
        """
        for folder in sorted(set(folders)):
            with suppress(FileNotFoundError), open_folder(self._table, folder) as descriptor:
                os.fsync(descriptor)

    def _end_generation(self, folder: str, *, must_exist: bool = True) -> None:
        """Mark the epoch of a generation as finished in one step.

        The staged folder of a stream gets another name, and stays with an empty file in it: that
        shows the age of the table. The folder of a batch job is removed.

        Args:
            folder: Folder in which files were staged.
            must_exist: True to mark nothing if it does not exist.
        """
        above, name = os.path.split(folder)
        done = f"{name}{DONE_SUFFIX}"
        with suppress(FileNotFoundError), open_folder(self._table, above) as parent:
            if not self._streaming and _remove_empty(parent, name):
                return
            try:
                os.rename(name, done, src_dir_fd=parent, dst_dir_fd=parent)
            except FileNotFoundError:  # another recovery was faster
                if not must_exist:
                    make_folder_in(parent, f"{self._table}/{above}/{done}")
                    _keep_folder(parent, done)
                return
            except OSError:  # a recovery that died has left a folder of the second name
                remove_tree(self._table, f"{above}/{done}")
                os.rename(name, done, src_dir_fd=parent, dst_dir_fd=parent)
            if not self._streaming:
                remove_tree(self._table, f"{above}/{done}")
                return
            if self._emptied != folder:  # other attempts may have left files in it
                for leftover in list_folder(self._table, f"{above}/{done}"):
                    remove_tree(self._table, f"{above}/{done}/{leftover}")
            _keep_folder(parent, done)


def _remove_empty(above: int, name: str) -> bool:
    """Remove an empty folder; return False if it is not empty, or not a folder."""
    try:
        os.rmdir(name, dir_fd=above)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _keep_folder(above: int, name: str) -> None:
    """Put a file into a folder, since clean-ups and many kinds of copies omit empty folders."""
    with suppress(FileNotFoundError):  # a later generation has removed it meanwhile
        os.close(os.open(f"{name}/{KEEP}", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, dir_fd=above))


def _paths(staged: Sequence[StagedFiles]) -> Iterator[str]:
    """Yield the paths of an epoch's visible files, relative to the table."""
    for folder, names in _group_by_folder(staged).items():
        yield from (f"{folder}/{name}" if folder else name for name in names)


def _reveal_file(source: int, target: int, name: str) -> bool:
    """Rename a staged file; return False if it does not exist.

    Raises:
        LinkError: If it is not a plain file.
    """
    staged = staged_name(name)
    found = status_in(source, staged)
    if found is None:
        return False
    if not stat.S_ISREG(found.st_mode):
        raise LinkError(
            f"{staged}, which a logged epoch names, is a link, or no plain file: it was not "
            "created by a task of the epoch. Remove it"
        )
    try:
        # It appears now: sources that follow the folder use this time.
        os.utime(staged, dir_fd=source, follow_symlinks=False)
        os.rename(staged, name, src_dir_fd=source, dst_dir_fd=target)
    except FileNotFoundError:
        if status_in(source, staged) is not None:  # the target's folder was removed
            raise
        return False
    return True


def _group_by_folder(staged: Sequence[StagedFiles]) -> dict[str, list[str]]:
    """Return the final names of files, by their folders, relative to the table."""
    found: dict[str, list[str]] = {}
    for item in staged:
        for file in item.files:
            found.setdefault(file.folder, []).append(file.name)
    return found


def _find_parents(folder: str) -> Iterator[str]:
    """Yield the folders above that of a partition, up to the table: each may have a new name."""
    while folder:
        folder = folder.rpartition("/")[0]
        yield folder


@contextmanager
def _rejecting_links(epoch: Epoch) -> Iterator[None]:
    try:
        yield
    except LinkError as error:
        raise CommitRejected(
            f"epoch {epoch.number}: {error}; nothing is visible of the epoch: restart the query "
            "afterwards"
        ) from error


@contextmanager
def _delayed_by_links(epoch: Epoch) -> Iterator[None]:
    try:
        yield
    except LinkError as error:
        raise CommitUnknown(
            f"epoch {epoch.number}: its intent is logged, but not all of its files could be "
            f"made visible: {error}; then {advise_retry(epoch.query)}"
        ) from error
