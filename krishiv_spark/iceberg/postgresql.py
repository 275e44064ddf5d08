"""PostgreSQL below a SQL catalog, with an end to its client's patience.

libpq waits for ever for a server that takes a connection and says nothing, and for one that
vanishes later as long as the machine does
(https://www.postgresql.org/docs/current/libpq-connect.html); and PyIceberg 0.12 takes a database
that is not there for one without tables, and tries to make them.
"""

from __future__ import annotations

import contextlib
import os
from urllib.parse import parse_qs, urlsplit

__all__ = ["ask_once", "is_postgresql", "patient"]

_CLIENTS = ("postgresql", "postgresql+psycopg", "postgresql+psycopg2")
"""Schemes of URIs whose client is libpq, whose settings these are."""

_PATIENCE = {
    "connect_timeout": "8",  # seconds for each address of a host, logging in included
    "tcp_user_timeout": "60000",  # ms until who confirms no packet is gone
    "keepalives_idle": "20",  # seconds; next likewise for a client that only waits
    "keepalives_interval": "10",
    "keepalives_count": "4",
}


def is_postgresql(uri: str) -> bool:
    """Whether libpq is asked for this catalog."""
    return uri.partition("://")[0] in _CLIENTS


def patient(uri: str) -> str:
    """The address with all ends to patience that its user has not set, there or for libpq."""
    given = parse_qs(urlsplit(uri).query, keep_blank_values=True)
    if "PGCONNECT_TIMEOUT" in os.environ:
        given["connect_timeout"] = []
    new = "&".join(f"{key}={text}" for key, text in _PATIENCE.items() if key not in given)
    return f"{uri}{'&' if '?' in uri else '?'}{new}"


def ask_once(uri: str) -> None:
    """Connect, once. Driver.

    Raises:
        sqlalchemy.exc.OperationalError: If nobody answers, or does not let us in.
    """
    from sqlalchemy import NullPool, create_engine

    with contextlib.closing(create_engine(uri, poolclass=NullPool).connect()):
        pass
