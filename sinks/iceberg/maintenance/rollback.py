"""The rollback of a table to the snapshot before an epoch, for a replay. Operator.

The branch and the query's committed epoch change in one commit. If the process dies, all of it is
done or nothing, and a second run detects which. The undone snapshots remain in the table under a
tag, so that no expiry deletes their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AssertRefSnapshotId, SetSnapshotRefUpdate

from krishiv_spark.errors import OptionError, SinkError
from krishiv_spark.iceberg.catalogs import explain_catalog_errors, forget_catalog
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.iceberg.property_keys import (
    EPOCH_KEY,
    find_query_id,
    iterate_ancestors,
    parse_count,
)
from krishiv_spark.sinks.base import Epoch
from krishiv_spark.sinks.iceberg.epoch_properties import (
    EpochProgress,
    has_epoch_tag,
    read_committed_epoch,
    stage_epoch,
)
from krishiv_spark.sinks.iceberg.epoch_snapshot import EpochTransaction
from krishiv_spark.sinks.iceberg.table_copies import open_own_table
from krishiv_spark.spark.checkpoint import SparkCheckpoint

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
    from krishiv_spark.sinks.participant import Replay

__all__ = ["Rollback"]

_TAG = "krishiv-replay-"


_MAX_NAMED = 5


@dataclass(frozen=True)
class _Undone:
    """The snapshots and epochs that are undone.

    Attributes:
        snapshots: Snapshots of the query's later epochs, newest first.
        base: The snapshot that the branch goes back to; None if no snapshot is undone.
        is_ahead: Whether the query's committed epoch is a later one.
    """

    snapshots: Sequence[Snapshot]
    base: Snapshot | None
    is_ahead: bool


class Rollback:
    """A rollback that undoes epochs of a query in its table.

    Args:
        options: Options of the query's sink.
        must_hold: Whether a table that has no epoch of the query is refused.
    """

    def __init__(self, options: IcebergSinkOptions, *, must_hold: bool = True) -> None:
        self._options = options
        self._must_hold = must_hold

    def identity(self) -> str:
        """Return the identity of the table, its UUID."""
        return f"Iceberg table {open_own_table(self._options).metadata.table_uuid}"

    def lines(self, replay: Replay) -> list[str]:
        """Describe the steps of `run`, one per line, without a change.

        Raises:
            OptionError: If a rollback would undo commits of other writers, or needs a snapshot that
                has expired.
            CatalogFailedError: If the catalog or the table cannot be read.
        """
        metadata = open_own_table(self._options).metadata
        found = self._find_undone(metadata, replay)
        name = f"{FORMAT} {self._options.table_name}"
        if found.base is None:
            what = (
                f"its committed epoch is reset to {replay.before.epoch}" if found.is_ahead else ""
            )
            return [f"{name}: no snapshot of epoch {replay.first} or later{what and '; '}{what}"]
        newest = found.snapshots[0]
        epochs = [number for one in found.snapshots if (number := _get_epoch(one)) is not None]
        undone = (
            f"{name}: {len(found.snapshots)} snapshots, of epochs {min(epochs)} to "
            f"{max(epochs)}, are undone: in one commit, the table is rolled back from "
            f"snapshot {newest.snapshot_id} to {found.base.snapshot_id}, and the query's "
            f"committed epoch is reset to {replay.before.epoch}. The tag "
            f"{_choose_tag(metadata, replay)} keeps the undone rows until you remove it"
        )
        followers = (
            f"streams that follow {self._options.table_name} and have read an undone snapshot fail "
            "at their next batch, since it is no longer in the history: replay them too"
        )
        return [undone, followers]

    def run(self, replay: Replay) -> None:
        """Undo the epochs; do nothing if they are undone already.

        Raises:
            OptionError, CatalogFailedError: As `lines`.
            SinkError: If other commits are always faster.
        """
        backoff = self._options.commit_backoff()
        while not self._attempt(replay):
            if not backoff.pause():
                raise SinkError(
                    f"{FORMAT}: table {self._options.table_name} was not rolled back in "
                    f"{self._options.commit_timeout / 1000:g} s ('commitTimeout'), because "
                    "other writers commit to it: run the command again"
                )

    def _attempt(self, replay: Replay) -> bool:
        """Return True if the epochs are undone; False if another commit was faster."""
        table = open_own_table(self._options)
        found = self._find_undone(table.metadata, replay)
        if found.base is None and not found.is_ahead:
            return True
        transaction = EpochTransaction(table)
        self._stage(transaction, replay, found)
        doing = f"roll back table {self._options.table_name}"
        try:
            with explain_catalog_errors(
                self._options, f"{doing}; run the command again, which checks the table"
            ):
                try:
                    transaction.compare_and_set()
                except CommitFailedException:
                    return False
        except Exception:
            # A connection whose COMMIT has failed may show a state that no other process reads.
            forget_catalog(self._options)
            raise
        return True

    def _stage(self, transaction: EpochTransaction, replay: Replay, found: _Undone) -> None:
        metadata = transaction.table_metadata
        head = metadata.current_snapshot_id
        transaction.require(
            AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": head})
        )
        if found.base is not None:
            tag = _choose_tag(metadata, replay)
            kept = {"ref-name": tag, "type": "tag", "snapshot-id": head}
            transaction.stage(SetSnapshotRefUpdate.model_validate(kept))
            branch = metadata.refs[MAIN_BRANCH].model_dump(by_alias=True, exclude_none=True)
            back = {**branch, "ref-name": MAIN_BRANCH, "snapshot-id": found.base.snapshot_id}
            transaction.stage(SetSnapshotRefUpdate.model_validate(back))
        epoch = Epoch(replay.query, replay.before.epoch, offsets=replay.before)
        checkpoint = SparkCheckpoint.of(self._options)
        read = EpochProgress.read
        progress = EpochProgress() if checkpoint is None else read(checkpoint, epoch)
        stage_epoch(transaction, epoch, progress)

    def _find_undone(self, metadata: TableMetadata, replay: Replay) -> _Undone:
        """Return the snapshots and epochs to be undone.

        Raises:
            OptionError: As `lines`.
        """
        committed = read_committed_epoch(metadata, replay.query)
        if has_epoch_tag(metadata, replay.query):
            raise OptionError(
                f"{FORMAT}: table {self._options.table_name} records the epochs of query "
                f"{replay.query} by the tag 'krishiv.epoch.{replay.query}', since its catalog "
                "keeps no properties: such epochs cannot be undone. Nothing was changed. Start "
                "the query with a new checkpoint and a new table: all rows are read again"
            )
        if committed is None and self._must_hold:
            raise OptionError(
                f"{FORMAT}: table {self._options.table_name} has no epoch of query {replay.query}: "
                "give the options that name the query's table"
            )
        is_ahead = committed is not None and committed.epoch >= replay.first
        by_id = {one.snapshot_id: one for one in metadata.snapshots}
        line = list(iterate_ancestors(by_id, metadata.current_snapshot_id))
        later = [n for n, one in enumerate(line) if _is_later(one, replay)]
        # A table that was rolled back manually keeps its committed epoch.
        end = later[-1] + 1 if later else 0
        undone, rest = line[:end], line[end:]
        self._check_own(undone, replay)
        if undone or is_ahead:
            self._check_whole(undone, rest, replay)
        return _Undone(undone, rest[0] if undone else None, is_ahead)

    def _check_own(self, undone: Sequence[Snapshot], replay: Replay) -> None:
        others = [one for one in undone if not (_is_later(one, replay) or _is_compaction(one))]
        if others:
            named = "; ".join(map(_describe_snapshot, others[:_MAX_NAMED]))
            more = f"; and {len(others) - _MAX_NAMED} more" if len(others) > _MAX_NAMED else ""
            raise OptionError(
                f"{FORMAT}: table {self._options.table_name} cannot be rolled back to the "
                f"snapshot before epoch {replay.first}: that would undo later commits of other "
                f"writers: {named}{more}. Nothing was changed. Replay from a later epoch, or "
                "remove the rows of the later epochs yourself (DELETE), and start the query "
                f"with the checkpoint that 'krishiv-spark checkpoint copy {replay.checkpoint} "
                f"NEW --to {replay.before.epoch}' creates"
            )

    def _check_whole(
        self, undone: Sequence[Snapshot], rest: Sequence[Snapshot], replay: Replay
    ) -> None:
        """Refuse a history that may lack epochs of the query since the first one.

        Raises:
            OptionError: If snapshots have expired, or there is none before the first epoch.
        """
        if any(find_query_id(one) == replay.query for one in rest):
            return
        oldest = (*undone, *rest)[-1:]
        if rest and oldest[0].sequence_number == 1:
            return
        if oldest and undone and not rest and oldest[0].sequence_number == 1:
            raise OptionError(
                f"{FORMAT}: table {self._options.table_name} had no snapshot before epoch "
                f"{replay.first}, so there is none to roll back to. Nothing was changed: start "
                "the query with a new checkpoint and a new table: all rows are read again"
            )
        raise OptionError(
            f"{FORMAT}: table {self._options.table_name} cannot be rolled back to the end of "
            f"epoch {replay.before.epoch}: snapshots of that time have expired. Nothing was "
            "changed. Replay from a later epoch; and keep snapshots as long as a replay may "
            "need them ('expireOlderThan')"
        )


def _choose_tag(metadata: TableMetadata, replay: Replay) -> str:
    """Return a tag name that is not in use.

    A first run may have died after its commit, and a driver that was not stopped may have committed
    since: the tags keep the snapshots that each run undoes.
    """
    name = f"{_TAG}{replay.name}"
    later = (f"{name}-{number}" for number in count(2))
    return next(found for found in chain([name], later) if found not in metadata.refs)


def _is_later(snapshot: Snapshot, replay: Replay) -> bool:
    number = _get_epoch(snapshot)
    return find_query_id(snapshot) == replay.query and number is not None and number >= replay.first


def _is_compaction(snapshot: Snapshot) -> bool:
    """Return True if a snapshot has the rows of the one before it, in other files."""
    return snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE


def _get_epoch(snapshot: Snapshot) -> int | None:
    return None if snapshot.summary is None else parse_count(snapshot.summary.get(EPOCH_KEY))


def _describe_snapshot(snapshot: Snapshot) -> str:
    """Describe a snapshot with its operation and the engine or query that wrote it."""
    summary = snapshot.summary
    if summary is None:
        return f"snapshot {snapshot.snapshot_id} (its summary names no writer)"
    query, engine = find_query_id(snapshot), summary.get("engine-name")
    by = f"query {query}" if query is not None else "an unnamed writer"
    if engine is not None:
        by = f"{engine} {summary.get('engine-version') or ''}".strip()
    return f"snapshot {snapshot.snapshot_id} ({summary.operation.value}, by {by})"
