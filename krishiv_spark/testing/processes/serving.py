"""The loop of a process that plays a part of Spark's: it runs one function after the other."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any, Literal

from krishiv_spark.testing.processes.outside import Call
from krishiv_spark.testing.processes.pickling import unpickled
from krishiv_spark.testing.processes.seam import Seam
from krishiv_spark.testing.steps import Trap

__all__ = ["Answer", "here", "rest", "serve"]

_seam: Seam | None = None


@dataclass(frozen=True)
class Answer:
    """The outcome of a call in a process.

    Attributes:
        outcome: "returned", "raised", "died", or "asleep", which `Process.resume` ends.
        value: The result; the call at which it sleeps or died.
        error: The class and text of the error.
        kinds: The names of the error's classes, and of its causes' classes.
        trace: The traceback.
        sprung: The call at which a trap has reported an error.
        calls: The calls to the outside so far.
        seconds: The duration.
        modules: The modules imported on the way.
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
        """Return True if a call failed, and the function that made it still succeeded."""
        return self.outcome == "returned" and bool(self.sprung)


def serve(connection: Connection, seam: Seam) -> None:
    """Take calls from a connection and answer each, until it is closed.

    Args:
        connection: The other end of `Process.call`.
        seam: The seam that counts calls to the outside.
    """
    global _seam  # noqa: PLW0603  one process, one seam
    _seam = seam
    seam.report(
        sleep=lambda why: _sleep(connection, why),
        last_words=lambda where: connection.send(Answer("died", value=where)),
    )
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            function, args, trap, environment = unpickled(connection.recv_bytes())
            os.environ.update(environment)
            known = len(sys.modules)
            answer = _run(seam, function, args, trap)
            if answer.outcome == "raised":
                gc.collect()  # the traceback held cursors and locks: Spark's process would end
            connection.send(replace(answer, modules=_imported_after(known)))


def here() -> Seam:
    """Return the seam of the current process."""
    if _seam is None:
        raise RuntimeError("not in a process of the kit")
    return _seam


def rest(why: str) -> None:
    """Fall asleep in a call until `Process.resume`."""
    here().sleep(why)


def _imported_after(known: int) -> tuple[str, ...]:
    """Return the modules after the first `count`, without touching, and so copying, the others."""
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
    # Causes can form a ring.
    while (cause := causes[-1].__cause__) is not None and cause not in causes:
        causes.append(cause)
    kinds = frozenset(kind.__name__ for cause in causes for kind in type(cause).__mro__)
    text = f"{type(error).__name__}: {error}"
    return Answer("raised", error=text, kinds=kinds, trace=traceback.format_exc())


def _forget(error: BaseException, outer: BaseException | None) -> None:
    """Drop the exception that this process's parent was handling when it was forked."""
    while error.__context__ is not None:
        if error.__context__ is outer:
            error.__context__ = None
            return
        error = error.__context__
