"""The handover from one source to another, and the abilities that both need. Driver.

A table holds the rows that a query has read from a source. With the position of that query at the
table's present state, a reader can read the table and then continue with the source: no row is
missing, and none is read twice.
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
        begin: The position before the first row of the table.
        offset: The offset of that source, exclusive, as Spark stores it; None if the user specifies
            it.
        by: The query that has written the rows, for messages.
    """

    begin: O
    offset: Mapping[str, Any] | None
    by: str


@runtime_checkable
class SupportsBackfillSource(Protocol[O]):
    """Ability of the source that is read first: it ends, and knows the origin of its rows."""

    def provenance(self, by: str | None, snapshot: int | None) -> TableProvenance[O]:
        """Return the present content, and the position of its source at the same moment. Driver.

        Args:
            by: The query that has written it, by its id or the location of its checkpoint; None if
                there is only one.
            snapshot: The snapshot to read instead of the present one, if the user specifies it, and
                with it the offset.

        Raises:
            OptionError: If the offset is not known for certain; the text contains advice.
        """
        ...

    def latest_within(self, start: O, limit: Limit) -> O:
        """Return the end of the next batch of the content, exclusive; `start` at its end. Driver.

        As `StreamReader.latest`, but without data that was added later.
        """
        ...


@runtime_checkable
class SupportsBackfillTarget(Protocol[O_co]):
    """Ability of the source that is read next: it begins at another query's position."""

    def start_from_offset(self, offset: Mapping[str, Any]) -> O_co:
        """Return the start after another query's offset at which no row is missing. Driver.

        Args:
            offset: The offset of that query's source, exclusive, as Spark stores it.

        Raises:
            OptionError: If it is of a source of another kind or with other options; or if the
                options themselves specify where to begin.
        """
        ...

    def configured_start(self) -> O_co:
        """Look up the start that the options specify. Driver.

        Raises:
            OptionError: If they do not specify it exactly.
            DataLossError: If it no longer exists, and losses are errors.
        """
        ...
