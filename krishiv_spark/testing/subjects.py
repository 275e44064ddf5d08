"""What an author gives to the kit: how to make the connector, and how to look behind it."""

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
from krishiv_spark.testing.rows import Row, Rows, long_row, numbers_of
from krishiv_spark.testing.values import odd_row, typed_schema

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
"""How a sink is written: a stream in one of two output modes, or batch jobs in two save modes."""

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
        any_value: Columns that may hold any value of their type. None means, with `ROW_SCHEMA`,
            a column of each of Spark's types, if the sink makes its tables from the schema and
            the oracle gives columns by name, and otherwise `text`; with a schema of your own, none.
        most_held: Bytes of a task's rows that the sink gathers at most before it writes them, such
            as a row group. The long task of the kit is a good deal longer.
        cannot_hold: Types that the sink can neither hold nor refuse before a row moves, by the
            names of `testing.values.TYPES`.
        special_doubles: Whether a double may be NaN, infinite, or a zero below zero.
        guarantee: What the sink promises; None takes it from the class of its writer.
        whole_epochs: Whether readers see an epoch whole or not at all, even while it is being
            committed. Without it an epoch may be seen in part until somebody has finished it.
        complete: Whether the sink has Spark's output mode "complete".
        stream: Whether the sink can be written by ``df.writeStream``; None if it has the method.
        batch: Whether the sink can be written by ``df.write``; None if it has the method.
        overwrite: Whether ``df.write`` has the save mode "overwrite".
        several_queries: Whether several queries may write into one target.
        expire: Throws away what is staged and belongs to no commit, as the external system's own
            housekeeping does; None if nothing does.
        backup: Copies the target, and returns a function that puts that copy back, as an operator
            does who restores a backup: `back_up_folder`, of a target that is a folder. None if the
            kit cannot copy it.
        leftovers: Lists what is staged now and not visible: files, tables, transactions. None
            takes the files in the folder of the target, whose number then must not grow.
        sweeps: Whether later epochs of a query remove what its dead and losing attempts have
            staged; otherwise something else has to, such as a command or an age limit.
        readable_while_writing: Whether the oracle can look while a process that writes sleeps.
        unseen: Whether an epoch is made visible inside of a C library, by no Python function that
            could be named in `outside`. Then processes are killed at moments instead of calls.
        outside: What counts as a call to the outside, see `testing.processes.outside`.
    """

    source: type[DataSource]
    options: Mapping[str, str] = field(default_factory=dict)
    oracle: Callable[[], Rows]
    schema: pa.Schema = ROW_SCHEMA
    row: Callable[[int], Row] = default_row
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

    @property
    def promised(self) -> Guarantee:
        """The guarantee, declared here or by the writer."""
        writer = getattr(self.source, "writer_type", None)
        declared: Guarantee = getattr(writer, "guarantee", Guarantee.NONE)
        return self.guarantee or declared

    @property
    def has_stream(self) -> bool:
        """Whether there are cases of streams."""
        made = self.source.streamWriter is not DataSource.streamWriter
        return made if self.stream is None else self.stream

    @property
    def has_batch(self) -> bool:
        """Whether there are batch cases."""
        return self.source.writer is not DataSource.writer if self.batch is None else self.batch

    @property
    def usual_writing(self) -> Writing:
        """How a case writes that needs no certain way: as a stream, if there are streams."""
        return "append" if self.has_stream else "batch append"

    @property
    def odd_columns(self) -> Collection[str]:
        """The columns behind `any_value`, of `schema`."""
        return _odd_columns(self.schema, self.any_value)

    def with_long_rows(self) -> SinkUnderTest:
        """The same with long texts, or binaries, in one of the columns that hold any value."""
        places = [self.schema.names.index(name) for name in self.odd_columns]
        return replace(self, row=partial(_long_row, self.row, places))

    def with_types(self, types: Collection[str]) -> SinkUnderTest:
        """The same with a column of each of these types, and odd values in them."""
        schema = typed_schema(types)
        blank = replace(self, schema=schema, row=partial(_blank_row, len(schema)))
        return blank.with_odd(schema.names[1:])

    def with_odd(self, names: Collection[str]) -> SinkUnderTest:
        """The same with odd values in these columns."""
        row = partial(_odd_row, self.row, self.schema, names, self.special_doubles)
        return replace(self, row=row)

    def visible(self, written: int) -> Counter[int | Row]:
        """How often the oracle sees each row, by number; an unknown row stands for itself.

        Args:
            written: Rows with numbers below this were handed out.
        """
        return numbers_of(self.oracle(), self.schema, self.row, written)


@dataclass(frozen=True, kw_only=True)
class SampleRows:
    """What is special about the rows that a sink is given.

    Attributes:
        equal_rows: Whether some rows equal others, within an epoch and across epochs.
        long_rows: Whether each row has two kilobytes and more.
        types: Rows have a column of each of these types, with values that sinks get wrong.
        odd: Columns of the author's that have such values.
    """

    equal_rows: bool = False
    long_rows: bool = False
    types: Collection[str] = ()
    odd: Collection[str] = ()

    def of(self, sink: SinkUnderTest) -> SinkUnderTest:
        """The sink with such rows."""
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
        source: The class that Spark registers: of ours, or any ``DataSource``.
        options: What a user would give with ``.option(...)``.
        add: Adds rows, tuples in the order of `schema`, as one unit that is never split over
            batches: a file, a push, a transaction. When it returns they can be read.
        schema: Columns of the rows, as ``.schema(...)`` gives them.
        row: The row of a number, a tuple in the order of `schema`; different for each number.
        any_value: Columns that may hold any value of their type; None means `text` with
            `ROW_SCHEMA`, and with a schema of your own none.
        special_doubles: Whether a double may be NaN, infinite, or a zero below zero.
        latest: Options with which a new query begins after what is there already; None if the
            source has no such start.
        two_rows: Options with which a batch takes at most two rows, when each was added alone;
            None if the source has no limits. Without it, sources of ours get
            ``maxRowsPerTrigger``.
        small_tasks: Options with which a batch of some rows is split over several tasks; empty if
            it is anyway, None if a batch is always one task.
        event_time: Column for the option ``eventTime``, whose times grow with the row's number;
            None if the source has no watermark.
        several_queries: Whether several queries may read the same rows.
        expire: Throws away all rows that are there, read or not, as the external system's own
            retention does; None if nothing does.
        stream: Whether the source can be read by ``spark.readStream``; None if it has a method.
        batch: Whether the source can be read by ``spark.read``; None if it has the method.
        unseen: Whether rows are read inside of a C library, by no Python function that could be
            named in `outside`. Then processes are killed at moments instead of calls.
        outside: What counts as a call to the outside, see `testing.processes.outside`.
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
        """Whether there are cases of streams."""
        names = ("streamReader", "simpleStreamReader")
        made = any(getattr(self.source, n) is not getattr(DataSource, n) for n in names)
        return made if self.stream is None else self.stream

    @property
    def has_batch(self) -> bool:
        """Whether there are batch cases."""
        return self.source.reader is not DataSource.reader if self.batch is None else self.batch

    @property
    def odd_columns(self) -> Collection[str]:
        """The columns behind `any_value`."""
        return _odd_columns(self.schema, self.any_value)

    def with_odd(self, names: Collection[str]) -> SourceUnderTest:
        """The same with odd values in these columns."""
        row = partial(_odd_row, self.row, self.schema, names, self.special_doubles)
        return replace(self, row=row)

    @property
    def limit(self) -> Mapping[str, str] | None:
        """The options behind `two_rows`."""
        reader = getattr(self.source, "reader_type", None)
        has_ours = reader and "max_rows_per_trigger" not in reader.options_type.refuses
        ours = {"maxRowsPerTrigger": "2"} if has_ours else None
        return ours if self.two_rows is None else self.two_rows


@dataclass(frozen=True, kw_only=True)
class FailingConnector:
    """A source, a sink or both, with secrets in its options, whose external system fails.

    Attributes:
        source: The class that Spark registers: of ours, or any ``DataSource``.
        options: What a user would give with ``.option(...)``, without the checkpoint. Give short
            limits of time: each step is tried until the connector gives up.
        schema: Columns that are written and read.
        row: The row of a number, a tuple in the order of `schema`.
        stream: Whether it is used by streams; None if it has the method.
        batch: Whether it is used by batches; None if it has the method.
    """

    source: type[DataSource]
    options: Mapping[str, str] = field(default_factory=dict)
    schema: pa.Schema = ROW_SCHEMA
    row: Callable[[int], Row] = default_row
    stream: bool | None = None
    batch: bool | None = None

    @property
    def writes_streams(self) -> bool:
        """Whether it is a sink of streams."""
        return self._has("writer_type", self.stream, "streamWriter")

    @property
    def writes_batches(self) -> bool:
        """Whether it is a sink of batches."""
        return self._has("writer_type", self.batch, "writer")

    @property
    def reads_streams(self) -> bool:
        """Whether it is a source of streams."""
        return self._has("reader_type", self.stream, "streamReader", "simpleStreamReader")

    @property
    def reads_batches(self) -> bool:
        """Whether it is a source of batches."""
        return self._has("reader_type", self.batch, "reader")

    @property
    def reads(self) -> bool:
        """Whether it is a source."""
        return self.reads_streams or self.reads_batches

    def _has(self, role: str, declared: bool | None, *methods: str) -> bool:
        """Return True if it has a role; a format of ours has all methods, and names its roles."""
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
