"""``krishiv-sketch`` as a sink. The point of truth is: say which one operation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import pyarrow as pa
from pydantic import Field

from krishiv_spark.options import Options
from krishiv_spark.sinks import CommittedEpoch, Epoch, Task, TwoPhaseWriter

__all__ = ["SketchSinkOptions", "SketchWriter"]


class SketchSinkOptions(Options):
    """Options of the sink."""

    path: str = Field(description="Where the rows go.")


class SketchWriter(TwoPhaseWriter[str]):
    """Exactly once: say what is staged, and what makes an epoch visible together with its mark."""

    options_type: ClassVar[type[Options]] = SketchSinkOptions
    options: SketchSinkOptions

    def stage(self, batches: Iterator[pa.RecordBatch], task: Task, plan: None) -> str | None:
        """Bring the rows of a task where they are durable and invisible; executor."""
        raise NotImplementedError

    def last_committed(self, query: str) -> CommittedEpoch | None:
        """Return the newest epoch that the external system records as committed; driver."""
        raise NotImplementedError

    def publish(self, epoch: Epoch, staged: Sequence[str]) -> None:
        """Make them visible together with the epoch's mark, in one step; driver."""
        raise NotImplementedError

    def discard(self, staged: Sequence[str]) -> None:
        """Remove what will never be published; anywhere, any number of times."""
        raise NotImplementedError
