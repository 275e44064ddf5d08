"""The commits of epochs to a table: one snapshot for each, with the epoch's properties. Driver.

PyIceberg's own retry applies the same change to any newer state of the table, so two drivers of one
query would both add their rows. Here, each attempt first checks in the table's metadata that the
epoch is not committed yet. `EpochCommit._compare_and_set` is the linearization point: the catalog
accepts rows and properties together, and only if the branch still has the checked snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, UnauthorizedError

from krishiv_spark.errors import (
    CommitRejected,
    CommitUnknown,
    Fenced,
    KrishivError,
    OptionError,
)
from krishiv_spark.iceberg.catalogs import CatalogFailedError, forget_catalog, open_table
from krishiv_spark.iceberg.commit_rules import REFUSALS, has_expired_since, may_have_expired_since
from krishiv_spark.iceberg.embedded import CatalogReplacedError, get_catalog_file
from krishiv_spark.iceberg.file_access import redact_errors
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.property_keys import PARENT_KEY
from krishiv_spark.messages.exception_chains import scrub
from krishiv_spark.messages.redaction import excerpt
from krishiv_spark.runtime.once import warn_once
from krishiv_spark.sinks.base import CommittedEpoch, Epoch, TwoPhaseCommitter
from krishiv_spark.sinks.iceberg import epoch_properties
from krishiv_spark.sinks.iceberg.epoch_properties import EpochMark, EpochProgress
from krishiv_spark.sinks.iceberg.epoch_snapshot import EpochSnapshot, EpochTransaction
from krishiv_spark.sinks.iceberg.epoch_updates import (
    Append,
    EpochMode,
    EpochUpdate,
    Replace,
    SnapshotChanges,
    check_staged_exist,
)
from krishiv_spark.sinks.iceberg.lost_races import LostRaces
from krishiv_spark.sinks.iceberg.maintenance.expiry import delete_expired_files, expire_with_commit
from krishiv_spark.sinks.iceberg.manifest_writers import WrittenManifests
from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
from krishiv_spark.sinks.iceberg.table_setup import CachedTable, adapt_to_changes, find_table
from krishiv_spark.sinks.iceberg.task_table import StagedDataFiles
from krishiv_spark.sinks.iceberg.upserts.key_rule import KeyRule
from krishiv_spark.spark.checkpoint import SparkCheckpoint

if TYPE_CHECKING:
    from uuid import UUID

    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

__all__ = ["EpochCommit", "IcebergCommitter"]

_log = logging.getLogger(__name__)

_NEVER_EXPIRED: set[UUID] = set()
"""Tables whose catalog has refused this process a commit that expires snapshots."""


class IcebergCommitter(TwoPhaseCommitter[StagedDataFiles]):
    """A committer that adds one snapshot for each epoch, see `EpochCommit`.

    Args:
        options: Options of the sink.
        mode: The effect of the query's epochs.
        cache: The table, if this process has just loaded it.
    """

    def __init__(self, options: IcebergSinkOptions, mode: EpochMode, cache: CachedTable) -> None:
        self.mode = mode
        self._options = options
        self._cache = cache

    def table(self) -> Table:
        """Driver: return the table as this process has loaded it last."""
        return self._cache.get(self._options)

    def forget_table(self) -> None:
        """Operator: load the table again at its next use, since another program changed it."""
        self._cache.clear()

    def last_committed(self, query: str) -> CommittedEpoch | None:
        """Driver: return the newest epoch that the table records; enrol a query that has none.

        Raises:
            OptionError: If the catalog does not keep the property that records the epoch, or as
                `check_key`.
        """
        self.check_key(query)
        self.enrol(query)
        return self.read_committed(query)

    def check_key(self, query: str | None) -> None:
        """Driver: refuse upserts by another key than the table's. See `KeyRule`.

        Raises:
            OptionError: If the query upserts by another key, or appends to a table with upserts.
        """
        self._key_rule(self.mode, query).check(self.table().metadata)

    def _key_rule(self, mode: EpochMode, query: str | None, *, is_decided: bool = False) -> KeyRule:
        return KeyRule(self._options, mode.keys, mode.replaces, query, is_decided)

    def read_committed(self, query: str) -> CommittedEpoch | None:
        """Driver: return the newest epoch that the table records; change nothing."""
        return epoch_properties.read_committed_epoch(self.table().metadata, query)

    def peek_committed(self, query: str) -> CommittedEpoch | None:
        """Driver: as `read_committed`, but return None if the table does not exist."""
        if self._cache.peek() is None:
            found = find_table(self._options)
            if found is None:
                return None
            self._cache.set(found)
        return self.read_committed(query)

    def enrol(self, query: str) -> None:
        """Driver: ensure that a property or tag records the epochs of a query. See `enrol_query`.

        A query whose committed epoch is only in summaries of snapshots continues, with a warning.
        """
        table, app = self.table(), self._options.txn_app_id
        if epoch_properties.has_epoch_property(table.metadata, query):
            return
        if epoch_properties.has_epoch_tag(table.metadata, query):
            return
        if not epoch_properties.is_repeatable(query, app):
            return
        if (committed := self.read_committed(query)) is None:
            self._cache.set(epoch_properties.enrol_query(table, self._options, query))
            return
        warn_once(
            _log,
            f"{table.metadata.table_uuid} {query}",
            "%s: table %s has epoch %d of query %s, but not its property "
            "'krishiv.epoch.%s': another program removed it, or the catalog does not keep "
            "table properties. The query continues with the summaries of its snapshots. "
            "Its next epoch sets the property again, and a tag of that name, which keeps "
            "the newest summary: do not remove the tag",
            FORMAT,
            self._options.table_name,
            committed.epoch,
            query,
            query,
        )

    def publish(self, epoch: Epoch, staged: Sequence[StagedDataFiles]) -> None:
        """Driver: commit one snapshot with the rows and the epoch's properties."""
        if not staged and not self.mode.replaces:
            return  # a batch job without rows
        table = adapt_to_changes(self._options, self._cache.take(self._options), staged)
        update = self._create_update(epoch, staged, self.mode, table)
        commit = EpochCommit(self._options, epoch, update, self._key_rule(self.mode, epoch.query))
        try:
            with redact_errors(table.io, f"commit epoch {epoch.number}"):
                check_staged_exist(table.io, staged)
                commit.run(table)
        # Errors of any class: an unreadable file, a failed store, too little memory.
        except Exception:
            if commit.is_refused:
                update.delete_written(is_committed=False)
                update.delete_staged(table.io)
                self.discard(staged)
            raise
        self._clean_up(commit, update, table)
        self._compact(epoch)

    def finish(
        self, epoch: Epoch, staged: Sequence[StagedDataFiles], mode: EpochMode | None = None
    ) -> None:
        """Driver: as `publish`, but for an epoch whose intent is logged: keep all staged files.

        Args:
            epoch: The epoch of the intent.
            staged: The files that the intent names.
            mode: The effect of this epoch; None for the query's current mode.

        Raises:
            Fenced: If the table has the epoch, or a later one.
            SinkError: If the epoch is not in the table, or that is not known.
        """
        mode = mode or self.mode
        table = self._cache.take(self._options)
        update = self._create_update(epoch, staged, mode, table)
        rule = self._key_rule(mode, epoch.query, is_decided=True)
        commit = EpochCommit(self._options, epoch, update, rule)
        try:
            with redact_errors(table.io, f"commit epoch {epoch.number}"):
                check_staged_exist(table.io, staged, has_intent=True)
                commit.run(table)
        except Exception:
            if commit.is_refused:
                update.delete_written(is_committed=False)
            raise
        self._clean_up(commit, update, table)
        self._compact(epoch)

    def _compact(self, epoch: Epoch) -> None:
        """Compact the table between two epochs, if the options ask for it.

        The epoch is committed: an error here costs the compaction only.
        """
        if self._options.compact != "auto":
            return
        from krishiv_spark.sinks.iceberg.maintenance.compaction import compact_next_group, is_due

        try:
            if is_due(epoch.number):
                compact_next_group(self._options)
        except Exception as error:  # noqa: BLE001  see above
            shown = scrub(error, self._options.secrets())
            _log.warning("the table was not compacted; the query continues", exc_info=shown)

    def _create_update(
        self, epoch: Epoch, staged: Sequence[StagedDataFiles], mode: EpochMode, table: Table
    ) -> EpochUpdate:
        if (spec := mode.upsert_spec) is None:
            return Replace(staged) if mode.replaces else Append(staged)
        if spec.is_history:
            from krishiv_spark.sinks.iceberg.history.history_updates import HistoryUpdate

            return HistoryUpdate(self._options, staged, spec, epoch)
        from krishiv_spark.sinks.iceberg.upserts.upsert_updates import create_upsert_update

        return create_upsert_update(self._options, staged, spec, epoch, table.metadata)

    @staticmethod
    def _clean_up(commit: EpochCommit, update: EpochUpdate, table: Table) -> None:
        if not commit.is_unknown:  # otherwise vacuum deletes the files of the other attempts
            update.delete_written(is_committed=True)
        update.delete_staged(table.io)

    def discard(self, staged: Sequence[StagedDataFiles]) -> None:
        """Anywhere: delete staged files that no snapshot names."""
        from krishiv_spark.sinks.iceberg.maintenance.orphans import delete_unused

        try:
            delete_unused(self._options, staged)
        except Exception as error:  # noqa: BLE001  best effort: `krishiv-spark iceberg vacuum` finds them
            shown = scrub(error, self._options.secrets())
            _log.warning("staged files remain for vacuum to remove", exc_info=shown)


class EpochCommit:
    """The commit of one epoch: attempts, each on the newest table, until one succeeds. Driver.

    Args:
        options: Name the table, and limit the time.
        epoch: Its query, number and digest are committed with the rows.
        update: The change of the table's files.
        key_rule: Checks and commits the key columns of upserts.
    """

    def __init__(
        self, options: IcebergSinkOptions, epoch: Epoch, update: EpochUpdate, key_rule: KeyRule
    ) -> None:
        self._options = options
        self._epoch = epoch
        self._update = update
        self._key_rule = key_rule
        self._attempts: list[EpochTransaction] = []
        self._lost = LostRaces()
        self._written = WrittenManifests()
        self._error: Exception | None = None
        self._winner: EpochTransaction | None = None
        self._expiry_refused: Exception | None = None
        self._is_property_refused = False
        self.is_unknown = False
        """True if the outcome of an attempt is unknown: no staged file may be deleted then."""

    def run(self, table: Table) -> None:
        """Commit the epoch.

        Args:
            table: The table as it was loaded last, for the first attempt.

        Raises:
            Fenced: If another driver has committed this epoch or a later one.
            CommitRejected: If the epoch is certainly not in the table.
            CommitUnknown: If it is unknown whether the epoch is in the table.
        """
        backoff = self._options.commit_backoff()
        self._attempt(table)
        while self._error is not None:
            if isinstance(self._error, CatalogReplacedError):
                # The table of another catalog may be older, or lack the staged files.
                raise self._to_failure()
            # The table is loaded even if the time is up: the last attempt may have succeeded.
            may_continue = backoff.pause()
            found = self._load_table()
            if found is not None and self._has_succeeded(found):
                break
            if found is not None:
                self._check_own_epoch(found)
                if isinstance(self._error, CommitFailedException):
                    self._lost.record(self._attempts[-1].table.metadata, found.metadata)
            is_refused = isinstance(self._error, REFUSALS)
            if not may_continue or (is_refused and not self._may_ask_for_less()):
                raise self._to_failure()
            if not is_refused and epoch_properties.is_refusal(self._error):
                self._may_omit_property()  # 422 and the like: refused, or so says a gateway
            if found is not None:
                self._check_history(found)
                self._attempt_again(found)
        self._delete_lost_manifests()

    def _attempt_again(self, table: Table) -> None:
        """Make another attempt, on the table that was loaded after a failed one.

        Raises:
            CommitUnknown: If the update is rejected while an earlier attempt, whose request got no
                response, may still succeed: the table is still at the base of that attempt.
        """
        try:
            self._attempt(table)
        except CommitRejected as error:
            head = table.metadata.current_snapshot_id
            bases = (attempt.table.metadata.current_snapshot_id for attempt in self._attempts)
            if not self.is_unknown or head not in bases:
                raise
            raise CommitUnknown(
                f"{FORMAT}: epoch {self._epoch.number} of query {self._epoch.query} may or may "
                "not be in the table: one attempt got no response, and another one failed: "
                f"{error}"
            ) from error

    def _attempt(self, table: Table) -> None:
        """Check this state of the table, plan the update on it, and send the commit once."""
        self._check_not_committed(table)
        self._check_base(table)
        self._check_key(table)
        transaction, before = EpochTransaction(table), table.metadata
        is_allowed = before.table_uuid not in _NEVER_EXPIRED
        transaction.may_expire = is_allowed and self._expiry_refused is None
        transaction.skipped, transaction.written = self._lost.skipped, self._written
        progress, mark = self._read_progress(), self._choose_mark(before)
        with self._reject_table_errors():
            key = self._key_rule.summarize(before) if mark.is_tagged else {}
            self._stage_snapshot(transaction, self._update.plan(table), {**progress.summary, **key})
            expire_with_commit(transaction, self._options)
            self._key_rule.stage(transaction, mark)
            if self._is_repeatable:
                epoch_properties.stage_mark(transaction, self._epoch, progress, mark)
        # Before the request: it may succeed although an error is reported.
        self._attempts.append(transaction)
        self._compare_and_set(transaction)
        if self._error is None:
            self._record_refused_expiry(before)
            self._key_rule.warn_of_dropped_key(table.metadata, mark)
            delete_expired_files(table, before)

    def _stage_snapshot(
        self,
        transaction: EpochTransaction,
        changes: SnapshotChanges,
        known: Mapping[str, str],
    ) -> None:
        parent = transaction.table_metadata.current_snapshot_id
        lineage = {} if parent is None else {PARENT_KEY: str(parent)}
        summary = {**known, **changes.summary, **self._lost.summary, **lineage}
        summary |= epoch_properties.to_summary(self._epoch)
        merge = self._options.merge_manifests
        EpochSnapshot(transaction, summary, changes, merge=merge).commit()

    def _choose_mark(self, metadata: TableMetadata) -> EpochMark:
        is_refused = self._is_property_refused
        if not self._is_repeatable:
            return self._key_rule.choose_mark(metadata, is_refused=is_refused)
        return EpochMark.choose(metadata, self._epoch.query, is_refused=is_refused)

    def _may_ask_for_less(self) -> bool:
        """Return True if the refused attempt can be repeated without a part that is not needed."""
        if self._may_omit_property() or self._lost.stop_skipping():
            return True
        return self._may_omit_expiry()

    def _may_omit_property(self) -> bool:
        """Return True if the refused attempt sets properties, and a tag is enough without them."""
        metadata, query = self._attempts[-1].table_metadata, self._epoch.query
        if self._is_repeatable:
            is_needed = epoch_properties.has_epoch_property(metadata, query)
            is_unset = epoch_properties.has_epoch_tag(metadata, query)
        else:
            is_needed, is_unset = False, not self._key_rule.sets_properties(metadata)
        may_omit = not (self._is_property_refused or is_needed or is_unset)
        self._is_property_refused = self._is_property_refused or may_omit
        return may_omit

    def _may_omit_expiry(self) -> bool:
        """Return True if the refused attempt expired snapshots that no option asks to expire.

        A catalog that expires snapshots itself may forbid it to others: that must not stop rows.
        """
        attempt = self._attempts[-1]
        if not attempt.expires or self._options.expires_snapshots:
            return False
        if isinstance(self._error, (NoSuchTableError, UnauthorizedError)):
            return False  # these errors are not about the expiry
        self._expiry_refused = self._error
        return True

    def _record_refused_expiry(self, metadata: TableMetadata) -> None:
        """Stop expiring in this process, once a commit without the expiry has succeeded."""
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
    def _reject_table_errors(self) -> Iterator[None]:
        """Convert errors of PyIceberg about the table into the rejection of the epoch.

        Raises:
            CommitRejected: After such an error; errors of stores are raised unchanged.
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

    @property
    def _is_repeatable(self) -> bool:
        return epoch_properties.is_repeatable(self._epoch.query, self._options.txn_app_id)

    def _read_progress(self) -> EpochProgress:
        found = SparkCheckpoint.of(self._options)
        return EpochProgress() if found is None else EpochProgress.read(found, self._epoch)

    def _compare_and_set(self, transaction: EpochTransaction) -> None:
        """Send the commit: the linearization point.

        The epoch is committed if and only if the catalog accepts this request.
        """
        try:
            transaction.compare_and_set()
            self._error, self._winner = None, transaction
        # Another commit was faster, or the catalog was replaced: this one was not accepted.
        except (CommitFailedException, CatalogReplacedError) as error:
            self._error = error
        except Exception as error:  # noqa: BLE001  it may have succeeded: the table is loaded again
            self._error = error
            self.is_unknown = self.is_unknown or not isinstance(error, REFUSALS)
            # A connection whose COMMIT has failed shows a state that no other connection reads:
            # the table is loaded over a new one.
            forget_catalog(self._options)

    def _check_own_epoch(self, table: Table) -> None:
        """Stop if the table's epoch may be this driver's own, from a snapshot that has expired.

        An attempt that lost against a faster commit may have lost against itself, if a proxy has
        repeated the request. If the table records no epoch although this commit would record one,
        no attempt has succeeded.
        """
        newest = self._find_newer_epoch(table)
        if self._is_repeatable and newest is None:
            return
        if not may_have_expired_since(table.metadata, self._base):
            return
        self.is_unknown = True
        if newest is not None:
            raise CommitUnknown(
                f"{FORMAT}: epoch {self._epoch.number} of query {self._epoch.query} may or may "
                "not be in the table as this driver has written it: the table has epoch "
                f"{newest.epoch} of the query, and a snapshot that was committed after the "
                "first attempt has expired, perhaps its own; restart the query, which checks "
                "the table and continues"
            )

    def _find_newer_epoch(self, table: Table) -> CommittedEpoch | None:
        """Return the query's committed epoch, if it is this one or a later one."""
        newest = epoch_properties.read_committed_epoch(table.metadata, self._epoch.query)
        return newest if newest is not None and newest.epoch >= self._epoch.number else None

    def _check_not_committed(self, table: Table) -> None:
        newest = self._find_newer_epoch(table)
        if newest is not None:
            raise Fenced(
                f"{FORMAT}: epoch {self._epoch.number} of query {self._epoch.query} is not "
                f"published: the table has epoch {newest.epoch} of the query from another "
                "driver; two drivers run on one checkpoint"
            )

    def _check_base(self, table: Table) -> None:
        """Refuse rows that were computed from another snapshot than the table's newest."""
        expected, now = self._options.if_snapshot, table.metadata.current_snapshot_id or "none"
        if expected not in {None, now}:
            raise CommitRejected(
                f"{FORMAT}: epoch {self._epoch.number} of query {self._epoch.query} is not "
                f"published: its rows were computed from snapshot {expected} ('ifSnapshot'), "
                f"and the table is at {now}: compute them from that snapshot"
            )

    def _check_key(self, table: Table) -> None:
        """Refuse another key than the table's: the first upsert of another query was faster."""
        try:
            self._key_rule.check(table.metadata)
        except OptionError as error:
            raise CommitRejected(str(error)) from error

    def _load_table(self) -> Table | None:
        """Load the table after a failed attempt; None if the catalog does not respond."""
        try:
            table = open_table(self._options)
        except CatalogFailedError as error:
            self._error, self.is_unknown = error, True
            return None
        before = get_catalog_file(self._attempts[0].table)
        if before is not None and before != get_catalog_file(table):
            self._error = CatalogReplacedError(f"the catalog {before.path} was replaced meanwhile")
            return None
        return table

    def _has_succeeded(self, table: Table) -> bool:
        """Return True if the table has the snapshot of an attempt, despite the reported error."""
        # All attempts have one snapshot id, and each has another list.
        found = table.metadata.snapshot_by_id(self._attempts[0].producer.snapshot_id)
        if found is None:
            return False
        lists = {attempt.producer.list_path: attempt for attempt in self._attempts}
        self._winner = lists.get(found.manifest_list, self._attempts[-1])
        self.is_unknown |= found.manifest_list not in lists
        return True

    @property
    def is_refused(self) -> bool:
        """True if the epoch is certainly not in the table, after any error of its commit."""
        return not self.is_unknown and self._winner is None

    def _check_history(self, table: Table) -> None:
        """Give up if the snapshot of an attempt may have expired, and no property records it.

        Tables of format version 1 have no sequence numbers, so that this cannot be detected there.
        """
        if self._is_repeatable or not self.is_unknown:
            return
        if has_expired_since(table.metadata, self._base):
            raise CommitUnknown(
                f"{FORMAT}: the rows may or may not be in the table: the catalog did not "
                "respond, or other writers were faster, and snapshots since then have expired, "
                "perhaps that of this job too; check the table before you run the job again, "
                "or give the job a number ('txnAppId' and 'txnVersion')"
            )

    @property
    def _base(self) -> TableMetadata:
        """The table as the first attempt found it."""
        return self._attempts[0].table.metadata

    def _delete_lost_manifests(self) -> None:
        """Delete the manifests that only lost attempts list, and those that none lists.

        After an unknown outcome, each attempt may be in the table.
        """
        made, winner = [attempt.producer for attempt in self._attempts], self._winner
        EpochSnapshot.delete_unlisted(
            made, made if self.is_unknown or winner is None else [winner.producer]
        )

    def _to_failure(self) -> KrishivError:
        """Return the error of this commit; delete the manifests of its attempts if all lost."""
        epoch = f"{FORMAT}: epoch {self._epoch.number} of query {self._epoch.query}"
        reason = self._options.describe_error(self._error)
        if self.is_unknown:
            return CommitUnknown(
                f"{epoch} may or may not be in the table: {reason}; restart the query, which "
                "checks the table and continues"
            )
        EpochSnapshot.delete_unlisted([attempt.producer for attempt in self._attempts], [])
        winners = self._lost.describe()
        advice = f"; {winners}. Then restart the query" if winners else "; restart the query"
        return CommitRejected(
            f"{epoch} is not in the table after {len(self._attempts)} attempts in "
            f"{self._options.commit_timeout / 1000:g} s ('commitTimeout'): {reason}{advice}"
        )
