"""The part of a sink over an epoch log that its author writes; `LogCommitter` does the rest."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

from typing_extensions import TypeVar

from krishiv_spark.offsets import EpochLog, open_log
from krishiv_spark.offsets.planned import whole_query
from krishiv_spark.sinks.base import Epoch, Guarantee, Writer
from krishiv_spark.sinks.logged import LogCommitter
from krishiv_spark.sinks.participant import ModelT, Participant
from krishiv_spark.storage import ENVIRONMENT, Storage

__all__ = ["LogView", "LoggedWriter"]


@dataclass(frozen=True)
class LogView:
    """The log of a sink that a participant belongs to. Driver.

    Attributes:
        location: Path or URL of a query's log.
        storage: How its store is reached.
        route: The part of each epoch that is the participant's; None if all of it is. Queries have
            the names of their parts then (`krishiv_spark.offsets.planned`).
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


PlanT = TypeVar("PlanT", default=None)


class LoggedWriter(Writer[ModelT, PlanT]):
    """A sink whose epochs are true when their intent is in its log (`EpochLog.intend`).

    It has a log of its own, or is one of several in a ``krishiv-fanout``, which has one for all of
    them. So it asks nothing of a log but what `LogView` shows.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE

    @abstractmethod
    def participant(self, view: LogView) -> Participant[ModelT]:
        """Driver: who makes epochs visible. No I/O.

        Args:
            view: Of the log that the epochs are in.
        """

    @abstractmethod
    def log_location(self, query: str) -> str:
        """Driver: path or URL of a query's log, where the sink has one of its own.

        Raises:
            OptionError: If the options name no place for it.
        """

    @final
    def committer(self) -> LogCommitter[ModelT]:
        """Driver: the log of the query, and the external system."""
        # Options of sinks that reach stores have it (`StorageOptions`).
        storage: Storage = getattr(self.options, "storage", ENVIRONMENT)
        view = LogView(self.log_location, storage)
        return LogCommitter(view.log, self.participant(view), streaming=self.streaming)
