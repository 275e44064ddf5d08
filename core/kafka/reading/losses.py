"""Records that have gone before they were read: an error, or a warning with a count."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from krishiv_spark.errors import DataLossError
from krishiv_spark.kafka.places import Place

__all__ = ["Losses"]

_log = logging.getLogger(__name__)
_ADVICE = (
    "set 'failOnDataLoss' to false to go on with what is there, or start the query with a new "
    "checkpoint"
)


@dataclass
class Losses:
    """What becomes of lost records; option ``failOnDataLoss``.

    Attributes:
        fail: Whether a loss is an error.
        offsets: How many offsets were passed over so far.
    """

    fail: bool
    offsets: int = 0

    def passed(self, place: Place, asked: int, available: int) -> None:
        """Offsets from `asked` up to `available` are gone.

        Raises:
            DataLossError: If losses are errors.
        """
        self.happened(
            f"{place}: the query stands at offset {asked}, but the oldest that is still there is "
            f"{available}",
            available - asked,
        )

    def happened(self, what: str, offsets: int = 0) -> None:
        """Something is gone.

        Args:
            what: What, for people.
            offsets: How many offsets, as far as is known.

        Raises:
            DataLossError: If losses are errors.
        """
        if self.fail:
            raise DataLossError(f"{what}: {_ADVICE}")
        self.offsets += offsets
        _log.warning(
            "%s: going on, since 'failOnDataLoss' is false; %d offsets passed over so far",
            what,
            self.offsets,
        )
