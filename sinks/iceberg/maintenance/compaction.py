"""The compaction of a table: the same rows in fewer files, without those that were deleted.

A snapshot of the operation ``replace`` takes the old files out and the new ones in, by one
compare-and-set. It is sent only if each old file is still in the table with the same deleted rows,
so a row that was deleted meanwhile stays deleted. If another commit is faster, the compaction
checks again and drops the groups that changed: a conflict costs work, and never a row.

If the process dies before the commit, the new files remain for vacuum; after it, the compaction is
complete. Old files remain as long as a snapshot names them.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestContent
from pyiceberg.table.snapshots import Operation

from krishiv_spark.errors import CommitUnknown, KrishivError, OptionError, SinkError
from krishiv_spark.iceberg.catalogs import forget_catalog
from krishiv_spark.iceberg.commit_rules import REFUSALS, may_have_expired_since
from krishiv_spark.iceberg.file_access import redact_errors
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.property_keys import PARENT_KEY
from krishiv_spark.sinks.base import Task
from krishiv_spark.sinks.iceberg.data_files import write_files
from krishiv_spark.sinks.iceberg.epoch_snapshot import EpochSnapshot, EpochTransaction
from krishiv_spark.sinks.iceberg.epoch_updates import SnapshotChanges, check_staged_exist
from krishiv_spark.sinks.iceberg.lost_races import LostRaces
from krishiv_spark.sinks.iceberg.maintenance.compaction_groups import (
    FileLoad,
    Group,
    choose_groups,
    choose_next_group,
    format_megabytes,
    get_size,
)
from krishiv_spark.sinks.iceberg.manifest_writers import WrittenManifests
from krishiv_spark.sinks.iceberg.table_copies import open_own_table
from krishiv_spark.sinks.iceberg.table_setup import check_version
from krishiv_spark.sinks.iceberg.task_table import StagedDataFiles, task_table_spec
from krishiv_spark.sinks.iceberg.upserts.replaced_rows import (
    RowLookup,
    forget_files,
    is_parquet,
    plan_data_files,
)

if TYPE_CHECKING:
    from uuid import UUID

    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table

    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

__all__ = [
    "Compacted",
    "Compaction",
    "CompactionRequest",
    "compact_in_steps",
    "compact_next_group",
    "is_due",
    "read_loads",
]

_REFUSING: set[UUID] = set()
"""Tables whose catalog has refused this process a compaction: a stream does not try again."""

_STEP_SIZE = 2**30
"""Bytes of the files that a command rewrites for one commit, about."""

_EPOCHS = 4
"""Epochs between two looks of a stream: as many as make a group of small files."""

_NAME = "compaction"
"""In the names of new files, in the place of a query's id."""

_SUMMARY = "krishiv.compaction"
"""In the summary of the snapshot: the number of groups."""


@dataclass(frozen=True)
class Compacted:
    """The result of a compaction.

    Attributes:
        groups: Number of groups that were rewritten and committed.
        files: Number of data files before and after, in these groups.
        deletes: Number of delete files that were removed.
        size: Bytes of the data files that were read, and of those that were written.
        dropped: Number of groups that changed in the table while they were rewritten.
    """

    groups: int = 0
    files: tuple[int, int] = (0, 0)
    deletes: int = 0
    size: tuple[int, int] = (0, 0)
    dropped: int = 0

    def __str__(self) -> str:
        before, after = self.files
        read, written = map(format_megabytes, self.size)
        dropped = f"; {self.dropped} groups changed meanwhile" if self.dropped else ""
        return (
            f"compacted {before} data files ({read}) to {after} ({written}); {self.deletes} delete "
            f"files removed{dropped}"
        )


def read_loads(table: Table, row_filter: BooleanExpression | None = None) -> list[FileLoad]:
    """Return the Parquet files of a table with the number of their deleted rows.

    Reads the delete files that apply to them. Files of other formats cannot be read.

    Args:
        table: The table.
        row_filter: Excludes files that cannot have a matching row; None for all files.

    Raises:
        CommitRejected: If the table has equality deletes, which this package does not read.
    """
    lookup = RowLookup(table, ())
    tasks = (task for task in plan_data_files(table, row_filter) if is_parquet(task.file))
    return [FileLoad(task, len(lookup.list_deleted(task))) for task in tasks]


def is_due(epoch: int) -> bool:
    """Return True if a stream looks for files to compact after an epoch, or a batch job (0)."""
    return epoch % _EPOCHS == 0


def compact_next_group(options: IcebergSinkOptions) -> Compacted:
    """Compact at most one group of files, within `maxCompactSize`. Driver.

    Raises:
        KrishivError: As `Compaction.run`, or if the table cannot be read.
    """
    table = open_own_table(options)
    if table.metadata.table_uuid in _REFUSING:
        return Compacted()
    size = task_table_spec(table, options.target_file_size).file_size
    group = choose_next_group(read_loads(table), size, options.max_compact_size)
    return Compacted() if group is None else Compaction(options).run(table, [group])


@dataclass(frozen=True)
class CompactionRequest:
    """The files of a table that an operator wants to have compacted.

    Attributes:
        where: Filter for files, such as ``day = '2026-11-27'``: others remain. None for all.
        deleted_share: Share of deleted rows, from 0 to 1, from which a file is rewritten.
    """

    where: str | None = None
    deleted_share: float = 0.1

    def find_groups(self, table: Table, options: IcebergSinkOptions) -> list[Group]:
        """Return the groups that are worth it.

        Raises:
            OptionError: If the filter cannot be parsed, or names a column that does not exist.
            CommitRejected: As `read_loads`.
        """
        row_filter = None if self.where is None else _parse_filter(self.where, table)
        return self.choose(read_loads(table, row_filter), table, options)

    def choose(
        self, loads: Sequence[FileLoad], table: Table, options: IcebergSinkOptions
    ) -> list[Group]:
        """Return the groups that are worth it, among some files of a table."""
        size = task_table_spec(table, options.target_file_size).file_size
        return list(choose_groups(loads, size, self.deleted_share))


def _parse_filter(text: str, table: Table) -> BooleanExpression:
    from pyiceberg.expressions.parser import parse
    from pyiceberg.expressions.visitors import bind

    try:
        found = parse(text)
        bind(table.schema(), found, case_sensitive=True)
    except Exception as error:  # errors of pyparsing, and ValueError of PyIceberg
        raise OptionError(
            f"{FORMAT}: the filter {text!r} is not one of columns of the table: {error}. Write it "
            "as \"day = '2026-11-27' and id > 5\""
        ) from error
    return found


def compact_in_steps(
    options: IcebergSinkOptions,
    groups: Sequence[Group],
    report: Callable[[int], object] = lambda _: None,
) -> Iterator[Compacted]:
    """Compact groups in several commits, and yield the result of each. Operator.

    If the command is interrupted, the committed groups stay compacted.

    Args:
        options: As of `Compaction`.
        groups: The groups; no file is in two.
        report: Called after each group with the bytes of its files, for a display of progress.

    Raises:
        KrishivError: As `Compaction.run`, or if the table cannot be read.
    """
    for step in _split_steps(groups):
        yield Compaction(options, report).run(open_own_table(options), step)


def _split_steps(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """Yield groups whose files have about `_STEP_SIZE` together."""
    step: list[Group] = []
    size = 0
    for group in groups:
        step.append(group)
        size += get_size(group)
        if size >= _STEP_SIZE:
            yield step
            step, size = [], 0
    if step:
        yield step


@dataclass(frozen=True)
class _Rewritten:
    """A group, and the files that have its rows; none if all were deleted."""

    group: Group
    staged: StagedDataFiles | None

    @property
    def files(self) -> Sequence[DataFile]:
        """The new files."""
        return () if self.staged is None else self.staged.files


class Compaction:
    """A compaction of some groups of one table, in one commit. Driver, operator.

    Args:
        options: Name the table and its catalog, set the size of new files, and limit the time of
            the commit.
        report: As of `compact_in_steps`.
    """

    def __init__(
        self, options: IcebergSinkOptions, report: Callable[[int], object] = lambda _: None
    ) -> None:
        self._options = options
        self._report = report
        self._numbers = itertools.count()
        self._lost = LostRaces()
        self._attempts: list[EpochSnapshot] = []
        self._written = WrittenManifests()
        self._may_have_succeeded = False
        """True from the moment a commit is sent until the catalog says that it was not accepted."""

    def run(self, table: Table, groups: Sequence[Group]) -> Compacted:
        """Rewrite groups and commit them; groups that have changed in the table are dropped.

        Args:
            table: The table. The groups may have been chosen in an earlier state of it.
            groups: The groups; no file is in two.

        Raises:
            CommitUnknown: If the catalog does not say whether the commit was accepted. Rows are
                right in either case; new files may remain for vacuum.
            SinkError: If other commits are always faster, or rows of a file cannot be read.
            OptionError: If the table has a format version that this package does not write.
        """
        with redact_errors(table.io, f"compact table {self._options.table_name}"):
            done: list[_Rewritten] = []
            try:
                live = _LiveFiles(table)
                for group in groups:
                    if live.has(group):
                        done.append(self._rewrite(table, group))
                    self._report(get_size(group))
                found = self._commit(table, live, done)
                return replace(found, dropped=found.dropped + len(groups) - len(done))
            except BaseException:  # also an interrupt, which may come while a commit is sent
                if not self._may_have_succeeded:
                    self._delete(table, done)
                    EpochSnapshot.delete_unlisted(self._attempts, ())
                raise

    def _rewrite(self, table: Table, group: Group) -> _Rewritten:
        """Write the rows of a group that are not deleted to new files.

        Raises:
            SinkError: If the files have another number of rows than their metadata says.
        """
        lookup = RowLookup(table, ())
        rows = (batch for load in group for batch in lookup.read(load.task))
        check_version(table, self._options)
        spec = task_table_spec(table, self._options.target_file_size)
        staged = write_files(spec, rows, Task(_NAME, 0, next(self._numbers), 0))
        made = _Rewritten(group, staged)
        wanted = sum(load.task.file.record_count - load.deleted for load in group)
        found = sum(file.record_count for file in made.files)
        if found != wanted:
            self._delete(table, [made])
            raise SinkError(
                f"{FORMAT}: {len(group)} files of table {self._options.table_name}, first "
                f"{group[0].task.file.file_path}, have {found} rows that are not deleted, and "
                f"their metadata says {wanted}. The table was not changed"
            )
        return made

    def _commit(self, table: Table, live: _LiveFiles, done: Sequence[_Rewritten]) -> Compacted:
        backoff, layout = self._options.commit_backoff(), _get_layout(table)
        while True:
            check_version(table, self._options)
            same = [one for one in done if live.has(one.group)]
            # The new files have the columns and partitions of the table that was rewritten.
            if not same or _get_layout(table) != layout:
                self._delete(table, done)
                EpochSnapshot.delete_unlisted(self._attempts, ())
                return Compacted(dropped=len(done))
            changes = SnapshotChanges(
                [file for one in same for file in one.files],
                [load.task.file for one in same for load in one.group]
                + live.find_unused(table, same),
            )
            check_staged_exist(table.io, [one.staged for one in same if one.staged is not None])
            newer = self._compare_and_set(table, changes, len(same))
            if newer is None:
                self._delete(table, [one for one in done if one not in same])
                EpochSnapshot.delete_unlisted(self._attempts, self._attempts[-1:])
                forget_files(changes.removed)
                return _describe(same, changes, len(done) - len(same))
            self._lost.record(table.metadata, newer.metadata)
            if not backoff.pause():
                raise SinkError(
                    f"{FORMAT}: table {self._options.table_name} was not compacted in "
                    f"{self._options.commit_timeout / 1000:g} s ('commitTimeout'), because other "
                    f"writers commit to it; {self._lost.describe()}. Then run the compaction again"
                )
            table, live = newer, _LiveFiles(newer)

    def _compare_and_set(self, table: Table, changes: SnapshotChanges, groups: int) -> Table | None:
        """Send the commit: the linearization point.

        Returns:
            None if it was accepted; the newest table if another commit was faster.

        Raises:
            CommitUnknown: If the catalog fails and the table does not show the outcome.
            SinkError: If the catalog refuses the commit.
        """
        transaction = EpochTransaction(table)
        transaction.skipped, transaction.written = self._lost.skipped, self._written
        head = table.metadata.current_snapshot_id
        summary = {PARENT_KEY: str(head), _SUMMARY: str(groups), **self._lost.summary}
        merge = self._options.merge_manifests
        EpochSnapshot(
            transaction, summary, changes, merge=merge, operation=Operation.REPLACE
        ).commit()
        self._attempts.append(transaction.producer)
        self._may_have_succeeded = True
        try:
            transaction.compare_and_set()
        except REFUSALS as error:
            self._may_have_succeeded = False
            _REFUSING.add(table.metadata.table_uuid)
            raise SinkError(
                f"{FORMAT}: the catalog refuses the compaction of table "
                f"{self._options.table_name}: {self._options.describe_error(error)}. The table was "
                "not changed"
            ) from error
        except Exception as error:  # noqa: BLE001  the table shows the outcome
            return self._look_up(transaction, error)
        return None

    def _look_up(self, transaction: EpochTransaction, error: Exception) -> Table | None:
        """Return the outcome of a commit after an error, as `_compare_and_set` does.

        A conflict too is looked up: a proxy that sends a request twice gets one for the second.
        """
        # A connection whose COMMIT has failed may show a state that no other process reads.
        forget_catalog(self._options)
        newest: Table | None = None
        with contextlib.suppress(Exception):  # the first error is reported
            newest = open_own_table(self._options)
        if newest is not None:
            # All attempts have one snapshot id, and each has another list.
            found = newest.metadata.snapshot_by_id(transaction.producer.snapshot_id)
            if found is not None and found.manifest_list == transaction.producer.list_path:
                return None
            has_lost = isinstance(error, CommitFailedException)
            may_have_expired = may_have_expired_since(newest.metadata, transaction.table.metadata)
            if found is None and has_lost and not may_have_expired:
                self._may_have_succeeded = False
                return newest
        raise CommitUnknown(
            f"{FORMAT}: it is unknown whether the compaction of table "
            f"{self._options.table_name} was committed: {self._options.describe_error(error)}. The "
            "table has the same rows in either case; 'krishiv-spark iceberg vacuum' removes files "
            "that it does not name"
        ) from error

    @staticmethod
    def _delete(table: Table, made: Sequence[_Rewritten]) -> None:
        """Delete new files that no snapshot names; best effort, the rest is for vacuum."""
        for file in (file for one in made for file in one.files):
            with contextlib.suppress(Exception):
                table.io.delete(file.file_path)


def _get_layout(table: Table) -> tuple[object, ...]:
    """Return the ids of table, schema and partitions for which the files of a table are written."""
    metadata = table.metadata
    return metadata.table_uuid, metadata.current_schema_id, metadata.default_spec_id


class _LiveFiles:
    """The data files of one state of a table, and the delete files that apply to them."""

    def __init__(self, table: Table) -> None:
        self._lookup = RowLookup(table, ())
        self._tasks: dict[str, FileScanTask] = {
            task.file.file_path: task for task in plan_data_files(table)
        }

    def has(self, group: Group) -> bool:
        """Return True if all files of a group are live, with the same deleted rows."""
        return all(self._is_same(load) for load in group)

    def _is_same(self, load: FileLoad) -> bool:
        task = self._tasks.get(load.task.file.file_path)
        if task is None:
            return False
        before = {file.file_path for file in load.task.delete_files}
        if before == {file.file_path for file in task.delete_files}:
            return True
        # Delete files may have been merged, or name other files of the partition.
        try:
            rows, known = self._lookup.list_deleted(task), self._lookup.list_deleted(load.task)
        except (KrishivError, OSError):  # an old one may have been removed with its snapshots
            return False
        return bool(np.array_equal(rows, known))

    def find_unused(self, table: Table, done: Sequence[_Rewritten]) -> list[DataFile]:
        """Return the delete files that apply to no data file once some groups were replaced."""
        replaced = {load.task.file.file_path for one in done for load in one.group}
        live = {path: task for path, task in self._tasks.items() if path not in replaced}
        needed = {file.file_path for task in live.values() for file in task.delete_files}
        maybe = {
            file.file_path
            for path in replaced
            for file in self._tasks[path].delete_files
            # Of others, only the positions in one data file can be read.
            if file.file_path in needed and is_parquet(file)
        }
        return [
            file
            for file in _iterate_delete_files(table)
            if file.file_path not in needed
            or (file.file_path in maybe and live.keys().isdisjoint(self._lookup.read_deletes(file)))
        ]


def _iterate_delete_files(table: Table) -> Iterator[DataFile]:
    snapshot = table.current_snapshot()
    for manifest in [] if snapshot is None else snapshot.manifests(table.io):
        if manifest.content == ManifestContent.DELETES:
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield entry.data_file


def _describe(same: Sequence[_Rewritten], changes: SnapshotChanges, dropped: int) -> Compacted:
    loads = [load for one in same for load in one.group]
    return Compacted(
        groups=len(same),
        files=(len(loads), len(changes.added)),
        deletes=len(changes.removed) - len(loads),
        size=(sum(load.size for load in loads), sum(f.file_size_in_bytes for f in changes.added)),
        dropped=dropped,
    )
