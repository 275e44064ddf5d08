"""``krishiv-chain``: a table, and then the topics that it was landed from, as one source.

Rows of the table as it was when the query began, and after them those that the topics have from
where the table's end: each once. An offset names a place in the table and offsets of the topics;
the latter are looked up once, before any row is read, and are those at which the query stood that
has written the table. With a limit, a batch is of one of the two. The units of parallelism are
theirs.
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
"""An offset of one of the two, of whichever kind; its text is what it is in a query of its own."""


class ChainOffset(Offset):
    """The position of a query in each of the two sources.

    Attributes:
        first: In the one that is read first; stays at its end afterwards.
        then: In the one that follows. Until the first one is read, this is the seam: where the rows
            end that are in the first one.
    """

    kind = "chain"

    first: PartOffset
    then: PartOffset


_log = logging.getLogger(__name__)


class ChainPart(NamedTuple):
    """The part of a batch that one task reads.

    Attributes:
        place: Of which of the two sources it is.
        value: A partition of that source.
    """

    place: Place
    value: Any


class ChainReader(StreamReader[ChainOffset, ChainPart]):
    """Reads one source to its end, and then another one."""

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
        # A task makes the one of the two that it reads with.
        return {**self.__dict__, "_parts": {}, "_landed": None}

    def infer_schema(self) -> pa.Schema:
        """The table's columns, which the topics must have too. See `StreamReader`."""
        found = plain_schema(self._part("first").infer_schema())
        # As for a batch, which refuses less: it is not known which of the two will be read.
        self._made("then", found, streaming=False).initial()
        return found

    # --- positions

    def initial(self) -> Start:
        """Before the seam is known. See `StreamReader`."""
        # What they refuse is said before anything is read.
        self._part("first").initial()
        self._part("then").initial()
        return Start(at="earliest")

    def resolve(self, start: Start) -> ChainOffset:
        """The begin of the table, and the seam: where the topics go on. See `SupportsMovingStart`.

        Raises:
            OptionError: If it is not certain where the table's rows end in the topics.
            DataLossError: If the topics have lost rows after that already, and losses are errors.
        """
        del start
        landed, then = self._landed, self._part("then")
        if landed is None:
            landed = self._look()
            if self._is_frozen:
                then.freeze()  # anew: the ends that it has may lie before the seam
        seam = (
            then.configured_start()
            if landed.offset is None
            else then.start_from_offset(landed.offset)
        )
        self._ask(seam)
        _log.info("%s: the table as of %s, then from %s", FORMAT, landed.by, seam.to_json())
        return ChainOffset(first=landed.begin, then=seam)

    def latest(self, start: ChainOffset, limit: Limit) -> ChainOffset:
        """See `StreamReader`. Of the table as long as there is something of it."""
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
        """See `SupportsAvailableNow`."""
        # A query that begins must not find more in the table than the topics are frozen at. One
        # that has begun needs no table any more.
        with contextlib.suppress(KrishivError):
            self._landed = self._look()
        self._is_frozen = True
        self._part("then").freeze()

    def backlog(self) -> Mapping[str, Any]:
        """Return the backlog of the source that was read last. See `SupportsBacklog`."""
        return {} if self._reading is None else dict(self._part(self._reading).backlog())

    def committed(self, end: ChainOffset) -> None:
        """See `StreamReader`."""
        self._part("first").committed(end.first)
        self._part("then").committed(end.then)

    # --- rows

    def plan(self, start: ChainOffset, end: ChainOffset) -> Sequence[ChainPart]:
        """See `StreamReader`. From the two offsets, as the two sources do."""
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
        """See `StreamReader`."""
        return iter(self._part(partition.place).read(partition.value))

    # --- the two sources

    def _part(self, place: Place) -> Any:
        if place not in self._parts:
            # The table is followed within one snapshot, which is what a stream does.
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
        """Ask for what follows, once in each process: not hours later, when the table is read.

        By a reader of its own, which keeps nothing of the answer.
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
