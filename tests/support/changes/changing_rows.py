"""Random SQL on the tables of ``changing_tables``, and a log of all changes that triggers keep."""

import random
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg2
from changing_tables import MARKED, TABLES, Table
from random_values import make_large, make_small

_LOG = """
CREATE SCHEMA audit;
CREATE TABLE audit.changes (
    number bigserial PRIMARY KEY, table_name text, op text, old_key jsonb, key jsonb, new_row jsonb,
    lsn pg_lsn DEFAULT pg_current_wal_insert_lsn(), xid xid8 DEFAULT pg_current_xact_id());
CREATE VIEW audit.log AS
    SELECT *, pg_xact_commit_timestamp(xid::xid) AS committed_at FROM audit.changes;
CREATE FUNCTION audit.key_of(found jsonb, names text[]) RETURNS jsonb LANGUAGE sql AS
    $$ SELECT jsonb_object_agg(name, found -> name) FROM unnest(names) AS name $$;
CREATE FUNCTION audit.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit.changes (table_name, op, old_key, key, new_row) VALUES (
        TG_TABLE_NAME, lower(left(TG_OP, 1)),
        CASE WHEN TG_OP <> 'INSERT' THEN audit.key_of(to_jsonb(OLD), TG_ARGV) END,
        CASE WHEN TG_OP <> 'DELETE' THEN audit.key_of(to_jsonb(NEW), TG_ARGV) END,
        CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END);
    RETURN NULL;
END $$;
"""
_TRIGGER = """
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {} FOR EACH ROW
    EXECUTE FUNCTION audit.note({});
"""
SERVER_SETTINGS = {"wal_level": "logical", "track_commit_timestamp": "on"}
"""Settings of a server that Debezium reads, and that knows when a change was committed."""


@contextmanager
def connect(uri: str) -> Iterator[Any]:
    """Open a connection whose times are in UTC."""
    with closing(psycopg2.connect(uri.replace("+psycopg2", ""))) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SET TIME ZONE 'UTC'")
        connection.commit()
        yield connection


def read_rows(table: Table, uri: str) -> list[tuple[Any, ...]]:
    """Return the rows that the mirror must have."""
    with connect(uri) as connection, connection.cursor() as cursor:
        cursor.execute(table.select_statement())
        types = table.all_columns.values()
        return [tuple(map(_normalize, types, row)) for row in cursor]


def _normalize(sql: str, value: Any) -> Any:
    """Return a value of psycopg2 as PyArrow has it."""
    if isinstance(value, memoryview):
        return bytes(value)
    if sql == "real" and value is not None:
        return struct.unpack("f", struct.pack("f", value))[0]
    return value


class Workload:
    """Transactions on all tables, one after the other.

    Args:
        uri: The database, which is empty.
        seed: Seed of the statements and values. It is printed.
    """

    def __init__(self, uri: str, seed: int) -> None:
        print(f"workload: seed {seed}")
        self._uri, self._dice = uri, random.Random(seed)

    def prepare(self) -> None:
        """Create the tables with the rows of the first snapshot, and from then on log changes."""
        with connect(self._uri) as connection, connection.cursor() as cursor:
            for table in TABLES:
                cursor.execute(table.create_statement())
                for number in range(0, table.rows, 2):
                    self._insert(cursor, table, number)
            cursor.execute(_LOG)
            for table in TABLES:
                cursor.execute(_TRIGGER.format(table.name, ", ".join(table.keys)))
            connection.commit()

    def run(self, is_over: Callable[[], object], pause: float = 0.05) -> int:
        """Change rows until it is over; then insert the marked row into each table.

        Args:
            is_over: Called before each transaction.
            pause: Mean time between two transactions, seconds.

        Returns:
            The count of transactions, with those that were rolled back.
        """
        transactions = 0
        with connect(self._uri) as connection, connection.cursor() as cursor:
            while not is_over():
                self._change(cursor)
                connection.rollback() if self._dice.random() < 0.05 else connection.commit()
                transactions += 1
                time.sleep(self._dice.expovariate(1 / pause))
            for table in TABLES:
                self._insert(cursor, table, MARKED)
            connection.commit()
        return transactions

    def _change(self, cursor: Any) -> None:
        """Execute the statements of a transaction; some rows change several times in it."""
        for _ in range(self._dice.choice([1, 1, 2, 5, 12])):
            table = self._dice.choice(TABLES)
            statement = self._dice.choices(
                (self._upsert, self._update, self._update_many, self._delete, self._move),
                weights=(30, 35, 3, 20, 12),
            )[0]
            statement(cursor, table, self._dice.randrange(table.rows))

    def _insert(self, cursor: Any, table: Table, number: int) -> None:
        cursor.execute(*self._make_insert(table, number))

    def _upsert(self, cursor: Any, table: Table, number: int) -> None:
        statement, values = self._make_insert(table, number)
        kept = ", ".join(f"{name} = excluded.{name}" for name in self._draw_columns(table))
        conflict = f" ON CONFLICT ({', '.join(table.keys)}) DO UPDATE SET {kept}"
        cursor.execute(statement + conflict, values)

    def _make_insert(self, table: Table, number: int) -> tuple[str, list[Any]]:
        places = ", ".join(f"CAST(%s AS {sql})" for sql in table.all_columns.values())
        row = {name: self._draw_value(table, name) for name in table.columns}
        return f"INSERT INTO {table.name} VALUES ({places})", [*table.key(number), *row.values()]

    def _update(self, cursor: Any, table: Table, number: int) -> None:
        self._set(cursor, table, self._draw_columns(table), _where(table, table.key(number)))

    def _update_many(self, cursor: Any, table: Table, number: int) -> None:
        """Update rows by their place in the table, whatever their keys are."""
        first = next(iter(table.keys))
        chosen = f"abs(hashtext({first}::text)) %% 9 = %s", [number % 9]
        self._set(cursor, table, self._draw_columns(table)[:1], chosen)

    def _delete(self, cursor: Any, table: Table, number: int) -> None:
        where, key = _where(table, table.key(number))
        cursor.execute(f"DELETE FROM {table.name} WHERE {where}", key)

    def _move(self, cursor: Any, table: Table, number: int) -> None:
        """Change a key. Large values are set too: the log of the new row would lack them."""
        target = self._dice.randrange(table.rows)
        where, key = _where(table, table.key(number))
        taken, other = _where(table, table.key(target))
        free = f"{where} AND NOT EXISTS (SELECT 1 FROM {table.name} WHERE {taken})", [*key, *other]
        self._set(cursor, table, [*table.large], free, table.key_columns(target))

    def _set(
        self,
        cursor: Any,
        table: Table,
        columns: list[str],
        where: tuple[str, list[Any]],
        keys: dict[str, Any] | None = None,
    ) -> None:
        values = {name: self._draw_value(table, name) for name in columns} | (keys or {})
        types = table.all_columns
        changed = ", ".join(f"{name} = CAST(%s AS {types[name]})" for name in values)
        statement = f"UPDATE {table.name} SET {changed} WHERE {where[0]}"
        cursor.execute(statement, [*values.values(), *where[1]])

    def _draw_value(self, table: Table, column: str) -> Any:
        if self._dice.random() < 0.1:
            return None
        is_large = column in table.large and self._dice.random() < 0.6
        make = make_large if is_large else make_small
        return make(self._dice, table.columns[column])

    def _draw_columns(self, table: Table) -> list[str]:
        return self._dice.sample(list(table.columns), self._dice.randint(1, 3))


def _where(table: Table, key: list[Any]) -> tuple[str, list[Any]]:
    return " AND ".join(f"{name} = CAST(%s AS {sql})" for name, sql in table.keys.items()), key
