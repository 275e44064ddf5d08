"""A server in a process of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Server", "expect_answer", "running"]

_PATIENCE_S = 600  # the machine may be busy


class Server:
    """A process that can be killed and comes back; it dies with this one.

    Args:
        command: Its program and arguments.
        folder: In which it runs and has its log.
        ready: Raises nothing when it can be asked.
    """

    def __init__(self, command: list[str], folder: Path, ready: Callable[[], object]) -> None:
        tool = shutil.which("setpriv")  # of util-linux
        keeper = [tool, "--pdeathsig", "KILL"] if tool else []
        self._command, self._folder, self._ready = [*keeper, *command], folder, ready
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it can be asked."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._await(self._process)

    def kill(self) -> None:
        """``kill -9``; nothing if it was never started."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def restart(self) -> None:
        """``kill -9``, and again; only for one that keeps on its disk what it has."""
        self.kill()
        self.start()

    @property
    def pid(self) -> int:
        """Of the process, which was started."""
        assert self._process is not None
        return self._process.pid

    def _await(self, process: subprocess.Popen[bytes]) -> None:
        until_s, log = time.monotonic() + _PATIENCE_S, self._folder / "log"
        while True:
            assert process.poll() is None, log.read_text()[-2000:]
            try:
                self._ready()
            except Exception:  # noqa: BLE001  whatever a client of it raises while it starts
                assert time.monotonic() < until_s, log.read_text()[-2000:]
                time.sleep(0.1)
            else:
                return


@contextmanager
def running(command: list[str], folder: Path, ready: Callable[[], object]) -> Iterator[Server]:
    """Start a server, yield when `ready` raises nothing, and kill it at the end."""
    server = Server(command, folder, ready)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def expect_answer(url: str) -> None:
    """Raise unless a server answers, whatever it says."""
    with contextlib.suppress(urllib.error.HTTPError):
        urllib.request.urlopen(url, timeout=5)
