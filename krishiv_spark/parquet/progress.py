"""What the epoch logs in a table's folder tell of its epochs."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from krishiv_spark.durable import exists, is_folder
from krishiv_spark.errors import LogError, StorageError
from krishiv_spark.offsets import EpochLog, State, open_log
from krishiv_spark.offsets.entries import Entry
from krishiv_spark.offsets.journal import open_journal
from krishiv_spark.offsets.planned import whole_query
from krishiv_spark.parquet.identity import Pointer, has_pointer, read_pointer
from krishiv_spark.parquet.layout import META, log_folder, log_within, staged_folder
from krishiv_spark.runtime.once import warn_once
from krishiv_spark.storage import ENVIRONMENT, Folder, Storage, StoreUrl
from krishiv_spark.storage.disk import DiskFolder
from krishiv_spark.storage.no_links import is_link, list_folder, open_folder
from krishiv_spark.storage.paths import check_file_name, check_name_within

__all__ = ["QueryLog", "TableLog", "query_folders", "table_logs"]

_log = logging.getLogger(__name__)


class QueryLog(ABC):
    """The epoch log of one query that writes a table.

    Attributes:
        query: Id of the query.
        epoch_logs: What options ``epochLog`` of this process name: a log there is read, whatever
            store it is in.
        storage: How stores are reached.
    """

    query: str
    epoch_logs: tuple[str, ...]
    storage: Storage

    @property
    @abstractmethod
    def own(self) -> Folder:
        """What the query keeps in the table's folder."""

    @cached_property
    def pointer(self) -> Pointer | None:
        """Where the log is, if it is not in the table's folder."""
        return read_pointer(self.own)

    @property
    @abstractmethod
    def table_url(self) -> StoreUrl:
        """The table's folder."""

    @property
    def log(self) -> EpochLog:
        """The log itself.

        Raises:
            LogError: If it is in another store than the table, and no option of this process names
                it (`is_followed`).
        """
        whole = whole_query(self.query, self.route)
        if self.pointer is None:
            near = self.table_url / log_within(self.query)
            return open_log(str(near), whole, self.storage)
        if not self.is_followed:
            raise LogError(self._not_followed(self.pointer))
        # Not the log that this process may have open for the query itself: what is found out here
        # about an intent is about this table, and a pointer may have been written by anybody.
        return _pointed_log(str(self.table_url), self.pointer.location, whole, self.storage)

    @property
    def is_followed(self) -> bool:
        """Return True if the log is in the table's store, or named by an option of this process."""
        pointer = self.pointer
        return pointer is None or pointer.is_followed(self.table_url, self.query, self.epoch_logs)

    def may_be_finished(self) -> bool:
        """Return True if a writer of the table may finish what the query has published. Driver.

        Not if that is a part of a fanout's epoch, which its own participant finishes with all
        others. If the log is not followed, a warning says so, once in a process.
        """
        try:
            is_followed = self.is_followed
        except (LogError, StorageError) as error:
            warn_once(_log, str(error), "%s", error)
            return False
        if not is_followed:
            self._warn_not_followed()
        return is_followed and self.route is None

    def _warn_not_followed(self) -> None:
        pointer = self.pointer
        if pointer is not None:
            about = (str(self.table_url), self.query, pointer)
            warn_once(_log, about, "%s", self._not_followed(pointer))

    def _not_followed(self, pointer: Pointer) -> str:
        return (
            f"{self.own}/epoch-log names {pointer.location[:_SHOWN]!r}, in another store than the "
            f"table, as the epoch log of {self.query}. It is not read: another user who may write "
            "the folder may have written that. What the query has staged is left alone, and an "
            "epoch that it has published is not finished here. If the location is right, give it "
            "by the option 'epochLog', or --epoch-log"
        )

    @property
    def route(self) -> str | None:
        """The part of the log's epochs that goes into the table; None if all of them do."""
        return None if self.pointer is None else self.pointer.route

    @abstractmethod
    def near_state(self) -> State | None:
        """What the log says, if a reader may look into it; it may have no keys for where it is."""

    @abstractmethod
    def unfinished(self, state: State) -> bool:
        """Whether the newest intent may be half visible."""

    @abstractmethod
    def is_staging(self) -> bool:
        """Whether files may be staged that are still to be published."""

    def judging_state(self) -> State | None:
        """What the log says; None if it is elsewhere, and cannot be found from here. Vacuum.

        A log that is elsewhere has an entry before anything is staged. So an empty one is not
        mounted here, or was removed, and nobody can say which files its intent names.
        """
        if not self.is_followed:
            self._warn_not_followed()
            return None
        state = self.log.state()
        if state.number > 0 or self.pointer is None:
            return state
        _log.warning(
            "%s: nothing is found at %s, where its epoch log is: what it has staged is left alone",
            self.query,
            self.pointer.location,
        )
        return None

    def visible(self, state: State) -> int:
        """The newest wholly visible epoch; those above may be half visible. -1 for none."""
        held = state.previous_epoch if self.unfinished(state) else state.committed_epoch
        return -1 if held is None else held

    def published(self, after: int, until: int) -> dict[int, set[str]]:
        """The files of epochs by their intents, relative to the table, as far as the log goes back.

        Epochs whose files another has taken the place of are left out.

        Args:
            after: The newest epoch that is of no interest.
            until: The newest one that is; there is an intent of it, or of one before.
        """
        found: dict[int, set[str]] = {}
        removed: set[str] = set()
        voided: set[int | None] = set()
        # The newest first: whether an intent counts is said by the void, the adoption or the
        # replacement after it.
        for entry in self.log.iter_newest_first():
            if entry.kind == "adopted":
                break  # an operator has said what the target holds, whatever stands before
            if entry.kind == "void":
                voided.add(entry.epoch)
            elif entry.kind == "intent" and entry.epoch is not None:
                if entry.epoch <= after:
                    break
                if entry.epoch not in voided and entry.epoch <= until:
                    found[entry.epoch] = self.files_of(entry)
                removed |= self.removed_by(entry)
                voided.discard(entry.epoch)
        return {epoch: files for epoch, files in found.items() if not files & removed}

    def files_of(self, intent: Entry) -> set[str]:
        """The files that an intent makes visible, relative to the table.

        Raises:
            LogError: If it names something that is no file below the table.
        """
        with self._refusing_damage(intent):
            return {
                _path_of(file["folder"], file["name"])
                for item in self.staged_by(intent)  # see `StagedFiles` and `StagedParts`
                for file in item.get("files", ())
            }

    def removed_by(self, intent: Entry | None) -> set[str]:
        """The files that an intent takes the place of, relative to the table.

        Raises:
            LogError: As `files_of`.
        """
        if intent is None:
            return set()
        with self._refusing_damage(intent):
            return {
                check_name_within(name)
                for item in self.staged_by(intent)
                for name in item.get("removes", ())
            }

    @contextmanager
    def _refusing_damage(self, intent: Entry) -> Iterator[None]:
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise LogError(
                f"the intent of epoch {intent.epoch} in the epoch log of {self.query} names "
                f"something that is not a file of table {self.table_url}: {error}. The log is "
                "damaged, or was not written by krishiv-spark; nothing was read or changed "
                f"because of it. Put it back from a copy, or remove {self.own} if it belongs to "
                "none of your queries"
            ) from error

    def staged_by(self, intent: Entry) -> Iterable[Mapping[str, Any]]:
        """What an intent names of this table, as JSON."""
        staged: list[Mapping[str, Any]] = intent.staged
        if self.route is None:
            return staged
        return (part for item in staged for part in item["parts"].get(self.route, ()))


_SHOWN = 200


def _path_of(folder: str, name: str) -> str:
    file = check_file_name(name)
    return f"{check_name_within(folder)}/{file}" if folder else file


@lru_cache(maxsize=64)
def _pointed_log(table: str, location: str, query: str, storage: Storage) -> EpochLog:
    del table  # it tells apart the logs that pointers in two tables name
    return EpochLog(open_journal(location, storage), query=query)


@dataclass(frozen=True)
class TableLog(QueryLog):
    """The epoch log that one query keeps in a table's folder on a disk."""

    table: Path
    query: str
    epoch_logs: tuple[str, ...] = ()
    storage: Storage = ENVIRONMENT

    @property
    def folder(self) -> Path:
        """Where the query keeps its log and what it stages."""
        return self.table / META / self.query

    @property
    def table_url(self) -> StoreUrl:
        """See `QueryLog`."""
        return StoreUrl("disk", "file", "", str(self.table))

    @property
    def is_near(self) -> bool:
        """Whether a reader may look into the log. It may be another user's, and private."""
        try:
            return os.path.isabs(self._place) and self.is_followed and is_folder(self._place)
        except PermissionError:
            return False

    @property
    def own(self) -> Folder:
        """See `QueryLog`."""
        return DiskFolder(self.folder)

    @property
    def _place(self) -> str:
        near = str(log_folder(self.table, self.query))
        return near if self.pointer is None else self.pointer.location

    def near_state(self) -> State | None:
        """See `QueryLog`."""
        try:
            return self.log.state() if self.is_near else None
        except PermissionError:
            return None

    def unfinished(self, state: State) -> bool:
        """See `QueryLog`. The staged folder is removed last."""
        staged = staged_folder(self.table, self.query, state.intent_generation)
        return state.intent is not None and exists(staged)

    def is_staging(self) -> bool:
        """See `QueryLog`."""
        return any(map(str.isdecimal, list_folder(self.table, f"{META}/{self.query}/staged")))


def table_logs(
    table: Path,
    prefix: str = "",
    epoch_logs: tuple[str, ...] = (),
    storage: Storage = ENVIRONMENT,
) -> Iterator[TableLog]:
    """Yield the log of every query that writes into a table's folder, and whose id begins so.

    Args:
        table: Folder of the table.
        prefix: How the ids begin.
        epoch_logs: As for `QueryLog`.
        storage: Likewise.

    Raises:
        LinkError: If ``_krishiv`` is a link. Links in it are skipped.
    """
    try:
        names = query_folders(table)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        if name.startswith(prefix) and (
            is_folder(log_folder(table, name)) or has_pointer(DiskFolder(table / META / name))
        ):
            yield TableLog(table, name, epoch_logs, storage)


def query_folders(table: Path) -> list[str]:
    """Return the names of the folders that queries have in a table's folder; links are none.

    Raises:
        FileNotFoundError, NotADirectoryError: If the table has no ``_krishiv``.
        LinkError: If that is a link.
    """
    with open_folder(table, META) as meta:
        return [name for name in os.listdir(meta) if not is_link(meta, name)]
