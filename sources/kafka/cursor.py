"""How far a task has come in a partition. Executor."""

from __future__ import annotations

from dataclasses import dataclass

from krishiv_spark.kafka.fetches import Wanted
from krishiv_spark.sources.kafka.losses import Losses
from krishiv_spark.sources.kafka.ranges import OffsetRange
from krishiv_spark.sources.kafka.remains import Remains

__all__ = ["Cursor"]

# How large rows are is guessed, from those before: a little more than the guess may be left.
_LEAST_BYTES = 64 * 1024
# What is believed before the first answer.
_ROW_BYTES = 1024


@dataclass
class Cursor:
    """How far a range has been fetched.

    Attributes:
        range: The offsets that are read.
        next: The offset that is fetched next.
        end: Where the range ends, exclusive, as long as there is so much.
        epoch: Leader epoch in which `end` is known to be that of the log.
        row_bytes: About how many bytes an offset takes.
        empties: How many answers in a row were empty.
        corrupt: How many answers in a row said that the records are damaged.
    """

    range: OffsetRange
    next: int
    end: int
    epoch: int
    row_bytes: int = _ROW_BYTES
    empties: int = 0
    corrupt: int = 0

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to fetch."""
        return self.next >= self.end

    def wanted(self, most_bytes: int) -> Wanted:
        """What is fetched next: about as many bytes as are left, but no more than these."""
        needed = (self.end - self.next) * self.row_bytes
        size = min(max(needed, _LEAST_BYTES), most_bytes)
        return Wanted(self.range.tp, self.range.topic_id, self.next, size, self.epoch)

    def advance(self, to: int, size: int) -> None:
        """So many bytes have brought everything before the offset `to`."""
        self.row_bytes = size // max(to - self.next, 1) + 1
        self.next, self.empties, self.corrupt = to, 0, 0

    def learn(self, found: Remains, losses: Losses, *, believed: bool) -> bool:
        """Take in what the cluster still has.

        Args:
            found: What there is of the range now.
            losses: What becomes of the rest.
            believed: Whether patience is over.

        Returns:
            Whether the next fetch is another one than the last.

        Raises:
            DataLossError: If something is lost, and losses are errors.
        """
        before, tp = (self.next, self.end, self.epoch), self.range.tp
        if found.begin > self.next:
            losses.report_aged_out(tp, self.next, found.begin)
            self.next = found.begin
        if found.why and (believed or found.is_certain):
            losses.report_unavailable(tp, found.end, self.end, found.why)
            self.end = found.end
        # Only a log that was seen to reach the end of the batch is read in its new epoch.
        if found.end >= self.end:
            self.epoch = found.epoch
        return before != (self.next, self.end, self.epoch)
