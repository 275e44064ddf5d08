"""The changes of an epoch as queries over its staging tables, and their effect. Driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from krishiv_spark.postgresql.names import TableName, quote
from krishiv_spark.sinks.postgresql.options import PostgresqlSinkOptions
from krishiv_spark.sinks.postgresql.staging_tables import ROW, StagedTable
from krishiv_spark.sinks.upserts import CLOCK, DELETES, KEPT, ORDER, PARTITION, POSITION

__all__ = ["TASK", "ChangeQueries", "Effect", "LastChanges"]

TASK = "_krishiv_task"
"""A further column of the queries: the number of the task that has staged a change."""

_OF_RECORDS = (KEPT, POSITION, PARTITION, ORDER, CLOCK)


@dataclass(frozen=True)
class Effect:
    """The effect of an epoch on earlier rows.

    Attributes:
        replaces: True if its rows replace all others.
        truncates: True if it then empties the table by TRUNCATE.
        keys: The columns of the table that identify a changed row; empty if rows are added.
        order: Column of the table whose highest value wins; None for the last change of a key.
        are_records: True for changes that were decoded from records of change data.
        missing_is_null: True to write null for an unchanged value of a row that does not exist.
    """

    replaces: bool = False
    truncates: bool = False
    keys: tuple[str, ...] = ()
    order: str | None = None
    are_records: bool = False
    missing_is_null: bool = False

    @classmethod
    def of(
        cls, options: PostgresqlSinkOptions, staged: Sequence[StagedTable], *, replaces: bool
    ) -> Effect:
        """Return the effect that the options specify, with the names that the table has."""
        if options.mode == "append" or not staged:
            return cls(replaces, options.truncate)
        names = {column.source: column.target for column in staged[0].columns}
        order = None if options.order_column is None else names[options.order_column]
        return cls(
            keys=tuple(names[key] for key in options.key_columns),
            order=order,
            are_records=options.change_format is not None,
            missing_is_null=options.missing_values == "null",
        )


@dataclass(frozen=True)
class LastChanges:
    """The last changes of an epoch.

    Attributes:
        query: A query of them: the columns of the table, and whether each deletes.
        has_deletes: False if none deletes.
        completed: A table that the transaction has created, and that the caller drops; or None.
    """

    query: str
    has_deletes: bool
    completed: TableName | None = None


class ChangeQueries:
    """Queries over the staging tables of an epoch.

    Args:
        effect: The effect of the epoch on earlier rows.
        staged: The changes of each task.
    """

    def __init__(self, effect: Effect, staged: Sequence[StagedTable]) -> None:
        self.effect, self.staged = effect, staged
        self.keys = [quote(key) for key in effect.keys]
        self.names = [quote(column.target) for column in staged[0].columns]

    @property
    def _further(self) -> list[str]:
        """The further columns of the staging tables, except the place of the row."""
        return [DELETES, *([] if not self.effect.are_records else _OF_RECORDS)]

    def select_all(self) -> str:
        """Return the query of all changes, with the values that the table would have."""
        further = ", ".join(quote(name) for name in (ROW, *self._further))
        parts = []
        for each in self.staged:
            values = ", ".join(f"{one.value} AS {quote(one.target)}" for one in each.columns)
            parts.append(
                f"SELECT {each.partition} AS {quote(TASK)}, {further}, {values} "  # noqa: S608
                f"FROM {each.name.sql}"
            )
        return " UNION ALL ".join(parts)

    def list_orders(self) -> list[str]:
        """Return the expressions by which the later one of two changes of a row is known.

        Texts are ordered by their bytes, as in the other sinks, not by the collation of the table.
        """
        for column in self.staged[0].columns:
            if column.target == self.effect.order:
                is_text = column.wire == "text" and column.cast is None
                collation = ' COLLATE "C"' if is_text else ""
                return [f"{quote(column.target)}{collation}", quote(TASK), quote(ROW)]
        return [quote(TASK), quote(ROW)]

    def select_last(self, changes: str, orders: Sequence[str]) -> str:
        """Return the query of the last change of each key.

        Args:
            changes: The query of all.
            orders: Expressions of their order, the first one of which counts most.
        """
        order = [*self.keys, *(f"{each} DESC NULLS LAST" for each in orders)]
        return (
            f"SELECT DISTINCT ON ({', '.join(self.keys)}) * FROM ({changes}) every_change "  # noqa: S608
            f"ORDER BY {', '.join(order)}"
        )
