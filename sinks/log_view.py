"""What a participant may know of the log that its epochs are in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from krishiv_spark.offsets import EpochLog, open_log
from krishiv_spark.offsets.query_parts import whole_query
from krishiv_spark.sinks.values import Epoch
from krishiv_spark.storage import ENVIRONMENT, Storage

__all__ = ["LogView"]


@dataclass(frozen=True)
class LogView:
    """The log of a sink that a participant belongs to. Driver.

    Attributes:
        location: Path or URL of a query's log.
        storage: How its store is reached.
        route: The part of each epoch that is the participant's; None if all of it is. Queries have
            the names of their parts then (`krishiv_spark.offsets.query_parts`).
    """

    location: Callable[[str], str]
    storage: Storage = ENVIRONMENT
    route: str | None = None

    def place(self, query: str) -> str:
        """Where the log of a query is."""
        return self.location(whole_query(query, self.route))

    def log(self, query: str) -> EpochLog:
        """The log of a query."""
        return open_log(self.place(query), whole_query(query, self.route), self.storage)

    def is_owner(self, epoch: Epoch) -> bool:
        """Whether an epoch's generation owns the query now."""
        return self.log(epoch.query).state().owner == epoch.generation
