"""What the sink asks of a table's folder, wherever it is. Driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from krishiv_spark.errors import LogError, OptionError
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.parquet.identity import Pointer, has_pointer, table_id, write_pointer
from krishiv_spark.parquet.layout import replayed_within, visible_files
from krishiv_spark.parquet.names import REPLAYED_SUFFIX, DataFile, query_tag
from krishiv_spark.sinks.base import Epoch
from krishiv_spark.sinks.parquet.options import ParquetSinkOptions
from krishiv_spark.sinks.parquet.tables import TableFolder
from krishiv_spark.sinks.parquet.values import StagedFiles
from krishiv_spark.sinks.participant import Participant, Replay
from krishiv_spark.spark.checkpoint import BATCH_PREFIX

__all__ = ["TableLogView", "TableParticipant"]

StagedT = TypeVar("StagedT", bound=StagedFiles)

_EMPTY = (
    "these are all rows of the query in the table, as with output mode 'complete', whose "
    "epochs replace each other; the rows return with the first new epoch"
)


class TableLogView(NamedTuple):
    """What there is to know of the log of a table's epochs. Driver.

    Attributes:
        is_owner: Whether the generation of an epoch still owns the query. Asked right before
            something is removed that no intent names, and that may be of a later generation.
        pointer: To the log of a query; None if it is in the table's folder.
    """

    is_owner: Callable[[Epoch], bool]
    pointer: Callable[[str], Pointer | None]


class TableParticipant(Participant[StagedT]):
    """Knows the files that are visible, and whose they are.

    Args:
        folder: Of the table.
        options: Of the sink.
        view: Of the log.
        streaming: Whether epochs follow one another.
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
        """Planner: the table, by an id that lies in its folder; wherever that is mounted."""
        found = table_id(self.folder.meta()) if self._streaming else None
        return None if found is None else f"Parquet table {found}"

    def _point_to_log(self, query: str) -> None:
        """First of all: whoever finds files of a query must find its log."""
        write_pointer(self.folder.meta(query), self._view.pointer(query))

    def _has_begun(self, query: str) -> bool:
        """Return False if a stream whose log is elsewhere has never begun to write to the table.

        A table that was restored from before its first epoch has no pointer to its log either.
        """
        if query.startswith(BATCH_PREFIX) or self._view.pointer(query) is None:
            return True
        return has_pointer(self.folder.meta(query))

    def verify_empty_log(self, query: str) -> None:
        """Planner: a stream without a log must not have files in the table."""
        for name, _ in self._files_of(query):
            raise LogError(
                f"{self.folder}/{name} belongs to this query, but its epoch log is empty: the "
                "log was removed, or the option 'epochLog' has changed; put it back, or use "
                f"{NEW_CHECKPOINT}"
            )

    def replaced(self, epoch: Epoch) -> Iterator[str]:
        """Files that go: of this query's earlier epochs, or all of them for a batch job."""
        if not self._streaming or self._options.job is not None:
            return self.folder.visible()
        return (name for name, _ in self._files_of(epoch.query))

    def verify_adoption(self, query: str, epoch: int) -> None:
        """Operator: the names of files have the numbers of their epochs, by which they are read."""
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
        """Operator: the files that go, by epoch.

        Raises:
            OptionError: If a later epoch has files behind a link, which stay.
        """
        self._check_links(replay)
        later = self._files_after(replay)
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
        """Refuse files of later epochs in folders that a link leads to: readers see them."""
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
        """Yield what the names of files cannot tell: where rows of later epochs are beside them."""
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
        """The visible files that a query has written, relative."""
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
