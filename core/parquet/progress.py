"""Which epochs of a table are wholly visible, and which logs belong to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from krishiv_spark.durable import exists, is_folder
from krishiv_spark.offsets import EpochLog, State, open_log
from krishiv_spark.parquet.identity import read_pointer
from krishiv_spark.parquet.layout import META, log_folder, staged_folder
from krishiv_spark.parquet.names import query_tag

__all__ = ["TableLog", "table_logs", "visible_epochs"]


@dataclass(frozen=True)
class TableLog:
    """The epoch log that one query keeps in a table's folder."""

    table: Path
    query: str

    @property
    def folder(self) -> Path:
        """Where the query keeps its log and what it stages."""
        return self.table / META / self.query

    @property
    def log(self) -> EpochLog:
        """The log itself, wherever it is."""
        elsewhere = read_pointer(self.table, self.query)
        return open_log(elsewhere or str(log_folder(self.table, self.query)), self.query)

    def unfinished(self, state: State) -> bool:
        """Whether the newest intent may be half visible: its staged folder is removed last."""
        staged = staged_folder(self.table, self.query, state.intent_generation)
        return state.intent is not None and exists(staged)


def table_logs(table: Path) -> Iterator[TableLog]:
    """The log of every query that writes into a table's folder."""
    try:
        names = os.listdir(table / META)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        if is_folder(log_folder(table, name)) or read_pointer(table, name) is not None:
            yield TableLog(table, name)


def visible_epochs(table: Path) -> dict[str, int]:
    """The newest wholly visible epoch of each query that writes a table, by its tag.

    Epochs above it may be half visible or unknown and must be left for later; -1 when there is
    none. A query without an entry (it was a batch job that is over, its log was removed, or the
    files were copied here) has nothing to wait for.
    """
    return {query_tag(entry.query): _visible(entry) for entry in table_logs(table)}


def _visible(entry: TableLog) -> int:
    state = entry.log.state()
    held = state.held_before if entry.unfinished(state) else state.held
    return -1 if held is None else held
