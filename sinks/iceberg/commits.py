"""One snapshot for each epoch, however often its commit is tried and whoever else commits.

PyIceberg's own retry builds the same change upon whatever it finds, so two drivers of one query
both add their rows. Here every attempt begins with a fresh look for the epoch's mark, and
`_compare_and_set` is the only place where an epoch becomes true: the catalog takes rows and mark
together, if the table's branch is still where the mark was looked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchTableError,
    UnauthorizedError,
)

from krishiv_spark.errors import (
    CommitRejected,
    CommitUnknown,
    Fenced,
    KrishivError,
    OptionError,
)
from krishiv_spark.iceberg._pyiceberg import remove_written
from krishiv_spark.iceberg.catalogs import CatalogFailedError, forget_catalog, open_table
from krishiv_spark.iceberg.embedded import CatalogReplacedError, get_catalog_file
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.messages.redaction import excerpt
from krishiv_spark.sinks.base import CommittedEpoch, Epoch
from krishiv_spark.sinks.iceberg import marks
from krishiv_spark.sinks.iceberg.expiry import remove_expired
from krishiv_spark.sinks.iceberg.transaction import EpochTransaction
from krishiv_spark.spark.checkpoint import SparkCheckpoint

if TYPE_CHECKING:
    from uuid import UUID

    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

    from krishiv_spark.sinks.iceberg.kept_keys import KeyRule
    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

__all__ = ["Change", "Committer"]

_log = logging.getLogger(__name__)

_REFUSALS = (BadRequestError, ForbiddenError, NoSuchTableError, UnauthorizedError)
"""Answers that no repetition changes."""

_NEVER_EXPIRED: set[UUID] = set()
"""Tables whose catalog has refused this process a commit that expires snapshots."""


Change = Callable[[EpochTransaction, dict[str, str]], None]
"""Stages one snapshot in a transaction, with a summary; called for each attempt on a new one.

It raises CommitRejected when the change does not fit the table as it is.
"""


class Committer:
    """Commits one epoch. Driver.

    Args:
        options: Which table, and how long to try.
        epoch: With query, number and digest, which become the mark.
        change: What it does to the table.
        key_rule: For the key columns of upserts.
    """

    def __init__(
        self, options: IcebergSinkOptions, epoch: Epoch, change: Change, key_rule: KeyRule
    ) -> None:
        self._options = options
        self._epoch = epoch
        self._change = change
        self._key_rule = key_rule
        self._tried: list[EpochTransaction] = []
        self._last: Exception | None = None
        self._happened: EpochTransaction | None = None
        self._expiry_refused: Exception | None = None
        self.unknown = False
        """Whether the outcome of an attempt is not known: nothing staged may be touched then."""
        self.committed = False
        """True if an attempt is known to have happened."""

    def commit(self, table: Table) -> None:
        """Make the epoch true.

        Args:
            table: As it was a moment ago, for the first attempt.

        Raises:
            Fenced: If the table holds the epoch already, or a later one, from another driver.
            CommitRejected: If it certainly did not happen.
            CommitUnknown: If it is not known whether it happened.
        """
        backoff = self._options.commit_backoff()
        self._attempt(table)
        while self._last is not None:
            if isinstance(self._last, CatalogReplacedError):
                # In another catalog the table is another one, or an older one, whose folders may
                # lack what the tasks have staged.
                raise self._failed()
            # Looked at once more even if time is up: the last attempt may have happened.
            may_go_on = backoff.pause()
            found = self._look()
            if found is not None and self._is_ours(found):
                break
            if found is not None:
                self._check_own_mark(found)
            if not may_go_on or (isinstance(self._last, _REFUSALS) and not self._may_leave_out()):
                raise self._failed()
            if found is not None:
                self._check_history(found)
                self._attempt_again(found)
        self._remove_leftovers()

    def _attempt_again(self, table: Table) -> None:
        """Attempt it again, on the table as it is after an attempt that failed.

        Raises:
            CommitUnknown: If the change is rejected while an earlier attempt, whose request has
                had no answer, may still happen: the table is where that attempt began.
        """
        try:
            self._attempt(table)
        except CommitRejected as error:
            head = table.metadata.current_snapshot_id
            bases = (attempt.table_metadata.current_snapshot_id for attempt in self._tried)
            if not self.unknown or head not in bases:
                raise
            raise CommitUnknown(
                f"{FORMAT}: epoch {self._epoch.number} of query {self._epoch.query} may or may "
                "not be in the table: one attempt got no response, and another one failed: "
                f"{error}"
            ) from error

    def _attempt(self, table: Table) -> None:
        """Look for the mark, build the change upon this very table, and try it."""
        self._check_mark(table)
        self._check_base(table)
        self._check_key(table)
        transaction, before = EpochTransaction(table), table.metadata
        is_allowed = table.metadata.table_uuid not in _NEVER_EXPIRED
        transaction.may_expire = is_allowed and self._expiry_refused is None
        progress = self._progress()
        with self._table_errors():
            self._change(transaction, {**progress.summary, **marks.summary_of(self._epoch)})
            self._key_rule.stage(transaction)
            if self._has_mark:
                self._set_mark(transaction, progress)
        self._tried.append(transaction)  # first: it may happen, whatever is reported
        self._compare_and_set(transaction)
        if self._last is None:
            self._note_refused_expiry(before)
            remove_expired(table, before)

    def _may_leave_out(self) -> bool:
        """Return True if the refused attempt expired snapshots that no option asks to expire.

        A catalog that expires snapshots itself may forbid it to others: that must not stop rows.
        """
        attempt = self._tried[-1]
        if not attempt.expires or self._options.expires_snapshots:
            return False
        if isinstance(self._last, (NoSuchTableError, UnauthorizedError)):
            return False  # that is no answer to the expiry
        self._expiry_refused = self._last
        return True

    def _note_refused_expiry(self, metadata: TableMetadata) -> None:
        """Expire no more in this process, once a commit without the expiry has succeeded."""
        if self._expiry_refused is None:
            return
        _NEVER_EXPIRED.add(metadata.table_uuid)
        _log.warning(
            "%s: the catalog refuses a commit to table %s that expires snapshots: %s. Epochs "
            "are committed without expiring snapshots. Unless the catalog expires them, use "
            "another program; 'keepSnapshots' = 'all' keeps them without this warning",
            FORMAT,
            self._options.table_name,
            excerpt(str(self._expiry_refused), self._options.secrets()),
        )

    @contextmanager
    def _table_errors(self) -> Iterator[None]:
        """Turn what PyIceberg cannot do with the table into an error that is ours.

        Raises:
            CommitRejected: If there is one; stores' own errors pass.
        """
        try:
            yield
        except (KrishivError, OSError, CommitFailedException):
            raise
        except Exception as error:
            raise CommitRejected(
                f"{FORMAT}: epoch {self._epoch.number} of query {self._epoch.query} cannot be "
                f"added to table {self._options.table_name}: {type(error).__name__}: {error}. "
                "Nothing was committed: correct the table's metadata, then restart the query"
            ) from error

    def _set_mark(self, transaction: EpochTransaction, progress: marks.Reach) -> None:
        query = self._epoch.query
        said = {**marks.properties_of(self._epoch), **progress.properties(query)}
        transaction.set_properties(said)
        outdated = marks.outdated(transaction.table_metadata, query)
        if gone := [name for name in outdated if name not in said]:
            transaction.remove_properties(*gone)

    @property
    def _has_mark(self) -> bool:
        """Whether the epoch may be asked for again; a job without a number dies with its id."""
        return marks.is_marked(self._epoch.query, self._options.txn_app_id)

    def _progress(self) -> marks.Reach:
        found = SparkCheckpoint.of(self._options)
        return marks.Reach() if found is None else marks.progress_of(found, self._epoch)

    def _compare_and_set(self, transaction: EpochTransaction) -> None:
        """The linearization point: the epoch is true if the catalog takes this, and only then."""
        try:
            transaction.compare_and_set()
            self._last, self.committed, self._happened = None, True, transaction
        # Another commit was faster, or the catalog was replaced: it did not happen.
        except (CommitFailedException, CatalogReplacedError) as error:
            self._last = error
        except Exception as error:  # noqa: BLE001  anything else may have happened: look
            self._last, self.unknown = error, self.unknown or not isinstance(error, _REFUSALS)
            # A connection whose COMMIT has failed shows what nobody else sees: the look is over a
            # new one.
            forget_catalog(self._options)

    def _check_own_mark(self, table: Table) -> None:
        """Stop where the mark of the epoch may be our own, of a snapshot that has expired since.

        Who was refused since somebody else was faster may have been that itself, if a proxy has
        repeated the request. No mark, where there would be one, tells that it was not.
        """
        newest = self._newest_mark(table)
        if self._has_mark and newest is None:
            return
        if not _may_have_lost(table.metadata, self._base):
            return
        self.unknown = True
        if newest is not None:
            raise CommitUnknown(
                f"{FORMAT}: epoch {self._epoch.number} of query {self._epoch.query} may or may "
                "not be in the table as this driver has written it: the table has epoch "
                f"{newest.epoch} of the query, and a snapshot that was committed after the "
                "first attempt has expired, perhaps its own; restart the query, which checks "
                "the table and continues"
            )

    def _newest_mark(self, table: Table) -> CommittedEpoch | None:
        """The query's mark in the table, if it is of the epoch or a later one."""
        newest = marks.last_committed_epoch(table.metadata, self._epoch.query)
        return newest if newest is not None and newest.epoch >= self._epoch.number else None

    def _check_mark(self, table: Table) -> None:
        newest = self._newest_mark(table)
        if newest is not None:
            raise Fenced(
                f"{FORMAT}: epoch {self._epoch.number} of query {self._epoch.query} is not "
                f"published: the table has epoch {newest.epoch} of the query from another "
                "driver; two drivers run on one checkpoint"
            )

    def _check_base(self, table: Table) -> None:
        """Refuse rows that were computed from another snapshot than the one they would follow."""
        expected, now = self._options.if_snapshot, table.metadata.current_snapshot_id or "none"
        if expected not in {None, now}:
            raise CommitRejected(
                f"{FORMAT}: epoch {self._epoch.number} of query {self._epoch.query} is not "
                f"published: its rows were computed from snapshot {expected} ('ifSnapshot'), "
                f"and the table is at {now}: compute them from that snapshot"
            )

    def _check_key(self, table: Table) -> None:
        """Refuse a key that another query has not: its first upsert was faster than this one."""
        try:
            self._key_rule.check(table.metadata)
        except OptionError as error:
            raise CommitRejected(str(error)) from error

    def _look(self) -> Table | None:
        """The table after an attempt that failed; None if the catalog does not answer."""
        try:
            table = open_table(self._options)
        except CatalogFailedError as error:
            self._last, self.unknown = error, True
            return None
        before = get_catalog_file(self._tried[0].table)
        if before is not None and before != get_catalog_file(table):
            self._last = CatalogReplacedError(f"the catalog {before.path} was replaced meanwhile")
            return None
        return table

    def _is_ours(self, table: Table) -> bool:
        """Whether one of the attempts happened, whatever was reported."""
        for attempt in self._tried:
            if table.metadata.snapshot_by_id(attempt.producer.snapshot_id) is not None:
                self.committed, self._happened = True, attempt
                return True
        return False

    @property
    def is_refused(self) -> bool:
        """True if the epoch is certainly not in the table, after any error of its commit."""
        return not self.unknown and not self.committed

    def _check_history(self, table: Table) -> None:
        """Give up if the snapshot of an attempt may have come and gone, and nothing else tells.

        Tables of version 1 have no sequence numbers: nothing is found out about them.
        """
        if self._has_mark or not self.unknown:
            return
        if _has_lost(table.metadata, self._base):
            raise CommitUnknown(
                f"{FORMAT}: the rows may or may not be in the table: the catalog did not "
                "respond, or other writers were faster, and snapshots since then have expired, "
                "perhaps that of this job too; check the table before you run the job again, "
                "or give the job a number ('txnAppId' and 'txnVersion')"
            )

    @property
    def _base(self) -> TableMetadata:
        """The table as the first attempt found it."""
        return self._tried[0].table_metadata

    @property
    def _timeout_s(self) -> float:
        return self._options.commit_timeout / 1000

    def _remove_leftovers(self) -> None:
        """Remove what attempts wrote that lost; never after an outcome that is not known."""
        if self.unknown:
            return
        # A catalog whose answers lag may show an earlier attempt only after a later one.
        for attempt in self._tried:
            if attempt is not self._happened:
                remove_written(attempt.producer)

    def _failed(self) -> KrishivError:
        what = f"{FORMAT}: epoch {self._epoch.number} of query {self._epoch.query}"
        reason = self._options.describe_error(self._last)
        if self.unknown:
            return CommitUnknown(
                f"{what} may or may not be in the table: {reason}; restart the query, which "
                "checks the table and continues"
            )
        for attempt in self._tried:
            remove_written(attempt.producer)
        return CommitRejected(
            f"{what} is not in the table after {len(self._tried)} attempts in "
            f"{self._timeout_s:g} s ('commitTimeout'): {reason}; restart the query"
        )


def _may_have_lost(metadata: TableMetadata, base: TableMetadata) -> bool:
    """As `_has_lost`; also if that cannot be told, of a table of version 1."""
    return metadata.format_version == 1 or _has_lost(metadata, base)


def _has_lost(metadata: TableMetadata, base: TableMetadata) -> bool:
    """Whether a snapshot has come and gone since a table was as `base` has it.

    Sequence numbers grow by one with each snapshot (Iceberg spec, "Sequence Numbers").
    """
    before, now = _newest(base), _newest(metadata)
    there = (snapshot.sequence_number or 0 for snapshot in metadata.snapshots)
    return sum(number > before for number in there) < now - before


def _newest(metadata: TableMetadata) -> int:
    """The sequence number of a table's newest snapshot, expired ones included; 0 in version 1."""
    return int(getattr(metadata, "last_sequence_number", 0))
