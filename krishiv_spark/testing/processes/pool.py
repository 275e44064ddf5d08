"""Processes that play Spark's part: they are forked cheaply, fall asleep and are killed."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from krishiv_spark.testing.processes.outside import Outside
from krishiv_spark.testing.processes.pickling import pickled
from krishiv_spark.testing.processes.seam import Importers, Seam
from krishiv_spark.testing.processes.serving import Answer, serve
from krishiv_spark.testing.steps import Kill, Trap

__all__ = ["Forks", "Pool", "Process"]

_Order: TypeAlias = int | list[str]
"""The id of a process to end, or modules to import before one is forked."""

# A copy hangs forever if a thread held a lock when it was made.
_PATIENCE_SECONDS = 120.0

_ours: weakref.WeakSet[Any] = weakref.WeakSet()


class Forks:
    """A copy of this process, from which other processes are forked.

    All of them start with the state of this process's modules at the time of the copy.

    Args:
        outside: The functions that count as calls to the outside in them.
    """

    def __init__(self, outside: Outside) -> None:
        Importers.of(outside)
        context = multiprocessing.get_context("fork")
        self._orders, theirs = _pipe()
        self._copy = context.Process(target=_take_orders, args=(theirs, outside), daemon=True)
        with _allow_fork():
            self._copy.start()
        theirs.close()
        self._needed: list[str] = []

    def fork(self) -> tuple[int, Connection]:
        """Fork a process that serves calls; return its id and its connection."""
        ours, theirs = _pipe()
        self._orders.send(self._needed)
        reduction.send_handle(self._orders, theirs.fileno(), self._copy.pid)
        theirs.close()
        self._needed = []
        return self._answer(), ours

    def end(self, process: int) -> None:
        """Kill a process with ``kill -9``; return when its locks and files are released."""
        self._orders.send(process)
        self._answer()

    def need(self, modules: Iterable[str]) -> None:
        """Import the modules that a process had to import, so that the next fork has them."""
        self._needed += modules
        _import(modules)

    def close(self) -> None:
        """End the copy, and all processes that were forked from it."""
        self._orders.close()
        self._copy.join(_PATIENCE_SECONDS)
        self._copy.kill()  # in case it hangs; the processes forked from it end then

    def _answer(self) -> int:
        if not self._orders.poll(_PATIENCE_SECONDS):
            raise RuntimeError(f"no process could be forked or ended in {_PATIENCE_SECONDS:.0f} s")
        answer: int = self._orders.recv()
        return answer


def _take_orders(orders: Connection, outside: Outside) -> None:
    gc.freeze()  # a collection would touch, and so copy, all inherited pages
    for inherited in list(_ours):
        inherited.close()  # so that readers of it end with this process's parent
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
    with _allow_fork():
        process = os.fork()
    if process == 0:
        try:
            # Otherwise the test process would not notice that the copy has ended.
            orders.close()
            serve(calls, seam)
        finally:
            os._exit(0)
    calls.close()
    return process


def _end(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    # A killed process holds its locks until the system has removed it.
    os.waitpid(process, 0)


def _pipe() -> tuple[Connection, Connection]:
    ours, theirs = multiprocessing.get_context("fork").Pipe()
    _ours.add(ours)
    return ours, theirs  # pyright: ignore[reportReturnType]  # it assumes Windows


@contextlib.contextmanager
def _allow_fork() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, 3.12+
        yield


def _import(modules: Iterable[str]) -> None:
    for name in modules:
        with contextlib.suppress(Exception):
            import_module(name)


class Process:
    """A process that runs one function at a time.

    The state of its modules persists between calls, as in a reused worker of Spark.

    Args:
        forks: The copy from which it is forked.
    """

    def __init__(self, forks: Forks) -> None:
        self._forks = forks
        self._id, self._connection = forks.fork()

    def call(self, function: Callable[..., Any], *args: Any, trap: Trap | None = None) -> Answer:
        """Run a function, and wait until it has returned, raised, died or fallen asleep.

        Function and arguments may be anything that cloudpickle can send. The process gets
        this one's environment variables.
        """
        order = pickled((function, args, trap, dict(os.environ)))
        # It may be dead already; `_answer` reports that.
        with contextlib.suppress(OSError):
            self._connection.send_bytes(order)
        if isinstance(trap, Kill) and not self._connection.poll(trap.after_ms / 1000):
            self._kill()
            return Answer("died", value=f" after {trap.after_ms:.1f} ms")
        return self._answer()

    def resume(self) -> Answer:
        """Wake the sleeping call, and wait as `call` does."""
        self._connection.send_bytes(b"")
        return self._answer()

    def kill(self) -> None:
        """Kill the process with ``kill -9``."""
        self._forks.end(self._id)
        self._connection.close()

    def _kill(self) -> None:
        # Only its parent can wait for it, and does so in `kill`: until then no other process gets
        # its id.
        os.kill(self._id, signal.SIGKILL)

    def _answer(self) -> Answer:
        if not self._connection.poll(_PATIENCE_SECONDS):
            self._kill()
            return Answer("raised", error=f"it hung for {_PATIENCE_SECONDS:.0f} s and was killed")
        try:
            answer: Answer = self._connection.recv()
        except (EOFError, ConnectionError):
            return Answer("died", value="")
        self._forks.need(answer.modules)
        return answer


class Pool:
    """Idle processes for reuse, since a fork is the most expensive step.

    Args:
        outside: The functions that count as calls to the outside in them.
    """

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._forks: Forks | None = None
        self._idle: list[Process] = []

    def take(self) -> Process:
        """Return an idle process, or a new one."""
        if self._idle:
            return self._idle.pop()
        self._forks = self._forks or Forks(self._outside)
        return Process(self._forks)

    def give(self, process: Process) -> None:
        """Return a process to the pool that is alive and awake."""
        self._idle.append(process)

    def close(self) -> None:
        """End all processes of the pool."""
        self._idle.clear()
        if self._forks is not None:
            self._forks.close()
            self._forks = None
