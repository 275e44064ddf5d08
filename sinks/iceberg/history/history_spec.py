"""The columns of a history, and how changes become its versions.

A history (`mode` = `scd2`) has a row for each version of a database row, with the interval in which
it was valid. Its key columns identify a row of the database, and together with its position a
version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.changes.change_origins import TIME_TYPE
from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.iceberg.options import FORMAT
from krishiv_spark.sinks.iceberg.table_schema import to_arrow_columns
from krishiv_spark.sinks.iceberg.upserts.upsert_staging import UpsertSpec
from krishiv_spark.sinks.upserts import ORDER, READ, TIME

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

__all__ = ["HistoryColumns", "HistorySpec", "LateRows", "add_ends", "split_positions"]

LateRows: TypeAlias = Literal["insert", "ignore", "fail"]

_LATE: Sequence[LateRows] = ("insert", "ignore", "fail")

_END = "/"
"""Separates the position of a version from that of the delete that ended it."""

_DELETES_SINCE = 2
"""The format version that introduced delete files."""

_READ_OPS = pa.array(["r", "read"])


class HistoryColumns(NamedTuple):
    """The columns that a history has beside those of its rows.

    Attributes:
        valid_from: Start of the interval, inclusive.
        valid_to: End of the interval, exclusive; null for the current version.
        current: Whether the version is valid now.
        position: Position of the change in the database; None for rows, whose order column has it.
    """

    valid_from: str
    valid_to: str
    current: str
    position: str | None

    @property
    def fields(self) -> list[pa.Field]:
        """The columns with their types."""
        found = [
            pa.field(self.valid_from, TIME_TYPE),
            pa.field(self.valid_to, TIME_TYPE),
            pa.field(self.current, pa.bool_()),
        ]
        return [*found, *([pa.field(self.position, pa.string())] if self.position else [])]

    @property
    def options(self) -> Iterator[tuple[str, str]]:
        """The names, each with its option."""
        names = ("validFromColumn", "validToColumn", "currentColumn", "positionColumn")
        return ((option, name) for option, name in zip(names, self, strict=True) if name)


@dataclass(frozen=True)
class HistorySpec(UpsertSpec):
    """The columns that determine how changes become versions.

    Attributes:
        time: Column with the time of a change; None for records of change data.
        columns: The columns of the history.
        late: Action for a row that is older than a version of its key.
    """

    time: str | None
    columns: HistoryColumns
    late: LateRows

    @classmethod
    def of(cls, options: IcebergSinkOptions) -> HistorySpec:
        """Return the columns of the options.

        Raises:
            OptionError: If the options name no keys, or rows have no order.
        """
        if not options.key_columns:
            raise OptionError(f"{FORMAT}: 'mode' = 'scd2' needs the option 'keyColumns'")
        is_records = options.change_format is not None
        if not is_records and options.order_column is None:
            raise OptionError(
                f"{FORMAT}: 'mode' = 'scd2' needs 'orderColumn', the column whose value rises with "
                "each change of a row (a sequence number or a time), or 'changeFormat'"
            )
        columns = HistoryColumns(
            options.valid_from_column,
            options.valid_to_column,
            options.current_column,
            options.position_column if is_records else None,
        )
        if is_records:
            return cls(options.key_columns, None, ORDER, None, columns, options.late_rows)
        order = options.order_column
        time = options.time_column or order
        return cls(options.key_columns, options.op_column, order, time, columns, options.late_rows)

    def to_texts(self) -> tuple[str, ...]:
        """Return the names of the added columns, and the action for late rows, as in intents."""
        *names, position = self.columns
        return (*map(str, names), position or "", self.late)

    @classmethod
    def from_texts(cls, spec: UpsertSpec, texts: Sequence[str]) -> HistorySpec:
        """Return the columns of an epoch from its intent, which has no column of times.

        Raises:
            ValueError: If another program has written these texts.
        """
        valid_from, valid_to, current, position, text = texts
        late: LateRows | None = next((one for one in _LATE if one == text), None)
        if late is None:
            raise ValueError("an unknown action for late rows")
        columns = HistoryColumns(valid_from, valid_to, current, position or None)
        return cls(spec.keys, None, spec.order, None, columns, late)

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that identify a version."""
        return tuple(dict.fromkeys((*self.keys, self.rank_column)))

    @property
    def rank_column(self) -> str:
        """The column of the table by which the versions of a key are in order."""
        return self.columns.position or self.order or ""

    @property
    def control_names(self) -> list[str]:
        """The columns of the table that determine the versions."""
        columns = self.columns
        names = (*self.keys, self.rank_column, columns.valid_from, columns.valid_to)
        return list(dict.fromkeys(names))

    @property
    def is_of_records(self) -> bool:
        """True if changes are records of change data."""
        return self.columns.position is not None

    def list_generated(self) -> Sequence[str]:
        """Return the columns of the table that rows do not have."""
        return [name for name in self.columns if name]

    def add_columns(self, rows: pa.Schema) -> pa.Schema:
        """Return the columns of the table, for these columns of rows.

        Raises:
            OptionError: If a column of the history has the name of another one.
        """
        taken = {name.casefold() for name in rows.names}
        for option, name in self.columns.options:
            if name.casefold() in taken:
                raise OptionError(
                    f"{FORMAT}: the rows have a column {name!r} already, which a history adds: "
                    f"give the added one another name with {option!r}"
                )
            taken.add(name.casefold())
        return pa.schema([*rows, *self.columns.fields])

    def check(self, rows: pa.Schema) -> None:
        """Refuse rows as `UpsertSpec`, and rows without a column of times.

        Raises:
            OptionError: If a column is missing, or its type is not allowed.
        """
        super().check(rows)
        if self.time is None:
            return
        if self.time not in rows.names:
            known = ", ".join(rows.names)
            raise OptionError(
                f"{FORMAT}: 'timeColumn' names {self.time!r}, but the columns are {known}"
            )
        kind = rows.field(self.time).type
        if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            raise OptionError(
                f"{FORMAT}: 'mode' = 'scd2' needs the time of each change, and column "
                f"{self.time!r} is {kind}: name a TIMESTAMP or DATE column with 'timeColumn'"
            )

    def check_records(self, records: pa.Schema) -> None:
        """Refuse records of change data without their offset and their time.

        Raises:
            OptionError: If a column is missing.
        """
        for name in ("offset", "timestamp"):
            if name not in records.names:
                raise OptionError(
                    f"{FORMAT}: 'mode' = 'scd2' needs Kafka's column {name!r}, which the rows do "
                    "not have: write them as krishiv-kafka or Spark's kafka returns them"
                )

    def check_table(self, table: Table, options: IcebergSinkOptions) -> None:
        """Refuse a table that is no history. Planner.

        Raises:
            OptionError: If a column of the history is missing or has another type, or the table's
                format version has no delete files.
        """
        columns = to_arrow_columns(table.schema())
        for (option, name), field in zip(self.columns.options, self.columns.fields, strict=True):
            kind = columns.field(name).type if name in columns.names else None
            if kind != field.type:
                found = f"no column {name!r}" if kind is None else f"{name!r} as {kind}"
                raise OptionError(
                    f"{FORMAT}: 'mode' = 'scd2' needs a column {name!r} of type {field.type}, and "
                    f"table {options.table_name} has {found}: write the history to a new table, or "
                    f"name the column with {option!r}"
                )
        if table.format_version < _DELETES_SINCE:
            raise OptionError(
                f"{FORMAT}: 'mode' = 'scd2' requires a table of format version {_DELETES_SINCE}, "
                f"and table {options.table_name} has version {table.format_version}: upgrade it"
            )

    def mark(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with the time of their change, and whether it is a snapshot's. Executor.

        Raises:
            SchemaError: If a row has no time or no order.
        """
        for option, name in (("timeColumn", self.time), ("orderColumn", self.order)):
            if name is not None and batch.column(name).null_count:
                raise SchemaError(
                    f"{FORMAT}: column {name!r} has nulls in {batch.column(name).null_count} of "
                    f"{batch.num_rows} rows, and {option!r} names it: a history needs the time and "
                    "the order of each change. Filter such rows; the query repeats this batch "
                    "until then, and may continue with its checkpoint"
                )
        times = batch.column(self.time or "").cast(pa.timestamp("us")).cast(TIME_TYPE)
        if self.op is None:
            reads = pa.repeat(pa.scalar(value=False), batch.num_rows)
        else:
            reads = pc.is_in(pc.ascii_lower(batch.column(self.op).cast(pa.string())), _READ_OPS)
        return batch.append_column(TIME, times).append_column(READ, reads)


# --- the position of a version


def split_positions(places: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the positions of the changes that opened versions, and of the deletes that ended them.

    Args:
        places: The values of the column; the second result is null where no delete ended it.
    """
    ended = pc.extract_regex(places, f"{_END}(?P<end>.*)$")
    return pc.replace_substring_regex(places, f"{_END}.*$", ""), pc.struct_field(ended, "end")


def add_ends(places: pa.Array, ends: pa.Array) -> pa.Array:
    """Return the values of the column for versions that deletes have ended.

    Args:
        places: The values before.
        ends: The positions of the deletes; null where there is none.
    """
    both = pc.binary_join_element_wise(places, ends, _END)
    return pc.if_else(ends.is_valid(), both, places)
