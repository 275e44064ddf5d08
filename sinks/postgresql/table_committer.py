"""The committer: one transaction moves the rows of an epoch and writes its mark. Driver."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import NoReturn

from krishiv_spark.errors import CommitRejected, CommitUnknown, Fenced, KrishivError, StorageError
from krishiv_spark.messages.exception_chains import raise_alone
from krishiv_spark.postgresql.connection import (
    DatabaseTransaction,
    describe_error,
    limit_wait,
    open_transaction,
)
from krishiv_spark.postgresql.options import FORMAT
from krishiv_spark.runtime.retry import Backoff
from krishiv_spark.sinks.base import CommittedEpoch, Epoch, OutputMode, TwoPhaseCommitter
from krishiv_spark.sinks.postgresql.change_queries import Effect
from krishiv_spark.sinks.postgresql.marks import Marks
from krishiv_spark.sinks.postgresql.moving import move_rows
from krishiv_spark.sinks.postgresql.options import PostgresqlSinkOptions
from krishiv_spark.sinks.postgresql.staging_tables import (
    StagedTable,
    drop_tables,
    find_abandoned,
    find_of_query,
)
from krishiv_spark.sinks.postgresql.target import resolve_name, staging_schema
from krishiv_spark.spark.checkpoint import BATCH_PREFIX

__all__ = ["PostgresqlCommitter"]

_log = logging.getLogger(__name__)

_MOST_SWEPT = 200
"""Leftover tables that one epoch drops; the next epochs drop the others."""

_MOST_IN_COMMIT = 64
"""Staging tables that the epoch's own transaction drops; the sweep after it drops the others."""


class PostgresqlCommitter(TwoPhaseCommitter[StagedTable]):
    """The committer of a table, by marks in the same database.

    Args:
        options: The options of the sink.
        mode: The effect of an epoch on earlier rows.
    """

    def __init__(self, options: PostgresqlSinkOptions, mode: OutputMode) -> None:
        self._options = options
        self._mode = mode

    def last_committed(self, query: str) -> CommittedEpoch | None:
        """Return the newest epoch of the query by its mark. Driver."""
        action = f"read the committed epochs of table {self._options.table_name}"
        with open_transaction(self._options, action, reads=True) as transaction:
            name = resolve_name(transaction, self._options)
            return Marks(name).read(transaction, query)

    def peek_committed(self, query: str) -> CommittedEpoch | None:
        """Return the same: to read a mark has no effect. Planner."""
        return self.last_committed(query)

    def publish(self, epoch: Epoch, staged: Sequence[StagedTable]) -> None:
        """Move the rows and write the mark, in one transaction. Committer.

        Raises:
            CommitRejected: If PostgreSQL refuses a row, or rows were lost in a crash.
            CommitUnknown: If the answer of COMMIT was lost, and the mark cannot be read.
            Fenced: If the table has the epoch, or a later one.
        """
        lost: Exception | None = None
        action = f"commit epoch {epoch.number} to table {self._options.table_name}"
        with open_transaction(self._options, action) as transaction:
            self._prepare(transaction, epoch, staged)
            lost = self._commit(transaction)
        if lost is not None:
            self._find_outcome(epoch, lost)
        self._sweep(epoch)

    def _prepare(
        self, transaction: DatabaseTransaction, epoch: Epoch, staged: Sequence[StagedTable]
    ) -> None:
        """Do all of the epoch's work; nothing of it is visible before the COMMIT."""
        import psycopg

        try:
            marks = Marks(resolve_name(transaction, self._options))
            marks.lock(transaction, epoch.query)
            marks.write(transaction, epoch)
            replaces = self._mode is OutputMode.REPLACE
            effect = Effect.of(self._options, staged, replaces=replaces)
            move_rows(transaction, marks.table, staged, effect, epoch.query)
            names = [each.name.sql for each in staged[:_MOST_IN_COMMIT]]
            if names:
                transaction.run(f"DROP TABLE {', '.join(names)}")
        except psycopg.Error as error:
            text = describe_error(error, self._options)
            raise_alone(
                CommitRejected(
                    f"{FORMAT}: epoch {epoch.number} was not committed to table "
                    f"{self._options.table_name}: {text}"
                )
            )

    def _commit(self, transaction: DatabaseTransaction) -> Exception | None:
        """Make the epoch true: the linearization point of the sink.

        Returns:
            The error after which the outcome is not known; None if it is committed.
        """
        import psycopg

        try:
            transaction.commit()
        except psycopg.Error as error:
            return error
        return None

    def _find_outcome(self, epoch: Epoch, error: Exception) -> None:
        """Find out whether an epoch was committed whose answer was lost.

        The mark is locked first: its transaction has then ended, so that the answer is final.
        """
        backoff = Backoff(self._options.commit_timeout / 1000)
        action = f"find out whether epoch {epoch.number} was committed"
        for _ in backoff.attempts():
            with contextlib.suppress(StorageError):
                with (
                    open_transaction(self._options, action) as transaction,
                    limit_wait(transaction, self._options.commit_timeout),
                ):
                    marks = Marks(resolve_name(transaction, self._options))
                    mark = marks.lock(transaction, epoch.query)
                if mark is not None and (mark.epoch, mark.digest) == (epoch.number, epoch.digest):
                    _log.info("the answer of COMMIT was lost; the mark shows that it happened")
                    return
                self._refuse(epoch, mark, error)
        self._raise_unknown(epoch, error)

    def _refuse(self, epoch: Epoch, mark: CommittedEpoch | None, error: Exception) -> NoReturn:
        text = f"{FORMAT}: epoch {epoch.number} of query {epoch.query} was not committed"
        if mark is not None and mark.epoch >= epoch.number:
            raise_alone(Fenced(f"{text}: another driver has committed epoch {mark.epoch}"))
        raise_alone(CommitRejected(f"{text}: {self._describe(error)}"))

    def _raise_unknown(self, epoch: Epoch, error: Exception) -> NoReturn:
        raise_alone(
            CommitUnknown(
                f"{FORMAT}: whether epoch {epoch.number} of query {epoch.query} was committed to "
                f"table {self._options.table_name} is not known, since the connection broke: "
                f"{self._describe(error)}. Restart the query, which reads the mark first"
            )
        )

    def _describe(self, error: Exception) -> str:
        import psycopg

        assert isinstance(error, psycopg.Error), error
        return describe_error(error, self._options)

    # --- leftovers

    def discard(self, staged: Sequence[StagedTable]) -> None:
        """Drop staging tables. Best effort."""
        with contextlib.suppress(KrishivError):
            drop_tables(self._options, [each.name for each in staged])

    def abandon(self, epoch: Epoch) -> None:
        """Drop all staging tables of a batch job; those of a stream go with its next epoch."""
        if epoch.query.startswith(BATCH_PREFIX):
            self._sweep(epoch)

    def _sweep(self, epoch: Epoch) -> None:
        """Drop what attempts left that died or lost, and what jobs left long ago. Best effort."""
        options = self._options
        try:
            with open_transaction(options, "sweep staging tables") as transaction:
                name = resolve_name(transaction, options)
                schema = staging_schema(options, name)
                own = find_of_query(transaction, schema, epoch.query, name, logged=False)
                of_query = [table for number, table in own if number <= epoch.number]
                old = find_abandoned(transaction, schema, options.staging_retention)
                Marks(name).forget_jobs(transaction, BATCH_PREFIX, options.staging_retention)
                transaction.commit()
            drop_tables(options, list(dict.fromkeys([*of_query, *old]))[:_MOST_SWEPT])
        except KrishivError as error:
            _log.info("staging tables were not swept, and will be after the next epoch: %s", error)
