"""What a start of a query would do next, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from typing_extensions import Self

__all__ = ["Outlook"]


class _Epoch(Protocol):
    @property
    def epoch(self) -> int: ...

    @property
    def is_over(self) -> bool: ...


@dataclass(frozen=True)
class Outlook:
    """What is known of a query before it starts.

    Attributes:
        planned: The newest epoch that Spark has planned; -1 before the first.
        is_over: Whether Spark has written down that it is over; so it is before the first.
        held: The newest epoch that its target holds; -1 for none.
        told_by: What says so: "log" or "table"; None if neither was found.
        open_epoch: The epoch of an intent that may not be finished; None for none.
    """

    planned: int
    is_over: bool
    held: int
    told_by: str | None
    open_epoch: int | None

    @classmethod
    def of(
        cls,
        newest: _Epoch | None,
        held: int | None = None,
        told_by: str | None = None,
        open_epoch: int | None = None,
    ) -> Self:
        """From what was found; None where there is none."""
        planned, is_over = (-1, True) if newest is None else (newest.epoch, newest.is_over)
        return cls(planned, is_over, -1 if held is None else held, told_by, open_epoch)

    def words(self, left: Sequence[str] = ()) -> str:
        """What a start would do next.

        Args:
            left: Files among Spark's offsets before it has planned an epoch.
        """
        if self.held > self.planned:
            return self._refusal()
        if self.planned < 0:
            return _first(left)
        if self.is_over:
            finishes = "" if self.open_epoch is None else (
                f"makes sure that epoch {self.open_epoch} is visible, then "
            )  # fmt: skip
            return (
                f"{finishes}plans epoch {self.planned + 1}, from where epoch {self.planned} ended"
            )
        if self.held == self.planned:
            return (
                f"finishes epoch {self.planned}, which is true by the {self.told_by}, and stages "
                "nothing again"
            )
        unless = "" if self.told_by else (
            ", unless its target holds it already: give its place, or the options of its sink"
        )  # fmt: skip
        return f"runs epoch {self.planned} again, with the same rows of its sources{unless}"

    def _refusal(self) -> str:
        """The target is further than the checkpoint, as after a copy of it was put back."""
        known = f"only epochs up to {self.planned}" if self.planned >= 0 else "no epoch"
        return (
            f"is refused (CheckpointMismatch), unless it plans the very same rows: the "
            f"{self.told_by} holds epoch {self.held}, and the checkpoint has planned {known}"
        )


def _first(left: Sequence[str]) -> str:
    if left:
        return (
            f"is refused by Spark 4.1 and later, since offsets/ has {left[0]}, which a driver that "
            "ended while it planned epoch 0 has left: no row was written yet; remove what is in "
            "offsets/, or set spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart=false"
        )
    return "plans epoch 0, from where the options of its sources say"
