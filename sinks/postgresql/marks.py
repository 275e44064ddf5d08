"""The table of committed epochs, ``krishiv_epochs``, in the schema of the target.

It has one row for each query and table. It is beside the table, so that a dump of the schema has
both.
"""

from __future__ import annotations

from dataclasses import dataclass

from krishiv_spark.errors import Fenced
from krishiv_spark.postgresql.catalog import has_table
from krishiv_spark.postgresql.connection import DatabaseTransaction
from krishiv_spark.postgresql.names import MARKS, TableName
from krishiv_spark.sinks.base import CommittedEpoch, Epoch

__all__ = ["Marks"]

_CREATE = """
CREATE TABLE IF NOT EXISTS {marks} (
    query text NOT NULL, table_name text NOT NULL, epoch bigint NOT NULL, digest text,
    generation bigint, committed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (query, table_name)
)
"""

_NONE = -1
"""The epoch of a query that has committed none."""


@dataclass(frozen=True)
class Marks:
    """The marks of one table.

    Attributes:
        table: The table with its schema.
    """

    table: TableName

    @property
    def name(self) -> TableName:
        """The table of marks."""
        return TableName(self.table.schema, MARKS)

    def exist(self, transaction: DatabaseTransaction) -> bool:
        """Return True if the table of marks exists."""
        return has_table(transaction, self.name)

    def create(self, transaction: DatabaseTransaction) -> None:
        """Create the table of marks, unless it exists."""
        transaction.run(_CREATE.format(marks=self.name.sql))

    def read(self, transaction: DatabaseTransaction, query: str) -> CommittedEpoch | None:
        """Return the newest epoch of a query; None if it has none."""
        if not self.exist(transaction):
            return None
        found = transaction.first(
            f"SELECT epoch, digest FROM {self.name.sql} WHERE query = %s AND table_name = %s",  # noqa: S608
            [query, self.table.name],
        )
        return None if found is None or found[0] == _NONE else CommittedEpoch(*found)

    def lock(self, transaction: DatabaseTransaction, query: str) -> CommittedEpoch | None:
        """Return the newest epoch of a query, once no other transaction writes it.

        Afterwards, an epoch that is not there cannot appear any more until this transaction ends:
        the transaction of a driver that lost its connection has ended too.
        """
        keys = [query, self.table.name]
        # A row must exist to be locked: a second insert waits for the first one.
        transaction.run(
            f"INSERT INTO {self.name.sql} (query, table_name, epoch) VALUES (%s, %s, {_NONE}) "  # noqa: S608
            "ON CONFLICT DO NOTHING",
            keys,
        )
        found = transaction.first(
            f"SELECT epoch, digest FROM {self.name.sql} "  # noqa: S608
            "WHERE query = %s AND table_name = %s FOR UPDATE",
            keys,
        )
        return None if found is None or found[0] == _NONE else CommittedEpoch(*found)

    def write(self, transaction: DatabaseTransaction, epoch: Epoch) -> None:
        """Record an epoch, whose query is locked.

        Raises:
            Fenced: If the table has the epoch or a later one.
        """
        done = transaction.run(
            f"UPDATE {self.name.sql} SET epoch = %s, digest = %s, generation = %s, "  # noqa: S608
            "committed_at = now() WHERE query = %s AND table_name = %s AND epoch < %s",
            [
                epoch.number,
                epoch.digest,
                epoch.generation,
                epoch.query,
                self.table.name,
                epoch.number,
            ],
        )
        if done.rowcount != 1:
            raise Fenced(
                f"table {self.table} has epoch {epoch.number} of query {epoch.query}, or a later "
                "one: another driver on the same checkpoint has taken over"
            )

    def forget_jobs(self, transaction: DatabaseTransaction, prefix: str, age_ms: int) -> None:
        """Delete the marks of batch jobs that ended long ago."""
        transaction.run(
            f"DELETE FROM {self.name.sql} WHERE starts_with(query, %s) "  # noqa: S608
            "AND committed_at < now() - %s * interval '1 millisecond'",
            [prefix, age_ms],
        )
