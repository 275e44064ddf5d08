"""The seam between a connector and the outside: it counts calls and lets one of them go wrong."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import inspect
import os
import signal
import socket  # noqa: F401  here, so that a process that is forked need not import it
import sqlite3
import ssl  # noqa: F401  likewise
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial, wraps
from importlib import import_module
from types import ClassMethodDescriptorType
from typing import Any, ClassVar, TypeAlias

from krishiv_spark.messages.suggestions import did_you_mean
from krishiv_spark.testing.processes.outside import SQLITE, Call, Look, Outside
from krishiv_spark.testing.steps import Fault, Faults, Sleep, Trap

__all__ = ["Importers", "NamedFunction", "Seam", "die"]

_Wrap: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class NamedFunction:
    """A function that an `Outside` names.

    Attributes:
        name: ``"module:attribute.path"``.
        owner: The module or class that has it.
        attribute: Its name there.
        found: The value there; in a class the descriptor, which defines how it is bound.
    """

    name: str
    owner: Any
    attribute: str
    found: Any

    @classmethod
    def of(cls, name: str) -> NamedFunction:
        """Return the function of a name.

        Raises:
            ValueError: If no function has this name; the message names the nearest.
            TypeError: If the name is not a function's. A class is refused too: other names of
                functions in it would no longer be found.
        """
        module, _, path = name.partition(":")
        *owners, attribute = path.split(".")
        owner: Any = import_module(module)
        for step in owners:
            owner = cls._part(name, owner, step)
        if not callable(found := cls._part(name, owner, attribute)):
            kind = type(found).__name__
            raise TypeError(f"outside names {name!r}, which is no function but of type {kind}")
        if isinstance(found, type):
            method = f"{found.__module__}:{found.__qualname__}.__init__"
            raise TypeError(
                f"outside names {name!r}, which is no function but the class {found.__qualname__}: "
                f"name its methods, such as {method!r}"
            )
        look_up = inspect.getattr_static if isinstance(owner, type) else getattr
        return cls(name, owner, attribute, look_up(owner, attribute))

    @staticmethod
    def _part(name: str, owner: Any, attribute: str) -> Any:
        if not hasattr(owner, attribute):
            hint = did_you_mean(attribute, dir(owner), "nothing in it has a name like that")
            known = getattr(owner, "__name__", owner)
            raise ValueError(f"outside names {name!r}, but {known} has no {attribute!r}: {hint}")
        return getattr(owner, attribute)

    def wrap(self, wrap: _Wrap) -> Any:
        """Replace the function by a wrapper of it, for the rest of this process's life."""
        made = self._bound_alike(wrap)
        try:
            setattr(self.owner, self.attribute, made)
        except TypeError:
            self._put_into_c_type(made)
        return made

    def _bound_alike(self, wrap: _Wrap) -> Any:
        """Return a wrapper that is bound like the original: a function, static or class method."""
        found = self.found
        if isinstance(found, staticmethod):
            return staticmethod(wrap(found.__func__))
        if isinstance(found, classmethod):
            return classmethod(wrap(found.__func__))
        if isinstance(found, ClassMethodDescriptorType):
            return classmethod(wrap(lambda kind, *a, **k: found.__get__(None, kind)(*a, **k)))
        return wrap(found)

    def _put_into_c_type(self, made: Any) -> None:
        # A type written in C refuses new attributes, but looks them up in a dict behind its
        # read-only view. This process only plays a part, and ends soon.
        gc.get_referents(self.owner.__dict__)[0][self.attribute] = made
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(self.owner))


class Importers:
    """The modules that have imported a named function, and so would not see its replacement.

    Determined before a process is forked: reading every module in it would cost more than the
    fork, since every page that is touched there is copied.

    Attributes:
        found: For each name of a function, the namespaces that contain it, and under which name.
    """

    _known: ClassVar[dict[tuple[str, ...], Importers]] = {}

    def __init__(self, outside: Outside) -> None:
        self.found: dict[str, list[tuple[dict[str, Any], str]]] = {name: [] for name in outside}
        self._seen: set[str] = set()

    @classmethod
    def of(cls, outside: Outside) -> Importers:
        """Search the modules of this process.

        Raises:
            ValueError, TypeError: If a name means no function.
        """
        known = cls._known.setdefault(tuple(outside), cls(outside))
        known.look()
        return known

    @classmethod
    def inherited(cls, outside: Outside) -> Importers:
        """Return the importers that were known when this process was forked."""
        return cls._known[tuple(outside)]

    def look(self) -> None:
        """Search the modules that are new since the last call."""
        new = sys.modules.keys() - self._seen
        if not new:
            return
        self._seen |= new
        named = [NamedFunction.of(name) for name in self.found]
        # By identity: comparing with any value of a module may raise, or run foreign code.
        functions = {id(function.found): function.name for function in named}
        for module in new:
            family = module.partition(".")[0]
            # Authors import `connect` from this module too.
            if module == "sqlite3.dbapi2" or family not in sys.stdlib_module_names:
                self._look_at(getattr(sys.modules[module], "__dict__", {}), functions)

    def _look_at(self, names: dict[str, Any], functions: Mapping[int, str]) -> None:
        for theirs, value in [*names.items()]:
            if value is not None and id(value) in functions:
                self.found[functions[id(value)]].append((names, theirs))


def die() -> None:
    """End this process as ``kill -9`` does: no handler runs, no buffer is flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


class Seam:
    """The calls of one process, and the trap at one of them.

    Calls inside a call, and the reads of an import, are not counted.

    Attributes:
        calls: The calls since it was armed.
        sprung: The call at which the trap has reported an error.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.sprung = ""
        self._trap: Trap | None = None
        self._counting = False
        # One per thread: the inside of a call in one thread must not hide a call of another.
        self._inside = threading.local()

    def report(self, sleep: Callable[[str], None], last_words: Callable[[str], None]) -> None:
        """Set the functions that report events here; a process that only forks others has none.

        Args:
            sleep: Called with the name of a call; returns when the process shall go on.
            last_words: Called with the name of the call at which the process is about to die.
        """
        self.sleep, self._last_words = sleep, last_words

    def arm(self, trap: Trap | None) -> None:
        """Count from 0 again, with this trap ahead."""
        self.calls, self.sprung, self._trap, self._counting = [], "", trap, True

    def disarm(self) -> None:
        """Stop counting: the following calls are the kit's own."""
        self._counting = False

    def at_the_end(self) -> None:
        """Mark the end of the step: its answer is lost, if that is the trap."""
        for fault in _faults(self._trap):
            if fault.call >= 0:
                continue
            if not fault.reported:
                self._die("when the step was done")
            raise ConnectionResetError("injected: the step is done, but its answer is lost")

    def watch(self, outside: Outside) -> None:
        """Put a counter around every named function, for the rest of this process's life.

        `Importers` must have searched before the fork.
        """
        importers = Importers.inherited(outside).found
        for name, error in outside.items():
            counter = NamedFunction.of(name).wrap(partial(self._watch_function, name, error))
            _set_in_old_pathlib(name.partition(":")[2], counter)
            for names, theirs in importers[name]:
                names[theirs] = counter

    def _watch_function(
        self, name: str, error: Callable[[str], Exception], function: Callable[..., Any]
    ) -> Callable[..., Any]:
        known = self._watch_sqlite(error) if name == "sqlite3:connect" else function
        return self._count_calls(_shown(name), known, error)

    def _count_calls(
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
        # A lasting trap lets no call through: only the first of them may have taken effect.
        return None if outage is None else replace(outage, happened=False)

    def _go_wrong(
        self, fault: Fault, name: str, work: Callable[[], Any], error: Callable[[str], Exception]
    ) -> None:
        if fault.happened:
            with contextlib.suppress(Exception):  # the call fails without a trap
                work()
        if not fault.reported:
            self._die(f"{'after' if fault.happened else 'before'} {name}")
        self.sprung = self.sprung or name
        raise error(f"injected: {name} {'happened' if fault.happened else 'did not happen'}")

    def _die(self, where: str) -> None:
        self._last_words(f" {where}")
        die()

    def _watch_sqlite(self, error: Callable[[str], Exception]) -> Callable[..., Any]:
        class WatchedCursor(sqlite3.Cursor):
            pass

        class Watched(sqlite3.Connection):
            def cursor(self, factory: Any = WatchedCursor) -> Any:
                return super().cursor(factory)

        methods = ("execute", "executemany", "executescript")
        for watched, names in (
            # `with connection:` commits inside C, and calls no `commit` that could be watched.
            (Watched, (*methods, "commit", "rollback", "__exit__")),
            (WatchedCursor, methods),
        ):
            for name in names:
                original = getattr(watched.__base__, name)
                setattr(watched, name, self._count_calls(f"sqlite3 {name}", original, error))
        return partial(_connect, sqlite3.connect, Watched)


def _faults(trap: Trap | None) -> tuple[Fault, ...]:
    """Return the faults at calls; a process that is killed from outside has none."""
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
