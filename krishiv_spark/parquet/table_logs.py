"""The epoch logs of a table's queries, and the visible epochs and files that they record.

On a disk, the absence of a generation's staged folder shows that its epoch is wholly visible. A
store has no such folder. The process that makes an epoch visible there writes a marker when it is
done; without one, the files of the epoch, and those that it replaces, show it.
"""

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
from krishiv_spark.parquet.layout import META, log_folder, log_within, staged_folder
from krishiv_spark.parquet.table_identity import Pointer, has_pointer, read_pointer, read_text
from krishiv_spark.runtime.once import warn_once
from krishiv_spark.storage import ENVIRONMENT, Folder, Storage, StoreUrl
from krishiv_spark.storage.disk import DiskFolder
from krishiv_spark.storage.no_links import is_link, list_folder, open_folder
from krishiv_spark.storage.paths import check_file_name, check_name_within

__all__ = ["QueryLog", "StoreTableLog", "TableLog", "find_table_logs", "list_query_folders"]

_log = logging.getLogger(__name__)


class QueryLog(ABC):
    """The epoch log of one query that writes a table.

    Attributes:
        query: Id of the query.
        epoch_logs: Values of the options ``epochLog`` of this process: a log there is read, in any
            store.
        storage: Access to stores.
    """

    query: str
    epoch_logs: tuple[str, ...]
    storage: Storage

    @property
    @abstractmethod
    def own(self) -> Folder:
        """The query's folder in the table's folder."""

    @cached_property
    def pointer(self) -> Pointer | None:
        """The location of the log; None if it is in the table's folder."""
        return read_pointer(self.own)

    @property
    @abstractmethod
    def table_url(self) -> StoreUrl:
        """The table's folder."""

    @property
    def log(self) -> EpochLog:
        """The log.

        Raises:
            LogError: If it is in another store than the table, and no option of this process names
                it (`is_followed`).
        """
        whole = whole_query(self.query, self.route)
        if self.pointer is None:
            near = self.table_url / log_within(self.query)
            return open_log(str(near), whole, self.storage)
        if not self.is_followed:
            raise LogError(self._describe_not_followed(self.pointer))
        # Not the log object that this process may have open for the query: the facts about an
        # intent that this one caches are about this table, and any user may write a pointer.
        return _open_pointed_log(str(self.table_url), self.pointer.location, whole, self.storage)

    @property
    def is_followed(self) -> bool:
        """Return True if the log is in the table's store, or named by an option of this process."""
        pointer = self.pointer
        return pointer is None or pointer.is_followed(self.table_url, self.query, self.epoch_logs)

    def may_be_finished(self) -> bool:
        """Return True if a writer of the table may finish the published epoch. Driver.

        Return False if that is a part of a fanout's epoch, which its own participant finishes with
        all others. If the log is not followed, log a warning, once in a process.
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
            warn_once(_log, about, "%s", self._describe_not_followed(pointer))

    def _describe_not_followed(self, pointer: Pointer) -> str:
        return (
            f"{self.own}/epoch-log names {pointer.location[:_SHOWN]!r}, in another store than the "
            f"table, as the epoch log of {self.query}. It is not read: another user who may write "
            "the folder may have written that. Staged data of the query is not deleted, and an "
            "epoch that it has published is not completed here. If the location is right, give it "
            "by the option 'epochLog', or --epoch-log"
        )

    @property
    def route(self) -> str | None:
        """The part of the log's epochs that goes into the table; None if all of them do."""
        return None if self.pointer is None else self.pointer.route

    @abstractmethod
    def near_state(self) -> State | None:
        """Return the state of the log, if a reader may read it; the reader may lack credentials."""

    @abstractmethod
    def is_unfinished(self, state: State) -> bool:
        """Return True if the newest intent may be half visible."""

    @abstractmethod
    def is_staging(self) -> bool:
        """Return True if staged files may exist that are to be published."""

    def state_for_vacuum(self) -> State | None:
        """Return the state of the log; None if it is in another location and cannot be found.

        A log in another location has an entry before anything is staged. So an empty one is not
        mounted here, or was removed, and the files that its intent names are unknown.
        """
        if not self.is_followed:
            self._warn_not_followed()
            return None
        state = self.log.state()
        if state.number > 0 or self.pointer is None:
            return state
        _log.warning(
            "%s: its epoch log is missing at %s: its staged data is not deleted",
            self.query,
            self.pointer.location,
        )
        return None

    def visible(self, state: State) -> int:
        """Return the newest wholly visible epoch, -1 for none; later ones may be half visible."""
        visible = state.previous_epoch if self.is_unfinished(state) else state.committed_epoch
        return -1 if visible is None else visible

    def published_files(self, after: int, until: int) -> dict[int, set[str]]:
        """Return the files of epochs by their intents, relative to the table.

        The log may not go back to the first of these epochs. Epochs whose files another epoch has
        replaced are left out.

        Args:
            after: The epoch before the first one.
            until: The last epoch; there is an intent of it, or of one before.
        """
        found: dict[int, set[str]] = {}
        removed: set[str] = set()
        voided: set[int | None] = set()
        # The newest first: a void, an adoption or a replacement after an intent decides whether it
        # counts.
        for entry in self.log.iter_newest_first():
            if entry.kind == "adopted":
                break  # an operator has declared the content of the target
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
        """Return the files that an intent makes visible, relative to the table.

        Raises:
            LogError: If it names something that is not a file below the table.
        """
        with self._damage_as_log_error(intent):
            return {
                _file_path(file["folder"], file["name"])
                for item in self.staged_by(intent)  # see `StagedFiles` and `StagedParts`
                for file in item.get("files", ())
            }

    def removed_by(self, intent: Entry | None) -> set[str]:
        """Return the files that an intent replaces, relative to the table.

        Raises:
            LogError: As `files_of`.
        """
        if intent is None:
            return set()
        with self._damage_as_log_error(intent):
            return {
                check_name_within(name)
                for item in self.staged_by(intent)
                for name in item.get("removes", ())
            }

    @contextmanager
    def _damage_as_log_error(self, intent: Entry) -> Iterator[None]:
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
        """Return the staged items of this table in an intent, as JSON."""
        staged: list[Mapping[str, Any]] = intent.staged
        if self.route is None:
            return staged
        return (part for item in staged for part in item["parts"].get(self.route, ()))


_SHOWN = 200


def _file_path(folder: str, name: str) -> str:
    file = check_file_name(name)
    return f"{check_name_within(folder)}/{file}" if folder else file


@lru_cache(maxsize=64)
def _open_pointed_log(table: str, location: str, query: str, storage: Storage) -> EpochLog:
    del table  # a separate log for each table whose pointer names it
    return EpochLog(open_journal(location, storage), query=query)


@dataclass(frozen=True)
class TableLog(QueryLog):
    """The epoch log of one query that writes a table on a disk."""

    table: Path
    query: str
    epoch_logs: tuple[str, ...] = ()
    storage: Storage = ENVIRONMENT

    @property
    def folder(self) -> Path:
        """The query's folder, with its log and its staged files."""
        return self.table / META / self.query

    @property
    def table_url(self) -> StoreUrl:
        """The table's folder."""
        return StoreUrl("disk", "file", "", str(self.table))

    @property
    def is_near(self) -> bool:
        """Return True if a reader may read the log. It may be another user's, and private."""
        try:
            return os.path.isabs(self._location) and self.is_followed and is_folder(self._location)
        except PermissionError:
            return False

    @property
    def own(self) -> Folder:
        """The query's folder in the table's folder."""
        return DiskFolder(self.folder)

    @property
    def _location(self) -> str:
        near = str(log_folder(self.table, self.query))
        return near if self.pointer is None else self.pointer.location

    def near_state(self) -> State | None:
        """Return the state of the log, if a reader may read it."""
        try:
            return self.log.state() if self.is_near else None
        except PermissionError:
            return None

    def is_unfinished(self, state: State) -> bool:
        """Return True if the staged folder exists, which is removed last."""
        staged = staged_folder(self.table, self.query, state.intent_generation)
        return state.intent is not None and exists(staged)

    def is_staging(self) -> bool:
        """Return True if a folder for staged files exists."""
        return any(map(str.isdecimal, list_folder(self.table, f"{META}/{self.query}/staged")))


def find_table_logs(
    table: Path,
    prefix: str = "",
    epoch_logs: tuple[str, ...] = (),
    storage: Storage = ENVIRONMENT,
) -> Iterator[TableLog]:
    """Yield the logs of the queries that write into a table's folder.

    Args:
        table: Folder of the table.
        prefix: Only queries whose ids start with this.
        epoch_logs: As for `QueryLog`.
        storage: Likewise.

    Raises:
        LinkError: If ``_krishiv`` is a link. Links in it are skipped.
    """
    try:
        names = list_query_folders(table)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        if name.startswith(prefix) and (
            is_folder(log_folder(table, name)) or has_pointer(DiskFolder(table / META / name))
        ):
            yield TableLog(table, name, epoch_logs, storage)


def list_query_folders(table: Path) -> list[str]:
    """Return the names of the queries' folders in a table's folder, without links.

    Raises:
        FileNotFoundError, NotADirectoryError: If the table has no ``_krishiv``.
        LinkError: If that is a link.
    """
    with open_folder(table, META) as meta:
        return [name for name in os.listdir(meta) if not is_link(meta, name)]


# --- in a store

_FINISHED = "finished"
"""Marker file in the folder of a query: the last generation whose intent is wholly visible."""

_MOST_DIGITS = 20
"""Maximum length of the number of an entry, and so of a generation."""

_visible_intents: dict[tuple[StoreUrl, str], Entry] = {}
"""By table and query, the newest intent that this process has found wholly visible."""


@dataclass(frozen=True)
class StoreTableLog(QueryLog):
    """The epoch log of one query that writes a table in a store.

    Attributes:
        table: Folder of the table.
        query: Id of the query.
        storage: Access to the store.
        epoch_logs: As for `QueryLog`.
    """

    table: StoreUrl
    query: str
    storage: Storage
    epoch_logs: tuple[str, ...] = ()

    @property
    def table_url(self) -> StoreUrl:
        """The table's folder."""
        return self.table

    @property
    def own(self) -> Folder:
        """The query's folder in the table's folder."""
        return self.storage.folder(self.table / META / self.query)

    def is_finished(self, generation: int) -> bool:
        """Return True if the marker shows that the intent of a generation is wholly visible."""
        finished = self.finished_generation()
        return finished is not None and finished >= generation

    def finished_generation(self) -> int | None:
        """Return the generation in the marker; None without a marker. A request.

        Raises:
            LogError: If the marker is damaged.
        """
        marker = read_text(self.own, _FINISHED)
        if marker is None:
            return None
        if not marker.isdecimal() or len(marker) > _MOST_DIGITS:
            raise LogError(
                f"{self.own}/{_FINISHED} is damaged, or was not written by krishiv-spark: "
                f"{marker[:_MOST_DIGITS]!r} is not the number of a generation. Nothing was "
                "changed. If all files of the newest epoch exist, remove it"
            )
        return int(marker)

    def mark_finished(self, generation: int) -> None:
        """Write the marker: the intent of a generation is wholly visible. Driver."""
        self.own.replace(_FINISHED, str(generation).encode())

    def remove_later_marker(self, generation: int) -> None:
        """Remove a marker of another log, since this generation is the newest. Planner."""
        if self.is_finished(generation):
            self.own.remove([_FINISHED])

    def near_state(self) -> State | None:
        """Return the state of the log, if it is followed. A reader may read its own bucket."""
        if not self.is_followed:
            return None
        state = self.log.state()
        return state if state.owner else None

    def is_unfinished(self, state: State) -> bool:
        """Return True if neither the log, the marker nor the files show the intent as visible."""
        intent, key = state.intent, (self.table, self.query)
        is_logged = (state.finished_intent or 0) >= state.intent_number
        if intent is None or is_logged or _visible_intents.get(key) == intent:
            return False
        is_visible = self.is_finished(state.intent_generation) or self._is_visible(intent)
        if is_visible:
            _visible_intents[key] = intent
        return not is_visible

    def _is_visible(self, intent: Entry) -> bool:
        exist = all(self._check_existence(self.files_of(intent)))
        return exist and not any(self._check_existence(self.removed_by(intent)))

    def _check_existence(self, names: set[str]) -> list[bool]:
        files = self.storage.files(self.table)
        paths = [f"{self.table}/{name}" for name in sorted(names)]
        return [found is not None for found in files.map(files.identity, paths)]

    def uploads_of(self, intent: Entry) -> set[str]:
        """Return the ids of the uploads that an intent names.

        Raises:
            LogError: As `files_of`.
        """
        with self._damage_as_log_error(intent):
            return {
                str(file["upload"]["id"])
                for item in self.staged_by(intent)  # see `StagedUploads`
                for file in item.get("files", ())
            }

    def is_staging(self) -> bool:
        """Return False: staged files of a store are not visible."""
        return False
