"""The source ``krishiv-chain``: a table, and then the topics from which it was landed.

It reads the rows of the table as of the start of the query, and then the records of the topics
after the table's last ones, so that each row is read once. An offset contains a position in the
table and offsets of the topics. The latter are determined once, before any row is read: they are
the position of the query that has written the table. With a limit, a batch contains rows of one
source. The units of parallelism are those of the two sources.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
from pydantic import PlainSerializer, PlainValidator

from krishiv_spark.arrow.schemas import plain_schema
from krishiv_spark.errors import DataLossError, KrishivError, OffsetError
from krishiv_spark.offsets import Offset, Start
from krishiv_spark.sources.base import UNLIMITED, Limit, StreamReader
from krishiv_spark.sources.chain.options import FORMAT, ChainOptions, Place, offset_of, reader_of
from krishiv_spark.sources.handover import TableProvenance

__all__ = ["ChainOffset", "ChainOptions", "ChainPart", "ChainReader"]


def _part(value: Any) -> Offset:
    if isinstance(value, Offset):
        return value
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not an offset")  # noqa: TRY004  pydantic takes no TypeError
    return offset_of(value.get("kind")).from_dict(value)


PartOffset = Annotated[Offset, PlainValidator(_part), PlainSerializer(lambda part: part.to_dict())]
"""An offset of either source. Its text is the same as in a query with that source alone."""


class ChainOffset(Offset):
    """The position of a query in each of the two sources.

    Attributes:
        first: The position in the first source; it stays at the end afterwards.
        then: The position in the second source. While the first is being read, this is the
            switch-over point: the end of the rows that the table contains.
    """

    kind = "chain"

    first: PartOffset
    then: PartOffset


_log = logging.getLogger(__name__)


class ChainPart(NamedTuple):
    """The part of a batch that one task reads.

    Attributes:
        place: The source that it belongs to.
        value: A partition of that source.
    """

    place: Place
    value: Any


class ChainReader(StreamReader[ChainOffset, ChainPart]):
    """A reader of one source to its end, and then of another."""

    options_type = ChainOptions
    offset_type = ChainOffset

    options: ChainOptions

    def __init__(self, options: ChainOptions, schema: pa.Schema | None, *, streaming: bool) -> None:
        super().__init__(options, schema, streaming=streaming)
        self._parts: dict[Place, Any] = {}
        self._landed: TableProvenance[Any] | None = None
        self._is_frozen = False
        self._reading: Place | None = None
        self._has_asked = False

    def __getstate__(self) -> dict[str, Any]:
        # A task creates the reader of the source that it reads.
        return {**self.__dict__, "_parts": {}, "_landed": None}

    def infer_schema(self) -> pa.Schema:
        """Return the table's columns, which the topics must have too. See `StreamReader`."""
        found = plain_schema(self._part("first").infer_schema())
        # The topics are checked as a batch, which refuses less, since it is unknown which source
        # will be read.
        self._made("then", found, streaming=False).initial()
        return found

    # --- positions

    def initial(self) -> Start:
        """Return a start, since the switch-over point is unknown. See `StreamReader`."""
        # Both are called for their errors, before any row is read.
        self._part("first").initial()
        self._part("then").initial()
        return Start(at="earliest")

    def resolve(self, start: Start) -> ChainOffset:
        """Return the start of the table, with the switch-over point. See `SupportsMovingStart`.

        Raises:
            OptionError: If the position of the table's last rows in the topics is uncertain.
            DataLossError: If the topics have lost later rows already, and losses are errors.
        """
        del start
        landed, then = self._landed, self._part("then")
        if landed is None:
            landed = self._look()
            if self._is_frozen:
                then.freeze()  # again, since its ends may be before the switch-over point
        seam = (
            then.configured_start()
            if landed.offset is None
            else then.start_from_offset(landed.offset)
        )
        self._ask(seam)
        _log.info("%s: the table as of %s, then from %s", FORMAT, landed.by, seam.to_json())
        return ChainOffset(first=landed.begin, then=seam)

    def latest(self, start: ChainOffset, limit: Limit) -> ChainOffset:
        """Return the end of the next batch: in the table while it has rows. See `StreamReader`."""
        self._check(start)
        first = self._part("first").latest_within(start.first, self._limit("first", limit))
        if first != start.first:
            self._ask(start.then)
            if limit != UNLIMITED:
                self._reading = "first"
                return start.model_copy(update={"first": first})
        self._reading = "then"
        then = self._part("then").latest(start.then, self._limit("then", limit))
        if (first, then) == (start.first, start.then):
            return start
        return ChainOffset(first=first, then=then, watermark=then.watermark)

    def freeze(self) -> None:
        """Ignore rows that arrive from now on. See `SupportsAvailableNow`."""
        # A new query must not read more rows of the table than the topics are frozen at. A query
        # that has started needs no table any more.
        with contextlib.suppress(KrishivError):
            self._landed = self._look()
        self._is_frozen = True
        self._part("then").freeze()

    def backlog(self) -> Mapping[str, Any]:
        """Return the backlog of the source that was read last. See `SupportsBacklog`."""
        return {} if self._reading is None else dict(self._part(self._reading).backlog())

    def committed(self, end: ChainOffset) -> None:
        """Pass the hint to both sources. See `StreamReader`."""
        self._part("first").committed(end.first)
        self._part("then").committed(end.then)

    # --- rows

    def plan(self, start: ChainOffset, end: ChainOffset) -> Sequence[ChainPart]:
        """Plan the batch from the two offsets, by both sources. See `StreamReader`."""
        self._check(end)
        spans: tuple[tuple[Place, Offset, Offset], ...] = (
            ("first", start.first, end.first),
            ("then", start.then, end.then),
        )
        return [
            ChainPart(place, value)
            for place, before, after in spans
            if before != after
            for value in self._part(place).plan(before, after)
        ]

    def read(self, partition: ChainPart) -> Iterator[pa.RecordBatch]:
        """Read a part by its source. See `StreamReader`."""
        return iter(self._part(partition.place).read(partition.value))

    # --- the two sources

    def _part(self, place: Place) -> Any:
        if place not in self._parts:
            # The table is read as a stream, which follows one snapshot.
            streaming = self.streaming or place == "first"
            self._parts[place] = self._made(place, self.schema, streaming=streaming)
        return self._parts[place]

    def _made(
        self, place: Place, schema: pa.Schema | None, *, streaming: bool
    ) -> StreamReader[Any, Any]:
        made = reader_of(self.options.format_of(place))
        return made(self.options.part(place), schema, streaming=streaming)

    def _check(self, offset: ChainOffset) -> None:
        held: dict[Place, Offset] = {"first": offset.first, "then": offset.then}
        for place, part in held.items():
            wanted = self._part(place).offset_type
            if not isinstance(part, wanted):
                raise OffsetError(
                    f"{FORMAT}: an offset of kind {part.kind!r} instead of {wanted.kind!r}; a "
                    "checkpoint belongs to one query with one source"
                )

    def _limit(self, place: Place, asked: Limit) -> Limit:
        return asked if asked == UNLIMITED else self.options.limit_of(place)

    def _look(self) -> TableProvenance[Any]:
        landed: TableProvenance[Any] = self._part("first").provenance(
            self.options.landed_by, self.options.snapshot
        )
        return landed

    def _ask(self, seam: Offset) -> None:
        """Check once per process that the records after the table exist, before the table is read.

        It uses a separate reader, which caches nothing of the answer.
        """
        if self._has_asked:
            return
        try:
            then = self._made("then", self.schema, streaming=self.streaming)
            then.latest(seam, UNLIMITED)
        except DataLossError as error:
            raise DataLossError(
                f"{FORMAT}: the records that follow the rows of the table are no longer "
                f"complete: {error}"
            ) from error
        self._has_asked = True
