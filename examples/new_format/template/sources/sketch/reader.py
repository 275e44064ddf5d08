"""``krishiv-sketch`` as a source. A position is: say what it holds, and of which end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import pyarrow as pa
from pydantic import Field

from krishiv_spark.offsets import Offset
from krishiv_spark.sources import Limit, SourceOptions, StreamReader

__all__ = ["SketchOffset", "SketchReader", "SketchSourceOptions"]


class SketchSourceOptions(SourceOptions):
    """Options of the source."""

    path: str = Field(description="Where the rows are.")


class SketchOffset(Offset):
    """The position of a query.

    Attributes:
        next: The first row that was not read.
    """

    kind: ClassVar[str] = "sketch"

    next: int = Field(default=0, ge=0)


class SketchReader(StreamReader[SketchOffset, tuple[int, int]]):
    """Reads the rows between two positions."""

    options_type: ClassVar[type[SourceOptions]] = SketchSourceOptions
    offset_type: ClassVar[type[Offset]] = SketchOffset
    options: SketchSourceOptions

    def infer_schema(self) -> pa.Schema:
        """Return the columns if the user names none; driver."""
        raise NotImplementedError

    def initial(self) -> SketchOffset:
        """Return the position of a new query; driver."""
        return SketchOffset()

    def latest(self, start: SketchOffset, limit: Limit) -> SketchOffset:
        """Return the exclusive end of the next batch; driver."""
        raise NotImplementedError

    def plan(self, start: SketchOffset, end: SketchOffset) -> Sequence[tuple[int, int]]:
        """Return the rows between two positions in parts for tasks, always the same; driver."""
        return [(start.next, end.next)]

    def read(self, partition: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part; executor."""
        raise NotImplementedError
