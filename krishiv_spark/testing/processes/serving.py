"""What a process does that plays a part of Spark's: it runs one function after the other."""

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


def serve(connection: Connection, seam: Seam) -> None:
    """Take calls from a connection and answer each, until it is closed.

    Args:
        connection: Where `Process.call` sends.
        seam: Watches what counts as a call to the outside.
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
                gc.collect()  # cursors and locks that the traceback held: Spark's process would end
            connection.send(replace(answer, modules=_imported_after(known)))


def here() -> Seam:
    """The seam of the process that this runs in."""
    if _seam is None:
        raise RuntimeError("not in a process of the kit")
    return _seam


def rest(why: str) -> None:
    """Fall asleep in a call until `Process.resume`."""
    here().sleep(why)


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
