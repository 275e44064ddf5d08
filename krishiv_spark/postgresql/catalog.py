"""Tables of PostgreSQL, as its catalog describes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from krishiv_spark.postgresql.connection import DatabaseTransaction
from krishiv_spark.postgresql.names import TableName, quote

__all__ = ["Table", "TableColumn", "find_table", "find_unlogged", "has_table"]


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
        kind: Kind of ``base`` as in ``pg_type.typtype``: ``b``, ``e`` for an enum, ``d`` if a
            domain is left, ``c`` for a row, ``r`` and ``m`` for ranges.
        is_exact: False if its collation takes different texts for equal.
    """

    name: str
    shown: str
    type: str
    base: str
    is_array: bool = False
    limit: int = -1
    is_required: bool = False
    is_generated: bool = False
    kind: str = "b"
    is_exact: bool = True

    @property
    def fingerprint(self) -> str:
        """The parts that decide whether a value is stored unchanged; only to be compared."""
        parts = (self.shown, self.base, self.kind, self.limit, self.is_array, self.is_generated)
        return "; ".join(map(str, parts))

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
        has_rule: True if a rule (DO INSTEAD) replaces INSERT, UPDATE or DELETE.
        refers_to_itself: True if it, or a partition of it, has a foreign key to itself.
        is_referred_to: True if any table has a foreign key to it, or to a partition of it.
        foreign_partition: A partition that is a foreign table, as SQL names it; None without one.
        unlogged_part: The table, or a partition of it, if it is UNLOGGED; None without one.
        child: A table that inherits from it and is no partition; None without one.
    """

    name: TableName
    kind: str
    columns: Sequence[TableColumn]
    unique_keys: Sequence[frozenset[str]] = ()
    has_rule: bool = False
    refers_to_itself: bool = False
    is_referred_to: bool = False
    foreign_partition: str | None = None
    unlogged_part: str | None = None
    child: str | None = None


_FIND = """
WITH RECURSIVE tree (oid) AS (
    SELECT pg_catalog.to_regclass(%s)::oid
    UNION
    SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree ON i.inhparent = tree.oid
), part AS (
    SELECT p.oid, p.relkind, p.relpersistence
    FROM tree JOIN pg_catalog.pg_class p ON p.oid = tree.oid
)
SELECT c.oid, n.nspname, c.relname, c.relkind,
       EXISTS (SELECT FROM pg_catalog.pg_rewrite r
               WHERE r.ev_class = c.oid AND r.is_instead AND r.ev_type <> '1'),
       EXISTS (SELECT FROM pg_catalog.pg_constraint f
               WHERE f.contype = 'f' AND f.conrelid IN (SELECT oid FROM tree)
               AND f.confrelid IN (SELECT oid FROM tree)),
       EXISTS (SELECT FROM pg_catalog.pg_constraint f
               WHERE f.contype = 'f' AND f.confrelid IN (SELECT oid FROM tree)),
       (SELECT min(p.oid::regclass::text) FROM part p
        WHERE p.relkind = 'f' AND c.relkind = 'p'),
       (SELECT min(p.oid::regclass::text) FROM part p
        WHERE p.relkind = 'r' AND p.relpersistence = 'u' AND (p.oid = c.oid OR c.relkind = 'p')),
       (SELECT min(p.oid::regclass::text) FROM part p WHERE p.oid <> c.oid AND c.relkind = 'r')
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = pg_catalog.to_regclass(%s)
"""

_COLUMNS = """
SELECT a.attname,
       pg_catalog.format_type(a.atttypid, a.atttypmod),
       pg_catalog.format_type(a.atttypid, NULL),
       CASE WHEN e.typnamespace = 'pg_catalog'::regnamespace
            THEN pg_catalog.format_type(e.oid, NULL) ELSE '' END,
       b.typcategory = 'A' AND b.typtype = 'b',
       CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END,
       (a.attnotnull OR t.typnotnull) AND NOT a.atthasdef AND a.attidentity = ''
           AND t.typdefault IS NULL,
       a.attgenerated <> '' OR a.attidentity = 'a',
       e.typtype,
       coalesce(l.collisdeterministic, true)
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
JOIN pg_catalog.pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
JOIN pg_catalog.pg_type e ON e.oid = CASE WHEN b.typcategory = 'A' AND b.typtype = 'b'
                                          THEN b.typelem ELSE b.oid END
LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""

_KEYS = """
SELECT array_agg(a.attname::text)
FROM pg_catalog.pg_index i
JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, place) ON place <= i.indnkeyatts
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_collation l
                  WHERE l.oid = ANY (i.indcollation::oid[]) AND NOT l.collisdeterministic)
GROUP BY i.indexrelid
"""


def has_table(transaction: DatabaseTransaction, name: TableName) -> bool:
    """Return True if a table exists."""
    found = transaction.first("SELECT pg_catalog.to_regclass(%s)", [name.sql])
    return found is not None and found[0] is not None


def find_unlogged(transaction: DatabaseTransaction, names: Sequence[TableName]) -> str | None:
    """Return the first one of some tables that is UNLOGGED, as SQL names it; None without one."""
    found = transaction.first(
        "SELECT c.oid::regclass::text FROM pg_catalog.pg_class c "
        "JOIN unnest(%s::text[]) AS given(name) ON c.oid = pg_catalog.to_regclass(given.name) "
        "WHERE c.relpersistence = 'u' ORDER BY 1",
        [[name.sql for name in names]],
    )
    return None if found is None else str(found[0])


def find_table(transaction: DatabaseTransaction, name: TableName) -> Table | None:
    """Return a table; None if there is none of this name in its schema, or in the search path."""
    found = transaction.first(_FIND, [name.sql, name.sql])
    if found is None:
        return None
    oid, schema, own, kind, *facts = found
    columns = tuple(TableColumn(*row) for row in transaction.run(_COLUMNS, [oid]))
    keys = (row[0] for row in transaction.run(_KEYS, [oid]))
    # An index of an expression has a column without a name, and is no key.
    unique = tuple(frozenset(names) for names in keys if None not in names)
    return Table(TableName(schema, own), kind, columns, unique, *facts)
