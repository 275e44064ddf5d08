"""The commits of epochs to a table: one version for each, with Delta's own mark. Driver.

The library commits a mark that the table has already: a driver that repeats an epoch would add its
rows twice. Here, the log is read before each attempt, and an attempt can only become the version
after the one that was read. `DeltaCommit._commit_version` is the linearization point.

The mark is the action `txn` of the query, as delta-spark writes it for ``foreachBatch`` and for its
own streaming sink. It has a number only. A second `txn` contains the version of the commit, whose
record (`commitInfo`) has the digest of the epoch. Neither has a time, so that they never expire.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from krishiv_spark.delta.column_types import digest_layout, read_columns
from krishiv_spark.delta.commit_log import (
    list_actions,
    read_commit,
    read_commit_info,
    sync_commit,
)
from krishiv_spark.delta.opening import describe_error, explain_errors, find_table, open_table
from krishiv_spark.delta.options import FORMAT
from krishiv_spark.delta.table_features import check_writable
from krishiv_spark.errors import (
    CommitRejected,
    CommitUnknown,
    Fenced,
    KrishivError,
    OptionError,
    StorageError,
)
from krishiv_spark.messages.exception_chains import scrub
from krishiv_spark.sinks.base import CommittedEpoch, Epoch, TwoPhaseCommitter
from krishiv_spark.sinks.delta.options import DeltaSinkOptions
from krishiv_spark.sinks.delta.task_files import StagedDeltaFile, StagedDeltaFiles, delete_files
from krishiv_spark.spark.checkpoint import BATCH_PREFIX

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = [
    "DeltaCommit",
    "DeltaCommitter",
    "check_fits",
    "check_staged_exist",
    "find_epoch",
    "list_missing",
    "read_mark",
]

_log = logging.getLogger(__name__)

RECORD = "krishiv"
"""Key of this package's record in `commitInfo`."""

_VERSION_OF = "krishiv.version/"
"""Prefix of the `txn` with the version of a query's newest commit."""


def read_mark(options: DeltaSinkOptions, table: DeltaTable, query: str) -> CommittedEpoch | None:
    """Return the newest epoch of a query by a table's log; None without one.

    The digest is not known if delta-spark has written the mark, or if the log has been cleaned up
    since the commit.

    Raises:
        StorageError: If the log cannot be read.
    """
    with explain_errors(options, "read the marks of the table"):
        number = table.transaction_version(query)
        version = table.transaction_version(f"{_VERSION_OF}{query}")
    if number is None:
        return None
    if version is None:
        return CommittedEpoch(number)
    record = read_commit_info(options, version).get(RECORD, {})
    is_same = record.get("query") == query and record.get("epoch") == number
    return CommittedEpoch(number, record.get("digest") if is_same else None)


class DeltaCommitter(TwoPhaseCommitter[StagedDeltaFiles]):
    """A committer that adds one version for each epoch, see `DeltaCommit`.

    Args:
        options: Options of the sink.
        replaces: True if an epoch replaces all rows.
    """

    def __init__(self, options: DeltaSinkOptions, *, replaces: bool) -> None:
        self._options = options
        self._replaces = replaces
        self._loaded: DeltaTable | None = None

    def last_committed(self, query: str) -> CommittedEpoch | None:
        """Driver: return the newest epoch that the table's log records."""
        self._loaded = open_table(self._options)
        return read_mark(self._options, self._loaded, query)

    def peek_committed(self, query: str) -> CommittedEpoch | None:
        """Driver: as `last_committed`, but return None if there is no table."""
        table = find_table(self._options)
        return None if table is None else read_mark(self._options, table, query)

    def publish(self, epoch: Epoch, staged: Sequence[StagedDeltaFiles]) -> None:
        """Driver: commit one version with the files and the mark of the epoch."""
        if not staged and not self._replaces:
            return  # a batch job without rows
        commit = DeltaCommit(self._options, epoch, staged, replaces=self._replaces)
        check_staged_exist(self._options, staged)
        # `last_committed` has just read the log. If it has changed since, the attempt fails.
        table, self._loaded = self._loaded, None
        try:
            commit.run(table)
        except (CommitRejected, Fenced):
            self.discard(staged)
            raise

    def discard(self, staged: Sequence[StagedDeltaFiles]) -> None:
        """Anywhere: delete staged files that no version of the table names."""
        try:
            named = self._list_named()
            paths = (file.path for item in staged for file in item.files)
            delete_files(self._options, (path for path in paths if path not in named))
        except Exception as error:  # noqa: BLE001  best effort: VACUUM deletes them
            shown = scrub(error, self._options.secrets())
            _log.warning("staged files remain for VACUUM to delete", exc_info=shown)

    def _list_named(self) -> set[str]:
        """Return the files of the newest version, and those that recent commits have added."""
        table = find_table(self._options)
        if table is None:
            return set()
        # The library lists paths as the log has them, which is encoded.
        named = pa.table(table.get_add_actions()).column("path").to_pylist()
        return {*map(unquote, named), *_list_recent(self._options, table.version())}


_RECENT = 20
"""Commits that `discard` reads: files of an own one may have been replaced since."""


def _list_recent(options: DeltaSinkOptions, newest: int) -> set[str]:
    found: set[str] = set()
    for version in range(max(0, newest - _RECENT), newest + 1):
        for kind, body in list_actions(read_commit(options, version) or b""):
            if kind in {"add", "remove"}:
                found.add(unquote(body["path"]))
    return found


class DeltaCommit:
    """The commit of one epoch: attempts, each at the version after the newest. Driver.

    Args:
        options: Name the table, and limit the time.
        epoch: Its query, number and digest are committed with the files.
        staged: The files that its tasks have staged.
        replaces: True if all other files are removed.
    """

    def __init__(
        self,
        options: DeltaSinkOptions,
        epoch: Epoch,
        staged: Sequence[StagedDeltaFiles],
        *,
        replaces: bool,
    ) -> None:
        self._options, self._epoch = options, epoch
        self._staged, self._replaces = staged, replaces
        self._nonce = uuid.uuid4().hex
        self._tried: set[int] = set()
        """Versions that an attempt may have become, or may still become."""

    def run(self, table: DeltaTable | None = None) -> int:
        """Commit the epoch, and return its version.

        Args:
            table: The table, if its log has just been read: for the first attempt.

        Raises:
            Fenced: If the table has this epoch or a later one from another driver.
            CommitRejected: If the epoch is certainly not in the table.
            CommitUnknown: If it is unknown whether the epoch is in the table.
        """
        backoff = self._options.commit_backoff()
        while True:
            error: Exception
            try:
                table = table or open_table(self._options)
                if (version := self._find_own(table)) is not None:
                    break
                self._check(table)
                version = table.version() + 1
                if (failure := self._attempt(table, version)) is None:
                    break
                error = failure
            except StorageError as failed:
                error = failed
            table = None
            if not backoff.pause():
                version = self._give_up(error)
                break
        sync_commit(self._options, version)
        return version

    def _find_own(self, table: DeltaTable) -> int | None:
        """Return the version of an earlier attempt that has succeeded although it failed."""
        for version in sorted(self._tried):
            if version <= table.version():
                record = read_commit_info(self._options, version).get(RECORD, {})
                if record.get("commit") == self._nonce:
                    return version
                self._tried.discard(version)  # another writer's: that attempt has lost
        return None

    def _check(self, table: DeltaTable) -> None:
        """Refuse the epoch if the table has it, or does not fit its files any more.

        Raises:
            Fenced, CommitRejected: As `run`.
        """
        epoch = self._epoch
        mark = read_mark(self._options, table, epoch.query)
        if mark is not None and mark.epoch >= epoch.number:
            raise Fenced(
                f"{self._name} is not published: the table has epoch {mark.epoch} of the query "
                "from another driver; two drivers run on one checkpoint"
            )
        check_fits(self._options, table, self._staged, replaces=self._replaces)

    def _attempt(self, table: DeltaTable, version: int) -> Exception | None:
        """Send the commit once; return the error if it has failed, or if its end is not known.

        Raises:
            CommitRejected: If the library refuses the commit at any version.
        """
        from deltalake.exceptions import CommitFailedError, DeltaError

        self._tried.add(version)
        try:
            self._commit_version(table, version)
        except CommitFailedError as error:
            return error  # another writer was faster, or the store has failed
        except DeltaError as error:
            if self._is_absent(version):
                raise self._to_rejection(describe_error(error, self._options)) from error
            return error
        except Exception as error:  # noqa: BLE001  it may have happened: the log is read again
            return error
        return None

    def _commit_version(self, table: DeltaTable, version: int) -> None:
        """Commit the files and the mark as the next version: the linearization point.

        The epoch is committed if and only if the log gets this version from this call.
        """
        from deltalake import CommitProperties, Transaction

        query, number = self._epoch.query, self._epoch.number
        marks = []
        if not query.startswith(BATCH_PREFIX):
            marks = [Transaction(query, number), Transaction(f"{_VERSION_OF}{query}", version)]
        table.create_write_transaction(
            self._list_adds(),
            "overwrite" if self._replaces else "append",
            table.schema(),
            list(table.metadata().partition_columns),
            commit_properties=CommitProperties(
                custom_metadata=self._describe(), max_commit_retries=0, app_transactions=marks
            ),
        )

    def _list_adds(self) -> list[Any]:
        return [_to_add(file) for item in self._staged for file in item.files]

    def _describe(self) -> dict[str, Any]:
        """Return the record of the commit; readers of the log know the first keys."""
        epoch = self._epoch
        record = {"query": epoch.query, "epoch": epoch.number, "commit": self._nonce}
        digest = {} if epoch.digest is None else {"digest": epoch.digest}
        metadata = self._options.user_metadata
        return {
            "isBlindAppend": not self._replaces,
            **({} if metadata is None else {"userMetadata": metadata}),
            RECORD: {**record, **digest},
        }

    def _is_absent(self, version: int) -> bool:
        """Return True if the log certainly lacks a version."""
        try:
            return read_commit(self._options, version) is None
        except StorageError:
            return False

    def _give_up(self, error: Exception) -> int:
        """Return the version of an attempt that has succeeded, after the time has passed.

        Raises:
            CommitRejected: If each attempt has certainly lost.
            CommitUnknown: If one may have succeeded, or may still do so.
        """
        is_read = False
        try:
            version = self._find_own(open_table(self._options))
            if version is not None:
                return version
            is_read = True
        except KrishivError as unread:
            error = unread
        reason = describe_error(error, self._options)
        waited = f"{self._options.commit_timeout / 1000:g} s ('commitTimeout')"
        # A store may still receive the request of an attempt; a call to a disk has ended.
        if self._tried and not (is_read and self._options.is_local):
            raise CommitUnknown(
                f"{self._name} may or may not be in the table after {waited}: {reason}; restart "
                "the query, which reads the log and continues"
            ) from error
        raise self._to_rejection(f"it was not committed within {waited}: {reason}") from error

    def _to_rejection(self, reason: str) -> CommitRejected:
        return CommitRejected(
            f"{self._name} is not in the table: {reason}. Correct it, then restart the query"
        )

    @property
    def _name(self) -> str:
        epoch, path = self._epoch, self._options.path
        return f"{FORMAT}: epoch {epoch.number} of query {epoch.query} of table {path}"


def check_fits(
    options: DeltaSinkOptions,
    table: DeltaTable,
    staged: Sequence[StagedDeltaFiles],
    *,
    replaces: bool,
) -> None:
    """Refuse staged files that do not fit the present state of the table. Committer.

    Raises:
        CommitRejected: If the table was replaced, another writer has changed its columns, or it has
            a feature that this package does not honour.
        StorageError: If the log no longer has the version at which they were staged.
    """
    try:
        check_writable(table, options.path, replaces=replaces)
    except OptionError as error:
        raise CommitRejected(str(error)) from error
    if any(item.table != str(table.metadata().id) for item in staged):
        raise CommitRejected(
            f"{FORMAT}: table {options.path} was replaced since its tasks have started: restart "
            "the query"
        )
    layout = digest_layout(table)
    for version in {item.version for item in staged if item.layout != layout}:
        _check_layout(options, table, open_table(options, version))


def _check_layout(options: DeltaSinkOptions, table: DeltaTable, before: DeltaTable) -> None:
    names = before.metadata().partition_columns, table.metadata().partition_columns
    now = {field.name: field for field in read_columns(table)}
    kept = {field.name: field for field in read_columns(before)}
    lost = [name for name in kept if name not in now or now[name].type != kept[name].type]
    # NOT NULL since: staged rows may have nulls in it, or lack the column.
    strict = [
        name
        for name, field in now.items()
        if not field.nullable and (name not in kept or kept[name].nullable)
    ]
    if lost or strict or names[0] != names[1]:
        shown = ", ".join([*lost, *(f"{name} is NOT NULL" for name in strict)])
        shown = shown or "the partition columns"
        raise CommitRejected(
            f"{FORMAT}: another writer has changed columns of {options.path} ({shown}) since its "
            "tasks have started: restart the query, which checks them again"
        )


def check_staged_exist(options: DeltaSinkOptions, staged: Sequence[StagedDeltaFiles]) -> None:
    """Refuse an epoch with a staged file that was deleted: readers of the table would fail.

    Raises:
        CommitRejected: If one is missing.
        StorageError: If the store cannot be asked.
    """
    if missing := list_missing(options, staged):
        raise CommitRejected(
            f"{FORMAT}: {len(missing)} staged files of {options.path} are missing, such as "
            f"{missing[0]!r}: VACUUM ran with a retention that is shorter than a batch takes. "
            "Restart the query, which writes them again"
        )


def list_missing(options: DeltaSinkOptions, staged: Sequence[StagedDeltaFiles]) -> list[str]:
    """Return the paths of staged files that do not exist. Committer.

    Raises:
        StorageError: If the store cannot be asked.
    """
    files = options.storage.files(options.url)
    paths = [file.path for item in staged for file in item.files]
    with explain_errors(options, "find staged files of"):
        found = files.map(files.identity, [str(options.url / path) for path in paths])
        return [path for path, one in zip(paths, found, strict=True) if one is None]


_MOST_SEARCHED = 1_000
"""Commits that `find_epoch` reads at most."""


def find_epoch(options: DeltaSinkOptions, table: DeltaTable, epoch: Epoch) -> bool:
    """Return True if the log has the commit of an epoch, by its number and digest. Driver.

    Only recent commits are searched for an epoch before the newest one.

    Raises:
        StorageError: If the log cannot be read.
    """
    mark = read_mark(options, table, epoch.query)
    if mark is None or mark.epoch < epoch.number:
        return False
    if mark.epoch == epoch.number:
        return None in {mark.digest, epoch.digest} or mark.digest == epoch.digest
    newest = table.version()
    for version in range(newest, max(-1, newest - _MOST_SEARCHED), -1):
        record = read_commit_info(options, version).get(RECORD, {})
        if record.get("query") == epoch.query and record.get("epoch") == epoch.number:
            return None in {record.get("digest"), epoch.digest} or bool(
                record.get("digest") == epoch.digest
            )
    return False


def _to_add(file: StagedDeltaFile) -> Any:
    from deltalake.transaction import AddAction

    return AddAction(
        path=file.path,
        size=file.size,
        partition_values=dict(file.partition),
        modification_time=file.modified_ms,
        data_change=True,
        stats=file.stats,
    )
