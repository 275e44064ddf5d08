"""Processes of their own, in which Spark's part is played; they fall asleep and are killed."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

from krishiv_spark.testing.processes.forks import Forks
from krishiv_spark.testing.processes.outside import Outside
from krishiv_spark.testing.processes.pickling import pickled
from krishiv_spark.testing.processes.serving import Answer
from krishiv_spark.testing.steps import Kill, Trap

__all__ = ["Pool", "Process"]

_PATIENCE_SECONDS = 120.0


class Process:
    """A process that runs one function at a time.

    What modules hold lives on in it from call to call, as in a worker of Spark's that is reused.

    Args:
        forks: Where it is forked.
    """

    def __init__(self, forks: Forks) -> None:
        self._forks = forks
        self._id, self._connection = forks.fork()

    def call(self, function: Callable[..., Any], *args: Any, trap: Trap | None = None) -> Answer:
        """Run a function, and wait until it has returned, raised, died or fallen asleep.

        Both may be anything that Spark could send: they travel by cloudpickle. The process gets
        this one's environment variables.
        """
        order = pickled((function, args, trap, dict(os.environ)))
        # It may be dead already, which `_answer` says.
        with contextlib.suppress(OSError):
            self._connection.send_bytes(order)
        if isinstance(trap, Kill) and not self._connection.poll(trap.after_ms / 1000):
            self._kill()
            return Answer("died", value=f" after {trap.after_ms:.1f} ms")
        return self._answer()

    def resume(self) -> Answer:
        """Wake the call that is asleep, and wait as `call` does."""
        self._connection.send_bytes(b"")
        return self._answer()

    def kill(self) -> None:
        """``kill -9``."""
        self._forks.end(self._id)
        self._connection.close()

    def _kill(self) -> None:
        # Only its parent can wait for it, and does in `kill`: until then nobody else gets its id.
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
    """Processes that are idle, for the next one who needs some. Forking is what costs most.

    Args:
        outside: What counts as a call to the outside in them.
    """

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._forks: Forks | None = None
        self._idle: list[Process] = []

    def take(self) -> Process:
        """An idle process, or a new one."""
        if self._idle:
            return self._idle.pop()
        self._forks = self._forks or Forks(self._outside)
        return Process(self._forks)

    def give(self, process: Process) -> None:
        """Give a process back that is alive and awake."""
        self._idle.append(process)

    def close(self) -> None:
        """End all processes that came from here."""
        self._idle.clear()
        if self._forks is not None:
            self._forks.close()
            self._forks = None
