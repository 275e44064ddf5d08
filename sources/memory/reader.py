"""The source ``krishiv-memory``: rows pushed by `memory_source`, and results.

A stream reads pushes; a batch reads the result with the name, or the pushes if there is none. Rows
are part of the partitions, so executors need not share the driver's machine. The unit of
parallelism is the push. Each row is read exactly once while the store exists: a query whose pushes
were deleted fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import pyarrow as pa
from pydantic import Field

from krishiv_spark.arrow.compute import pc
from krishiv_spark.arrow.schemas import plain_schema
from krishiv_spark.errors import DataLossError, OptionError
from krishiv_spark.memory import common_schema
from krishiv_spark.memory.entry import decode
from krishiv_spark.memory.results import is_name, result_bodies
from krishiv_spark.memory.store import open_store
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.offsets import Offset, Start, Watermark
from krishiv_spark.offsets.watermark import (
    EventTimeLimit,
    EventTimes,
    WatermarkPlanner,
    epoch_ms,
    is_ahead,
)
from krishiv_spark.sources.base import UNLIMITED, Limit, SourceOptions, StreamReader
from krishiv_spark.sources.memory.handle import Pushed

__all__ = ["MemoryOffset", "MemoryReader", "MemorySourceOptions"]

Bodies = tuple[bytes, ...]


class MemoryOffset(Offset):
    """The position of a query in the pushes of a source.

    Attributes:
        next: Number of the next push.
        origin: The sequence of numbers (`Pushed.origin`); None while a new query has read nothing.
    """

    kind: ClassVar[str] = "memory"

    next: int = Field(ge=0)
    origin: str | None = None


class MemorySourceOptions(SourceOptions):
    """Options of the source. ``maxFilesPerTrigger`` counts pushes."""

    name: str | None = Field(default=None, description="Name of the source or result.")
    path: str | None = Field(
        default=None, description="Name of the source or result, as given to `load()`."
    )
    starting_offsets: Literal["earliest", "latest"] = Field(
        default="earliest",
        description="Start of a new query. With `latest`, rows that were pushed before it started "
        "are not read.",
    )
    max_partitions: int = Field(
        default=8,
        gt=0,
        description="Maximum number of partitions that the pushes of a batch are spread over.",
    )

    def source_name(self) -> str:
        """Return the name of the source.

        Raises:
            OptionError: If there is none.
        """
        name = self.name or self.path
        if name is None:
            raise OptionError("krishiv-memory: set a name: .load('clicks') or option 'name'")
        return name


class MemoryReader(StreamReader[MemoryOffset, Bodies]):
    """A reader of the pushes in the driver's store, by number."""

    options_type = MemorySourceOptions
    offset_type = MemoryOffset
    options: MemorySourceOptions

    def __init__(
        self, options: MemorySourceOptions, schema: pa.Schema | None, *, streaming: bool
    ) -> None:
        super().__init__(options, schema, streaming=streaming)
        self._frozen: int | None = None
        self._watermarks = WatermarkPlanner(options.watermark_delay, options.max_event_time_ahead)

    def infer_schema(self) -> pa.Schema:
        """Return the schema of the pushes, or of the result with that name."""
        name = self.options.source_name()
        schema = self._open_pushed().schema()
        if schema is not None:
            return schema
        if is_name(open_store(), name):
            return common_schema(name, result_bodies(open_store(), name))
        raise OptionError(
            f"krishiv-memory: the schema of {name!r} is not known: push rows with "
            f"memory_source({name!r}).add(...), or give memory_source a schema, before load()"
        )

    def initial(self) -> MemoryOffset | Start:
        """Driver: return the position before the first push, or the moving start "latest"."""
        latest = self.options.starting_offsets == "latest"
        return Start(at="latest") if latest else MemoryOffset(next=0)

    def resolve(self, start: Start) -> MemoryOffset:
        """Driver: return the position after the newest push."""
        del start
        pushed = self._open_pushed()
        return MemoryOffset(next=pushed.log.next_number(), origin=pushed.origin())

    def latest(self, start: MemoryOffset, limit: Limit) -> MemoryOffset:
        """Driver: return the end of the next batch, which has at least one push if there is any."""
        pushed = self._open_pushed()
        newest = self._end(pushed, start)
        self._check_origin(pushed, start)
        if newest == start.next:
            return start
        first = self._first(pushed, start, newest)
        end = _apply_limit(pushed, first, newest, limit)
        watermark = self._watermark(pushed, start, first, end)
        return MemoryOffset(next=end, origin=pushed.origin(), watermark=watermark)

    def plan(self, start: MemoryOffset, end: MemoryOffset) -> Sequence[Bodies]:
        """Driver: return the pushes, spread over partitions."""
        if not self.streaming and is_name(open_store(), self.options.source_name()):
            return _spread(self._result(), self.options.max_partitions)
        if start.next == end.next:
            return []
        pushed = self._open_pushed()
        self._check_origin(pushed, end)
        first = self._first(pushed, start, end.next)
        return _spread(_bodies(pushed, first, end.next), self.options.max_partitions)

    def read(self, partition: Bodies) -> Iterator[pa.RecordBatch]:
        """Executor: yield the rows of some pushes."""
        for body in partition:
            yield from decode(body)

    def freeze(self) -> None:
        """Driver: ignore pushes from now on."""
        self._frozen = self._open_pushed().log.next_number()

    def backlog(self) -> Mapping[str, Any]:
        """Driver: return the end of all pushes, and the number of event times too far ahead."""
        end = MemoryOffset(next=self._open_pushed().log.next_number())
        return {**end.to_dict(), **self._watermarks.report()}

    def _open_pushed(self) -> Pushed:
        return Pushed(open_store(), self.options.source_name())

    def _end(self, pushed: Pushed, start: MemoryOffset) -> int:
        newest = pushed.log.next_number()
        if self._frozen is None or newest < start.next:
            return newest
        return max(self._frozen, start.next)  # a start may have been pinned after it

    def _first(self, pushed: Pushed, start: MemoryOffset, end: int) -> int:
        """Return the first push of a batch. A new query starts after cleared pushes."""
        first = pushed.log.first()
        begins = start.origin is None and start.next == 0 and first < end
        if start.next > end or (start.next < first and not begins):
            raise self._lost(f"has pushes {first} to {end - 1}, but the query is at {start.next}")
        return max(start.next, first)

    def _check_origin(self, pushed: Pushed, stands: MemoryOffset) -> None:
        if stands.origin is not None and stands.origin != pushed.origin():
            raise self._lost("is not the one that the query has read: its store is new")

    def _lost(self, what: str) -> DataLossError:
        return DataLossError(
            f"memory source {self.options.source_name()!r} {what}; pushes were cleared before "
            "they were read, or the store was lost: start the query with "
            f"{NEW_CHECKPOINT}"
        )

    def _watermark(
        self, pushed: Pushed, start: MemoryOffset, first: int, end: int
    ) -> Watermark | None:
        column = self.options.event_time
        if column is None:
            return None
        bodies, limit = _bodies(pushed, first, end), self._watermarks.limit()
        times = EventTimes.merge(
            _event_times(batch.column(column), limit) for body in bodies for batch in decode(body)
        )
        return self._watermarks.advance(start.watermark, times, limit)

    def _result(self) -> list[bytes]:
        name = self.options.source_name()
        bodies = result_bodies(open_store(), name)
        if self._open_pushed().schema() is not None:
            _refuse_mixture(name, self.schema, plain_schema(common_schema(name, bodies)))
        return bodies


def _apply_limit(pushed: Pushed, first: int, end: int, limit: Limit) -> int:
    if limit == UNLIMITED:
        return end
    rows = size = 0
    for number in range(first, end):
        header = pushed.log.header(number)
        rows, size = rows + header.rows, size + header.size
        is_admitted = limit.admits(rows=rows, files=number + 1 - first, size=size)
        # A batch has at least one push, so that the query makes progress.
        if number > first and not is_admitted:
            return number
    return end


def _bodies(pushed: Pushed, first: int, end: int) -> list[bytes]:
    try:
        return [pushed.log.read(number)[1] for number in range(first, end)]
    except FileNotFoundError as error:
        raise DataLossError(f"a push between {first} and {end} is missing: {error}") from error


def _spread(bodies: Sequence[bytes], most: int) -> list[Bodies]:
    count = min(len(bodies), most)
    return [
        tuple(bodies[i * len(bodies) // count : (i + 1) * len(bodies) // count])
        for i in range(count)
    ]


def _event_times(times: pa.Array, limit: EventTimeLimit) -> EventTimes:
    newest = pc.max(times)
    if not newest.is_valid or limit.admits(epoch_ms(newest)):
        return EventTimes(epoch_ms(newest) if newest.is_valid else None)
    ahead = is_ahead(times, limit)
    counted = _event_times(times.filter(pc.invert(ahead)), limit)
    return EventTimes(counted.newest_ms, pc.sum(ahead).as_py(), epoch_ms(newest))


def _refuse_mixture(name: str, wanted: pa.Schema | None, result: pa.Schema) -> None:
    # Spark infers a schema without specifying its use, so it may be that of the source.
    if wanted is not None and (wanted.names, wanted.types) != (result.names, result.types):
        raise OptionError(
            f"krishiv-memory: {name!r} is a source and a result with different columns: give "
            ".schema(...) of the result, or use two names"
        )
