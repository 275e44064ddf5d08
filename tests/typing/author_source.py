"""A source as an author writes it: checked by the type checkers, never run."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import Field
from typing_extensions import assert_type

from krishiv_spark.datasource import KrishivDataSource
from krishiv_spark.offsets import Offset, Start, Value, Watermark, advance, canonical_json
from krishiv_spark.sources import (
    UNLIMITED,
    Limit,
    SourceOptions,
    StreamReader,
    SupportsAvailableNow,
    SupportsBacklog,
    SupportsMovingStart,
)


class FeedOptions(SourceOptions):
    url: str
    starting: str = "latest"


class Shard(Value):
    number: int
    next: int = Field(ge=0)


class FeedOffset(Offset):
    kind: ClassVar[str] = "feed"

    shards: tuple[Shard, ...] = ()


class FeedReader(StreamReader[FeedOffset, tuple[int, int]]):
    options_type: ClassVar[type[SourceOptions]] = FeedOptions
    offset_type: ClassVar[type[Offset]] = FeedOffset
    options: FeedOptions

    def infer_schema(self) -> pa.Schema:
        return pa.schema([("value", pa.string())])

    def initial(self) -> FeedOffset | Start:
        return Start(at="latest") if self.options.starting == "latest" else FeedOffset()

    def resolve(self, start: Start) -> FeedOffset:
        assert_type(start.ms, int | None)
        return FeedOffset(shards=(Shard(number=0, next=7),))

    def latest(self, start: FeedOffset, limit: Limit) -> FeedOffset:
        assert_type(limit.rows, int | None)
        mark = advance(start.watermark, 5, self.options.watermark_delay)
        assert_type(mark, Watermark)
        return FeedOffset(shards=start.shards, watermark=mark)

    def plan(self, start: FeedOffset, end: FeedOffset) -> Sequence[tuple[int, int]]:
        return [(one.next, two.next) for one, two in zip(start.shards, end.shards, strict=True)]

    def read(self, partition: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        first, end = partition
        yield pa.record_batch({"value": [str(n) for n in range(first, end)]})

    def freeze(self) -> None: ...

    def backlog(self) -> Mapping[str, Any]:
        return {"newest": 1}


class FeedSource(KrishivDataSource):
    format_name = "feed"
    reader_type = FeedReader


def uses_of_the_contract(reader: FeedReader, options: FeedOptions) -> None:
    moving: SupportsMovingStart[FeedOffset] = reader
    ending: SupportsAvailableNow = reader
    told: SupportsBacklog = reader
    ending.freeze()
    assert_type(moving.resolve(Start(at="latest")), FeedOffset)
    assert_type(told.backlog(), Mapping[str, Any])
    assert_type(reader.latest(FeedOffset(), UNLIMITED), FeedOffset)
    assert_type(FeedOffset.from_json("{}"), FeedOffset)
    assert_type(FeedOffset().to_json(), str)
    assert_type(canonical_json({"a": 1}), str)
    assert_type(options.limit(), Limit)


def mistakes_that_are_found(reader: FeedReader, offset: FeedOffset) -> None:
    reader.latest(Start(at="latest"), UNLIMITED)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Start(at="noon")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    offset.shards = ()  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    Shard(number="1", next=0)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
