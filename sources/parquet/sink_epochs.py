"""The epochs of krishiv-spark's Parquet sink at a path, and which of them may be read. Driver.

A file of the sink names the query and epoch that wrote it, and is in a table's folder or in
partition folders below it. So tables are found from their files, also below a glob or in a
recursive read.

An epoch is read when it is complete. Its intent names its files, for as long as the log goes back;
after that the name of each file has the number of files of its epoch. Neither counts where only a
part of a table is read, or where files were copied without ``_krishiv``: the complete set of files
is unknown there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cached_property
from pathlib import Path

from krishiv_spark.errors import LogError, StorageError
from krishiv_spark.parquet.layout import META, DataFile, query_tag
from krishiv_spark.parquet.table_logs import (
    QueryLog,
    StoreTableLog,
    TableLog,
    list_query_folders,
)
from krishiv_spark.sources.parquet.listing import FoundFile, SourcePath, describe_files, scan
from krishiv_spark.sources.parquet.offset import PART_OF_EPOCHS
from krishiv_spark.sources.parquet.unread_files import Origin, ReadUnit, origin_of
from krishiv_spark.spark.checkpoint import BATCH_PREFIX
from krishiv_spark.storage import ENVIRONMENT, Storage, StoreUrl

__all__ = [
    "FilteredListing",
    "MissingFiles",
    "SinkEpochs",
    "SinkTable",
    "TableQuery",
    "UnreadListing",
]


class SinkEpochs:
    """The epochs of the Parquet sink at a path, from listing to listing.

    Args:
        location: The path of the source.
        recursive: See `scan`.
        waits: See `EpochFilter`.
    """

    def __init__(self, location: SourcePath, *, recursive: bool, waits: bool) -> None:
        self._waits = waits
        self._location = location
        self._recursive = recursive
        self._finder = TableFinder(location)
        self._tables: dict[str, SinkTable] = {}
        self._compared: dict[tuple[str, str], int] = {}
        self._whole: AbstractSet[str] = frozenset()

    def refresh(self) -> None:
        """Read the logs of the tables. Before a listing, so that it has all visible epochs."""
        self._tables = self._finder.read_tables()

    def add_tables(self, paths: Iterable[str]) -> bool:
        """Add the tables of listed files; return True if the log of one was not read before."""
        return self._finder.add(path for path in paths if origin_of(path) is not None)

    def visible(self) -> dict[str, int]:
        """Return the newest wholly visible epoch of each query that offsets record by a key.

        Of the tables that the newest listing showed wholly: other epochs were not listed wholly.
        """
        return {
            key: query.visible
            for table in self._tables.values()
            if table.root in self._whole
            for tag, query in table.queries.items()
            if (key := table.key(tag)) is not None and query.visible is not None
        }

    def is_read(self, path: str, read: Mapping[str, int]) -> bool:
        """Return True if a file is of an epoch that was read; `read` is `ParquetOffset.epochs`."""
        source = origin_of(path)
        if source is None:
            return False
        prefix = self._finder.prefix(self._finder.root_of(path))
        return prefix is not None and source.epoch <= read.get(f"{prefix}{source.tag}", -1)

    def was_single(self, path: str) -> bool:
        """Return True if version 1 read a file of the sink singly.

        It knew only the logs in the root of the path.
        """
        source = origin_of(path)
        table = self._tables.get(self._finder.root_of(path))
        if source is None or table is None or table.prefix != "":
            return True
        query = table.queries.get(source.tag)
        return query is None or query.visible is None

    def filter(self, listed: UnreadListing) -> FilteredListing:
        """Decide which files may be read of those that were listed after `refresh`."""
        epochs = EpochFilter(
            self._location,
            self._finder,
            self._tables,
            recursive=self._recursive,
            waits=self._waits,
        )
        found = epochs.decide(listed, self._compared)
        self._whole = epochs.whole
        return found

    def check_present(self, missing: Iterable[MissingFiles]) -> None:
        """Check that missing files are not missing because their whole folder is, such as a mount.

        The log that names the missing files is in the folder as well: if it is missing now, the
        listing is no evidence about files.

        Raises:
            StorageError: If a table of missing files has no log any more.
        """
        roots = {each.root for each in missing}
        if away := sorted(roots - self._finder.read_tables().keys() if roots else ()):
            raise StorageError(
                f"krishiv-parquet: the folder {away[0]} disappeared while files were listed, so "
                "none of its files counts as lost: mount or restore it, and restart the query"
            )

    def reset(self) -> None:
        """Forget which epochs were compared with their intents, since the position has changed."""
        self._compared = {}


# --- tables


@dataclass(frozen=True)
class TableQuery:
    """A query or batch job that writes a table, as its folder in ``_krishiv`` showed it.

    Attributes:
        log: Its epoch log, which may be in another location.
        visible: The newest wholly visible epoch, -1 for none; None if the log is in another
            location.
        staging: True if staged files may exist that are to be published.
    """

    log: QueryLog
    visible: int | None
    staging: bool

    @property
    def is_job(self) -> bool:
        """True if it is a batch job. Its only epoch is 0."""
        return self.log.query.startswith(BATCH_PREFIX)


@dataclass(frozen=True)
class SinkTable:
    """A table at one moment.

    Attributes:
        root: Folder of the table, as a path or URL.
        prefix: The same, relative to the source's path, ending in "/"; empty for the path itself,
            None if the table extends beyond it.
        queries: The queries that write it, by tag.
        replaced: Files that are replaced by others, deleted already or not; relative to the table.
    """

    root: str
    prefix: str | None
    queries: Mapping[str, TableQuery]
    replaced: frozenset[str]

    @classmethod
    def read(
        cls, root: str, prefix: str | None, storage: Storage = ENVIRONMENT
    ) -> SinkTable | None:
        """Read the logs of a table; None if the sink has none there: a copy of some files."""
        logs = _query_logs(root, storage)
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
        """Return the key by which an offset records the epochs of a query; None if it does not.

        An offset does not record those of a batch job, since there may be any number of jobs, nor
        those of a table that extends beyond the path.
        """
        query = self.queries.get(tag)
        if self.prefix is None or query is None or query.visible is None or query.is_job:
            return None
        return f"{self.prefix}{tag}"

    def inside(self, path: str) -> str:
        """Return a path relative to the table, from one relative to the source's path."""
        return path.removeprefix(self.prefix or "")


def _query_logs(root: str, storage: Storage) -> Sequence[QueryLog] | None:
    """Return the logs of all queries that write a table; None if there are none."""
    url = StoreUrl.parse(root)
    if url.kind != "disk":
        names = storage.folder(url / META).names()
        return [StoreTableLog(url, name, storage) for name in names] or None
    try:
        return [TableLog(Path(root), name) for name in list_query_folders(Path(root))]
    except (FileNotFoundError, NotADirectoryError):
        return None


class TableFinder:
    """A finder of the tables at a path, by the files that were listed.

    Args:
        location: The path of the source.
    """

    def __init__(self, location: SourcePath) -> None:
        self._location = location
        self._roots = {self.root_of("x")}  # of a file directly in the root

    def add(self, paths: Iterable[str]) -> bool:
        """Add the tables of some files of the sink; return True if one of them is new."""
        found = {self.root_of(path) for path in paths} - self._roots
        self._roots |= found
        return bool(found)

    def read_tables(self) -> dict[str, SinkTable]:
        """Read the logs of the tables."""
        storage = self._location.storage
        found = (SinkTable.read(root, self.prefix(root), storage) for root in self._roots)
        return {table.root: table for table in found if table is not None}

    def prefix(self, root: str) -> str | None:
        """Return `SinkTable.prefix` of a table."""
        if root == self._location.root:
            return ""
        above = self._location.root.rstrip("/") + "/"
        return f"{root.removeprefix(above)}/" if root.startswith(above) else None

    def root_of(self, path: str) -> str:
        """Return the folder of the table to which a file of the sink belongs by its path."""
        folder = os.path.dirname(self._location.absolute(path))
        while "=" in os.path.basename(folder):
            folder = os.path.dirname(folder)
        return folder


# --- which epochs may be read


@dataclass(frozen=True)
class EpochGroup:
    """The listed files of one epoch of the sink.

    Attributes:
        root: Folder of the table, by the files' paths.
        origin: Query and epoch.
        files: The listed files, in the listing's order.
        total: Number of files of the epoch; 0 if their names do not have it.
    """

    root: str
    origin: Origin
    files: tuple[FoundFile, ...]
    total: int

    @property
    def missing(self) -> int:
        """Number of files that were not listed, by the names of the others."""
        return max(0, self.total - len(self.files))

    def unit(self, key: str | None) -> ReadUnit:
        """Return the unit of all its files."""
        return ReadUnit(tuple(sorted(self.files)), self.origin, key)


def group_by_epoch(files: Iterable[FoundFile], root_of: Callable[[str], str]) -> list[EpochGroup]:
    """Group the files of the sink by table and epoch, epochs ascending.

    Args:
        files: Files; those of other programs are left out.
        root_of: Returns the folder of a file's table, by its path.
    """
    found: dict[tuple[str, Origin], list[FoundFile]] = {}
    totals: dict[tuple[str, Origin], int] = {}
    for file in files:
        name = DataFile.parse(file.path.rpartition("/")[2])
        if name is not None:
            key = root_of(file.path), Origin(name.tag, name.epoch)
            found.setdefault(key, []).append(file)
            totals[key] = max(name.total, totals.get(key, 0))
    return [EpochGroup(*key, tuple(found[key]), totals[key]) for key in sorted(found)]


@dataclass(frozen=True)
class UnreadListing:
    """The unread files of the sink in a listing.

    Attributes:
        files: The files; those of other programs are left out.
        tops: See `Scan`.
        read: See `ParquetOffset.epochs`.
        filter_unread: Returns the paths that were not read.
    """

    files: Iterable[FoundFile]
    tops: Sequence[str]
    read: Mapping[str, int]
    filter_unread: Callable[[list[str]], list[str]]


@dataclass(frozen=True)
class MissingFiles:
    """Missing files of a published epoch.

    Attributes:
        root: Folder of the table.
        origin: Query and epoch.
        count: Number of missing files.
        example: Name of one of them, or the number of files of the epoch.
    """

    root: str
    origin: Origin
    count: int
    example: str

    def __str__(self) -> str:
        return f"{self.count} files of epoch {self.origin.epoch} in {self.root} ({self.example})"


@dataclass
class FilteredListing:
    """The files of the sink in a listing, by what may be done with them.

    Attributes:
        units: Epochs that may be read; those of each query ascend.
        singles: Files to be treated as those of another program.
        missing: Files that should exist and do not.
        unfinished: Files of incomplete epochs whose log is in another location: they may be being
            published, or never become complete.
    """

    units: list[ReadUnit] = field(default_factory=list)
    singles: list[FoundFile] = field(default_factory=list)
    missing: list[MissingFiles] = field(default_factory=list)
    unfinished: list[FoundFile] = field(default_factory=list)


class _Decision(Enum):
    READ = auto()
    SINGLES = auto()  # each file singly, as one of another program
    WAIT = auto()  # it is being published, or replaced
    UNFINISHED = auto()  # it may be being published
    LIST_AGAIN = auto()  # it should be complete, and is not


class EpochFilter:
    """A filter of one listing.

    Args:
        location: The path of the source.
        finder: The finder of the tables there.
        tables: The tables as they were before the listing.
        recursive: See `scan`.
        waits: True if files that are being replaced are left for a later listing. A batch read has
            no later one, and takes the remaining files.

    Attributes:
        whole: Folders of the tables of which every file was listed.
    """

    def __init__(
        self,
        location: SourcePath,
        finder: TableFinder,
        tables: Mapping[str, SinkTable],
        *,
        recursive: bool,
        waits: bool,
    ) -> None:
        self._waits = waits
        self._location = location
        self._finder = finder
        self._tables = tables
        self._recursive = recursive
        self.whole: AbstractSet[str] = frozenset()
        self._result = FilteredListing()

    def decide(
        self, listed: UnreadListing, compared: dict[tuple[str, str], int]
    ) -> FilteredListing:
        """Decide which files may be read.

        Args:
            listed: The unread files of one listing.
            compared: By table and tag, the newest epoch whose files were compared with its intent;
                this method updates it.
        """
        groups = group_by_epoch(listed.files, self._finder.root_of)
        by_epoch = {(g.root, g.origin): g for g in groups}
        self.whole = {t.root for t in self._tables.values() if _is_whole(t, listed.tops)}
        for root in self.whole:
            self._compare(self._tables[root], listed, by_epoch, compared)
        ordered = [by_epoch[key] for key in sorted(by_epoch)]
        started = self._find_started_meanwhile(ordered)
        newest = {(group.root, group.origin.tag): group for group in ordered}
        for group in ordered:
            query = group.root, group.origin.tag
            if query not in started:
                self._decide_group(group, listed, is_newest=group is newest[query])
        return self._result

    def _decide_group(self, group: EpochGroup, listed: UnreadListing, *, is_newest: bool) -> None:
        table = self._tables.get(group.root)
        decision = self._decision(group, table, is_newest=is_newest)
        if decision is _Decision.LIST_AGAIN:
            group, decision = self._list_again(group, listed, is_newest=is_newest)
        if decision is _Decision.SINGLES:
            self._result.singles += group.files
        elif decision is _Decision.UNFINISHED:
            self._result.unfinished += group.files
        elif decision is _Decision.READ and group.files:
            self._result.units.append(self._unit(group, table))

    def _unit(self, group: EpochGroup, table: SinkTable | None) -> ReadUnit:
        """Return the unit of an epoch, with a key if its query is followed."""
        is_part = group.root not in self.whole
        # Other tables below a glob that leads into them have no key: their files count singly.
        if table is None or (is_part and table.prefix != ""):
            return group.unit(None)
        key = table.key(group.origin.tag)
        if key is None or not is_part:
            return group.unit(key)
        # The key of whole epochs would say that the files which the glob leaves out were read, and
        # a wider glob would never deliver them.
        return group.unit(f"{key}{PART_OF_EPOCHS}")

    def _compare(
        self,
        table: SinkTable,
        listed: UnreadListing,
        by_epoch: dict[tuple[str, Origin], EpochGroup],
        compared: dict[tuple[str, str], int],
    ) -> None:
        """Compare the listed files of a table with the intents of epochs that were not read.

        Files that the listing omitted are added: NFS may omit names of a changing folder.
        """
        for tag, query in table.queries.items():
            key = table.key(tag)
            read = listed.read.get(key, -1) if key is not None else -1
            after = max(read, compared.get((table.root, tag), -1))
            if query.visible is None or query.visible <= after:
                continue
            replaced = False
            for epoch, names in query.log.published_files(after, query.visible).items():
                if names & table.replaced:
                    replaced = True
                    continue
                origin = Origin(tag, epoch)
                _check_names(table, query.log, origin, names)
                group = EpochGroup(table.root, origin, (), 0)
                group = by_epoch.get((table.root, origin), group)
                whole = self._complete(group, table, names, listed, is_followed=read >= 0)
                if whole.files:
                    by_epoch[table.root, group.origin] = whole
            # An epoch that is being replaced is compared again when its files are deleted.
            if not replaced:
                compared[table.root, tag] = query.visible

    def _complete(
        self,
        group: EpochGroup,
        table: SinkTable,
        names: set[str],
        listed: UnreadListing,
        *,
        is_followed: bool,
    ) -> EpochGroup:
        """Return an epoch with all files that its intent names; report the missing ones.

        The files of an epoch that has none are missing only if the source followed the query
        before: a new source of a table starts with the files that exist.
        """
        have = {table.inside(file.path) for file in group.files}
        sought = (f"{table.prefix}{name}" for name in sorted(names - have))
        missing = listed.filter_unread(list(sought))
        there = tuple(describe_files(self._location, missing))
        gone = set(missing) - {file.path for file in there}
        files = (*group.files, *there)
        if gone and (files or is_followed):
            lost = MissingFiles(group.root, group.origin, len(gone), min(gone))
            self._result.missing.append(lost)
        # The intent names all files of the epoch, so the number in their names is not needed.
        return replace(group, files=files, total=0)

    def _find_started_meanwhile(self, listed: Iterable[EpochGroup]) -> set[tuple[str, str]]:
        """Return queries that started during the listing: a later one will read their epochs."""
        queries = {(group.root, group.origin.tag) for group in listed}
        strange = {pair for pair in queries if not _writes(self._tables, *pair)}
        now = self._finder.read_tables() if strange else {}
        return {pair for pair in strange if _writes(now, *pair)}

    def _list_again(
        self, group: EpochGroup, listed: UnreadListing, *, is_newest: bool
    ) -> tuple[EpochGroup, _Decision]:
        """List everything once more: a file that the first listing omitted is there, or missing.

        Files that were read before count as well: an earlier version may have read some of them.
        """
        tables, by_epoch = self._second_listing
        table, present = tables.get(group.root), by_epoch.get((group.root, group.origin), group)
        decision = self._decision(present, table, is_newest=is_newest)
        if decision is _Decision.LIST_AGAIN:
            example = f"of {present.total}"
            lost = MissingFiles(group.root, group.origin, present.missing, example)
            self._result.missing.append(lost)
            decision = _Decision.READ
        unread = set(listed.filter_unread([file.path for file in present.files]))
        files = tuple(file for file in present.files if file.path in unread)
        return replace(present, files=files), decision

    @cached_property
    def _second_listing(
        self,
    ) -> tuple[Mapping[str, SinkTable], Mapping[tuple[str, Origin], EpochGroup]]:
        tables = self._finder.read_tables()
        names = scan(self._location, recursive=self._recursive)
        of_sink = (path for path in names.paths if origin_of(path) is not None)
        files = describe_files(self._location, of_sink, names.identities)
        groups = group_by_epoch(files, self._finder.root_of)
        return tables, {(g.root, g.origin): g for g in groups}

    def _decision(
        self, group: EpochGroup, table: SinkTable | None, *, is_newest: bool
    ) -> _Decision:
        """Return what may be done with an epoch.

        Args:
            group: Its listed files.
            table: Its table; None if there is only a copy of some of its files.
            is_newest: True if it is the newest epoch of its query.
        """
        if table is None:
            return _Decision.SINGLES
        query = table.queries.get(group.origin.tag)
        if query is not None and query.visible is not None:
            if group.origin.epoch > query.visible:
                return _Decision.WAIT
        elif group.root not in self.whole or not group.total:
            return _Decision.SINGLES
        if not group.missing or group.root not in self.whole:
            return _Decision.READ
        if any(table.inside(file.path) in table.replaced for file in group.files):
            return _Decision.WAIT if self._waits else _Decision.READ
        may_continue = query is not None and query.visible is None and query.staging and is_newest
        return _Decision.UNFINISHED if may_continue else _Decision.LIST_AGAIN


def _check_names(table: SinkTable, log: QueryLog, origin: Origin, names: Iterable[str]) -> None:
    """Check that an intent names files of the same epoch: others would be read twice.

    Raises:
        LogError: If it does not, since the sink cannot have written it.
    """
    for name in names:
        if origin_of(name) != origin:
            raise LogError(
                f"krishiv-parquet: the intent of epoch {origin.epoch} in the epoch log of "
                f"{log.query} names {table.root}/{name}, which is not a file of that epoch. The "
                "log is damaged, or was not written by krishiv-spark; nothing was read because of "
                f"it. Put it back from a copy, or remove {log.own} if it belongs to none of your "
                "queries"
            )


def _is_whole(table: SinkTable, tops: Iterable[str]) -> bool:
    """Return True if every file of a table was listed."""
    return table.prefix is not None and table.prefix.startswith(tuple(tops))


def _writes(tables: Mapping[str, SinkTable], root: str, tag: str) -> bool:
    return root in tables and tag in tables[root].queries
