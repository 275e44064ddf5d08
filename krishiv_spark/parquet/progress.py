"""What the epoch logs in a table's folder tell of its epochs."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from krishiv_spark.durable import exists, is_folder
from krishiv_spark.offsets import EpochLog, State, open_log
from krishiv_spark.offsets.entries import Entry
from krishiv_spark.parquet.identity import Pointer, read_pointer
from krishiv_spark.parquet.layout import META, log_folder, staged_folder
from krishiv_spark.routes import whole_query
from krishiv_spark.storage import Folder
from krishiv_spark.storage.disk import DiskFolder

__all__ = ["QueryLog", "TableLog", "table_logs"]

_log = logging.getLogger(__name__)


class QueryLog(ABC):
    """The epoch log of one query that writes a table."""

    query: str

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
    def log(self) -> EpochLog:
        """The log itself, wherever it is."""

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
        for entry in self.log.backwards():
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
        """The files that an intent makes visible, relative to the table."""
        return {
            f"{file['folder']}/{file['name']}" if file["folder"] else file["name"]
            for item in self.staged_by(intent)  # see `StagedFiles` and `StagedParts`
            for file in item.get("files", ())
        }

    def removed_by(self, intent: Entry | None) -> set[str]:
        """The files that an intent takes the place of, relative to the table."""
        staged = () if intent is None else self.staged_by(intent)
        return {name for item in staged for name in item.get("removes", ())}

    def staged_by(self, intent: Entry) -> Iterable[Mapping[str, Any]]:
        """What an intent names of this table, as JSON."""
        staged: list[Mapping[str, Any]] = intent.staged
        if self.route is None:
            return staged
        return (part for item in staged for part in item["parts"].get(self.route, ()))


@dataclass(frozen=True)
class TableLog(QueryLog):
    """The epoch log that one query keeps in a table's folder on a disk."""

    table: Path
    query: str

    @property
    def folder(self) -> Path:
        """Where the query keeps its log and what it stages."""
        return self.table / META / self.query

    @property
    def log(self) -> EpochLog:
        """See `QueryLog`."""
        return open_log(self._place, whole_query(self.query, self.route))

    @property
    def is_near(self) -> bool:
        """Whether a reader may look into the log."""
        return os.path.isabs(self._place) and is_folder(self._place)

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
        return self.log.state() if self.is_near else None

    def unfinished(self, state: State) -> bool:
        """See `QueryLog`. The staged folder is removed last."""
        staged = staged_folder(self.table, self.query, state.intent_generation)
        return state.intent is not None and exists(staged)

    def is_staging(self) -> bool:
        """See `QueryLog`."""
        try:
            return any(name.isdecimal() for name in os.listdir(self.folder / "staged"))
        except (FileNotFoundError, NotADirectoryError):
            return False


def table_logs(table: Path, prefix: str = "") -> Iterator[TableLog]:
    """The log of every query that writes into a table's folder, and whose id begins so."""
    try:
        names = os.listdir(f"{table}/{META}")
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        if name.startswith(prefix) and (
            is_folder(log_folder(table, name))
            or read_pointer(DiskFolder(table / META / name)) is not None
        ):
            yield TableLog(table, name)
