"""Which epochs of our sink may be read, and what is gone of them. Driver.

An epoch is read when it is whole. Its intent names its files, for as long as the log goes back;
after that the name of each file says of how many it is one. Neither counts where only a part of a
table is read, or where files were copied without ``_krishiv``: nobody can say what should be there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cached_property

from krishiv_spark.sources.parquet.listing import found, scan
from krishiv_spark.sources.parquet.places import FoundFile, Place
from krishiv_spark.sources.parquet.tables import SinkTable, Tables
from krishiv_spark.sources.parquet.units import Group, Origin, ReadUnit, groups, origin

__all__ = ["Judge", "Judged", "Listed", "Lost"]


@dataclass(frozen=True)
class Listed:
    """What a listing found, and what had been read before.

    Attributes:
        files: Files that were not read; those of other programs are left out.
        tops: See `Scan`.
        read: See `ParquetOffset.epochs`.
        unread: Those of some paths that were not read.
    """

    files: Iterable[FoundFile]
    tops: Sequence[str]
    read: Mapping[str, int]
    unread: Callable[[list[str]], list[str]]


@dataclass(frozen=True)
class Lost:
    """Files of a published epoch that are gone.

    Attributes:
        root: Folder of the table that they are missing from.
        origin: Query and epoch.
        count: How many files are missing.
        example: What is known of one of them.
    """

    root: str
    origin: Origin
    count: int
    example: str

    def __str__(self) -> str:
        return f"{self.count} files of epoch {self.origin.epoch} in {self.root} ({self.example})"


@dataclass
class Judged:
    """What may be read of the files of our sink, and what may not.

    Attributes:
        units: Epochs that may be read; those of each query ascend.
        singles: Files that are like those of any other program.
        lost: What should be there and is not.
        unfinished: Files of epochs that are not whole and whose log is elsewhere: they may be just
            being published, or never become whole.
    """

    units: list[ReadUnit] = field(default_factory=list)
    singles: list[FoundFile] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    unfinished: list[FoundFile] = field(default_factory=list)


class _Verdict(Enum):
    READ = auto()
    SINGLES = auto()  # each file by itself, as one of any program
    HOLD = auto()  # it is being published, or replaced
    UNFINISHED = auto()  # it may be being published
    DOUBT = auto()  # it should be whole, and is not


class Judge:
    """Decides about one listing.

    Args:
        place: Where files were looked for.
        tables: The tables there.
        before: The same, as they were before files were listed.
        recursive: See `scan`.
        waits: Whether what is being replaced is left alone; who reads only once takes what is left.
    """

    def __init__(
        self,
        place: Place,
        tables: Tables,
        before: Mapping[str, SinkTable],
        *,
        recursive: bool,
        waits: bool,
    ) -> None:
        self._waits = waits
        self._place = place
        self._tables = tables
        self._before = before
        self._recursive = recursive
        self._whole: AbstractSet[str] = frozenset()  # tables of which every file was listed
        self._result = Judged()

    def decide(self, listed: Listed, compared: dict[tuple[str, str], int]) -> Judged:
        """Decide.

        Args:
            listed: What was found in one go, files and what they say of their epochs.
            compared: By table and tag, the newest epoch whose files were compared with its intent;
                it is brought up to date.
        """
        by_epoch = {(g.root, g.origin): g for g in groups(listed.files, self._tables.root_of)}
        self._whole = {t.root for t in self._before.values() if _is_whole(t, listed.tops)}
        for root in self._whole:
            self._compare(self._before[root], listed, by_epoch, compared)
        ordered = [by_epoch[key] for key in sorted(by_epoch)]
        begun = self._begun_meanwhile(ordered)
        newest = {(group.root, group.origin.tag): group for group in ordered}
        for group in ordered:
            query = group.root, group.origin.tag
            if query not in begun:
                self._judge(group, listed, is_newest=group is newest[query])
        return self._result

    def _judge(self, group: Group, listed: Listed, *, is_newest: bool) -> None:
        table = self._before.get(group.root)
        verdict = self._verdict(group, table, is_newest=is_newest)
        if verdict is _Verdict.DOUBT:
            group, verdict = self._looked_at_again(group, listed, is_newest=is_newest)
        if verdict is _Verdict.SINGLES:
            self._result.singles += group.files
        elif verdict is _Verdict.UNFINISHED:
            self._result.unfinished += group.files
        elif verdict is _Verdict.READ and group.files:
            is_told = table is not None and (group.root in self._whole or table.prefix == "")
            key = table.key(group.origin.tag) if table is not None and is_told else None
            self._result.units.append(group.unit(key))

    def _compare(
        self,
        table: SinkTable,
        listed: Listed,
        by_epoch: dict[tuple[str, Origin], Group],
        compared: dict[tuple[str, str], int],
    ) -> None:
        """Compare what was listed of a table with the intents of epochs that were not read.

        What a listing has passed over is added: where names come and go meanwhile, NFS may.
        """
        for tag, query in table.queries.items():
            key = table.key(tag)
            read = listed.read.get(key, -1) if key is not None else -1
            after = max(read, compared.get((table.root, tag), -1))
            if query.visible is None or query.visible <= after:
                continue
            replaced = False
            for epoch, names in query.log.published(after, query.visible).items():
                if names & table.replaced:
                    replaced = True
                    continue
                group = Group(table.root, Origin(tag, epoch), (), 0)
                group = by_epoch.get((table.root, group.origin), group)
                whole = self._completed(group, table, names, listed, is_followed=read >= 0)
                if whole.files:
                    by_epoch[table.root, group.origin] = whole
            # What is being replaced is looked at once more when its files have gone.
            if not replaced:
                compared[table.root, tag] = query.visible

    def _completed(
        self, group: Group, table: SinkTable, names: set[str], listed: Listed, *, is_followed: bool
    ) -> Group:
        """An epoch with all files that its intent names; what is gone is noted.

        Of an epoch without a single file that is done only if the query was followed before: who
        begins to read a table begins with what is there.
        """
        have = {table.inside(file.path) for file in group.files}
        sought = (f"{table.prefix}{name}" for name in sorted(names - have))
        missing = listed.unread(list(sought))
        there = tuple(found(self._place, missing))
        gone = set(missing) - {file.path for file in there}
        files = (*group.files, *there)
        if gone and (files or is_followed):
            self._result.lost.append(Lost(group.root, group.origin, len(gone), min(gone)))
        # The intent has said what the epoch consists of: how many the names say counts no more.
        return replace(group, files=files, total=0)

    def _begun_meanwhile(self, listed: Iterable[Group]) -> set[tuple[str, str]]:
        """Queries that began while files were listed: what they published is left for later."""
        queries = {(group.root, group.origin.tag) for group in listed}
        strange = {pair for pair in queries if not _writes(self._before, *pair)}
        now = self._tables.look() if strange else {}
        return {pair for pair in strange if _writes(now, *pair)}

    def _looked_at_again(
        self, group: Group, listed: Listed, *, is_newest: bool
    ) -> tuple[Group, _Verdict]:
        """List everything once more: what was passed over the first time is there now, or is gone.

        Files that were read before count as well: an earlier version may have read some of them.
        """
        tables, by_epoch = self._again
        table, present = tables.get(group.root), by_epoch.get((group.root, group.origin), group)
        verdict = self._verdict(present, table, is_newest=is_newest)
        if verdict is _Verdict.DOUBT:
            example = f"of {present.total}"
            lost = Lost(group.root, group.origin, present.missing, example)
            self._result.lost.append(lost)
            verdict = _Verdict.READ
        unread = set(listed.unread([file.path for file in present.files]))
        files = tuple(file for file in present.files if file.path in unread)
        return replace(present, files=files), verdict

    @cached_property
    def _again(self) -> tuple[Mapping[str, SinkTable], Mapping[tuple[str, Origin], Group]]:
        tables = self._tables.look()
        again = scan(self._place, recursive=self._recursive)
        ours = (path for path in again.paths if origin(path) is not None)
        files = found(self._place, ours, again.told)
        return tables, {(g.root, g.origin): g for g in groups(files, self._tables.root_of)}

    def _verdict(self, group: Group, table: SinkTable | None, *, is_newest: bool) -> _Verdict:
        """What may be done with an epoch.

        Args:
            group: Those of its files that were listed.
            table: Its table; None if there is only a copy of some of its files.
            is_newest: Whether it is the newest of its query.
        """
        if table is None:
            return _Verdict.SINGLES
        query = table.queries.get(group.origin.tag)
        if query is not None and query.visible is not None:
            if group.origin.epoch > query.visible:
                return _Verdict.HOLD
        elif group.root not in self._whole or not group.total:
            return _Verdict.SINGLES
        if not group.missing or group.root not in self._whole:
            return _Verdict.READ
        if any(table.inside(file.path) in table.replaced for file in group.files):
            return _Verdict.HOLD if self._waits else _Verdict.READ
        may_go_on = query is not None and query.visible is None and query.staging and is_newest
        return _Verdict.UNFINISHED if may_go_on else _Verdict.DOUBT


def _is_whole(table: SinkTable, tops: Iterable[str]) -> bool:
    """Whether every file of a table was listed."""
    return table.prefix is not None and table.prefix.startswith(tuple(tops))


def _writes(tables: Mapping[str, SinkTable], root: str, tag: str) -> bool:
    return root in tables and tag in tables[root].queries
