"""Imports what Spark's Python processes need, and forks itself for each of them."""

from __future__ import annotations

import gc
import os
import runpy
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from krishiv_spark.spark.fast_start.imported import Imported
from krishiv_spark.spark.fast_start.preloading import prefer_installed, preload
from krishiv_spark.spark.fast_start.requests import (
    GREETING,
    Parent,
    Request,
    is_child_of,
    is_own,
    receive,
)

__all__ = ["Zygote", "main"]

_PATIENCE_S = 5.0
_WAITING = 128
_SIGNALLED = 128
"""Shells say so that a process was ended by a signal: this and its number."""


class Zygote:
    """Forks for one JVM.

    Args:
        listener: Where launchers connect.
        parent: The JVM; a zygote ends when it does.

    Raises:
        OSError: If the JVM has ended, or another process has its number.
    """

    _imported: Imported

    def __init__(self, listener: socket.socket, parent: Parent) -> None:
        # The kernel names to those who connect the process that listened last: this one lives on.
        listener.listen(_WAITING)
        self._jvm = parent
        self._selector = selectors.DefaultSelector()
        self._open: set[Any] = {listener}
        self._over = False
        descriptor = os.pidfd_open(parent.number)
        if Parent.at(parent.number) != parent:
            raise ProcessLookupError(f"process {parent.number} is another one by now")
        self._watch(descriptor, self._end)
        self._watch(listener, lambda: self._greet(listener))

    def serve(self) -> Request | None:
        """Fork for whoever asks, with what is imported by now.

        Returns:
            In each fork, what it is to do; in the zygote itself None, when the JVM has ended.
        """
        self._imported = Imported()
        while not self._over:
            for key, _ in self._selector.select():
                # Or another one's turn has closed it: a closed socket cannot be looked up.
                if key in self._selector.get_map().values():
                    request: Request | None = key.data()
                    if request is not None:
                        return request
        return None

    def _watch(self, what: Any, then: Callable[[], Request | None]) -> None:
        self._selector.register(what, selectors.EVENT_READ, then)

    def _end(self) -> None:
        self._over = True

    def _greet(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        if not (is_own(connection) and is_child_of(connection, self._jvm)):
            connection.close()
            return
        connection.settimeout(_PATIENCE_S)
        with suppress(OSError):
            connection.send(GREETING)
        self._open.add(connection)
        self._watch(connection, lambda: self._read(connection))

    def _read(self, connection: socket.socket) -> Request | None:
        try:
            request, streams = receive(connection)
        except (OSError, ValueError, TypeError, RecursionError):
            self._close(connection)
            return None
        fits = request.fits() and self._imported.is_installed()
        child = _fork() if fits else -1
        if child == 0:
            self._leave(streams)
            return request
        for each in streams:
            os.close(each)
        if child < 0:
            self._close(connection)
        else:
            self._follow(connection, child)
        return None

    def _follow(self, connection: socket.socket, child: int) -> None:
        """Tell a launcher when its process has ended; and end that when the launcher has."""
        descriptor = os.pidfd_open(child)
        with suppress(OSError):
            socket.send_fds(connection, [GREETING], [descriptor])
        self._selector.modify(
            connection,
            selectors.EVENT_READ,
            lambda: signal.pidfd_send_signal(descriptor, signal.SIGKILL),
        )
        self._watch(descriptor, lambda: self._reap(connection, child, descriptor))

    def _reap(self, connection: socket.socket, child: int, descriptor: int) -> None:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with suppress(OSError):
            connection.send(bytes([code if code >= 0 else _SIGNALLED - code]))
        self._selector.unregister(descriptor)
        os.close(descriptor)
        self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        self._open.discard(connection)
        connection.close()

    def _leave(self, streams: list[int]) -> None:
        """Fork: keep nothing of the zygote's but what it has imported."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, int):
                os.close(key.fileobj)
        for each in self._open:
            each.close()
        self._selector.close()
        for number, each in enumerate(streams):
            os.dup2(each, number)
            os.close(each)


def _fork() -> int:
    """As `os.fork`; -1 if the machine has no room for it, and a launcher has to see to it."""
    try:
        return os.fork()
    except OSError:
        return -1


def main(folder: str, listener: str, *parent: str) -> None:
    """Be the zygote of a JVM, and in its forks what Spark has asked for."""
    jvm = Parent(*map(int, parent))
    zygote = Zygote(socket.socket(fileno=int(listener)), jvm)
    prefer_installed()
    preload()
    gc.freeze()  # no collection of a fork copies what all of them share
    _sweep(folder)
    request = zygote.serve()
    if request is None:
        with suppress(FileNotFoundError):  # who cleans up temporary files was here
            os.unlink(os.path.join(folder, jvm.name))
    else:
        _become(request)


def _sweep(folder: str) -> None:
    """Remove sockets of JVMs that were killed together with their zygotes."""
    for name in os.listdir(folder):
        with suppress(OSError, ValueError):
            # One that its launcher has not named yet has the launcher's number after a point.
            jvm = Parent(*map(int, name.partition(".")[0].split("-")))
            if not jvm.is_elsewhere() and not jvm.is_alive():
                os.unlink(os.path.join(folder, name))


def _become(request: Request) -> None:
    os.setpgid(0, 0)  # no signal to a group reaches the zygote
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.path[0] = request.folder
    sys.argv = [request.module, *request.arguments]
    # One of its name that was imported would be another one than __main__: runpy warns of it.
    sys.modules.pop(request.module, None)
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
