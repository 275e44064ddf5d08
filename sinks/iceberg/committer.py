"""Who commits epochs to a table, and removes what none of them names. Driver."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from krishiv_spark.errors import CommitRejected
from krishiv_spark.iceberg.file_access import redact_errors
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.messages.exception_chains import scrub
from krishiv_spark.runtime.once import warn_once
from krishiv_spark.runtime.parallel import side_by_side
from krishiv_spark.sinks.base import CommittedEpoch, Epoch, TwoPhaseCommitter
from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
from krishiv_spark.sinks.iceberg.target import StagedDataFiles
from krishiv_spark.storage.paths import url_scheme

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

    from krishiv_spark.sinks.iceberg.changesets import UpsertSpec
    from krishiv_spark.sinks.iceberg.commits import Change
    from krishiv_spark.sinks.iceberg.kept_keys import KeyRule

__all__ = ["Effect", "IcebergCommitter", "TableInHand", "check_shared"]

_log = logging.getLogger(__name__)

_DISK = {None, "file"}
"""Schemes of what may be another folder on each machine."""

_OLD_S = 600.0
"""Age from which staged files are looked up before a commit; no sensible guard age is shorter."""


@dataclass(frozen=True)
class Effect:
    """What epochs do to the rows that are in the table; without either, they add to them.

    Attributes:
        upsert_spec: How rows change others; None if they do not.
        replaces: Whether they take the place of all others.
    """

    upsert_spec: UpsertSpec | None = None
    replaces: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns by which rows change others; none if they do not."""
        return () if self.upsert_spec is None else self.upsert_spec.keys


class TableInHand:
    """The table as this process has just loaded it, which saves the next one a request.

    It stays in its process when its writer travels: others load the table themselves.
    """

    def __init__(self) -> None:
        self._table: Table | None = None

    def put(self, table: Table) -> Table:
        """Keep a table that was loaded now."""
        self._table = table
        return table

    def look(self, options: IcebergSinkOptions) -> Table:
        """The table in hand, or else as it is now."""
        return self._table or self.put(_open_own_table(options))

    def peek(self) -> Table | None:
        """Return the table in hand; None if it was not loaded."""
        return self._table

    def forget(self) -> None:
        """Load the table again at the next call: it was changed otherwise."""
        self._table = None

    def take(self, options: IcebergSinkOptions) -> Table:
        """As `look`, for somebody who changes it: nobody has it in hand after that."""
        table, self._table = self._table, None
        return table or _open_own_table(options)


def _open_own_table(options: IcebergSinkOptions) -> Table:
    from krishiv_spark.sinks.iceberg.copied import open_own_table  # tasks import no PyIceberg here

    return open_own_table(options)


def check_shared(io: FileIO, staged: Sequence[StagedDataFiles]) -> None:
    """Check that the staged files are there for the driver.

    What tasks wrote to a disk may be on another machine. In a store, only files that were staged
    long ago are looked up: a driver that was paused, or a long epoch, may have been overtaken by a
    vacuum.

    Raises:
        CommitRejected: If one is not there: the snapshot would name files that no reader finds.
    """
    paths = [(path, item) for item in staged for path in item.paths]
    on_disk = (path for path, _ in paths if url_scheme(path) in _DISK)
    old = [path for path, item in paths if url_scheme(path) not in _DISK and _is_old(item)]

    def is_there(path: str) -> bool:
        return bool(io.new_input(path).exists())

    missing = next((path for path in on_disk if not is_there(path)), None)
    if missing is None:
        found = side_by_side(is_there, old)
        missing = next((path for path, there in zip(old, found, strict=True) if not there), None)
    if missing is not None:
        raise CommitRejected(
            f"{FORMAT}: the driver cannot find {missing}, which a task has written. Nothing of "
            "the epoch is visible. 'warehouse' must be a folder that all machines share, or in "
            "a store. If 'krishiv-spark iceberg vacuum' ran meanwhile, its --older-than was "
            "shorter than the epoch: restart the query, which writes the epoch again"
        )


def _is_old(item: StagedDataFiles) -> bool:
    """Return True if a vacuum may have taken the files for orphans."""
    return item.at_s > 0 and time.time() - item.at_s > _OLD_S


class IcebergCommitter(TwoPhaseCommitter[StagedDataFiles]):
    """One snapshot for each epoch; `Committer` says when it is true.

    Args:
        options: Of the sink.
        effect: Of the query's epochs.
        in_hand: The table, if somebody has just loaded it.
    """

    def __init__(self, options: IcebergSinkOptions, effect: Effect, in_hand: TableInHand) -> None:
        self.effect = effect
        self._options = options
        self._in_hand = in_hand

    def table(self) -> Table:
        """Driver: the table, as this process has seen it last."""
        return self._in_hand.look(self._options)

    def forget_table(self) -> None:
        """Operator: the table was changed by other means than this committer."""
        self._in_hand.forget()

    def last_committed(self, query: str) -> CommittedEpoch | None:
        """Driver: the newest epoch in the table's own mark; enrols a query that has none.

        Raises:
            OptionError: If the catalog does not keep the property that a mark is, or `check_key`.
        """
        self.check_key(query)
        self.enrol(query)
        return self.newest_epoch(query)

    def check_key(self, query: str | None) -> None:
        """Driver: refuse upserts by another key than the table's. See `KeyRule`.

        Raises:
            OptionError: If the query's are, or it appends to a table with upserts.
        """
        self._key_rule(self.effect, query).check(self.table().metadata)

    def _key_rule(self, effect: Effect, query: str | None, *, is_decided: bool = False) -> KeyRule:
        from krishiv_spark.sinks.iceberg.kept_keys import KeyRule

        return KeyRule(self._options, effect.keys, effect.replaces, query, is_decided)

    def newest_epoch(self, query: str) -> CommittedEpoch | None:
        """Driver: as `last_committed`; changes nothing."""
        from krishiv_spark.sinks.iceberg.marks import last_committed_epoch

        return last_committed_epoch(self.table().metadata, query)

    def peek_committed(self, query: str) -> CommittedEpoch | None:
        """Driver: as `newest_epoch`; None of a table that is not there."""
        from krishiv_spark.sinks.iceberg.tables import find_table

        if self._in_hand.peek() is None:
            found = find_table(self._options)
            if found is None:
                return None
            self._in_hand.put(found)
        return self.newest_epoch(query)

    def enrol(self, query: str) -> None:
        """Driver: make sure that the catalog keeps the mark of a new query. See `enrol_query`.

        A query whose newest epoch only the summaries of snapshots have goes on, with a warning.
        """
        from krishiv_spark.sinks.iceberg.marks import has_key, is_marked

        table = self.table()
        if has_key(table.metadata, query) or not is_marked(query, self._options.txn_app_id):
            return
        if (mark := self.newest_epoch(query)) is not None:
            warn_once(
                _log,
                f"{table.metadata.table_uuid} {query}",
                "%s: table %s has epoch %d of query %s, but not its property "
                "'krishiv.epoch.%s': another program removed it, or the catalog does not keep "
                "table properties. The query continues with the summaries of its snapshots. "
                "Once they have expired, a restart could write rows again: have the catalog "
                "keep properties, or expire no snapshots",
                FORMAT,
                self._options.table_name,
                mark.epoch,
                query,
                query,
            )
            return
        from krishiv_spark.sinks.iceberg.enrolment import enrol_query

        self._in_hand.put(enrol_query(table, self._options, query))

    def publish(self, epoch: Epoch, staged: Sequence[StagedDataFiles]) -> None:
        """Driver: one snapshot with the rows and the mark. See `Committer`."""
        from krishiv_spark.sinks.iceberg.commits import Committer

        if not staged and not self.effect.replaces:
            return  # a batch job without rows
        change = self._change(epoch, staged, self.effect)
        rule = self._key_rule(self.effect, epoch.query)
        committer = Committer(self._options, epoch, change, rule)
        table = self._in_hand.take(self._options)
        try:
            with redact_errors(table.io, f"commit epoch {epoch.number}"):
                check_shared(table.io, staged)
                committer.commit(table)
        # Of any class: a file that cannot be read, a store that fails, too little memory.
        except Exception:
            if committer.is_refused:
                self._clean(change, table, published=False, certain=True)
                self.discard(staged)
            raise
        self._clean(change, table, published=True, certain=not committer.unknown)

    def finish(
        self, epoch: Epoch, staged: Sequence[StagedDataFiles], effect: Effect | None = None
    ) -> None:
        """Driver: as `publish`, for an epoch that is true already: nothing staged is removed.

        Args:
            epoch: Whose intent is logged.
            staged: What is to be in the table.
            effect: Of this epoch; None for that of the query as it is now.

        Raises:
            Fenced: If the table holds the epoch, or a later one.
            SinkError: If it is not in the table, or that is not known.
        """
        from krishiv_spark.sinks.iceberg.commits import Committer
        from krishiv_spark.sinks.iceberg.upserts import Upsert

        effect = effect or self.effect
        change = self._change(epoch, staged, effect)
        rule = self._key_rule(effect, epoch.query, is_decided=True)
        committer = Committer(self._options, epoch, change, rule)
        table = self._in_hand.take(self._options)
        try:
            with redact_errors(table.io, f"commit epoch {epoch.number}"):
                committer.commit(table)
        except Exception:
            if committer.is_refused and isinstance(change, Upsert):
                change.clean_written(published=False)  # what the intent names stays
            raise
        self._clean(change, table, published=True, certain=not committer.unknown)

    def _change(self, epoch: Epoch, staged: Sequence[StagedDataFiles], effect: Effect) -> Change:
        from krishiv_spark.sinks.iceberg.changes import Append, Replace
        from krishiv_spark.sinks.iceberg.upserts import Upsert

        if effect.upsert_spec is not None:
            return Upsert(self._options, staged, effect.upsert_spec, epoch)
        kind = Replace if effect.replaces else Append
        return kind(self._options, staged)

    @staticmethod
    def _clean(change: Change, table: Table, *, published: bool, certain: bool) -> None:
        from krishiv_spark.sinks.iceberg.upserts import Upsert

        if isinstance(change, Upsert):
            change.clean(table.io, published=published, certain=certain)

    def discard(self, staged: Sequence[StagedDataFiles]) -> None:
        """Anywhere: remove staged files that no snapshot names."""
        from krishiv_spark.sinks.iceberg.unused import remove_unused

        try:
            remove_unused(self._options, staged)
        except Exception as error:  # noqa: BLE001  best effort: `krishiv-spark iceberg vacuum` finds them
            shown = scrub(error, self._options.secrets())
            _log.warning("staged files remain for vacuum to remove", exc_info=shown)
