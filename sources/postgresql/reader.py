"""``krishiv-postgresql`` as a source: tables, views and queries, in batches.

All tasks read one snapshot, which the server keeps for them (`shared_snapshot`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from krishiv_spark.arrow.schemas import select_columns
from krishiv_spark.offsets import Offset
from krishiv_spark.postgresql.connection import DatabaseTransaction
from krishiv_spark.postgresql.copy_encoding import HEADER, TRAILER
from krishiv_spark.postgresql.options import FORMAT
from krishiv_spark.postgresql.read_columns import (
    ReadColumn,
    check_types,
    choose_columns,
    describe_rows,
    make_batch,
)
from krishiv_spark.sources.base import Limit, SourceOptions, StreamReader
from krishiv_spark.sources.postgresql.filter_sql import write_conditions
from krishiv_spark.sources.postgresql.offset import PostgresqlOffset
from krishiv_spark.sources.postgresql.options import PostgresqlSourceOptions
from krishiv_spark.sources.postgresql.read_ranges import ReadRange, divide_rows
from krishiv_spark.sources.postgresql.shared_snapshot import (
    SharedSnapshot,
    open_reading,
    share_snapshot,
)

if TYPE_CHECKING:
    import psycopg

__all__ = ["PostgresqlReader", "PostgresqlTask"]

_PIECE_BYTES = 2**21
_PIECE_ROWS = 2**15
"""A piece has a few megabytes, whose arrays take as much again."""


@dataclass(frozen=True)
class PostgresqlTask:
    """The part of the rows that one task reads.

    Attributes:
        statements: The SELECTs of its rows.
        columns: The columns of each of them.
        snapshot: The snapshot that all tasks share; None if there is only one task, or none is
            wanted.
    """

    statements: tuple[str, ...]
    columns: tuple[ReadColumn, ...]
    snapshot: SharedSnapshot | None


class PostgresqlReader(StreamReader[PostgresqlOffset, PostgresqlTask]):
    """A reader of one table, view or query."""

    options_type: ClassVar[type[SourceOptions]] = PostgresqlSourceOptions
    offset_type: ClassVar[type[Offset]] = PostgresqlOffset
    only_batches = (
        f"{FORMAT} reads batches: use spark.read, or read the changes from Kafka, into which "
        "Debezium writes them (docs/change-data.md)"
    )
    options: PostgresqlSourceOptions

    def __init__(
        self, options: SourceOptions, schema: pa.Schema | None, *, streaming: bool
    ) -> None:
        super().__init__(options, schema, streaming=streaming)
        self._pushed: tuple[Any, ...] = ()

    def infer_schema(self) -> pa.Schema:
        """Return the columns of the table or query, or those of the option `columns`."""
        with open_reading(self.options) as transaction:
            columns = describe_rows(transaction, self.options.relation)
        found = pa.schema([(each.name, each.arrow) for each in columns])
        return select_columns(found, self.options.columns, FORMAT)

    def initial(self) -> PostgresqlOffset:
        """Return the start of a batch."""
        return PostgresqlOffset(at="start")

    def latest(self, start: PostgresqlOffset, limit: Limit) -> PostgresqlOffset:
        """Return the end of a batch."""
        del start, limit
        return PostgresqlOffset(at="end")

    def push(self, filters: Sequence[Any]) -> None:
        """Keep conditions of Spark for `plan`."""
        self._pushed = tuple(filters)

    def plan(self, start: PostgresqlOffset, end: PostgresqlOffset) -> Sequence[PostgresqlTask]:
        """Divide the rows, and let the server keep the snapshot for the tasks."""
        if start == end:
            return []
        with open_reading(self.options) as transaction:
            found = describe_rows(transaction, self.options.relation)
            columns = found if self.schema is None else choose_columns(found, self.schema)
            conditions = write_conditions(self._pushed, columns)
            statement = _select(ReadRange(self.options.relation), columns, conditions)
            parts = divide_rows(
                transaction, self.options, found, statement, has_filters=bool(conditions)
            )
            snapshot = self._share(transaction) if len(parts) > 1 else None
        return [
            PostgresqlTask(
                tuple(_select(part, columns, conditions) for part in task), tuple(columns), snapshot
            )
            for task in parts
        ]

    def read(self, partition: PostgresqlTask) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task, in pieces of a few megabytes."""
        with open_reading(self.options, partition.snapshot) as transaction:
            if partition.snapshot is None:
                check_types(transaction, self.options.relation, partition.columns)
            for statement in partition.statements:
                for data, starts in _copy_rows(transaction.connection, statement):
                    yield make_batch(data, starts, partition.columns)

    def _share(self, transaction: DatabaseTransaction) -> SharedSnapshot | None:
        timeout = self.options.snapshot_timeout
        return share_snapshot(transaction, timeout) if timeout else None


def _select(part: ReadRange, columns: Sequence[ReadColumn], conditions: Sequence[str]) -> str:
    """Return a SELECT of the columns in a part of the rows."""
    names = ", ".join(each.sql for each in columns)
    where = " AND ".join([*([part.condition] if part.condition else []), *conditions])
    rows = f"{part.relation} WHERE {where}" if where else part.relation
    return f"SELECT {names} FROM {rows}"  # noqa: S608  names are quoted


def _copy_rows(
    connection: psycopg.Connection[Any], query: str
) -> Iterator[tuple[bytearray, list[int]]]:
    """Yield the rows of a query, and the position of each row in them.

    The server sends a message for each row. They are read by libpq's function, since psycopg's own
    loop takes eight times as long.

    Args:
        connection: A connection in a transaction, which is used for nothing else meanwhile.
        query: A SELECT.

    Raises:
        psycopg.Error: If the server fails.
    """
    import psycopg

    pgconn = connection.pgconn
    encoding = connection.info.encoding
    started = pgconn.exec_(f"COPY ({query}) TO STDOUT (FORMAT binary)".encode(encoding))
    if started.status != psycopg.pq.ExecStatus.COPY_OUT:
        raise psycopg.errors.error_from_result(started, encoding)
    yield from _read_pieces(pgconn)
    while (done := pgconn.get_result()) is not None:
        if done.status != psycopg.pq.ExecStatus.COMMAND_OK:
            raise psycopg.errors.error_from_result(done, encoding)


def _read_pieces(pgconn: Any) -> Iterator[tuple[bytearray, list[int]]]:
    skipped = len(HEADER)  # it precedes the first row, in the same message
    is_last = False
    while not is_last:
        rows = bytearray()
        starts: list[int] = []
        while len(rows) < _PIECE_BYTES and len(starts) < _PIECE_ROWS:
            size, row = pgconn.get_copy_data(0)
            if size <= 0:
                is_last = True
                break
            if skipped:
                row, skipped = row[skipped:], 0
            if row == TRAILER:
                continue
            starts.append(len(rows))
            rows += row
        if starts:
            yield rows, starts
