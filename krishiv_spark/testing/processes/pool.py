"""Processes of their own, in which Spark's part is played; they fall asleep and are killed."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import sys
import time
import traceback
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any, Literal

from krishiv_spark.testing.processes.functions import Importers
from krishiv_spark.testing.processes.outside import Call, Outside
from krishiv_spark.testing.processes.pickling import pickled, unpickled
from krishiv_spark.testing.processes.seam import Seam
from krishiv_spark.testing.steps import Kill, Trap

__all__ = ["Answer", "Pool", "Process", "here", "rest"]

_PATIENCE_SECONDS = 120.0

_ours: weakref.WeakSet[Any] = weakref.WeakSet()
_seam: Seam | None = None


@dataclass(frozen=True)
class Answer:
    """How a call in a process came out.

    Attributes:
        outcome: "returned", "raised", "died", or "asleep": it goes on with `Process.resume`.
        value: What was returned; where it sleeps or has died.
        error: The error's class and text.
        kinds: Names of the classes that it is an instance of, and of those of its causes.
        trace: Where the error was raised.
        sprung: The call at which a trap has reported an error.
        calls: The calls to the outside that were made so far.
        seconds: How long it took.
        modules: What was imported on the way.
    """

    outcome: Literal["returned", "raised", "died", "asleep"]
    value: Any = None
    error: str = ""
    kinds: frozenset[str] = frozenset()
    trace: str = ""
    sprung: str = ""
    calls: tuple[Call, ...] = ()
    seconds: float = 0.0
    modules: tuple[str, ...] = ()

    @property
    def survived(self) -> bool:
        """Whether a call failed, and who asked for it went on as if nothing had happened."""
        return self.outcome == "returned" and bool(self.sprung)


class Process:
    """A forked copy of this process that runs one function at a time.

    What modules hold lives on in it from call to call, as in a worker of Spark's that is reused.

    Args:
        outside: What counts as a call to the outside in it.
    """

    def __init__(self, outside: Outside) -> None:
        Importers.of(outside)
        context = multiprocessing.get_context("fork")
        self._connection, theirs = context.Pipe()
        _ours.add(self._connection)
        self._process = context.Process(target=_serve, args=(theirs, outside), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, 3.12+
            self._process.start()
        theirs.close()

    def call(self, function: Callable[..., Any], *args: Any, trap: Trap | None = None) -> Answer:
        """Run a function, and wait until it has returned, raised, died or fallen asleep.

        Both may be anything that Spark could send: they travel by cloudpickle. The process gets
        this one's environment variables.
        """
        order = pickled((function, args, trap, dict(os.environ)))
        with contextlib.suppress(OSError):
            self._connection.send_bytes(order)
        if isinstance(trap, Kill) and not self._connection.poll(trap.after_ms / 1000):
            self._process.kill()
            return Answer("died", value=f" after {trap.after_ms:.1f} ms")
        return self._answer()

    def resume(self) -> Answer:
        """Wake the call that is asleep, and wait as `call` does."""
        self._connection.send_bytes(b"")
        return self._answer()

    def kill(self) -> None:
        """``kill -9``."""
        self._process.kill()
        self._process.join()
        self._connection.close()

    def _answer(self) -> Answer:
        if not self._connection.poll(_PATIENCE_SECONDS):
            self._process.kill()
            return Answer("raised", error=f"it hung for {_PATIENCE_SECONDS:.0f} s and was killed")
        try:
            answer: Answer = self._connection.recv()
        except (EOFError, ConnectionError):
            return Answer("died", value="")
        _import(answer.modules)
        return answer


class Pool:
    """Processes that are idle, for the next one who needs some. Forking is what costs most.

    Args:
        outside: What counts as a call to the outside in them.
    """

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._idle: list[Process] = []

    def take(self) -> Process:
        """An idle process, or a new one."""
        return self._idle.pop() if self._idle else Process(self._outside)

    def give(self, process: Process) -> None:
        """Give a process back that is alive and awake."""
        self._idle.append(process)

    def close(self) -> None:
        """End those that are idle."""
        while self._idle:
            self._idle.pop().kill()


def _import(modules: tuple[str, ...]) -> None:
    """Import here what a process needed, so that the next one has it when it is forked."""
    for name in modules:
        with contextlib.suppress(Exception):
            import_module(name)


def here() -> Seam:
    """The seam of the process that this runs in."""
    if _seam is None:
        raise RuntimeError("not in a process of the kit")
    return _seam


def rest(why: str) -> None:
    """Fall asleep in a call until `Process.resume`."""
    here().sleep(why)


def _serve(connection: Connection, outside: Outside) -> None:
    global _seam  # noqa: PLW0603  one process, one seam
    gc.freeze()  # a collection would touch, and so copy, all that is inherited
    for inherited in list(_ours):
        inherited.close()  # so that this process ends with its parent
    seam = _seam = Seam(
        sleep=lambda why: _sleep(connection, why),
        last_words=lambda where: connection.send(Answer("died", value=where)),
    )
    seam.watch(outside)
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            function, args, trap, environment = unpickled(connection.recv_bytes())
            os.environ.update(environment)
            known = len(sys.modules)
            answer = _run(seam, function, args, trap)
            if answer.outcome == "raised":
                gc.collect()  # cursors and locks that the traceback held: Spark's process would end
            connection.send(replace(answer, modules=_imported_after(known)))


def _imported_after(known: int) -> tuple[str, ...]:
    """The modules that came to so many. The others are not touched: that would copy them."""
    new = len(sys.modules) - known
    return tuple(islice(reversed(sys.modules), max(new, 0)))[::-1]


def _sleep(connection: Connection, why: str) -> None:
    connection.send(Answer("asleep", value=why, calls=tuple(here().calls)))
    connection.recv_bytes()


def _run(
    seam: Seam, function: Callable[..., Any], args: tuple[Any, ...], trap: Trap | None
) -> Answer:
    outer, begun = sys.exc_info()[1], time.perf_counter()
    seam.arm(trap)
    try:
        value = function(*args)
        seam.at_the_end()
    except Exception as error:  # noqa: BLE001  whatever a connector raises is its answer
        seam.disarm()
        _forget(error, outer)
        answer = _raised(error)
    else:
        seam.disarm()
        answer = Answer("returned", value=value)
    seconds = time.perf_counter() - begun
    return replace(answer, sprung=seam.sprung, calls=tuple(seam.calls), seconds=seconds)


def _raised(error: Exception) -> Answer:
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__) is not None and cause not in causes:  # a ring is possible
        causes.append(cause)
    kinds = frozenset(kind.__name__ for cause in causes for kind in type(cause).__mro__)
    text = f"{type(error).__name__}: {error}"
    return Answer("raised", error=text, kinds=kinds, trace=traceback.format_exc())


def _forget(error: BaseException, outer: BaseException | None) -> None:
    """Cut off what this process' parent was handling when it was forked."""
    while error.__context__ is not None:
        if error.__context__ is outer:
            error.__context__ = None
            return
        error = error.__context__
