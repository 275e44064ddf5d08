"""Tables of this project's sink among the files of a place. Driver.

A file of the sink says which query and epoch wrote it, and lies in a table's folder or in partition
folders below it. So tables are found from their files, also below a glob or in a recursive read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from krishiv_spark.parquet.layout import META
from krishiv_spark.parquet.names import query_tag
from krishiv_spark.parquet.progress import QueryLog, TableLog, query_folders
from krishiv_spark.parquet.store_progress import StoreTableLog
from krishiv_spark.sources.parquet.places import Place
from krishiv_spark.spark.checkpoint import BATCH_PREFIX
from krishiv_spark.storage import ENVIRONMENT, Storage, StoreUrl

__all__ = ["SinkTable", "TableQuery", "Tables"]


@dataclass(frozen=True)
class TableQuery:
    """A query or batch job that writes a table, as its folder in ``_krishiv`` showed it.

    Attributes:
        log: Its epoch log, which may be elsewhere.
        visible: The newest wholly visible epoch, -1 for none; None if the log is not near.
        staging: Whether files may be staged that are still to be published.
    """

    log: QueryLog
    visible: int | None
    staging: bool

    @property
    def is_job(self) -> bool:
        """Whether it is a batch job, whose only epoch is 0."""
        return self.log.query.startswith(BATCH_PREFIX)


@dataclass(frozen=True)
class SinkTable:
    """A table at one moment.

    Attributes:
        root: Folder of the table, as a path or URL.
        prefix: The same, relative to the place, ending in "/"; empty for the place itself, None
            where the table reaches beyond it.
        queries: Who writes it, by tag.
        replaced: Files that go, or are gone, since others take their place; relative to the table.
    """

    root: str
    prefix: str | None
    queries: Mapping[str, TableQuery]
    replaced: frozenset[str]

    @classmethod
    def look(
        cls, root: str, prefix: str | None, storage: Storage = ENVIRONMENT
    ) -> SinkTable | None:
        """A table as it is now; None if it is none of ours, or only a copy of some of its files."""
        logs = _logs(root, storage)
        if logs is None:
            return None
        queries: dict[str, TableQuery] = {}
        replaced: set[str] = set()
        for log in logs:
            state = log.near_state()
            visible = None if state is None else log.visible(state)
            replaced |= set() if state is None else log.removed_by(state.intent)
            queries[query_tag(log.query)] = TableQuery(log, visible, log.is_staging())
        return cls(root, prefix, queries, frozenset(replaced))

    def key(self, tag: str) -> str | None:
        """Under what an offset remembers the epochs of a query; None if it does not.

        Not those of a batch job, since there may be any number of them, nor those of a table that
        reaches beyond the place.
        """
        query = self.queries.get(tag)
        if self.prefix is None or query is None or query.visible is None or query.is_job:
            return None
        return f"{self.prefix}{tag}"

    def inside(self, path: str) -> str:
        """A path of the place, relative to the table."""
        return path.removeprefix(self.prefix or "")


def _logs(root: str, storage: Storage) -> Sequence[QueryLog] | None:
    """The logs of all queries that write a table; None if nothing there is ours."""
    url = StoreUrl.parse(root)
    if url.kind != "disk":
        names = storage.folder(url / META).names()
        return [StoreTableLog(url, name, storage) for name in names] or None
    try:
        return [TableLog(Path(root), name) for name in query_folders(Path(root))]
    except (FileNotFoundError, NotADirectoryError):
        return None


class Tables:
    """The tables of a place, as far as files of theirs were found.

    Args:
        place: Where files are looked for.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._roots = {self.root_of("x")}  # of a file right in the place

    def add(self, paths: Iterable[str]) -> bool:
        """Note the tables of some files of our sink; whether one of them is new."""
        found = {self.root_of(path) for path in paths} - self._roots
        self._roots |= found
        return bool(found)

    def look(self) -> dict[str, SinkTable]:
        """What is known of each of them now."""
        storage = self._place.storage
        found = (SinkTable.look(root, self.prefix(root), storage) for root in self._roots)
        return {table.root: table for table in found if table is not None}

    def prefix(self, root: str) -> str | None:
        """See `SinkTable`."""
        if root == self._place.root:
            return ""
        above = self._place.root.rstrip("/") + "/"
        return f"{root.removeprefix(above)}/" if root.startswith(above) else None

    def root_of(self, path: str) -> str:
        """The table's folder that a file of our sink would have by its path."""
        folder = os.path.dirname(self._place.absolute(path))
        while "=" in os.path.basename(folder):
            folder = os.path.dirname(folder)
        return folder
