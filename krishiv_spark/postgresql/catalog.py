"""Tables of PostgreSQL, as its catalog describes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from krishiv_spark.postgresql.connection import DatabaseTransaction
from krishiv_spark.postgresql.names import TableName, quote

__all__ = ["Table", "TableColumn", "find_table"]


@dataclass(frozen=True)
class TableColumn:
    """A column of a table.

    Attributes:
        name: Its name, without quotes.
        shown: Its type with its limits, as ``numeric(10,2)``.
        type: Its type without limits, as a cast writes it.
        base: The built-in type below domains, as ``numeric``; of an array, that of its elements.
        is_array: True for an array.
        limit: The type's modifier, such as a length; -1 without one.
        is_required: True if it is NOT NULL and has no default.
        is_generated: True if only PostgreSQL gives it a value.
    """

    name: str
    shown: str
    type: str
    base: str
    is_array: bool = False
    limit: int = -1
    is_required: bool = False
    is_generated: bool = False

    @property
    def sql(self) -> str:
        """The name for a statement."""
        return quote(self.name)


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: Its name with its schema.
        kind: ``r`` for a table, ``p`` for a partitioned one, others as in ``pg_class.relkind``.
        columns: Its columns, in their order.
        unique_keys: The columns of each unique index without a condition.
    """

    name: TableName
    kind: str
    columns: Sequence[TableColumn]
    unique_keys: Sequence[frozenset[str]] = ()


_FIND = """
SELECT c.oid, n.nspname, c.relname, c.relkind
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = pg_catalog.to_regclass(%s)
"""

_COLUMNS = """
SELECT a.attname,
       pg_catalog.format_type(a.atttypid, a.atttypmod),
       pg_catalog.format_type(a.atttypid, NULL),
       CASE WHEN e.typnamespace = 'pg_catalog'::regnamespace
            THEN pg_catalog.format_type(e.oid, NULL) ELSE '' END,
       b.typcategory = 'A',
       CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END,
       (a.attnotnull OR t.typnotnull) AND NOT a.atthasdef AND a.attidentity = ''
           AND t.typdefault IS NULL,
       a.attgenerated <> '' OR a.attidentity = 'a'
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
JOIN pg_catalog.pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
JOIN pg_catalog.pg_type e ON e.oid = CASE WHEN b.typcategory = 'A' THEN b.typelem ELSE b.oid END
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""

_KEYS = """
SELECT array_agg(a.attname::text)
FROM pg_catalog.pg_index i
JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, place) ON place <= i.indnkeyatts
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL
GROUP BY i.indexrelid
"""


def find_table(transaction: DatabaseTransaction, name: TableName) -> Table | None:
    """Return a table; None if there is none of this name in its schema, or in the search path."""
    found = transaction.first(_FIND, [name.sql])
    if found is None:
        return None
    oid, schema, own, kind = found
    columns = tuple(TableColumn(*row) for row in transaction.run(_COLUMNS, [oid]))
    keys = (row[0] for row in transaction.run(_KEYS, [oid]))
    # An index of an expression has a column without a name, and is no key.
    unique = tuple(frozenset(names) for names in keys if None not in names)
    return Table(TableName(schema, own), kind, columns, unique)
