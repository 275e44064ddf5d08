"""Records that have gone before they were read: an error, or a warning with a count.

Whoever finds out that offsets will not come says so here, and nowhere else is decided what follows.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from krishiv_spark.errors import DataLossError
from krishiv_spark.kafka.topic_partition import TopicPartition
from krishiv_spark.messages.advice import NEW_CHECKPOINT
from krishiv_spark.sources.kafka.truncation import Cut

__all__ = ["Losses"]

_log = logging.getLogger(__name__)
_LENIENCE = (
    "set 'failOnDataLoss' to false to go on with what is there; then what was not read by now is "
    "lost for this query, also what goes while it is set"
)
_ADVICE = f"restore the topic if it can be; {_LENIENCE}. Or start the query with {NEW_CHECKPOINT}"
_REMEMBERED, _SHOWN = 10, 5


@dataclass
class Losses:
    """What becomes of lost records; option ``failOnDataLoss``.

    Attributes:
        fail: Whether a loss is an error.
        offsets: How many offsets were passed over so far, as far as is known.
        latest: The losses that were found last, for people.
    """

    fail: bool
    offsets: int = 0
    latest: deque[str] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def report_aged_out(self, tp: TopicPartition, asked: int, oldest: int) -> None:
        """Offsets from `asked` up to `oldest` have been removed: by retention, or by request.

        Raises:
            DataLossError: If losses are errors.
        """
        self._happened(
            f"{tp}: the query stands at offset {asked}, but the oldest that is still there is "
            f"{oldest}",
            oldest - asked,
        )

    def report_named_aged_out(self, tp: TopicPartition, what: str, asked: int, oldest: int) -> None:
        """The offset at which the options begin or end, which `what` says, has been removed.

        Raises:
            DataLossError: If losses are errors.
        """
        self._happened(
            f"{tp}: the {what} is given as offset {asked}, but the oldest that is still there "
            f"is {oldest}",
            oldest - asked,
            f"give that or 'earliest', or {_LENIENCE}",
        )

    def report_cut_off(self, tp: TopicPartition, position: int, cut: Cut) -> None:
        """The log has lost records that were read: the query goes back to where it was cut off.

        Raises:
            DataLossError: If losses are errors.
        """
        self._happened(
            f"{tp}: the query stands at offset {position}, but {cut.why}: the cluster has lost "
            f"records, and offsets from {cut.offset} on are others"
        )

    def report_unavailable(self, tp: TopicPartition, begin: int, end: int, why: str) -> None:
        """Offsets of a batch that is being read, from `begin` up to `end`, cannot be had any more.

        If there are none of them, those before `end` are there, but may be other records.

        Raises:
            DataLossError: If losses are errors.
        """
        which = f"offsets {begin} to {end - 1} of the batch will not come"
        doubt = f"offsets up to {end - 1} of the batch may be other records than were planned"
        self._happened(f"{tp}: {which if begin < end else doubt}: {why}", end - begin)

    def report_topic_deleted(self, what: str, positions: Mapping[TopicPartition, int]) -> None:
        """A topic, or a partition, is not there any more, or another one has its name.

        Args:
            what: What has happened, for people.
            positions: Where the query stands in the partitions that have gone.

        Raises:
            DataLossError: If losses are errors.
        """
        shown = ", ".join(f"{n} in {tp}" for tp, n in sorted(positions.items())[:_SHOWN])
        more = f" and {len(positions) - _SHOWN} more" if len(positions) > _SHOWN else ""
        self._happened(f"{what}: what followed the query's position, {shown}{more}, is gone")

    def report(self) -> dict[str, Any]:
        """For the progress; empty as long as nothing was lost."""
        if not self.latest:
            return {}
        return {"offsets_passed_over": self.offsets, "losses": list(self.latest)}

    def _happened(self, what: str, offsets: int = 0, advice: str = _ADVICE) -> None:
        if self.fail:
            raise DataLossError(f"{what}: {advice}")
        self.offsets += offsets
        self.latest.append(what)
        _log.warning(
            "%s: going on, since 'failOnDataLoss' is false; %d offsets passed over so far",
            what,
            self.offsets,
        )
