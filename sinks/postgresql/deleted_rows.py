"""Rows with whose delete a partition has ended, in the table ``krishiv_changes``. Driver.

A changed key is a delete and an insert that may leave out values of the deleted row. If an epoch
ends between the two, the epoch of the insert needs the row. So the transaction that deletes it
records it in the row of its partition, as JSON with the text of each value: the types' own
functions write and read these texts, so that each value stays the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from krishiv_spark.postgresql.connection import DatabaseTransaction
from krishiv_spark.postgresql.names import TableName, quote, quote_text
from krishiv_spark.postgresql.types import StagedColumn
from krishiv_spark.sinks.postgresql.change_queries import TASK
from krishiv_spark.sinks.postgresql.staging_tables import ROW

__all__ = ["EARLIER_TASK", "RecordedRow", "RecordedRows"]

EARLIER_TASK = -1
"""The number in `TASK` of rows that an earlier epoch has deleted."""

_TASK, _ROW = quote(TASK), quote(ROW)

_EXACT = "SET LOCAL extra_float_digits = 1; SET LOCAL datestyle = ISO"
_USUAL = "SET LOCAL extra_float_digits TO DEFAULT; SET LOCAL datestyle TO DEFAULT"
"""Settings that a role or a database may have, with which texts lose digits or are ambiguous."""

_RECORD = f"""
WITH wanted AS MATERIALIZED (
    SELECT * FROM unnest(%s::text[], %s::bigint[], %s::text[], %s::bigint[], %s::bigint[],
                         %s::boolean[])
        AS given(partition, position, name, task, place, is_stored)
), sources AS MATERIALIZED (
    SELECT known.* FROM ({{values}}) known
    JOIN (SELECT DISTINCT task, place FROM wanted) ids
        ON known.{_TASK} = ids.task AND known.{_ROW} = ids.place
), texts AS (
    SELECT c.{_TASK} AS task, c.{_ROW} AS place, false AS is_stored, made.name, made.text
    FROM sources c, unnest(%s::text[], ARRAY[{{of_changes}}]) AS made(name, text)
    UNION ALL
    SELECT c.{_TASK}, c.{_ROW}, true, made.name, made.text
    FROM sources c JOIN {{table}} t ON {{same}},
        unnest(%s::text[], ARRAY[{{of_table}}]) AS made(name, text)
)
UPDATE {{changes}} own SET deleted_at = made.position, deleted_row = made.texts FROM (
    SELECT partition, position, json_object_agg(name, text) AS texts
    FROM wanted JOIN texts USING (task, place, is_stored, name) GROUP BY partition, position
) made WHERE own.query = %s AND own.table_name = %s AND own.partition = made.partition
"""  # noqa: S608  names of this package


@dataclass(frozen=True)
class RecordedRow:
    """A row that a delete at the end of a partition has deleted.

    Attributes:
        partition: The partition.
        position: The position of the delete in the database's log.
        places: By column of the table, the task and the place of the change that has the value;
            and True if the value is that of the table's row with the key of this change.
    """

    partition: str
    position: int
    places: Mapping[str, tuple[int, int, bool]]


class RecordedRows:
    """The recorded rows of a query.

    Args:
        transaction: The transaction of an epoch.
        changes: The table ``krishiv_changes``.
        table: The table of the sink.
        query: Id of the query.
        columns: The columns of the table.
    """

    def __init__(
        self,
        transaction: DatabaseTransaction,
        changes: TableName,
        table: TableName,
        query: str,
        columns: Sequence[StagedColumn],
    ) -> None:
        self._transaction, self._changes, self._table = transaction, changes, table
        self._query, self._columns = query, columns

    @property
    def _names(self) -> list[str]:
        return [each.target for each in self._columns]

    def record(self, rows: Sequence[RecordedRow], values: str, keys: Sequence[str]) -> None:
        """Record rows, before the epoch changes the table.

        Args:
            rows: The rows, whose partitions are in ``krishiv_changes``.
            values: A query of the changes and of earlier deleted rows, by task and place.
            keys: The key columns, in quotes.
        """
        if not rows:
            return
        wanted = [
            (row.partition, row.position, name, *place)
            for row in rows
            for name, place in row.places.items()
        ]
        statement = _RECORD.format(
            values=values,
            of_changes=", ".join(f"c.{quote(name)}::text" for name in self._names),
            of_table=", ".join(f"t.{quote(name)}::text" for name in self._names),
            same=" AND ".join(f"t.{key} = c.{key}" for key in keys),
            table=self._table.sql,
            changes=self._changes.sql,
        )
        given = [list(column) for column in zip(*wanted, strict=True)]
        names = self._names
        self._transaction.run(_EXACT)
        self._transaction.run(statement, [*given, names, names, self._query, self._table.name])
        self._transaction.run(_USUAL)

    def forget(self, partitions: Collection[str]) -> None:
        """Delete the recorded rows of some partitions."""
        if partitions:
            self._transaction.run(
                f"UPDATE {self._changes.sql} SET deleted_at = NULL, deleted_row = NULL "  # noqa: S608
                "WHERE query = %s AND table_name = %s AND partition = ANY(%s)",
                [self._query, self._table.name, list(partitions)],
            )

    def find_complete(self, kept: Mapping[str, Collection[str]]) -> list[str]:
        """Return the partitions whose recorded row has the columns that an insert keeps.

        It may lack others: columns that the table got since.

        Args:
            kept: The columns that are kept, by partition.
        """
        found = self._transaction.run(
            "SELECT partition, ARRAY(SELECT json_object_keys(deleted_row)) "  # noqa: S608  quoted
            f"FROM {self._changes.sql} "
            "WHERE query = %s AND table_name = %s AND partition = ANY(%s)",
            [self._query, self._table.name, [*kept]],
        )
        return [name for name, columns in found.fetchall() if {*kept[name]} <= {*columns}]

    def select(self, partitions: Sequence[str]) -> str:
        """Return the query of the rows of some partitions, numbered from 1 in this order.

        It has the columns `TASK` and `ROW`, and those of the table with the types of the changes.
        """
        names = ", ".join(quote_text(name) for name in partitions)
        values = ", ".join(
            f"(own.deleted_row ->> {quote_text(each.target)})::{each.value_type} "
            f"AS {quote(each.target)}"
            for each in self._columns
        )
        return (
            f"SELECT {EARLIER_TASK}::bigint AS {_TASK}, given.place AS {_ROW}, {values} "  # noqa: S608
            f"FROM {self._changes.sql} own "
            f"JOIN unnest(ARRAY[{names}]::text[]) WITH ORDINALITY AS given(name, place) "
            f"ON own.partition = given.name WHERE own.query = {quote_text(self._query)} "
            f"AND own.table_name = {quote_text(self._table.name)}"
        )
