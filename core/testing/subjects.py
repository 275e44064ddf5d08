"""What an author gives to the kit: how to make the connector, and how to look behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSource

from krishiv_spark.sinks.base import Guarantee
from krishiv_spark.testing.processes.outside import OUTSIDE, Outside

__all__ = [
    "ROW_SCHEMA",
    "Row",
    "Rows",
    "SinkUnderTest",
    "SourceUnderTest",
    "Writing",
    "columns",
    "default_row",
    "numbers_of",
    "ranges",
]

Row: TypeAlias = tuple[Any, ...]
Writing: TypeAlias = Literal["append", "complete", "batch append", "batch overwrite"]
"""How a sink is written: a stream in one of two output modes, or batch jobs in two save modes."""

Rows: TypeAlias = Iterable[Row] | Iterable[Mapping[str, Any]] | pa.Table

ROW_SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
"""The columns that the kit writes and reads unless an author needs others."""


def default_row(number: int) -> Row:
    """The row of a number in `ROW_SCHEMA`."""
    return number, f'rów {number}, "é"'


@dataclass(frozen=True, kw_only=True)
class SinkUnderTest:
    """A sink, and the oracle that reads what it has written without the code under test.

    Attributes:
        source: The class that Spark registers: of ours, or any ``DataSource``.
        options: What a user would give with ``.option(...)``, without the checkpoint.
        oracle: Returns the rows that a reader of the external system sees now: tuples in the
            order of `schema`, dicts by column name, or an Arrow table.
        schema: Columns that the kit writes.
        row: The row of a number, a tuple in the order of `schema`; different for each number.
        guarantee: What the sink promises; None takes it from the class of its writer.
        whole_epochs: Whether readers see an epoch whole or not at all, even while it is being
            committed. Without it an epoch may be seen in part until somebody has finished it.
        complete: Whether the sink has Spark's output mode "complete".
        batch: Whether the sink can be written by ``df.write``; None if it has the method.
        overwrite: Whether ``df.write`` has the save mode "overwrite".
        several_queries: Whether several queries may write into one target.
        expire: Throws away what is staged and belongs to no commit, as the external system's own
            housekeeping does; None if nothing does.
        outside: What counts as a call to the outside, see `testing.processes.outside`.
    """

    source: type[DataSource]
    options: Mapping[str, str] = field(default_factory=dict)
    oracle: Callable[[], Rows]
    schema: pa.Schema = ROW_SCHEMA
    row: Callable[[int], Row] = default_row
    guarantee: Guarantee | None = None
    whole_epochs: bool = True
    complete: bool = True
    batch: bool | None = None
    overwrite: bool = True
    several_queries: bool = True
    expire: Callable[[], None] | None = None
    outside: Outside = field(default_factory=lambda: OUTSIDE)

    @property
    def promised(self) -> Guarantee:
        """The guarantee, declared here or by the writer."""
        writer = getattr(self.source, "writer_type", None)
        declared: Guarantee = getattr(writer, "guarantee", Guarantee.NONE)
        return self.guarantee or declared

    @property
    def has_batch(self) -> bool:
        """Whether there are batch cases."""
        return self.source.writer is not DataSource.writer if self.batch is None else self.batch

    def visible(self, written: int) -> Counter[int | Row]:
        """How often the oracle sees each row, by number; an unknown row stands for itself.

        Args:
            written: Rows with numbers below this were handed out.
        """
        return numbers_of(self.oracle(), self.schema, self.row, written)


@dataclass(frozen=True, kw_only=True)
class SourceUnderTest:
    """A source, and a way to add rows to what it reads without the code under test.

    Attributes:
        source: The class that Spark registers: of ours, or any ``DataSource``.
        options: What a user would give with ``.option(...)``.
        add: Adds rows, tuples in the order of `schema`, as one unit that is never split over
            batches: a file, a push, a transaction. When it returns they can be read.
        schema: Columns of the rows, as ``.schema(...)`` gives them.
        row: The row of a number, a tuple in the order of `schema`; different for each number.
        latest: Options with which a new query begins behind what is there already; None if the
            source has no such start.
        two_rows: Options with which a batch takes at most two rows, when each was added alone;
            None if the source has no limits. Without it, sources of ours get
            ``maxRowsPerTrigger``.
        event_time: Column for the option ``eventTime``, whose times grow with the row's number;
            None if the source has no watermark.
        several_queries: Whether several queries may read the same rows.
        batch: Whether the source can be read by ``spark.read``; None if it has the method.
        outside: What counts as a call to the outside, see `testing.processes.outside`.
    """

    source: type[DataSource]
    options: Mapping[str, str] = field(default_factory=dict)
    add: Callable[[Sequence[Row]], None]
    schema: pa.Schema = ROW_SCHEMA
    row: Callable[[int], Row] = default_row
    latest: Mapping[str, str] | None = None
    two_rows: Mapping[str, str] | None = None
    event_time: str | None = None
    several_queries: bool = True
    batch: bool | None = None
    outside: Outside = field(default_factory=lambda: OUTSIDE)

    @property
    def has_batch(self) -> bool:
        """Whether there are batch cases."""
        return self.source.reader is not DataSource.reader if self.batch is None else self.batch

    @property
    def limit(self) -> Mapping[str, str] | None:
        """The options behind `two_rows`."""
        reader = getattr(self.source, "reader_type", None)
        ours = {"maxRowsPerTrigger": "2"} if reader is not None else None
        return ours if self.two_rows is None else self.two_rows


def columns(schema: pa.Schema, rows: Sequence[Row]) -> list[pa.Array]:
    """Rows as the arrays of their columns."""
    by_column = zip(*rows, strict=True)
    return [pa.array(column, kind) for column, kind in zip(by_column, schema.types, strict=True)]


def numbers_of(
    rows: Rows,
    schema: pa.Schema,
    row: Callable[[int], Row],
    written: int,
) -> Counter[int | Row]:
    """Count rows by their number; rows that belong to no number below `written` as themselves.

    If numbers share a row, the first of them are taken to be there.
    """
    known: dict[Row, list[int]] = {}
    for number in range(written):
        known.setdefault(row(number), []).append(number)
    found: Counter[int | Row] = Counter()
    for values, times in Counter(_values(rows, schema)).items():
        numbers: list[Any] = known.get(values, [values])
        more = max(times - len(numbers), 0)
        found.update([*numbers[:times], *numbers[-1:] * more])
    return found


def _values(rows: Rows, schema: pa.Schema) -> Iterator[Row]:
    given: Any = rows
    for item in given.to_pylist() if isinstance(given, pa.Table) else given:
        yield tuple(item[n] for n in schema.names) if isinstance(item, Mapping) else tuple(item)


def ranges(rows: Iterable[int | Row]) -> str:
    """Numbers as ``0-3, 7``; rows that have none as they are."""
    numbers = sorted(row for row in rows if isinstance(row, int))
    texts: list[str] = [repr(row) for row in rows if not isinstance(row, int)]
    for number in reversed(numbers):
        if texts and texts[0].split("-")[0] == str(number + 1):
            texts[0] = f"{number}-{texts[0].split('-')[-1]}"
        else:
            texts.insert(0, str(number))
    return ", ".join(texts)
