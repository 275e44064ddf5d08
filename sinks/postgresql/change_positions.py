"""The table ``krishiv_changes``: for each mirror, the positions that its epochs have had. Driver.

It has one row for each query, table and partition of a topic: the highest position in the log of
the database, and the newest time with the highest position at that time. By them, an event is known
that Debezium repeats after the row was deleted. If the last event of the partition was a delete, it
has the deleted row, too (`deleted_rows`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from krishiv_spark.postgresql.catalog import has_table
from krishiv_spark.postgresql.connection import DatabaseTransaction
from krishiv_spark.postgresql.names import CHANGES, TableName
from krishiv_spark.sinks.kept_values import LogEnd, LogTime

__all__ = ["ChangePositions", "RecordedChanges"]

_CREATE = """
CREATE TABLE IF NOT EXISTS {changes} (
    query text NOT NULL, table_name text NOT NULL, partition text NOT NULL,
    position bigint NOT NULL, PRIMARY KEY (query, table_name, partition)
)
"""

_LATER = {"newest_time": "bigint[]", "deleted_at": "bigint", "deleted_row": "json"}
"""Columns that the table of an earlier version lacks."""

_FIND_COLUMNS = """
SELECT attname FROM pg_catalog.pg_attribute
WHERE attrelid = pg_catalog.to_regclass(%s) AND attnum > 0 AND NOT attisdropped
"""


@dataclass(frozen=True)
class RecordedChanges:
    """The end of a query's earlier epochs, by partition.

    Attributes:
        ends: The highest position and the newest time.
        deletes: The position of the delete whose row is recorded.
    """

    ends: Mapping[str, LogEnd]
    deletes: Mapping[str, int]


@dataclass(frozen=True)
class ChangePositions:
    """The positions of one table.

    Attributes:
        table: The table with its schema.
    """

    table: TableName

    @property
    def name(self) -> TableName:
        """The table of positions."""
        return TableName(self.table.schema, CHANGES)

    def create(self, transaction: DatabaseTransaction) -> None:
        """Create the table of positions, or the columns that it lacks."""
        if not has_table(transaction, self.name):
            transaction.run(_CREATE.format(changes=self.name.sql))
        found = {name for (name,) in transaction.run(_FIND_COLUMNS, [self.name.sql])}
        added = (f"ADD COLUMN IF NOT EXISTS {n} {t}" for n, t in _LATER.items() if n not in found)
        if actions := ", ".join(added):
            transaction.run(f"ALTER TABLE {self.name.sql} {actions}")

    def read(self, transaction: DatabaseTransaction, query: str) -> RecordedChanges:
        """Return the end of the query's earlier epochs."""
        statement = (
            f"SELECT partition, position, newest_time, deleted_at FROM {self.name.sql} "  # noqa: S608
            "WHERE query = %s AND table_name = %s"
        )
        found = transaction.run(statement, [query, self.table.name]).fetchall()
        ends = {
            name: LogEnd(position, None if time is None else LogTime(*time))
            for name, position, time, _ in found
        }
        return RecordedChanges(ends, {name: at for name, *_, at in found if at is not None})

    def write(
        self, transaction: DatabaseTransaction, query: str, ends: Mapping[str, LogEnd]
    ) -> None:
        """Record the ends of an epoch; lower positions and earlier times change nothing."""
        if not ends:
            return
        clocks = [end.time and end.time.micros for end in ends.values()]
        at_clocks = [end.time and end.time.position for end in ends.values()]
        transaction.run(
            f"INSERT INTO {self.name.sql} AS old "  # noqa: S608
            "(query, table_name, partition, position, newest_time) "
            "SELECT %s, %s, name, position, CASE WHEN clock IS NOT NULL THEN ARRAY[clock, place] "
            "END FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bigint[]) "
            "AS ends(name, position, clock, place) ON CONFLICT (query, table_name, partition) "
            "DO UPDATE SET position = greatest(old.position, EXCLUDED.position), "
            "newest_time = greatest(old.newest_time, EXCLUDED.newest_time)",
            [
                *(query, self.table.name, [*ends], [end.position for end in ends.values()]),
                *(clocks, at_clocks),
            ],
        )
