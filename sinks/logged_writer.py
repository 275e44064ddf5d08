"""Base class of writers over an epoch log; `LogCommitter` provides the committer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, final

import pyarrow as pa
from typing_extensions import TypeVar

from krishiv_spark.offsets import EpochLog, open_log
from krishiv_spark.offsets.planned import whole_query
from krishiv_spark.sinks.base import Epoch, Guarantee, Writer
from krishiv_spark.sinks.logged import LogCommitter
from krishiv_spark.sinks.participant import ModelT, Participant
from krishiv_spark.storage import ENVIRONMENT, Storage

__all__ = ["Examined", "Examiner", "LogView", "LoggedWriter"]


@dataclass(frozen=True)
class LogView:
    """Access of a participant to the log of its sink. Driver.

    Attributes:
        location: A function that returns the path or URL of a query's log.
        storage: Access to the log's store.
        route: The route whose part of each epoch the participant receives; None for all of it.
            Queries then have the ids of their parts (`krishiv_spark.offsets.planned`).
    """

    location: Callable[[str], str]
    storage: Storage = ENVIRONMENT
    route: str | None = None

    def place(self, query: str) -> str:
        """Return the path or URL of a query's log."""
        return self.location(whole_query(query, self.route))

    def log(self, query: str) -> EpochLog:
        """Open the log of a query."""
        return open_log(self.place(query), whole_query(query, self.route), self.storage)

    def is_owner(self, epoch: Epoch) -> bool:
        """Return True if an epoch's generation owns the query now."""
        return self.log(epoch.query).state().owner == epoch.generation


@dataclass(frozen=True)
class Examined:
    """Rows that a sink has examined before it stages them. Executor.

    Attributes:
        rows: The good rows, in the form that `Writer.stage` takes: other columns, or another
            number of rows. The batches may have different columns.
        bad: The reason of each bad row, by its number: a predicate, as in "has no key".
    """

    rows: Sequence[pa.RecordBatch]
    bad: Mapping[int, str]


Examiner: TypeAlias = "Callable[[pa.RecordBatch], Examined]"

PlanT = TypeVar("PlanT", default=None)


class LoggedWriter(Writer[ModelT, PlanT]):
    """A sink whose epochs are committed when their intent is in its log (`EpochLog.intend`).

    It has its own log, or is a route of a ``krishiv-fanout``, which has one log for all routes. So
    it uses a log only through `LogView`.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    takes_records: ClassVar[bool] = False
    """True if rows are records of a topic, with the columns key, value and headers."""

    @property
    def examines_rows(self) -> bool:
        """True if this sink finds out which rows are bad, so that they may become dead letters.

        Rows have Kafka's columns `key` and `value` then.
        """
        return False

    def create_examiner(self, plan: PlanT) -> Examiner | None:
        """Return a function that examines the rows of a task; None if none are bad. Executor.

        It is called if the query has dead letters, for each batch and before `stage`.

        Args:
            plan: The return value of `plan`.
        """
        del plan
        return None

    def carry(self, plan: PlanT) -> ModelT | None:
        """Return a value that an intent needs even without rows for this sink. Executor.

        Called for a route of a fan-out whose task has rows for other routes only. None by default.

        Args:
            plan: The return value of `plan`.
        """
        del plan
        return None

    @abstractmethod
    def participant(self, view: LogView) -> Participant[ModelT]:
        """Return the participant that makes epochs visible. Driver; no I/O.

        Args:
            view: Access to the log of the epochs.
        """

    @abstractmethod
    def log_location(self, query: str) -> str:
        """Return the path or URL of a query's log, for a sink with its own log. Driver.

        Raises:
            OptionError: If the options specify no location for it.
        """

    @final
    def committer(self) -> LogCommitter[ModelT]:
        """Return the committer, from the log of the query and the external system. Driver."""
        # Options of sinks that reach stores have it (`StorageOptions`).
        storage: Storage = getattr(self.options, "storage", ENVIRONMENT)
        view = LogView(self.log_location, storage)
        return LogCommitter(view.log, self.participant(view), streaming=self.streaming)
