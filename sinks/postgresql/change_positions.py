"""The table ``krishiv_changes``: for each mirror, the positions that its epochs have had. Driver.

It has one row for each query, table and partition of a topic, with the highest position in the log
of the database. By it, an event is known that Debezium repeats after the row was deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from krishiv_spark.postgresql.connection import DatabaseTransaction
from krishiv_spark.postgresql.names import CHANGES, TableName

__all__ = ["ChangePositions"]

_CREATE = """
CREATE TABLE IF NOT EXISTS {changes} (
    query text NOT NULL, table_name text NOT NULL, partition text NOT NULL,
    position bigint NOT NULL,
    PRIMARY KEY (query, table_name, partition)
)
"""


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
        """Create the table of positions, unless it exists."""
        found = transaction.first("SELECT pg_catalog.to_regclass(%s)", [self.name.sql])
        if found is None or found[0] is None:
            transaction.run(_CREATE.format(changes=self.name.sql))

    def read(self, transaction: DatabaseTransaction, query: str) -> Mapping[str, int]:
        """Return the highest position of the query's earlier epochs, by partition."""
        statement = (
            f"SELECT partition, position FROM {self.name.sql} "  # noqa: S608  quoted
            "WHERE query = %s AND table_name = %s"
        )
        return dict(transaction.run(statement, [query, self.table.name]).fetchall())

    def write(
        self, transaction: DatabaseTransaction, query: str, positions: Mapping[str, int]
    ) -> None:
        """Record the positions of an epoch; lower ones change nothing."""
        if not positions:
            return
        transaction.run(
            f"INSERT INTO {self.name.sql} AS old (query, table_name, partition, position) "  # noqa: S608
            "SELECT %s, %s, * FROM unnest(%s::text[], %s::bigint[]) ON CONFLICT "
            "(query, table_name, partition) DO UPDATE SET position = EXCLUDED.position "
            "WHERE old.position < EXCLUDED.position",
            [query, self.table.name, [*positions], [*positions.values()]],
        )
