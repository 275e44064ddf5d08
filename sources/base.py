"""Interface for an author of a source. This file is the specification.

Spark's part (processes, two forms of ``latestOffset``, camelCase) is in
``krishiv_spark.lifecycle``. A reader lives in one driver process for the whole query, where
`initial`, `resolve`, `latest` and `plan` are called; `read` runs on executors, on pickled copies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar, runtime_checkable

import pyarrow as pa
from pydantic import Field

from krishiv_spark.offsets import Offset, Start
from krishiv_spark.options import ByteSize, Duration, Options

__all__ = [
    "UNLIMITED",
    "Limit",
    "SourceOptions",
    "StreamReader",
    "SupportsAvailableNow",
    "SupportsBacklog",
    "SupportsFilters",
    "SupportsMovingStart",
]

O = TypeVar("O", bound=Offset)  # noqa: E741  the letter that the contract uses for an offset
O_co = TypeVar("O_co", bound=Offset, covariant=True)
P = TypeVar("P")


@dataclass(frozen=True)
class Limit:
    """The limits of one batch, all of which hold. None is no limit.

    A batch always takes at least one unit (file, push, record), or the query would not advance.
    """

    rows: int | None = None
    files: int | None = None
    bytes: int | None = None

    def admits(self, *, rows: int = 0, files: int = 0, size: int = 0) -> bool:
        """Return True if a batch may hold so many rows, files and bytes together."""
        counted = ((rows, self.rows), (files, self.files), (size, self.bytes))
        return all(most is None or count <= most for count, most in counted)


UNLIMITED = Limit()


class SourceOptions(Options):
    """Options that every source has; one that cannot honour a limit names it in `unsupported`.

    Attributes:
        event_time: Column that holds the event time: a timestamp or a date.
        watermark_delay: Allowed lateness: the watermark trails the newest event time by it.
        late_rows: The action for rows strictly below the watermark at the start of their batch.
        max_event_time_ahead: The most by which an event time may be ahead of the clock and move the
            watermark.
    """

    event_time: str | None = Field(
        default=None, description="Column with the event time. It enables the watermark."
    )
    watermark_delay: Duration = Field(
        default=0, ge=0, description="Allowed lateness, such as `10 minutes`."
    )
    late_rows: Literal["keep", "flag", "drop"] = Field(
        default="keep",
        description="Action for rows below the watermark at the start of the batch: `keep` them, "
        "`flag` them in a boolean column `_late`, or `drop` them.",
    )
    max_event_time_ahead: Duration = Field(
        default=86_400_000,
        ge=0,
        description="Maximum time by which an event time may be ahead of the clock and still move "
        "the watermark, or `infinity`.",
    )
    max_rows_per_trigger: int | None = Field(
        default=None, gt=0, description="Maximum number of rows in a batch."
    )
    max_files_per_trigger: int | None = Field(
        default=None, gt=0, description="Maximum number of files in a batch."
    )
    max_bytes_per_trigger: ByteSize | None = Field(
        default=None, gt=0, description="Maximum size of a batch in bytes, such as `512m`."
    )

    def limit(self) -> Limit:
        """Return the read limits as one value."""
        return Limit(
            self.max_rows_per_trigger, self.max_files_per_trigger, self.max_bytes_per_trigger
        )


class StreamReader(ABC, Generic[O, P]):
    """A source, for streams and batches alike.

    Args:
        options: The parsed options, an instance of `options_type`.
        schema: Arrow schema of the rows that `read` yields, by name; None while it is inferred.
        streaming: True for a stream; a batch reads from `initial` to `latest` once.

    Attributes:
        only_batches: The reason why ``spark.readStream`` cannot read it, with advice; empty for a
            source that it can.

    The constructor runs in every process and does no I/O.
    """

    options_type: ClassVar[type[SourceOptions]] = SourceOptions
    offset_type: ClassVar[type[Offset]]
    only_batches: ClassVar[str] = ""

    def __init__(
        self, options: SourceOptions, schema: pa.Schema | None, *, streaming: bool
    ) -> None:
        self.options = options
        self.schema = schema
        self.streaming = streaming

    @abstractmethod
    def infer_schema(self) -> pa.Schema:
        """Return the schema of the rows if the user gave none. Driver, when the reader is loaded.

        Raises:
            OptionError: If it cannot be inferred; the text contains advice.
        """

    @abstractmethod
    def initial(self) -> O | Start:
        """Return the position of a new query.

        Driver; called again after a restart, so it must be constant.

        A start that moves, such as "latest", is returned as a `Start` by a reader that has the
        ability `SupportsMovingStart`; it is pinned by an empty first batch.
        """

    @abstractmethod
    def latest(self, start: O, limit: Limit) -> O:
        """Return the end of the next batch, exclusive. Driver, once per trigger; reads no rows.

        Args:
            start: End of the previous batch.
            limit: The most that the batch may take.

        Returns:
            A position at or after `start`; equal to it when there is nothing new.
        """

    @abstractmethod
    def plan(self, start: O, end: O) -> Sequence[P]:
        """Split the rows between two positions over tasks. Driver.

        It must be a pure function of its arguments: a replay after a crash plans the same rows.
        """

    @abstractmethod
    def read(self, partition: P) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition. Executor; memory stays bounded over a long partition."""

    def committed(self, end: O) -> None:
        """Note that everything before `end` is done: a hint, one batch late, without the last."""


@runtime_checkable
class SupportsMovingStart(Protocol[O_co]):
    """Ability to begin at the external system's position at the time of the first trigger."""

    def resolve(self, start: Start) -> O_co:
        """Return the current position of a moving start. Driver, once in the life of a query."""
        ...


@runtime_checkable
class SupportsAvailableNow(Protocol):
    """Ability to end: with it, ``trigger(availableNow=True)`` honours the read limits."""

    def freeze(self) -> None:
        """Fix the end of `latest`: it must return nothing newer than what exists now. Driver."""
        ...


@runtime_checkable
class SupportsBacklog(Protocol):
    """Ability to report the unread data after the current batch, for the query's progress."""

    def backlog(self) -> Mapping[str, Any]:
        """Return the newest position of the external system as JSON, for Spark 4.2+."""
        ...


@runtime_checkable
class SupportsFilters(Protocol):
    """Ability of batch reads to skip rows early (Spark 4.1+, if its configuration allows it)."""

    def push(self, filters: Sequence[Any]) -> None:
        """Store the conditions, all of which hold for the wanted rows. Driver, before `plan`.

        Spark checks every condition again, so conditions may be ignored; but no row may be skipped
        for which all of them hold.

        Args:
            filters: Instances of the classes of ``pyspark.sql.datasource.Filter``.
        """
        ...
