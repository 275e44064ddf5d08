"""The participant of the sink, as far as tables on disks and in stores share it. Driver.

It finds the visible files of a query, and implements pointers to logs and replays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import pyarrow as pa

from krishiv_spark.errors import CommitRejected, LogError, OptionError
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.offsets import State
from krishiv_spark.parquet.layout import (
    REPLAYED_SUFFIX,
    DataFile,
    query_tag,
    replayed_within,
    visible_files,
)
from krishiv_spark.parquet.table_identity import (
    Pointer,
    ensure_table_id,
    has_pointer,
    read_table_id,
    read_text,
    write_pointer,
)
from krishiv_spark.parquet.table_logs import QueryLog
from krishiv_spark.sinks.base import Epoch
from krishiv_spark.sinks.log_checks import operators_claim
from krishiv_spark.sinks.parquet.options import ParquetSinkOptions
from krishiv_spark.sinks.parquet.staging import StagedFiles
from krishiv_spark.sinks.participant import Participant, Replay
from krishiv_spark.spark.checkpoint import BATCH_PREFIX
from krishiv_spark.storage import Folder, Storage

__all__ = ["TableFolder", "TableLogView", "TableParticipant"]

StagedT = TypeVar("StagedT", bound=StagedFiles)

_EMPTY = (
    "these are all rows of the query in the table, as with output mode 'complete', whose "
    "epochs replace each other; the rows return with the first new epoch"
)


class TableFolder(Protocol):
    """The folder of a table. It prints as its path or URL."""

    def __hash__(self) -> int:
        """Return a hash: results of checks are cached by folder."""
        ...

    def check_writable(self, *, makes: bool = True) -> None:
        """Planner: check that the folder can be written, before any row moves.

        Args:
            makes: True if it may be created, on a disk.

        Raises:
            OptionError: If it cannot be written.
        """
        ...

    def visible(self) -> Iterator[str]:
        """Yield the relative paths of the files that an ordinary reader sees, in no order."""
        ...

    def links(self) -> Iterator[str]:
        """Yield the relative paths of linked folders, which readers enter, unlike `visible`."""
        ...

    def schema_of(self, name: str) -> pa.Schema:
        """Return the readable columns of a visible file, in the types that readers get.

        The schema is empty if the file is damaged or being removed.
        """
        ...

    def has_sink_log(self) -> bool:
        """Return True if the folder has a log of Spark's own file sink."""
        ...

    def meta(self, *names: str) -> Folder:
        """Return ``_krishiv`` in the folder, or a folder below it."""
        ...

    def logs(self, epoch_logs: tuple[str, ...], storage: Storage) -> Iterator[QueryLog]:
        """Yield the logs of the queries and jobs that write the table; see `QueryLog`."""
        ...

    def check_movable(self, names: Sequence[str]) -> None:
        """Operator: check that files can be moved, before any of them is.

        Raises:
            OptionError: If one is too large for the store.
        """
        ...

    def move(self, name: str, to: str) -> None:
        """Operator: move a file within the table's folder. See `Folder.move`."""
        ...


class TableLogView(NamedTuple):
    """A view of the log of a table's epochs. Driver.

    Attributes:
        is_owner: Returns True if the generation of an epoch still owns the query. Called right
            before the removal of files that no intent names, and that may be of a later generation.
        pointer: Returns the pointer to the log of a query; None if it is in the table's folder.
    """

    is_owner: Callable[[Epoch], bool]
    pointer: Callable[[str], Pointer | None]


class TableParticipant(Participant[StagedT]):
    """A participant with the visible files of a table, by query and epoch.

    Args:
        folder: Folder of the table.
        options: Options of the sink.
        view: View of the log.
        streaming: True for a stream, whose epochs follow one another.
    """

    def __init__(
        self,
        folder: TableFolder,
        options: ParquetSinkOptions,
        view: TableLogView,
        *,
        streaming: bool,
    ) -> None:
        self.folder = folder
        self._options = options
        self._view = view
        self._streaming = streaming

    def target(self) -> str | None:
        """Planner: describe the table by the id in its folder, which does not depend on mounts."""
        found = ensure_table_id(self.folder.meta()) if self._streaming else None
        return None if found is None else f"Parquet table {found}"

    def known_target(self) -> str | None:
        """Operator: describe the table by its id, if it has one."""
        found = read_table_id(self.folder.meta()) if self._streaming else None
        return None if found is None else f"Parquet table {found}"

    def _point_to_log(self, query: str) -> None:
        """Write the pointer to the log. First: a reader that finds files must find their log."""
        write_pointer(self.folder.meta(query), self._view.pointer(query))

    def _has_started(self, query: str) -> bool:
        """Return False if a stream with a log in another location never wrote to the table.

        A table that was restored from before its first epoch has no pointer to the log either.
        """
        if query.startswith(BATCH_PREFIX) or self._view.pointer(query) is None:
            return True
        return has_pointer(self.folder.meta(query))

    def has_epochs(self, query: str) -> bool:
        """Planner: return True if the table has files of a query."""
        return any(True for _ in self._files_of(query))

    def verify_empty_log(self, query: str) -> None:
        """Planner: check that a stream without a log has no files in the table."""
        for name, _ in self._files_of(query):
            raise LogError(
                f"{self.folder}/{name} belongs to this query, but its epoch log is empty: the "
                "log was removed, or the option 'epochLog' has changed; put it back, or use "
                f"{NEW_CHECKPOINT}"
            )

    def find_replaced(self, epoch: Epoch) -> Iterator[str]:
        """Yield the files to delete: of this query's earlier epochs, or all for a batch job.

        Raises:
            CommitRejected: As `exclude_other_overwrites`.
        """
        if not self._streaming or self._options.job is not None:
            logs = self.folder.logs(self._options.epoch_logs, self._options.storage)
            exclude_other_overwrites(epoch, self.folder.meta(epoch.query), logs)
            return self.folder.visible()
        return (name for name, _ in self._files_of(epoch.query))

    def verify_adoption(self, query: str, epoch: int) -> None:
        """Operator: check that no file has the number of a later epoch in its name.

        Readers would take the new epochs of such a number for ones that they have read.
        """
        newest = max((file.epoch for _, file in self._files_of(query)), default=-1)
        if newest > epoch:
            raise LogError(
                f"{self.folder} has files of epoch {newest} of query {query}, and epochs after "
                f"{epoch} would be written under numbers that are taken: streams that follow "
                "the folder would skip them. Two ways on: move the files of these epochs out "
                f"of the folder ({_names_of(query, epoch + 1)} and later), after 'krishiv-spark "
                "log resolve', so that their rows are written again (a query that follows the "
                "folder and has read them skips these rows); or start with a new checkpoint, "
                "whose sources begin where the newest epoch ended, or at the position of this "
                "checkpoint if duplicate rows are acceptable"
            )

    def plan_replay(self, replay: Replay) -> list[str]:
        """Operator: describe the files to move, by epoch.

        Raises:
            OptionError: If a later epoch has files behind a link, which would stay; or one that the
                store cannot move.
        """
        self._check_links(replay)
        later = self._files_after(replay)
        self.folder.check_movable([name for name, _ in later])
        if not later:
            return [f"krishiv-parquet {self.folder}: no file of epoch {replay.first} or later"]
        epochs = sorted({file.epoch for _, file in later})
        moved = (
            f"krishiv-parquet {self.folder}: {len(later)} files of epochs {epochs[0]} to "
            f"{epochs[-1]} move to {self.folder}/{replayed_within(replay.query, replay.name)}, "
            "which no reader lists; they remain there until you delete them"
        )
        followers = (
            f"streams of krishiv-parquet that follow {self.folder} and have read epoch "
            f"{replay.first} or later SKIP the new rows, whose epochs have the same numbers: "
            "stop these streams first, and replay each of them from its first epoch with such "
            "rows"
        )
        found = [moved, followers, *self._lines_of_others(later)]
        if len(later) == sum(1 for _ in self._files_of(replay.query)):
            found.append(_EMPTY)
        return found

    def _check_links(self, replay: Replay) -> None:
        """Check that no folder behind a link has files of later epochs: readers see them."""
        for link in self.folder.links():  # on a disk
            for path in visible_files(Path(f"{self.folder}/{link}")):
                if self._is_later(path.name, replay):
                    raise OptionError(
                        f"krishiv-parquet {self.folder}: {link} is a link to a folder, in which "
                        f"{path.name} is of epoch {replay.first} or later. Readers read that "
                        "file, and files behind a link are not moved, so its rows would be "
                        "there TWICE. Nothing was changed: make the link a plain folder, or "
                        "replay from a later epoch"
                    )

    def _lines_of_others(self, later: Sequence[tuple[str, DataFile]]) -> Iterator[str]:
        """Yield notes about rows of later epochs that may be in other files."""
        epochs = {file.epoch: file.total for _, file in later}
        missing = sum(epochs.values()) - sum(1 for _, file in later if file.total)
        others = sum(DataFile.parse(_name_of(path)) is None for path in self.folder.visible())
        if missing > 0:
            yield f"{missing} files of these epochs are no longer in {self.folder}"
        if others:
            yield (
                f"{others} files in {self.folder} were written by other programs, and remain: "
                "if one of them has rows of these epochs, as after a compaction, these rows "
                "will be there TWICE"
            )

    def _is_later(self, name: str, replay: Replay) -> bool:
        file = DataFile.parse(name)
        is_own = file is not None and file.tag == query_tag(replay.query)
        return is_own and file is not None and file.epoch >= replay.first

    def take_back(self, replay: Replay) -> None:
        """Operator: move files of later epochs to a folder that no reader lists.

        The newest epoch first, so that a reader never has an epoch without the one before.
        """
        folder = replayed_within(replay.query, replay.name)
        for name, _ in sorted(self._files_after(replay), key=_newest_first):
            self.folder.move(name, f"{folder}/{name}{REPLAYED_SUFFIX}")

    def _files_after(self, replay: Replay) -> list[tuple[str, DataFile]]:
        return [found for found in self._files_of(replay.query) if found[1].epoch >= replay.first]

    def _files_of(self, query: str) -> Iterator[tuple[str, DataFile]]:
        """Yield the visible files that a query has written, with relative paths."""
        tag = query_tag(query)
        for name in self.folder.visible():
            file = DataFile.parse(_name_of(name))
            if file is not None and file.tag == tag:
                yield name, file


def _names_of(query: str, epoch: int) -> str:
    """Return the form of the names of an epoch's files, with stars."""
    return f"part-{epoch:010d}-*-{query_tag(query)}-*.parquet"


def _name_of(path: str) -> str:
    return path.rpartition("/")[2]


def _newest_first(found: tuple[str, DataFile]) -> tuple[int, str]:
    name, file = found
    return -file.epoch, name


# --- overwrites at the same time
#
# The intent of an overwrite names the visible files that it replaces. Rows that another overwrite
# commits after they were listed would stay, which no order of the two jobs gives.
#
# So each overwrite puts a mark into its folder in ``_krishiv`` before it lists the files, and then
# reads the marks of the others. Of two, at least one finds the mark of the other. If the other has
# no intent yet, this one takes its log over, and it can commit no more: neither does a job that
# died after its mark block others. If it has one, its files must be visible before they are listed.

_MARK = "overwrites"
"""File in the folder of a query or job: the generation that overwrites the table."""


def exclude_other_overwrites(epoch: Epoch, own: Folder, logs: Iterable[QueryLog]) -> None:
    """Ensure that no other overwrite commits rows that this one does not replace. Committer.

    To be called before the files of the table are listed.

    Args:
        epoch: The epoch that overwrites the table.
        own: The folder of its query in ``_krishiv``.
        logs: The logs of the table, its own included; read after the own mark is written.

    Raises:
        CommitRejected: If another overwrite has an intent, and not all of it is visible.
        LogError: If the log of another overwrite is damaged, or may not be read.
    """
    own.replace(_MARK, str(epoch.generation).encode())
    for log in logs:
        mark = None if log.query == epoch.query else read_text(log.own, _MARK)
        if mark is not None:
            _exclude(epoch, log, mark)


def _exclude(epoch: Epoch, other: QueryLog, mark: str) -> None:
    def check(state: State) -> None:
        """Raise `_Harmless` if the job cannot commit any more."""
        if state.intent is not None and str(state.intent_generation) == mark:
            if other.is_unfinished(state):
                raise CommitRejected(
                    f"epoch {epoch.number} of {epoch.query}: {other.query} overwrites "
                    f"{other.table_url} at the same time, and its rows are not all visible yet, so "
                    "they could not be replaced. Nothing of this job is visible: run it again "
                    "when the other one has ended"
                )
            raise _Harmless
        if str(state.owner) != mark:
            raise _Harmless

    state = other.log.state()
    try:
        check(state)
        other.log.begin(operators_claim(other.query, state), check)
    except _Harmless:
        return


class _Harmless(Exception):  # noqa: N818  it is no error
    """An overwrite that has ended, or that another driver has excluded."""
