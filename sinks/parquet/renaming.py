"""What becomes visible in a folder of a disk, and when. Driver."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from krishiv_spark.durable import exists, remove_file
from krishiv_spark.errors import CommitRejected, CommitUnknown, LinkError
from krishiv_spark.parquet.layout import DONE_SUFFIX, KEEP, META, done_generations, staged_within
from krishiv_spark.parquet.names import staged_name
from krishiv_spark.parquet.progress import TableLog, table_logs
from krishiv_spark.sinks.base import Epoch, OutputMode
from krishiv_spark.sinks.parquet.options import ParquetSinkOptions
from krishiv_spark.sinks.parquet.participant import TableLogView, TableParticipant
from krishiv_spark.sinks.parquet.tables import DiskTable
from krishiv_spark.sinks.parquet.targets import make_targets
from krishiv_spark.sinks.parquet.values import StagedFiles, counted
from krishiv_spark.spark.checkpoint import BATCH_PREFIX
from krishiv_spark.storage.no_links import (
    list_folder,
    make_folder_in,
    open_folder,
    remove_tree,
    status_in,
)

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
        self._emptied = ""
        """The folder of the generation, if nothing is in it but what its intent names."""

    # --- committer

    def prepare(
        self, epoch: Epoch, staged: Sequence[StagedFiles], salvaged: Sequence[StagedFiles]
    ) -> Sequence[StagedFiles]:
        """Committer: names reach the disk, and final ones say of how many files they are one.

        In mode REPLACE, look what will go.
        """
        del salvaged  # no part of an epoch is ever lost
        folder = self._staged(epoch)
        # What can fail permanently fails here (docs/design/epoch-log.md, rule 5). The contents are
        # on the disk since the tasks closed their files; now the names reach it.
        with _rejecting_links(epoch), self._open_staged(epoch, staged) as (descriptor, is_all):
            self._emptied = folder if is_all else ""
            os.fsync(descriptor)
            device = os.fstat(descriptor).st_dev
            make_targets(self._table, folder, device, _by_folder(staged))
        whole = counted(staged)
        if self._mode is OutputMode.APPEND:
            return whole
        return [*whole, StagedFiles(removes=tuple(self.replaced(epoch)))]

    def finish(self, epoch: Epoch, staged: Sequence[StagedFiles]) -> None:
        """Driver: rename what is not renamed yet, remove what is replaced, then clean up.

        Raises:
            CommitUnknown: If a file is gone, or a link is in the way; or if the table was restored
                from a copy that has nothing of the epoch.
        """
        folder = self._staged(epoch)
        # The new names are on the disk before an old one goes, or a power cut could leave neither.
        # The staged folder goes last: as long as it is there, all of this is done again.
        with _delayed_by_links(epoch):
            if not self._reveal(folder, staged):
                self._check_done(epoch, staged)
            self._sync(each for name in _by_folder(staged) for each in _find_above(name))
            self._remove_replaced(staged)
            self._end_generation(folder)

    def _check_done(self, epoch: Epoch, staged: Sequence[StagedFiles]) -> None:
        """Refuse a table that has neither the folder of a generation, nor a trace of its end."""
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
        # Before the log says that all is done: after a power cut nobody would remove them again.
        self._sync(removed)

    def is_finished(self, epoch: Epoch) -> bool:
        """Driver: `finish` renames the generation's folder last, and in one step.

        Earlier versions, and batch jobs, remove it.
        """
        generation = epoch.generation or 0
        names = self._generations(epoch.query)
        if str(generation) in names:
            return False
        done = done_generations(names)
        return done[-1] >= generation if done else self._has_begun(epoch.query)

    def discard(self, staged: Sequence[StagedFiles]) -> None:
        """Anywhere: remove staged files."""
        for item in staged:
            with suppress(FileNotFoundError), open_folder(self._table, item.folder) as folder:
                for file in item.files:
                    remove_file(staged_name(file.name), folder=folder)

    def forget(self, query: str) -> None:
        """Driver: a batch job is over; its folder goes.

        ``_krishiv`` stays: by it a source knows a table of ours from a copy of some of its files.
        """
        remove_tree(self._table, f"{META}/{query}")

    # --- planner

    def sweep(self, query: str, generation: int, *, clean: bool) -> None:
        """Planner: earlier generations of this query can publish nothing any more."""
        del clean  # stragglers may stage files at any time
        self._point_to_log(query)
        own = staged_within(query, generation)
        above = os.path.dirname(own)
        with open_folder(self._table, above, make=True) as descriptor:
            # By the planner alone: a straggler that made it again would make the generation look
            # unfinished.
            make_folder_in(descriptor, f"{self._table}/{own}")
            names = os.listdir(descriptor)
            left = [name for name in self._outdated(names, query, generation)
                    if not _remove_empty(descriptor, name)]  # fmt: skip
        for name in left:
            # What is left now, the next planner removes: nothing can publish it.
            remove_tree(self._table, f"{above}/{name}")

    def _outdated(self, names: Sequence[str], query: str, generation: int) -> Iterator[str]:
        """Yield the names of earlier generations, but for the newest that is done.

        That one stays until the next is done: it shows how new the table is (`newest_generation`).
        """
        yield from (name for name in names if name.isdecimal() and int(name) < generation)
        done = done_generations(names)
        earlier = [number for number in done if number < generation]
        yield from (f"{number}{DONE_SUFFIX}" for number in earlier[:-1])
        # Later ones are of a later driver, or of a log that was removed before this one began.
        if len(earlier) < len(done) and self._view.is_owner(Epoch(query, -1, generation)):
            yield from (f"{number}{DONE_SUFFIX}" for number in done[len(earlier) :])

    def newest_generation(self, query: str) -> int | None:
        """Planner: by the name of a folder. None of tables that earlier versions have written."""
        return max(done_generations(self._generations(query)), default=None)

    def contains(self, epoch: Epoch, staged: Sequence[StagedFiles]) -> bool | None:
        """Planner: by the newest generation that is done, or else by the files themselves.

        Files that were deleted, moved or compacted since do not matter, as long as ``_krishiv`` is
        as the sink has left it.
        """
        generation = epoch.generation or 0
        names = self._generations(epoch.query)
        done = done_generations(names)
        if done[-1] >= generation if done else self._has_begun(epoch.query):
            return True
        paths = [*_paths(staged)]
        if not paths:
            return None
        visible = (exists(f"{self._table}/{path}") for path in paths)
        # A power cut may take the last rename from a disk. A copy that was made in the middle of
        # the epoch has this folder too, and not all of the files.
        return all(visible) if str(generation) in names else any(visible)

    def _generations(self, query: str) -> list[str]:
        return list_folder(self._table, os.path.dirname(staged_within(query, 0)))

    def orphaned_jobs(self) -> Iterator[TableLog]:
        """Planner: batch jobs, whose drivers may have died; streams have a next driver.

        A job whose log is in another store, and not where the option ``epochLog`` says, is left
        alone, with a warning.
        """
        given = self._options
        jobs = table_logs(self._table, BATCH_PREFIX, given.epoch_logs, given.storage)
        return (job for job in jobs if job.may_be_finished())

    # --- operator

    def force_outcome(
        self, epoch: Epoch, staged: Sequence[StagedFiles], *, committed: bool
    ) -> None:
        """Operator: show the files that are there, or take away those that are visible already.

        Files that the epoch has replaced do not come back. When files are taken away, what is
        staged stays until the next generation: without its folder the epoch would count as
        finished before the log says that it is void.
        """
        folder = self._staged(epoch)
        with _delayed_by_links(epoch):
            if committed:
                self._reveal(folder, staged, must_be_there=False)
                self._remove_replaced(staged)
                self._end_generation(folder, must_be_there=False)
                return
            for name, files in _by_folder(staged).items():
                with suppress(FileNotFoundError), open_folder(self._table, name) as target:
                    for file in files:
                        remove_file(file, folder=target)

    # --- files: by descriptors, below which no link is followed

    @staticmethod
    def _staged(epoch: Epoch) -> str:
        """The folder in which an epoch's files are staged, relative to the table."""
        return staged_within(epoch.query, epoch.generation or 0)

    @contextmanager
    def _open_staged(
        self, epoch: Epoch, staged: Sequence[StagedFiles]
    ) -> Iterator[tuple[int, bool]]:
        """Open the folder in which an epoch's files are staged, if all of them are in it.

        Yields:
            Its descriptor; and whether nothing else is in it.
        """
        folder = self._staged(epoch)
        names = [staged_name(file.name) for item in staged for file in item.files]
        with ExitStack() as opened:
            try:
                descriptor = opened.enter_context(open_folder(self._table, folder))
            except FileNotFoundError:
                raise self._removed(epoch, folder) from None
            there = frozenset(os.listdir(descriptor))
            missing = next((name for name in names if name not in there), None)
            if missing is not None:
                raise self._removed(epoch, f"{folder}/{missing}")
            yield descriptor, len(there) == len(names)

    def _removed(self, epoch: Epoch, path: str) -> CommitRejected:
        return CommitRejected(
            f"epoch {epoch.number}: {self._table}/{path} was removed before it was published; "
            "nothing is visible of the epoch: restart the query, which stages it again"
        )

    def _reveal(
        self, folder: str, staged: Sequence[StagedFiles], *, must_be_there: bool = True
    ) -> bool:
        """Rename staged files to their final names; those that are gone were renamed before.

        Args:
            folder: In which they are staged.
            staged: What the intent names.
            must_be_there: Whether it is an error when a file is under neither name.

        Returns:
            False if the folder is not there.
        """
        try:
            with open_folder(self._table, folder) as source:
                for name, files in _by_folder(staged).items():
                    # `prepare` has made the folder, and another process may have removed it, also
                    # since it was opened here: then it is made once more.
                    try:
                        missing = self._reveal_in(source, name, files)
                    except FileNotFoundError:
                        missing = self._reveal_in(source, name, files)
                    if must_be_there:
                        self._check_revealed(folder, name, missing)
        except FileNotFoundError:
            if exists(f"{self._table}/{folder}"):  # the folder of a partition has gone once more
                raise
            return False
        return True

    def _reveal_in(self, source: int, folder: str, names: Sequence[str]) -> list[str]:
        """Rename the files of one folder, durably; return the names that are under neither name."""
        with open_folder(self._table, folder, make=True) as target:
            unstaged = [name for name in names if not _appear(source, target, name)]
            os.fsync(target)
            return [name for name in unstaged if status_in(target, name) is None]

    def _check_revealed(self, staged: str, folder: str, missing: Sequence[str]) -> None:
        """Refuse to go on where a file is neither staged nor published.

        Without the generation's folder another process has finished the epoch, and what became of a
        published file since is its owner's business.
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
        """Bring the names in folders to the disk.

        Another process may have finished the epoch meanwhile, and a folder be gone since: what
        becomes of published files is their owner's business.
        """
        for folder in sorted(set(folders)):
            with suppress(FileNotFoundError), open_folder(self._table, folder) as descriptor:
                os.fsync(descriptor)

    def _end_generation(self, folder: str, *, must_be_there: bool = True) -> None:
        """Say in one step that the epoch of a generation is finished.

        The folder in which a stream stages gets another name, and stays with an empty file in it:
        that shows how new the table is. That of a batch job goes.

        Args:
            folder: In which files were staged.
            must_be_there: Whether nothing is said if it is not there.
        """
        above, name = os.path.split(folder)
        done = f"{name}{DONE_SUFFIX}"
        with suppress(FileNotFoundError), open_folder(self._table, above) as parent:
            if not self._streaming and _remove_empty(parent, name):
                return
            try:
                os.rename(name, done, src_dir_fd=parent, dst_dir_fd=parent)
            except FileNotFoundError:  # another recovery was faster
                if not must_be_there:
                    make_folder_in(parent, f"{self._table}/{above}/{done}")
                    _keep_folder(parent, done)
                return
            except OSError:  # what a recovery has left under the second name, which died
                remove_tree(self._table, f"{above}/{done}")
                os.rename(name, done, src_dir_fd=parent, dst_dir_fd=parent)
            if not self._streaming:
                remove_tree(self._table, f"{above}/{done}")
                return
            if self._emptied != folder:  # attempts that lost may have left something in it
                for left in list_folder(self._table, f"{above}/{done}"):
                    remove_tree(self._table, f"{above}/{done}/{left}")
            _keep_folder(parent, done)


def _remove_empty(above: int, name: str) -> bool:
    """Remove an empty folder; False if it is not empty, or no folder."""
    try:
        os.rmdir(name, dir_fd=above)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _keep_folder(above: int, name: str) -> None:
    """Put a file into a folder, which clean-ups and many kinds of copies leave out if empty."""
    with suppress(FileNotFoundError):  # a later generation has removed it meanwhile
        os.close(os.open(f"{name}/{KEEP}", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, dir_fd=above))


def _paths(staged: Sequence[StagedFiles]) -> Iterator[str]:
    """Yield the paths of an epoch's visible files, relative to the table."""
    for folder, names in _by_folder(staged).items():
        yield from (f"{folder}/{name}" if folder else name for name in names)


def _appear(source: int, target: int, name: str) -> bool:
    """Rename a staged file; False if it is not there.

    Raises:
        LinkError: If it is no plain file.
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
        # It appears now: whoever follows the folder goes by this time.
        os.utime(staged, dir_fd=source, follow_symlinks=False)
        os.rename(staged, name, src_dir_fd=source, dst_dir_fd=target)
    except FileNotFoundError:
        if status_in(source, staged) is not None:  # the target's folder is gone
            raise
        return False
    return True


def _by_folder(staged: Sequence[StagedFiles]) -> dict[str, list[str]]:
    """The names of files, by the folders into which they go, relative to the table."""
    found: dict[str, list[str]] = {}
    for item in staged:
        for file in item.files:
            found.setdefault(file.folder, []).append(file.name)
    return found


def _find_above(folder: str) -> Iterator[str]:
    """Yield the folders above a partition's, up to the table: the name below each may be new."""
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
            f"made visible: {error}; restart the query afterwards, which resolves it"
        ) from error
