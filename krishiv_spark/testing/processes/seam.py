"""The seam between a connector and the outside: calls are counted, and one of them goes wrong."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import socket  # noqa: F401  here, so that a process that is forked need not import it
import sqlite3
import ssl  # noqa: F401  likewise
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Any

from krishiv_spark.testing.processes.functions import Importers, NamedFunction
from krishiv_spark.testing.processes.outside import SQLITE, Call, Look, Outside
from krishiv_spark.testing.steps import Fault, Faults, Sleep, Trap

__all__ = ["Seam", "die"]


def die() -> None:
    """End this process as ``kill -9`` does: no handler runs, nothing is flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


class Seam:
    """The calls of one process, and the trap that waits at one of them.

    What a call does inside, and what an import reads, are no calls of their own.

    Attributes:
        calls: Those that were made since it was armed.
        sprung: The call at which the trap has reported an error.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.sprung = ""
        self._trap: Trap | None = None
        self._counting = False
        # Of each thread: what one does inside a call hides nothing that another one calls.
        self._inside = threading.local()

    def report(self, sleep: Callable[[str], None], last_words: Callable[[str], None]) -> None:
        """Say who hears of what happens here; a process that only forks others has nobody.

        Args:
            sleep: Called with the name of a call; returns when the process shall go on.
            last_words: Called with the name of the call at which the process is about to die.
        """
        self.sleep, self._last_words = sleep, last_words

    def arm(self, trap: Trap | None) -> None:
        """Count from 0 again, with this trap ahead."""
        self.calls, self.sprung, self._trap, self._counting = [], "", trap, True

    def disarm(self) -> None:
        """Stop counting: what follows is the kit's own."""
        self._counting = False

    def at_the_end(self) -> None:
        """The step is done: its answer is lost, if that is the trap."""
        for fault in _faults(self._trap):
            if fault.call >= 0:
                continue
            if not fault.reported:
                self._die("when the step was done")
            raise ConnectionResetError("injected: the step is done, but its answer is lost")

    def watch(self, outside: Outside) -> None:
        """Put a counter around every function named. For the rest of this process' life.

        `Importers` must have looked before the fork.
        """
        importers = Importers.inherited(outside).found
        for name, error in outside.items():
            counter = NamedFunction.of(name).wrap(partial(self._watched, name, error))
            _set_in_old_pathlib(name.partition(":")[2], counter)
            for names, theirs in importers[name]:
                names[theirs] = counter

    def _watched(
        self, name: str, error: Callable[[str], Exception], function: Callable[..., Any]
    ) -> Callable[..., Any]:
        known = self._watched_sqlite(error) if name == "sqlite3:connect" else function
        return self._counted(_shown(name), known, error)

    def _counted(
        self, name: str, function: Callable[..., Any], error: Callable[[str], Exception]
    ) -> Callable[..., Any]:
        @wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if not self._counting or getattr(self._inside, "a_call", False) or _is_importing():
                return function(*args, **kwargs)
            self._inside.a_call = True
            try:
                call = Call.of(name, args, reads=isinstance(error, Look))
                return self._call(call, partial(function, *args, **kwargs), error)
            finally:
                self._inside.a_call = False

        return counted

    def _call(self, call: Call, work: Callable[[], Any], error: Callable[[str], Exception]) -> Any:
        trap = self._trap_at(len(self.calls))
        self.calls.append(call)
        if trap is None:
            return work()
        if isinstance(trap, Sleep):
            self.sleep(call.text)
            return work()
        return self._go_wrong(trap, call.text, work, error)

    def _trap_at(self, number: int) -> Fault | Sleep | None:
        trap = self._trap
        if isinstance(trap, Sleep):
            return trap if trap.call == number else None
        faults = _faults(trap)
        here = next((fault for fault in faults if fault.call == number), None)
        if here is not None:
            return here
        outage = next((f for f in faults if f.lasting and 0 <= f.call < number), None)
        # It lets nothing through: of its calls only the first may have happened.
        return None if outage is None else replace(outage, happened=False)

    def _go_wrong(
        self, fault: Fault, name: str, work: Callable[[], Any], error: Callable[[str], Exception]
    ) -> None:
        if fault.happened:
            with contextlib.suppress(Exception):  # it fails by itself: that is how it happens
                work()
        if not fault.reported:
            self._die(f"{'after' if fault.happened else 'before'} {name}")
        self.sprung = self.sprung or name
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
            # `with connection:` commits inside of C, and calls no `commit` that could be watched.
            (Watched, (*methods, "commit", "rollback", "__exit__")),
            (WatchedCursor, methods),
        ):
            for name in names:
                original = getattr(watched.__base__, name)
                setattr(watched, name, self._counted(f"sqlite3 {name}", original, error))
        return partial(_connect, sqlite3.connect, Watched)


def _faults(trap: Trap | None) -> tuple[Fault, ...]:
    """What goes wrong at calls; a process that is killed from outside has none of it."""
    if isinstance(trap, Faults):
        return trap.each
    return (trap,) if isinstance(trap, Fault) else ()


def _connect(
    connect: Callable[..., sqlite3.Connection], factory: type, *args: Any, **kwargs: Any
) -> sqlite3.Connection:
    return connect(*args, **{"factory": factory, **kwargs})


def _is_importing() -> bool:
    frame = inspect.currentframe()
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def _shown(name: str) -> str:
    return name.replace(":", " ") if name in SQLITE else name.partition(":")[2]


def _set_in_old_pathlib(attribute: str, function: Callable[..., Any]) -> None:
    import pathlib

    accessor = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10 binds them when imported
    if hasattr(accessor, attribute):
        setattr(accessor, attribute, staticmethod(function))
