"""The functions that count as calls to the outside: files, SQLite, sockets, or an author's own.

A connector needs no code for it. In the processes that play Spark's part, the functions by which
Python reaches the outside are counted, and at one of them something can go wrong. What a C library
does (Arrow writing a file, librdkafka) is not counted: name the Python function that calls it.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["FILES", "OUTSIDE", "SOCKETS", "SQLITE", "Call", "Look", "Outside"]

Outside = Mapping[str, Callable[[str], Exception]]
"""The calls that count: ``"module:attribute.path"`` to the error that each reports."""


def _io_error(text: str) -> Exception:
    return OSError(errno.EIO, text)


_LONGEST_SHOWN = 60
_FILE_CALLS = "open link rename replace unlink remove mkdir rmdir fsync write listdir scandir stat"

FILES: Outside = {
    **{f"os:{name}": _io_error for name in _FILE_CALLS.split()},
    "builtins:open": _io_error,
    # pathlib calls it by this name.
    "io:open": _io_error,
}
"""The functions of the file system, as `os`, `pathlib` and `shutil` call them."""

_SOCKET_CALLS = "connect send sendall recv recv_into"

SOCKETS: Outside = {
    f"{owner}.{name}": ConnectionResetError
    for owner in ("socket:socket", "ssl:SSLSocket")
    for name in _SOCKET_CALLS.split()
}
"""Plain and encrypted sockets."""

SQLITE: Outside = {"sqlite3:connect": sqlite3.OperationalError}
"""SQLite: opening a database, each statement, commit and rollback."""

OUTSIDE: Outside = {**FILES, **SOCKETS, **SQLITE}
"""The functions that are watched unless an author specifies others."""


@dataclass(frozen=True)
class Look:
    """The error of a function that only reads: death at it equals death at the previous call.

    Such a call gets one fault and no death, which saves a suite time. Those of files that only
    read are known, and so are statements that begin with SELECT in any function whose name ends
    in ``execute``.

    Args:
        error: Creates the error from a text.
    """

    error: Callable[[str], Exception]

    def __call__(self, text: str) -> Exception:
        """Return the error that is reported."""
        return self.error(text)


@dataclass(frozen=True)
class Call:
    """A call to the outside that was made.

    Attributes:
        text: The function and its arguments, shortened.
        reads: True if it only reads, so that a death there changes nothing.
    """

    text: str
    reads: bool

    @classmethod
    def of(cls, name: str, args: tuple[Any, ...], *, reads: bool = False) -> Call:
        """Return the call of a function by its name; an unknown function counts as a write."""
        shown = [os.fspath(a) if isinstance(a, os.PathLike) else a for a in args]
        known = (_shorten(a) for a in shown if isinstance(a, str | bytes | int))
        return cls(f"{name}({', '.join(known)})", reads or _only_looks(name, args))


def _only_looks(name: str, args: tuple[Any, ...]) -> bool:
    if name == "open":
        how = args[1] if len(args) > 1 else "r"
        writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT
        return not how & writes if isinstance(how, int) else not set("wax+") & set(str(how))
    return name in {"listdir", "scandir", "stat"} or (name.endswith("execute") and _is_query(args))


def _is_query(args: tuple[Any, ...]) -> bool:
    text = next((a for a in args if isinstance(a, str)), "")
    return text.lstrip()[:6].lower() == "select"


def _shorten(value: object) -> str:
    text = repr(value)
    # Paths of one target differ at their ends.
    return text if len(text) <= _LONGEST_SHOWN else f"…{text[-_LONGEST_SHOWN:]}"
