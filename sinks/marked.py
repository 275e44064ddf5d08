"""Participants of targets that keep the mark of each query, in one step with the rows.

Such a target accepts an epoch once, by its number and digest, whichever driver sends it. So
`finish` commits an epoch unless the target has it, and the mark shows an older copy of the log or
of the target. Driver.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

from krishiv_spark.errors import (
    CheckpointMismatch,
    CommitUnknown,
    Fenced,
    LogError,
    SinkError,
)
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.sinks.base import CommittedEpoch, Epoch
from krishiv_spark.sinks.participant import ModelT, Participant

__all__ = ["MarkedParticipant", "MarkedTableParticipant"]


class MarkedParticipant(Participant[ModelT]):
    """A participant whose target records the newest epoch of each query with the rows.

    Attributes:
        format_name: Name of the format, for messages.
    """

    format_name: ClassVar[str]

    @property
    @abstractmethod
    def table(self) -> str:
        """The name of the table, for messages."""

    @abstractmethod
    def newest_epoch(self, query: str) -> CommittedEpoch | None:
        """Planner: return the epoch of the table's mark."""

    def contains(self, epoch: Epoch, staged: Sequence[ModelT]) -> bool | None:
        """Planner: return True if the table has the epoch; None if the epoch has no rows for it."""
        if not staged:
            return None
        found = self.newest_epoch(epoch.query)
        return found is not None and found.epoch >= epoch.number

    def verify_empty_log(self, query: str) -> None:
        """Planner: check that a query without a log has no epoch in the table.

        Raises:
            LogError: If the table has an epoch of the query.
        """
        found = self.newest_epoch(query)
        if found is not None:
            raise LogError(
                f"table {self.table} has epoch {found.epoch} of query {query}, but its epoch log "
                "is empty: the log was removed, or the option 'epochLog' has changed; put it back, "
                f"or use {NEW_CHECKPOINT}"
            )

    def verify_adoption(self, query: str, epoch: int) -> None:
        """Operator: check that the table's epoch is not newer than that of the log.

        Raises:
            LogError: If it is newer: the epochs up to it would be skipped.
        """
        found = self.newest_epoch(query)
        if found is not None and found.epoch > epoch:
            raise LogError(
                f"table {self.table} has epoch {found.epoch} of query {query}, and would skip the "
                f"epochs after {epoch} up to that one: use {NEW_CHECKPOINT}"
            )

    def refuse_intent(self, epoch: Epoch, error: Exception) -> CommitUnknown:
        """Return the error for an epoch that is logged, and that the table does not accept."""
        return CommitUnknown(
            f"{self.format_name}: epoch {epoch.number}: its intent is logged, but table "
            f"{self.table} does not accept it: {error}. Correct the cause and restart the query, "
            "which retries it; or see 'krishiv-spark log resolve --assume'"
        )


class MarkedTableParticipant(MarkedParticipant[ModelT]):
    """A participant of a table format, whose commit names files that stay where they were staged.

    No part of an epoch is ever lost, and a committed version is never removed.
    """

    may_lose = False

    @abstractmethod
    def is_finished(self, epoch: Epoch) -> bool:
        """Driver: return True if the table has this epoch, by its number and digest."""

    @abstractmethod
    def commit(self, epoch: Epoch, staged: Sequence[ModelT]) -> None:
        """Driver: commit the content of an intent with the mark, then delete its lists of files."""

    @abstractmethod
    def is_elsewhere(self, staged: Sequence[ModelT]) -> bool:
        """Planner: return True if the table is not the one for which data was staged."""

    @abstractmethod
    def describe_undo(self, query: str) -> str:
        """Operator: return the steps by which the newest epoch of a query is removed."""

    def forget_table(self) -> None:
        """Driver: read the table again the next time, since another driver may have changed it."""

    def finish(self, epoch: Epoch, staged: Sequence[ModelT]) -> None:
        """Driver: commit the epoch, unless the table has it.

        Raises:
            CommitUnknown: If the table does not accept it now, or does not respond.
            CheckpointMismatch: If the table has another epoch of this number, or a later one.
        """
        if not staged or self.is_finished(epoch):
            return
        self._check_number_is_free(epoch)
        try:
            self.commit(epoch, staged)
        except Fenced:
            if not self.is_finished(epoch):  # another driver may have finished it meanwhile
                raise
        except CommitUnknown:
            raise
        except (OSError, SinkError) as error:
            if self.is_finished_meanwhile(epoch):
                return
            raise self.refuse_intent(epoch, error) from error

    def is_finished_meanwhile(self, epoch: Epoch) -> bool:
        """Driver: return True if another driver has finished the epoch and deleted its list.

        This driver may have been paused since it read the table.
        """
        self.forget_table()
        with suppress(OSError, SinkError):  # the caller raises the first error instead
            return self.is_finished(epoch)
        return False

    def _check_number_is_free(self, epoch: Epoch) -> None:
        found = self.newest_epoch(epoch.query)
        if found is not None and found.epoch >= epoch.number:
            raise CheckpointMismatch(
                f"table {self.table} has epoch {found.epoch} of query {epoch.query}, and there is "
                f"no sign that it has epoch {epoch.number} as the epoch log records it: the log "
                "was restored from an older copy, or another driver is ahead; if so, stop that "
                "driver. The table was not changed: put the newest checkpoint and log back and "
                "restart the query"
            )

    def verify_committed_target(self, epoch: Epoch, staged: Sequence[ModelT]) -> None:
        """Planner: check that the table is the one that the epoch was committed to.

        Raises:
            LogError: If the table was recreated since.
        """
        if self.is_elsewhere(staged):
            raise LogError(
                f"epoch {epoch.number} of query {epoch.query} was written to the previous table "
                f"{self.table}, which has since been removed or recreated. Nothing was written. "
                "'krishiv-spark log resolve --assume aborted' writes the epoch again; '--assume "
                "committed' skips it"
            )

    def force_outcome(self, epoch: Epoch, staged: Sequence[ModelT], *, committed: bool) -> None:
        """Operator: commit the epoch if `committed`; a committed version is never removed.

        Raises:
            SinkError: If the epoch is in the table and `committed` is False.
        """
        if committed:
            self.finish(epoch, staged)
        elif self.is_finished(epoch):
            raise SinkError(
                f"table {self.table} has epoch {epoch.number} of query {epoch.query}: remove it "
                f"first ({self.describe_undo(epoch.query)})"
            )
