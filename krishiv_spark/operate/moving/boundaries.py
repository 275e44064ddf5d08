"""Where a checkpoint can be taken up: at the end of an epoch that is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from krishiv_spark.errors import OptionError
from krishiv_spark.offsets import PlannedOffsets
from krishiv_spark.operate.moving.marks import is_unfinished
from krishiv_spark.spark.checkpoint import SparkCheckpoint
from krishiv_spark.spark.offset_log import OffsetSeq, with_offsets

__all__ = ["Boundary", "Newest", "boundary_at", "boundary_to_move", "newest_boundary"]

Newest = Literal["published", "unpublished"]
"""What became of the newest epoch, by a user who has looked; as for ``krishiv-spark log adopt``."""

_NO_WATERMARK = 'v1\n{"nextBatchWatermarkMs":0}'
"""A commit log's entry. Spark takes the greater one of this and of that in the offset log."""


@dataclass(frozen=True)
class Boundary:
    """The end of an epoch.

    Attributes:
        epoch: Its number.
        offsets: The texts of ``offsets/<epoch>`` and, but for epoch 0, of the one before: Spark
            begins from these two (``MicroBatchExecution.populateStartOffsets``).
        commit: The text of ``commits/<epoch>``.
        planned: A later epoch that was planned and is not over; None for none.
    """

    epoch: int
    offsets: Mapping[int, str]
    commit: str
    planned: int | None = None

    @property
    def sources(self) -> Mapping[str, str]:
        """By name or place, the offset of each source at the end of the epoch."""
        return OffsetSeq.parse(self.offsets[self.epoch]).sources

    @property
    def state_version(self) -> int:
        """The version of state stores at the end of the epoch (``StateStore``)."""
        return self.epoch + 1

    def identity(self) -> PlannedOffsets:
        """The epoch, as a sink of ours knows it."""
        before = self.offsets.get(self.epoch - 1)
        begins = {} if before is None else OffsetSeq.parse(before).sources
        return PlannedOffsets.of(self.epoch, begins, self.sources)

    def with_sources(self, changes: Mapping[int, Mapping[str, str]]) -> Boundary:
        """The same epoch, where some sources have other offsets.

        Args:
            changes: By epoch, of which there are those of `offsets`, and by source.
        """
        changed = {n: with_offsets(text, changes.get(n, {})) for n, text in self.offsets.items()}
        return replace(self, offsets=changed)


def newest_boundary(checkpoint: SparkCheckpoint) -> Boundary:
    """The end of the newest epoch that is over.

    Raises:
        OptionError: If there is none, or the checkpoint lacks what Spark needs to begin there.
    """
    checkpoint.query_id()  # or it is no checkpoint
    over = checkpoint.committed_epochs()
    if not over:
        raise OptionError(
            f"no epoch of {checkpoint.location} is over, so it has no position yet: start the "
            "query with an empty checkpoint, with the options that say where its sources begin"
        )
    return boundary_at(checkpoint, over[-1])


def boundary_at(checkpoint: SparkCheckpoint, epoch: int) -> Boundary:
    """The end of an epoch.

    Raises:
        OptionError: If it is not over, or the checkpoint lacks what Spark needs to begin there.
    """
    commit = checkpoint.folder("commits").read(str(epoch))
    if commit is None:
        over = checkpoint.committed_epochs()
        which = f"epochs {over[0]} to {over[-1]} are" if over else "none is"
        raise OptionError(f"commits/{epoch} is not in {checkpoint.location}: {which} over there")
    needed = [epoch] if epoch == 0 else [epoch - 1, epoch]
    offsets = {number: _offsets(checkpoint, number) for number in needed}
    later = checkpoint.epochs()[-1]
    return Boundary(epoch, offsets, commit.decode(), later if later > epoch else None)


def _offsets(checkpoint: SparkCheckpoint, epoch: int) -> str:
    data = checkpoint.folder("offsets").read(str(epoch))
    if data is None:
        raise OptionError(
            f"offsets/{epoch} is not in {checkpoint.location}, and Spark needs it to begin there: "
            "it keeps as many epochs as 'spark.sql.streaming.minBatchesToRetain' says"
        )
    if is_unfinished(data):
        raise OptionError(f"{checkpoint.location} is not whole: {data.decode()}")
    try:
        OffsetSeq.parse(data.decode())
    except ValueError as error:
        raise OptionError(f"offsets/{epoch} in {checkpoint.location}: {error}") from error
    return data.decode()


def boundary_to_move(checkpoint: SparkCheckpoint, newest: Newest | None) -> Boundary:
    """Where a query that was stopped is taken over by another one.

    Args:
        checkpoint: Of the query, which does not run.
        newest: What became of an epoch that was planned and is not over.

    Raises:
        OptionError: As `newest_boundary`; or if there is such an epoch, and it is not said what
            became of it, or state stores cannot be taken over at its end.
    """
    boundary = newest_boundary(checkpoint)
    planned = boundary.planned
    if planned is None or newest == "unpublished":
        return replace(boundary, planned=None)
    if newest is None:
        raise OptionError(
            f"the query was not stopped between two epochs: epoch {planned} was planned, and Spark "
            "has not written down that it is over, so its rows may be in the sink or not. Best "
            "start the old query once more, which finishes the epoch, and end it in good order "
            "(trigger(availableNow=True)). Or look whether its rows are in the sink, and say so: "
            "--newest published (if they are not, they are LOST) or --newest unpublished (if they "
            "are, they will be there TWICE)"
        )
    if planned > boundary.epoch + 1:
        raise OptionError(
            f"epoch {planned} was planned, but {boundary.epoch} is the newest that is over: "
            f"{checkpoint.location} has lost entries of its commit log"
        )
    if boundary.commit.startswith("v2"):
        raise OptionError(
            f"commits/{planned} would have to name files of state stores, which are not known: "
            "start the old query once more, which finishes the epoch"
        )
    offsets = {n: _offsets(checkpoint, n) for n in (boundary.epoch, planned)}
    return Boundary(planned, offsets, _NO_WATERMARK)
