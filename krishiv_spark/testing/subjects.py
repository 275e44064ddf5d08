"""The connectors under test: how an author creates them, and how the kit checks behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSource

from krishiv_spark.sinks.base import Guarantee
from krishiv_spark.testing.processes.outside import OUTSIDE, Outside
from krishiv_spark.testing.rows import (
    Row,
    Rows,
    count_rows,
    long_row,
    numbers_of,
    odd_row,
    typed_schema,
)

__all__ = [
    "ROW_SCHEMA",
    "FailingConnector",
    "SampleRows",
    "SinkUnderTest",
    "SourceUnderTest",
    "Writing",
    "default_row",
]

Writing: TypeAlias = Literal["append", "complete", "batch append", "batch overwrite"]
"""The way to write a sink: a stream in one of two output modes, or jobs in two save modes."""

ROW_SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
"""The columns that the kit writes and reads unless an author needs others."""


def default_row(number: int) -> Row:
    """Return the row of a number in `ROW_SCHEMA`."""
    return number, f'rów {number}, "é"'


def _deletes_nothing(number: int) -> bool:
    del number
    return False


@dataclass(frozen=True, kw_only=True)
class SinkUnderTest:
    """A sink, and the oracle that reads what it has written without the code under test.

    Attributes:
        source: The class that Spark registers: krishiv-spark's, or any ``DataSource``.
        options: The options that a user would set, without the checkpoint.
        oracle: Returns the rows that a reader of the external system sees now: tuples in the
            order of `schema`, dicts by column name, or an Arrow table.
        schema: Columns that the kit writes.
        row: Returns the row of a number, a tuple in the order of `schema`; rows must differ.
        key: Returns the key of a row's number, for a sink that keeps the newest row of each key
            (upserts); None for a sink that adds all rows.
        deletes: With `key`: returns True if the row of a number deletes the row of its key.
        result: For a sink whose rows change others in another way, such as change data: returns
            the rows that readers see after the rows of these numbers, written in this order by one
            query. They and the rows of `oracle` are both tuples, or both dicts or tables. Such a
            sink is tried with one query, and without `complete`, `overwrite`, `batch` and `key`.
        any_value: Columns that may hold any value of their type. None means, with `ROW_SCHEMA`,
            a column of each of Spark's types, if the sink makes its tables from the schema and
            the oracle gives columns by name, and otherwise `text`; with a schema of your own, none.
        most_held: Bytes of a task's rows that the sink gathers at most before it writes them, such
            as a row group. The long task of the kit is a good deal longer.
        cannot_hold: Types that the sink can neither hold nor refuse before a row moves, by the
            names of `testing.rows.TYPES`.
        special_doubles: True if a double may be NaN, infinite, or a zero below zero.
        guarantee: The guarantee of the sink; None takes it from the class of its writer.
        whole_epochs: True if readers see an epoch whole or not at all, even while it is being
            committed. Otherwise an epoch may be visible in part until a driver has finished it.
        complete: True if the sink has Spark's output mode "complete".
        stream: True if ``df.writeStream`` can write the sink; None if it has the method.
        batch: True if ``df.write`` can write the sink; None if it has the method.
        overwrite: True if ``df.write`` has the save mode "overwrite".
        several_queries: True if several queries may write into one target.
        expire: Deletes staged data that belongs to no commit, as the external system's own
            housekeeping does; None if nothing does.
        backup: Copies the target, and returns a function that restores that copy, as an operator
            does: `back_up_folder`, if the target is a folder. None if the
            kit cannot copy it.
        leftovers: Lists all that is staged and not visible: files, tables, transactions. None
            lists the files in the folder of the target, whose number then must not grow.
        sweeps: True if later epochs of a query delete the data that its dead and losing attempts
            staged; otherwise a command or an age limit has to.
        readable_while_writing: True if the oracle can read while a writing process sleeps.
        unseen: True if a C library makes an epoch visible, without a Python function that
            could be named in `outside`. Then processes are killed at moments instead of calls.
        outside: The functions that count as calls to the outside; see `testing.processes.outside`.
    """

    source: type[DataSource]
    options: Mapping[str, str] = field(default_factory=dict)
    oracle: Callable[[], Rows]
    schema: pa.Schema = ROW_SCHEMA
    row: Callable[[int], Row] = default_row
    key: Callable[[int], object] | None = None
    deletes: Callable[[int], bool] = _deletes_nothing
    result: Callable[[Iterable[int]], Rows] | None = None
    any_value: Collection[str] | None = None
    most_held: int = 2**23
    cannot_hold: Collection[str] = ()
    special_doubles: bool = False
    guarantee: Guarantee | None = None
    whole_epochs: bool = True
    complete: bool = True
    stream: bool | None = None
    batch: bool | None = None
    overwrite: bool = True
    several_queries: bool = True
    expire: Callable[[], None] | None = None
    backup: Callable[[], Callable[[], None]] | None = None
    leftovers: Callable[[], Iterable[object]] | None = None
    sweeps: bool = True
    readable_while_writing: bool = True
    unseen: bool = False
    outside: Outside = field(default_factory=lambda: OUTSIDE)

    def __post_init__(self) -> None:
        others = self.complete, self.overwrite, self.several_queries, self.has_batch, self.key
        if self.result is not None and any(others):
            raise ValueError(
                "a sink with 'result' has one query: set complete, overwrite, several_queries and "
                "batch to False, and no key"
            )

    @property
    def promised(self) -> Guarantee:
        """The guarantee, declared here or by the writer."""
        writer = getattr(self.source, "writer_type", None)
        declared: Guarantee = getattr(writer, "guarantee", Guarantee.NONE)
        return self.guarantee or declared

    @property
    def has_stream(self) -> bool:
        """True if the cases of streams apply."""
        made = self.source.streamWriter is not DataSource.streamWriter
        return made if self.stream is None else self.stream

    @property
    def has_batch(self) -> bool:
        """True if the cases of batches apply."""
        return self.source.writer is not DataSource.writer if self.batch is None else self.batch

    @property
    def usual_writing(self) -> Writing:
        """The way to write of a case that needs no certain one: as a stream, if streams apply."""
        return "append" if self.has_stream else "batch append"

    @property
    def odd_columns(self) -> Collection[str]:
        """The columns behind `any_value`, of `schema`."""
        return _odd_columns(self.schema, self.any_value)

    def with_long_rows(self) -> SinkUnderTest:
        """Return the same sink with long texts or binaries in one of the `any_value` columns."""
        places = [self.schema.names.index(name) for name in self.odd_columns]
        return replace(self, row=partial(_long_row, self.row, places))

    def with_types(self, types: Collection[str]) -> SinkUnderTest:
        """Return the same sink with a column of each of these types, and odd values in them."""
        schema = typed_schema(types)
        blank = replace(self, schema=schema, row=partial(_blank_row, len(schema)))
        return blank.with_odd(schema.names[1:])

    def with_odd(self, names: Collection[str]) -> SinkUnderTest:
        """Return the same sink with odd values in these columns."""
        row = partial(_odd_row, self.row, self.schema, names, self.special_doubles)
        return replace(self, row=row)

    def left(self, numbers: Iterable[int]) -> set[int]:
        """Return the numbers of the rows that readers see after these rows, in this order."""
        if self.key is None:
            return set(numbers)
        newest = {self.key(number): number for number in numbers}
        return {number for number in newest.values() if not self.deletes(number)}

    def remaining(self, numbers: Iterable[int]) -> Counter[int | Row]:
        """Return what `visible` must be after these rows, in this order."""
        found = self.left(numbers) if self.result is None else count_rows(self.result(numbers))
        return Counter(found)

    def visible(self, written: int) -> Counter[int | Row]:
        """Count the oracle's rows by number; an unknown row counts as itself.

        Args:
            written: Rows with numbers below this were written.
        """
        if self.result is not None:
            return count_rows(self.oracle())
        return numbers_of(self.oracle(), self.schema, self.row, written)


@dataclass(frozen=True, kw_only=True)
class SampleRows:
    """The special properties of the rows that a sink is given.

    Attributes:
        equal_rows: True if some rows equal others, within an epoch and across epochs.
        long_rows: True if each row has two kilobytes and more.
        types: Rows have a column of each of these types, with values that sinks get wrong.
        odd: Columns of the author's schema with such values.
    """

    equal_rows: bool = False
    long_rows: bool = False
    types: Collection[str] = ()
    odd: Collection[str] = ()

    def of(self, sink: SinkUnderTest) -> SinkUnderTest:
        """Return the sink with such rows."""
        if self.equal_rows:
            return replace(sink, row=partial(_equal_row, sink.row))
        if self.long_rows:
            return sink.with_long_rows()
        if self.types:
            return sink.with_types(self.types)
        return sink.with_odd(self.odd) if self.odd else sink


@dataclass(frozen=True, kw_only=True)
class SourceUnderTest:
    """A source, and a way to add rows to what it reads without the code under test.

    Attributes:
        source: The class that Spark registers: krishiv-spark's, or any ``DataSource``.
        options: The options that a user would set.
        add: Adds rows, tuples in the order of `schema`, as one unit that is never split over
            batches: a file, a push, a transaction. They can be read when it returns.
        schema: Columns of the rows, as ``.schema(...)`` gives them.
        row: Returns the row of a number, a tuple in the order of `schema`; rows must differ.
        any_value: Columns that may hold any value of their type; None means `text` with
            `ROW_SCHEMA`, and with a schema of your own none.
        special_doubles: True if a double may be NaN, infinite, or a zero below zero.
        latest: Options with which a new query starts after the existing rows; None if the
            source has no such start.
        two_rows: Options with which a batch takes at most two rows, when each was added alone;
            None if the source has no limits. Without it, krishiv-spark's sources get
            ``maxRowsPerTrigger``.
        small_tasks: Options that split a batch of some rows over several tasks; empty if
            the default does, None if a batch is always one task.
        event_time: Column for the option ``eventTime``, whose times grow with the row's number;
            None if the source has no watermark.
        several_queries: True if several queries may read the same rows.
        expire: Deletes all existing rows, read or not, as the external system's own
            retention does; None if nothing does.
        stream: True if ``spark.readStream`` can read the source; None if it has a method.
        batch: True if ``spark.read`` can read the source; None if it has the method.
        unseen: True if a C library reads the rows, without a Python function that could be
            named in `outside`. Then processes are killed at moments instead of calls.
        outside: The functions that count as calls to the outside; see `testing.processes.outside`.
    """

    source: type[DataSource]
    options: Mapping[str, str] = field(default_factory=dict)
    add: Callable[[Sequence[Row]], None]
    schema: pa.Schema = ROW_SCHEMA
    row: Callable[[int], Row] = default_row
    any_value: Collection[str] | None = None
    special_doubles: bool = False
    latest: Mapping[str, str] | None = None
    two_rows: Mapping[str, str] | None = None
    small_tasks: Mapping[str, str] | None = field(default_factory=dict)
    event_time: str | None = None
    several_queries: bool = True
    expire: Callable[[], None] | None = None
    stream: bool | None = None
    batch: bool | None = None
    unseen: bool = False
    outside: Outside = field(default_factory=lambda: OUTSIDE)

    @property
    def has_stream(self) -> bool:
        """True if the cases of streams apply."""
        names = ("streamReader", "simpleStreamReader")
        made = any(getattr(self.source, n) is not getattr(DataSource, n) for n in names)
        reader = getattr(self.source, "reader_type", None)
        made = made and not (reader is not None and reader.only_batches)
        return made if self.stream is None else self.stream

    @property
    def has_batch(self) -> bool:
        """True if the cases of batches apply."""
        return self.source.reader is not DataSource.reader if self.batch is None else self.batch

    @property
    def odd_columns(self) -> Collection[str]:
        """The columns behind `any_value`."""
        return _odd_columns(self.schema, self.any_value)

    def with_odd(self, names: Collection[str]) -> SourceUnderTest:
        """Return the same source with odd values in these columns."""
        row = partial(_odd_row, self.row, self.schema, names, self.special_doubles)
        return replace(self, row=row)

    @property
    def limit(self) -> Mapping[str, str] | None:
        """The options behind `two_rows`."""
        reader = getattr(self.source, "reader_type", None)
        has_ours = reader and "max_rows_per_trigger" not in reader.options_type.unsupported
        ours = {"maxRowsPerTrigger": "2"} if has_ours else None
        return ours if self.two_rows is None else self.two_rows


@dataclass(frozen=True, kw_only=True)
class FailingConnector:
    """A source, a sink or both, with secrets in its options, whose external system fails.

    Attributes:
        source: The class that Spark registers: krishiv-spark's, or any ``DataSource``.
        options: The options that a user would set, without the checkpoint. Set short
            time limits: each step runs until the connector gives up.
        schema: The columns to write and read.
        row: Returns the row of a number, a tuple in the order of `schema`.
        stream: True if streams use it; None if it has the method.
        batch: True if batches use it; None if it has the method.
    """

    source: type[DataSource]
    options: Mapping[str, str] = field(default_factory=dict)
    schema: pa.Schema = ROW_SCHEMA
    row: Callable[[int], Row] = default_row
    stream: bool | None = None
    batch: bool | None = None

    @property
    def writes_streams(self) -> bool:
        """True if it is a sink of streams."""
        return self._has("writer_type", self.stream, "streamWriter")

    @property
    def writes_batches(self) -> bool:
        """True if it is a sink of batches."""
        return self._has("writer_type", self.batch, "writer")

    @property
    def reads_streams(self) -> bool:
        """True if it is a source of streams."""
        return self._has("reader_type", self.stream, "streamReader", "simpleStreamReader")

    @property
    def reads_batches(self) -> bool:
        """True if it is a source of batches."""
        return self._has("reader_type", self.batch, "reader")

    @property
    def reads(self) -> bool:
        """True if it is a source."""
        return self.reads_streams or self.reads_batches

    def _has(self, role: str, declared: bool | None, *methods: str) -> bool:
        """Return True if it has a role; krishiv-spark's formats have all methods but name roles."""
        is_ours = hasattr(self.source, role)
        made = any(getattr(self.source, n) is not getattr(DataSource, n) for n in methods)
        has_role = getattr(self.source, role) is not None if is_ours else made
        return has_role and declared is not False


def _odd_columns(schema: pa.Schema, given: Collection[str] | None) -> Collection[str]:
    ours = ("text",) if schema.equals(ROW_SCHEMA) else ()
    return ours if given is None else given


def _equal_row(row: Callable[[int], Row], number: int) -> Row:
    return row(number // 2 % 2)


def _long_row(row: Callable[[int], Row], places: Collection[int], number: int) -> Row:
    return long_row(row(number), places)


def _blank_row(columns: int, number: int) -> Row:
    return (number, *[None] * (columns - 1))


def _odd_row(
    row: Callable[[int], Row],
    schema: pa.Schema,
    names: Collection[str],
    infinite: bool,
    number: int,
) -> Row:
    return odd_row(number, row(number), schema, names, infinite=infinite)
