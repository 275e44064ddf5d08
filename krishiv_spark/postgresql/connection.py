"""Connections to PostgreSQL: opened by the driver psycopg, for one transaction each.

Nothing of a session is used, so that PgBouncer may pool transactions: no prepared statement, and
settings for one transaction only (``SET LOCAL``).
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from krishiv_spark.errors import KrishivError, OptionError, StorageError
from krishiv_spark.messages.exception_chains import raise_alone
from krishiv_spark.messages.redaction import excerpt
from krishiv_spark.postgresql.options import FORMAT, ConnectionOptions

if TYPE_CHECKING:
    import psycopg

__all__ = [
    "DatabaseTransaction",
    "describe_error",
    "explain_errors",
    "limit_wait",
    "open_transaction",
]

_IDLE_MS = 60_000
"""Time after which the server ends a transaction whose client sleeps: it blocks its successor."""


def _import_driver() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise OptionError(
            f"{FORMAT} needs the package psycopg with libpq on every machine ({error}): "
            "pip install 'krishiv-spark[postgresql]'"
        ) from None
    return psycopg


_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*\"""")


def _escape_quoted(statement: str) -> str:
    """Return a statement whose names and literals may contain ``%``: psycopg's placeholder."""
    return _QUOTED.sub(lambda part: part[0].replace("%", "%%"), statement)


class DatabaseTransaction:
    """One transaction, which is rolled back unless `commit` is called.

    Args:
        connection: An open connection.
        answer_timeout: Most milliseconds to wait for the answer to COMMIT.
    """

    def __init__(self, connection: psycopg.Connection[Any], answer_timeout: int) -> None:
        self.connection = connection
        self._answer_timeout = answer_timeout

    def run(self, statement: str, values: Sequence[object] = ()) -> psycopg.Cursor[Any]:
        """Run one statement, or several without values, and return the cursor of its rows."""
        # The type of `execute` refuses computed texts, since names cannot be parameters.
        text: Any = _escape_quoted(statement) if values else statement
        return self.connection.execute(text, values or None)

    def first(self, statement: str, values: Sequence[object] = ()) -> Any:
        """Run a statement, and return its first row; None if it has none."""
        return self.run(statement, values).fetchone()

    def commit(self) -> None:
        """Commit. An error of the connection means that the outcome is not known."""
        # A timeout while a standby confirms would be a success with a warning.
        self.run("SET LOCAL statement_timeout = 0")
        with limit_wait(self, self._answer_timeout):
            self.connection.commit()


@contextlib.contextmanager
def limit_wait(transaction: DatabaseTransaction, timeout_ms: int) -> Iterator[None]:
    """Break the connection of a transaction if a block of code takes too long.

    libpq waits for an answer without a limit. Its keepalives notice a cut network, but no server or
    pool that accepts packets and never answers.

    Raises:
        psycopg.OperationalError: At the statement that waits then.
    """
    timer = threading.Timer(timeout_ms / 1000, _break, [transaction.connection])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # otherwise it could break a socket that has this number afterwards


def _break(connection: psycopg.Connection[Any]) -> None:
    import psycopg

    with (
        contextlib.suppress(OSError, psycopg.Error),  # it is closed already
        socket.socket(fileno=os.dup(connection.pgconn.socket)) as same,
    ):
        same.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def open_transaction(
    options: ConnectionOptions, action: str, *, reads: bool = False
) -> Iterator[DatabaseTransaction]:
    """Open a connection for one transaction; close it at the end.

    Args:
        options: The connection.
        action: An infinitive for messages, such as ``read table a``.
        reads: True if the transaction changes nothing, and sees one snapshot.

    Raises:
        StorageError: If the server cannot be reached, refuses the login or a statement.
    """
    with explain_errors(options, action):
        psycopg = _import_driver()
        connection = psycopg.connect(
            options.url or "", **options.to_libpq(), autocommit=False, prepare_threshold=None
        )
        try:
            transaction = DatabaseTransaction(connection, options.answer_timeout)
            transaction.run(_settings(options, reads=reads))
            yield transaction
        finally:
            # Not `with connection`, which commits: only `DatabaseTransaction.commit` may.
            connection.close()


def _settings(options: ConnectionOptions, *, reads: bool) -> str:
    kind = "REPEATABLE READ READ ONLY" if reads else "READ COMMITTED READ WRITE"
    parts = [
        f"SET TRANSACTION ISOLATION LEVEL {kind}",
        # COPY has Arrow's texts. The default is the encoding of the database or of the role, and a
        # pool may ignore that of the connection.
        "SET LOCAL client_encoding = 'UTF8'",
        "SET LOCAL standard_conforming_strings = on",  # as `quote_text` writes literals
        f"SET LOCAL lock_timeout = {options.lock_timeout}",
        f"SET LOCAL idle_in_transaction_session_timeout = {_IDLE_MS}",
    ]
    if options.statement_timeout is not None:
        parts.append(f"SET LOCAL statement_timeout = {options.statement_timeout}")
    if not reads:
        # With 'off', an acknowledged epoch is lost if the server crashes.
        parts.append(
            "SELECT set_config('synchronous_commit', 'on', true) "
            "WHERE current_setting('synchronous_commit') = 'off'"
        )
    return "; ".join(parts)


def describe_error(error: psycopg.Error, options: ConnectionOptions) -> str:
    """Return PostgreSQL's message and its details, in one line without secrets."""
    found = error.diag
    detail = found.message_detail if found.message_primary else None
    where = next(iter((found.context or "").splitlines()), None) if detail is None else None
    parts = [found.message_primary or str(error), detail, where]
    lines = (" ".join(part.split()) for part in parts if part)
    return excerpt("; ".join(lines), options.secrets())


@contextlib.contextmanager
def explain_errors(options: ConnectionOptions, action: str) -> Iterator[None]:
    """Turn errors of the driver into a `StorageError` without secrets."""
    try:
        yield
    except KrishivError:
        raise
    except Exception as error:
        import psycopg

        if not isinstance(error, psycopg.Error):
            raise
        text = describe_error(error, options)
        raise_alone(
            StorageError(f"{FORMAT}: cannot {action} in {options.address()}: {text}{_hint(error)}")
        )


_HINTS = {
    "22P05": ". The database has no such character: move the table to a database with ENCODING "
    "'UTF8', or replace the character in the query",
    "25006": ". It is a standby or read-only: connect to the primary, as with "
    "'libpq.target_session_attrs' = 'read-write'",
    "28P01": ". Check the options 'user' and 'password'",
    "3D000": ". Check the database in the option 'url'",
    "42501": ". Grant the user this right (docs/postgresql.md#rights)",
    "55P03": ". Another transaction has the lock: end it, or raise 'lockTimeout'",
    "57014": ". Raise 'statementTimeout', or the server's statement_timeout",
}
"""Advice by SQLSTATE."""


_CONNECTION_HINTS = {
    "password authentication failed": _HINTS["28P01"],
    "no password supplied": _HINTS["28P01"],
    'database "': _HINTS["3D000"],
    "Connection refused": ". Check the address in the option 'url', and that the server runs",
}
"""Advice by a part of the text: errors of a new connection have no SQLSTATE."""


def _hint(error: psycopg.Error) -> str:
    if error.sqlstate is not None:
        return _HINTS.get(error.sqlstate, "")
    text = str(error)
    return next((hint for part, hint in _CONNECTION_HINTS.items() if part in text), "")
