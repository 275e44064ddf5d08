"""Where processes are forked: in a copy of this process that does nothing else.

After a fork, a page that either side touches is copied first. This process touches most of its
pages again and again, so each fork of it would cost it thousands of copies; one that sleeps, none.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import warnings
import weakref
from collections.abc import Iterable, Iterator
from importlib import import_module
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from krishiv_spark.testing.processes.functions import Importers
from krishiv_spark.testing.processes.outside import Outside
from krishiv_spark.testing.processes.seam import Seam
from krishiv_spark.testing.processes.serving import serve

__all__ = ["Forks"]

_Order: TypeAlias = int | list[str]
"""The id of a process that shall end, or modules to import before one is forked."""

# A copy hangs for good if a thread held a lock when it was made.
_PATIENCE_SECONDS = 120.0

_ours: weakref.WeakSet[Any] = weakref.WeakSet()


class Forks:
    """A copy of this process, from which others are forked.

    What modules of this process hold when the copy is made is what all of them begin with.

    Args:
        outside: What counts as a call to the outside in them.
    """

    def __init__(self, outside: Outside) -> None:
        Importers.of(outside)
        context = multiprocessing.get_context("fork")
        self._orders, theirs = _pipe()
        self._copy = context.Process(target=_take_orders, args=(theirs, outside), daemon=True)
        with _allowed_to_fork():
            self._copy.start()
        theirs.close()
        self._needed: list[str] = []

    def fork(self) -> tuple[int, Connection]:
        """A process that serves: its id, and where it takes calls."""
        ours, theirs = _pipe()
        self._orders.send(self._needed)
        reduction.send_handle(self._orders, theirs.fileno(), self._copy.pid)
        theirs.close()
        self._needed = []
        return self._answer(), ours

    def end(self, process: int) -> None:
        """``kill -9``; when this returns, the process is gone with all that it held."""
        self._orders.send(process)
        self._answer()

    def need(self, modules: Iterable[str]) -> None:
        """Import what a process had to import, so that the next one has it when it is forked."""
        self._needed += modules
        _import(modules)

    def close(self) -> None:
        """End the copy, and all processes that were forked from it."""
        self._orders.close()
        self._copy.join(_PATIENCE_SECONDS)
        self._copy.kill()  # should it hang; those that were forked from it end then

    def _answer(self) -> int:
        if not self._orders.poll(_PATIENCE_SECONDS):
            raise RuntimeError(f"no process could be forked or ended in {_PATIENCE_SECONDS:.0f} s")
        answer: int = self._orders.recv()
        return answer


def _take_orders(orders: Connection, outside: Outside) -> None:
    gc.freeze()  # a collection would touch, and so copy, all that is inherited
    for inherited in list(_ours):
        inherited.close()  # so that whoever reads there ends with this process' parent
    seam = Seam()
    seam.watch(outside)
    forked: set[int] = set()
    with contextlib.suppress(EOFError, ConnectionError, KeyboardInterrupt):
        while True:
            order: _Order = orders.recv()
            if isinstance(order, int):
                forked.remove(order)
                _end(order)
            else:
                _import(order)
                order = _fork(orders, seam)
                forked.add(order)
            orders.send(order)
    for process in forked:
        _end(process)


def _fork(orders: Connection, seam: Seam) -> int:
    calls = Connection(reduction.recv_handle(orders))
    with _allowed_to_fork():
        process = os.fork()
    if process == 0:
        try:
            # Or the test process would not notice that the copy has ended.
            orders.close()
            serve(calls, seam)
        finally:
            os._exit(0)
    calls.close()
    return process


def _end(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    # A process that was killed holds its locks until it is gone.
    os.waitpid(process, 0)


def _pipe() -> tuple[Connection, Connection]:
    ours, theirs = multiprocessing.get_context("fork").Pipe()
    _ours.add(ours)
    return ours, theirs  # pyright: ignore[reportReturnType]  # it thinks of that of Windows


@contextlib.contextmanager
def _allowed_to_fork() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, 3.12+
        yield


def _import(modules: Iterable[str]) -> None:
    for name in modules:
        with contextlib.suppress(Exception):
            import_module(name)
