"""A Spark driver as a process of its own, that is heard, signalled and killed."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import IO

from typing_extensions import Self

__all__ = ["DriverProcess"]


class DriverProcess:
    """A driver in a process group of its own, with what it printed. It runs until `kill`.

    Args:
        command: The program and its arguments.
        environment: Its environment variables.
        order: What it reads from its standard input; one that ends before it has read all of it
            is heard of by `says`.
        errors: Where its standard error goes; None for among the lines.

    Raises:
        OSError: If it cannot be started.

    Attributes:
        lines: What it printed so far, a line each.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        order: bytes = b"",
        errors: IO[bytes] | None = None,
    ) -> None:
        self.lines: list[str] = []
        self._is_silent = False
        self._process = subprocess.Popen(  # noqa: S603  our own interpreter
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors or subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
        self._changed = threading.Condition()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._tell(order)

    def says(self, word: str, seconds: float) -> bool:
        """Await a line that begins with a word, among all lines since its start.

        Returns:
            False if it ends without such a line, or none comes in time.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._said(word) or self._is_silent, seconds)
            return self._said(word)

    def outlives(self, seconds: float) -> bool:
        """Let it live for a while; whether it still lives then."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def signal(self, number: int) -> None:
        """Send a signal to its process group: Python and the JVM, not Spark's workers."""
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """``kill -9`` of its process group; Spark's workers end a moment later by themselves."""
        if self._process.poll() is None:
            self.signal(signal.SIGKILL)
        self._process.wait()
        self._listener.join(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _said(self, word: str) -> bool:
        return any(line.startswith(word) for line in self.lines)

    def _tell(self, order: bytes) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError), self._process.stdin as stream:
                stream.write(order)

    def _listen(self) -> None:
        if self._process.stdout is not None:
            # A progress bar ends in "\r", which is the end of a line here.
            with io.TextIOWrapper(self._process.stdout, "utf-8", errors="replace") as stream:
                for line in stream:
                    self._hear(line.strip("\0").rstrip())
        with self._changed:
            self._is_silent = True
            self._changed.notify_all()

    def _hear(self, line: str) -> None:
        with self._changed:
            self.lines.append(line)
            self._changed.notify_all()
