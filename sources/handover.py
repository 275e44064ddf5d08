"""The handover from one source to another, and the abilities that both need. Driver.

A table holds what a query has read from a source. Who knows where that query stood when the table
was as it is, can read the table and go on from there: no row is missing, and none comes twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from krishiv_spark.offsets import Offset
from krishiv_spark.sources.base import Limit

__all__ = ["SupportsBackfillSource", "SupportsBackfillTarget", "TableProvenance"]

O = TypeVar("O", bound=Offset)  # noqa: E741  the letter that the contract uses for an offset
O_co = TypeVar("O_co", bound=Offset, covariant=True)


@dataclass(frozen=True)
class TableProvenance(Generic[O]):
    """The content of a table at one moment, with the position of its source.

    Attributes:
        begin: Before the first row of all that is there.
        offset: The offset of that source, exclusive, as Spark keeps it; None if the user says it.
        by: Who has written the rows, for messages.
    """

    begin: O
    offset: Mapping[str, Any] | None
    by: str


@runtime_checkable
class SupportsBackfillSource(Protocol[O]):
    """Ability of what is read first: it ends, and says where its rows come from."""

    def provenance(self, by: str | None, snapshot: int | None) -> TableProvenance[O]:
        """All that is there now, and where the source of it stood, both of one moment. Driver.

        Args:
            by: Query that has written it, by its id or by the place of its checkpoint; None if
                only one has.
            snapshot: What is meant by "there now", if the user says so, and with it the offset.

        Raises:
            OptionError: If the offset cannot be known for certain, with what to do.
        """
        ...

    def latest_within(self, start: O, limit: Limit) -> O:
        """Return the end of the next batch of the content, exclusive; `start` at its end. Driver.

        As `StreamReader.latest`, but blind for whatever has come later.
        """
        ...


@runtime_checkable
class SupportsBackfillTarget(Protocol[O_co]):
    """Ability of what is read then: it begins where another query stands."""

    def start_from_offset(self, offset: Mapping[str, Any]) -> O_co:
        """Return the start after another query's offset at which no row is missing. Driver.

        Args:
            offset: Of that query's source, exclusive, as Spark keeps it.

        Raises:
            OptionError: If it is of a source of another kind, or of other things than the options
                ask for; or if the options say themselves where to begin.
        """
        ...

    def configured_start(self) -> O_co:
        """Look up the start that the options specify. Driver.

        Raises:
            OptionError: If they do not say it exactly.
            DataLossError: If it is no longer there, and losses are errors.
        """
        ...
