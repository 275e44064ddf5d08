"""Rows of a query by COPY in binary form, in pieces of bounded size. Executor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from krishiv_spark.postgresql.copy_encoding import HEADER, TRAILER

if TYPE_CHECKING:
    import psycopg

__all__ = ["copy_rows"]

_PIECE_BYTES = 2**21
_PIECE_ROWS = 2**15
"""A piece has a few megabytes, whose arrays take as much again."""


def copy_rows(
    connection: psycopg.Connection[Any], query: str
) -> Iterator[tuple[bytearray, list[int]]]:
    """Yield the rows of a query, and the position of each row in them.

    The server sends a message for each row. They are read by libpq's function, since psycopg's own
    loop takes eight times as long.

    Args:
        connection: A connection in a transaction, which is used for nothing else meanwhile.
        query: A SELECT.

    Raises:
        psycopg.Error: If the server fails.
    """
    import psycopg

    wire = connection.pgconn
    encoding = connection.info.encoding
    started = wire.exec_(f"COPY ({query}) TO STDOUT (FORMAT binary)".encode(encoding))
    if started.status != psycopg.pq.ExecStatus.COPY_OUT:
        raise psycopg.errors.error_from_result(started, encoding)
    yield from _read_pieces(wire)
    while (done := wire.get_result()) is not None:
        if done.status != psycopg.pq.ExecStatus.COMMAND_OK:
            raise psycopg.errors.error_from_result(done, encoding)


def _read_pieces(wire: Any) -> Iterator[tuple[bytearray, list[int]]]:
    skipped = len(HEADER)  # it precedes the first row, in the same message
    is_last = False
    while not is_last:
        rows = bytearray()
        starts: list[int] = []
        while len(rows) < _PIECE_BYTES and len(starts) < _PIECE_ROWS:
            size, row = wire.get_copy_data(0)
            if size <= 0:
                is_last = True
                break
            if skipped:
                row, skipped = row[skipped:], 0
            if row == TRAILER:
                continue
            starts.append(len(rows))
            rows += row
        if starts:
            yield rows, starts
