"""What an author writes of a sink over an epoch log; `LogCommitter` does the rest."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, final

from typing_extensions import TypeVar

from krishiv_spark.sinks.base import Guarantee, Writer
from krishiv_spark.sinks.log_view import LogView
from krishiv_spark.sinks.logged import LogCommitter
from krishiv_spark.sinks.participant import ModelT, Participant
from krishiv_spark.storage import ENVIRONMENT, Storage

__all__ = ["LoggedWriter"]

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
