"""The snapshot that all tasks of a read share, without a process that keeps it.

Spark plans a read in a process that ends at once, and reports the end of a read to no source. So
the server keeps the snapshot: the planner starts a block of statements there, exports the snapshot
of its transaction, and disconnects. The server notices that only when the block ends. It ends when
no task has read for a time: a task has an advisory lock while it reads, for which the block looks.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from krishiv_spark.errors import StorageError
from krishiv_spark.postgresql.connection import (
    DatabaseTransaction,
    describe_error,
    open_transaction,
)
from krishiv_spark.postgresql.options import FORMAT
from krishiv_spark.sources.postgresql.options import PostgresqlSourceOptions

__all__ = ["SharedSnapshot", "open_reading", "share_snapshot"]

_MOST_PAUSE_MS = 5_000
"""Time between two looks for tasks: a look takes all locks of the server's table of locks."""


@dataclass(frozen=True)
class SharedSnapshot:
    """A snapshot that the server keeps.

    Attributes:
        name: Its name, as ``pg_export_snapshot`` returns it.
        lock: Key of the advisory lock of tasks that read it.
    """

    name: str
    lock: int


_WAIT = """
DO $krishiv$
DECLARE
    newest timestamptz := clock_timestamp();
BEGIN
    LOOP
        PERFORM pg_catalog.pg_sleep({pause});
        IF EXISTS (
            SELECT FROM pg_catalog.pg_locks
            WHERE locktype = 'advisory' AND objsubid = 1 AND classid = {high} AND objid = {low}
              AND database = (SELECT oid FROM pg_catalog.pg_database
                              WHERE datname = pg_catalog.current_database())
        ) THEN
            newest := clock_timestamp();
        ELSIF clock_timestamp() >= newest + interval '{timeout} seconds' THEN
            EXIT;
        END IF;
    END LOOP;
END $krishiv$
"""

_UNLIMITED = """
SELECT pg_catalog.set_config(name, '0', true) FROM pg_catalog.pg_settings
WHERE name IN ('statement_timeout', 'transaction_timeout', 'client_connection_check_interval')
"""
"""The last one would end the block when the planner has disconnected."""

_NAME = f"{FORMAT} snapshot"
"""The ``application_name`` by which an administrator finds it."""


def share_snapshot(transaction: DatabaseTransaction, timeout_ms: int) -> SharedSnapshot:
    """Export the snapshot of a transaction, which the server keeps when the connection is closed.

    The locks of the transaction are kept too. Driver; the connection cannot be used any more.

    Args:
        transaction: A transaction that reads one snapshot.
        timeout_ms: Time without a task after which the server ends the transaction.

    Raises:
        StorageError: If the connection breaks.
    """
    lock = secrets.randbits(63)
    transaction.run(_UNLIMITED)
    transaction.run(f"SET LOCAL application_name = '{_NAME}'")
    (name,) = transaction.first("SELECT pg_catalog.pg_export_snapshot()")
    wait = _WAIT.format(
        pause=min(_MOST_PAUSE_MS, timeout_ms / 4) / 1000,
        high=lock >> 32,
        low=lock & 0xFFFFFFFF,
        timeout=timeout_ms / 1000,  # before PostgreSQL 15 a number in an interval has 32 bits
    )
    wire: Any = transaction.connection.pgconn
    wire.send_query(wait.encode())
    while wire.flush():
        pass
    return SharedSnapshot(name, lock)


_MOST_ATTEMPTS = 5

_REWRITTEN = """
SELECT 1 FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_class c ON c.oid = l.relation
WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation' AND c.relkind IN ('r', 'm')
  AND l.database = (SELECT oid FROM pg_catalog.pg_database
                    WHERE datname = pg_catalog.current_database())
  AND c.relfilenode <> 0 AND c.relfilenode IS DISTINCT FROM pg_catalog.pg_relation_filenode(c.oid)
LIMIT 1
"""

_SETTINGS = """
SET LOCAL timezone = 'UTC'; SET LOCAL datestyle = 'ISO'; SET LOCAL intervalstyle = 'iso_8601';
SET LOCAL extra_float_digits = 1; SET LOCAL idle_in_transaction_session_timeout = 0
"""
"""Texts of values do not depend on settings of the server. A task waits for Spark between rows."""


@contextlib.contextmanager
def open_reading(
    options: PostgresqlSourceOptions, snapshot: SharedSnapshot | None = None
) -> Iterator[DatabaseTransaction]:
    """Open a connection for a transaction that reads one snapshot; any process.

    Args:
        options: The options of the source.
        snapshot: The snapshot; None for that of the present time.

    Raises:
        StorageError: If the snapshot has ended, or the server does not respond.
    """
    for _ in range(_MOST_ATTEMPTS):
        with open_transaction(options, f"read {options.subject}", reads=True) as transaction:
            transaction.run(_SETTINGS)
            if snapshot is not None:
                _join(transaction, snapshot, options)
            else:
                if options.table is not None:
                    _lock_table(transaction, options.relation)
                if _is_rewritten(transaction, options.relation):
                    continue
            yield transaction
            return
    raise StorageError(
        f"{FORMAT}: a table of {options.subject} in {options.address()} was truncated at each of "
        f"{_MOST_ATTEMPTS} attempts to read it: run load() when it is not"
    )


def _lock_table(transaction: DatabaseTransaction, relation: str) -> None:
    """Lock a table before the transaction has a snapshot.

    A SELECT takes its snapshot first. If it then waits for a TRUNCATE, it sees neither the old
    rows, which it removed, nor the new ones. The tables of a view are locked too. What cannot be
    locked is read without it (`_is_rewritten`): queries, materialized views, foreign tables, and
    tables of which only columns are granted.
    """
    import psycopg

    transaction.run("SAVEPOINT krishiv_lock")
    try:
        transaction.run(f"LOCK TABLE {relation} IN ACCESS SHARE MODE")
    except psycopg.Error as error:
        if error.sqlstate is None or isinstance(error, psycopg.errors.LockNotAvailable):
            raise
        transaction.run("ROLLBACK TO SAVEPOINT krishiv_lock")
    transaction.run("RELEASE SAVEPOINT krishiv_lock")  # within it no snapshot can be exported


def _is_rewritten(transaction: DatabaseTransaction, relation: str) -> bool:
    """Return True if a table was truncated after the transaction took its snapshot, and locked it.

    The catalog in the snapshot has the file that the table had then. The function returns the
    present one, which cannot change any more: planning the SELECT has locked all tables.
    """
    transaction.run(f"SELECT * FROM {relation} LIMIT 0")  # noqa: S608  quoted, or a query
    return transaction.first(_REWRITTEN) is not None


def _join(
    transaction: DatabaseTransaction, snapshot: SharedSnapshot, options: PostgresqlSourceOptions
) -> None:
    import psycopg

    try:
        transaction.run(f"SET TRANSACTION SNAPSHOT '{snapshot.name}'")
        transaction.run("SELECT pg_catalog.pg_advisory_xact_lock_shared(%s)", [snapshot.lock])
    except psycopg.Error as error:
        if error.sqlstate is None:  # the connection, which is another matter
            raise
        seconds = options.snapshot_timeout / 1000
        raise StorageError(
            f"{FORMAT}: the snapshot of {options.subject} has ended in {options.address()}, since "
            f"no task read for {seconds:g} s (option 'snapshotTimeout'), the server was restarted, "
            "or this is another server than the planner's: run load() again, with a longer "
            f"'snapshotTimeout' if tasks start later. The server: {describe_error(error, options)}"
        ) from None
