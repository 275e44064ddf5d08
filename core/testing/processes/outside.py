"""The seam between a connector and the outside: files, SQLite, sockets, or what an author names.

A connector needs no code for it. In the processes that play Spark's part, the functions by which
Python reaches the outside are counted, and at one of them something can go wrong. What a C library
does by itself (Arrow writing a file, librdkafka) is not seen: name the Python function that asks
for it.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import os
import signal
import socket  # noqa: F401  here, so that a process that is forked need not import it
import sqlite3
import ssl  # noqa: F401  likewise
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from importlib import import_module
from typing import Any, ClassVar

from krishiv_spark.testing.steps import Fault, Sleep, Trap

__all__ = [
    "FILES",
    "OUTSIDE",
    "SOCKETS",
    "SQLITE",
    "Call",
    "Importers",
    "Outside",
    "Seam",
    "die",
]

Outside = Mapping[str, Callable[[str], Exception]]
"""What counts as a call: ``"module:attribute.path"`` to the error that it reports."""


def _io_error(text: str) -> Exception:
    return OSError(errno.EIO, text)


_LONGEST_SHOWN = 60
_FILE_CALLS = "open link rename replace unlink remove mkdir rmdir fsync write listdir scandir stat"

FILES: Outside = {
    **{f"os:{name}": _io_error for name in _FILE_CALLS.split()},
    "builtins:open": _io_error,
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
"""What is watched unless an author says otherwise."""


@dataclass(frozen=True)
class Call:
    """A call to the outside that was made.

    Attributes:
        text: The function and its arguments, shortened.
        reads: Whether it only looks, so that nothing changes if the process dies there.
    """

    text: str
    reads: bool

    @classmethod
    def of(cls, name: str, args: tuple[Any, ...]) -> Call:
        """The call of a function by its name."""
        shown = [os.fspath(a) if isinstance(a, os.PathLike) else a for a in args]
        known = (_shorten(a) for a in shown if isinstance(a, str | bytes | int))
        return cls(f"{name}({', '.join(known)})", _only_looks(name, args))


def die() -> None:
    """End this process as ``kill -9`` does: no handler runs, nothing is flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


class Seam:
    """The calls of one process, and the trap that waits at one of them.

    What a call does inside, and what an import reads, are no calls of their own.

    Args:
        sleep: Called with the name of a call; returns when the process shall go on.
        last_words: Called with the name of the call at which the process is about to die.
    """

    def __init__(self, sleep: Callable[[str], None], last_words: Callable[[str], None]) -> None:
        self.sleep = sleep
        self.calls: list[Call] = []
        self._last_words = last_words
        self._trap: Trap | None = None
        self._counting = False
        self._inside = threading.local()

    def arm(self, trap: Trap | None) -> None:
        """Count from 0 again, with this trap ahead."""
        self.calls, self._trap, self._counting = [], trap, True

    def disarm(self) -> None:
        """Stop counting: what follows is the kit's own."""
        self._counting = False

    def at_the_end(self) -> None:
        """The step is done: its answer is lost, if that is the trap."""
        if isinstance(self._trap, Fault) and self._trap.call < 0:
            if not self._trap.reported:
                self._die("when the step was done")
            raise ConnectionResetError("injected: the step is done, but its answer is lost")

    def watch(self, outside: Outside) -> None:
        """Put a counter around every function named. For the rest of this process' life."""
        importers = Importers.of(outside).found
        for name, error in outside.items():
            owner, attribute = _found(name)
            function = getattr(owner, attribute, None)
            if function is None:
                continue
            if name == "sqlite3:connect":
                function = self._watched_sqlite(error)
            counter = self._counted(_shown(name), function, error)
            setattr(owner, attribute, counter)
            _set_in_old_pathlib(attribute, counter)
            for names, theirs in importers[name]:
                names[theirs] = counter

    def _counted(
        self, name: str, function: Callable[..., Any], error: Callable[[str], Exception]
    ) -> Callable[..., Any]:
        @wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if not self._counting or getattr(self._inside, "a_call", False) or _is_importing():
                return function(*args, **kwargs)
            self._inside.a_call = True
            try:
                return self._call(Call.of(name, args), partial(function, *args, **kwargs), error)
            finally:
                self._inside.a_call = False

        return counted

    def _call(self, call: Call, work: Callable[[], Any], error: Callable[[str], Exception]) -> Any:
        trap = self._trap if self._trap and self._trap.call == len(self.calls) else None
        self.calls.append(call)
        if trap is None:
            return work()
        if isinstance(trap, Sleep):
            self.sleep(call.text)
            return work()
        return self._go_wrong(trap, call.text, work, error)

    def _go_wrong(
        self, fault: Fault, name: str, work: Callable[[], Any], error: Callable[[str], Exception]
    ) -> None:
        if fault.happened:
            with contextlib.suppress(Exception):  # it fails by itself: that is how it happens
                work()
        if not fault.reported:
            self._die(f"{'behind' if fault.happened else 'before'} {name}")
        raise error(f"injected: {name} {'happened' if fault.happened else 'did not happen'}")

    def _die(self, where: str) -> None:
        self._last_words(f" {where}")
        die()

    def _watched_sqlite(self, error: Callable[[str], Exception]) -> Callable[..., Any]:
        class WatchedCursor(sqlite3.Cursor):
            pass

        class Watched(sqlite3.Connection):
            def cursor(self, factory: Any = WatchedCursor) -> Any:
                return super().cursor(factory)

        methods = ("execute", "executemany", "executescript")
        for watched, names in (
            (Watched, (*methods, "commit", "rollback", "__exit__")),
            (WatchedCursor, methods),
        ):
            for name in names:
                original = getattr(watched.__base__, name)
                setattr(watched, name, self._counted(f"sqlite3 {name}", original, error))
        return partial(_connect, sqlite3.connect, Watched)


class Importers:
    """Who has imported a function of the outside by its name, and so would not see a counter.

    Looked up before a process is forked: to look at every module in it would cost more than the
    fork.
    """

    _known: ClassVar[dict[tuple[str, ...], Importers]] = {}

    def __init__(self, outside: Outside) -> None:
        self.found: dict[str, list[tuple[dict[str, Any], str]]] = {name: [] for name in outside}
        self._seen: set[str] = set()

    @classmethod
    def of(cls, outside: Outside) -> Importers:
        """Those among the modules of this process."""
        known = cls._known.setdefault(tuple(outside), cls(outside))
        known.look()
        return known

    def look(self) -> None:
        """Look at the modules that are new since the last time."""
        new = sys.modules.keys() - self._seen
        self._seen |= new
        functions = {id(_function(name)): name for name in self.found}
        for module in new:
            family = module.partition(".")[0]
            if module == "sqlite3.dbapi2" or family not in sys.stdlib_module_names:
                self._look_at(getattr(sys.modules[module], "__dict__", {}), functions)

    def _look_at(self, names: dict[str, Any], functions: Mapping[int, str]) -> None:
        for theirs, value in [*names.items()]:
            if value is not None and id(value) in functions:
                self.found[functions[id(value)]].append((names, theirs))


def _connect(
    connect: Callable[..., sqlite3.Connection], factory: type, *args: Any, **kwargs: Any
) -> sqlite3.Connection:
    return connect(*args, **{"factory": factory, **kwargs})


def _is_importing() -> bool:
    frame = inspect.currentframe()
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def _found(name: str) -> tuple[Any, str]:
    module, _, path = name.partition(":")
    *owners, attribute = path.split(".")
    owner: Any = import_module(module)
    for step in owners:
        owner = getattr(owner, step)
    return owner, attribute


def _function(name: str) -> Any:
    owner, attribute = _found(name)
    return getattr(owner, attribute, None)


def _shown(name: str) -> str:
    return name.replace(":", " ") if name in SQLITE else name.partition(":")[2]


def _set_in_old_pathlib(attribute: str, function: Callable[..., Any]) -> None:
    import pathlib

    accessor = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10 binds them when imported
    if hasattr(accessor, attribute):
        setattr(accessor, attribute, staticmethod(function))


def _only_looks(name: str, args: tuple[Any, ...]) -> bool:
    how = args[1] if len(args) > 1 else "r"
    if name == "open":
        writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT
        return not how & writes if isinstance(how, int) else not set("wax+") & set(str(how))
    is_query = bool(args) and str(args[-1]).lstrip()[:6].lower() == "select"
    return name in {"listdir", "scandir", "stat"} or (name == "sqlite3 execute" and is_query)


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"…{text[-_LONGEST_SHOWN:]}"
