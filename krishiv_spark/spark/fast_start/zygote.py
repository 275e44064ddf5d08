"""A process that imports the modules of Spark's Python processes, and forks itself for each.

It ends when a package that it has imported was replaced on the disk.
"""

from __future__ import annotations

import os
import runpy
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from krishiv_spark.spark.fast_start.preloading import prefer_installed, preload, preload_formats
from krishiv_spark.spark.fast_start.requests import (
    GREETING,
    Parent,
    Request,
    is_child_of,
    is_own,
    receive,
)

__all__ = ["Imported", "Zygote", "main"]

_OWN = "krishiv_spark"


class Imported:
    """The versions of packages on the disk at the time when they were imported.

    A fork imports further modules later. After an upgrade these would be of another version than
    those that it has. A process that Spark starts itself cannot mix versions, since it imports all
    at once.
    """

    def __init__(self) -> None:
        self._seen = {path: _version(path) for path in set(_paths())}

    def is_installed(self) -> bool:
        """Return True if all packages are unchanged.

        It makes some hundred calls of ``stat``, about 1 ms.
        """
        return all(_version(path) == seen for path, seen in self._seen.items())


def _paths() -> Iterator[str]:
    """Yield the folder of each package, and the files of this package, which may be a checkout.

    Installers remove a file and create a new one, which changes its folder.
    """
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and name.partition(".")[0] == _OWN:
            yield file
        elif file is not None and "." not in name and hasattr(module, "__path__"):
            yield os.path.dirname(file)


def _version(path: str) -> tuple[int, int] | None:
    """Return the time and the inode of a file; None if it was removed or is in an archive."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


_PATIENCE_S = 5.0
_WAITING = 128
_SIGNALLED = 128
"""Offset that shells add to the number of the signal that ended a process."""


class Zygote:
    """A server that forks processes for one JVM.

    Args:
        listener: The socket that launchers connect to.
        parent: The JVM; a zygote ends when the JVM does.

    Raises:
        OSError: If the JVM has ended, or another process has its process id.
    """

    _imported: Imported

    def __init__(self, listener: socket.socket, parent: Parent) -> None:
        # The kernel reports the process that called ``listen`` last as the peer. The launcher that
        # did so before ends.
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

    def serve(self, imports: Iterable[object] = ()) -> Request | None:
        """Fork for each request, with all imports that were made before.

        Args:
            imports: Makes further imports with each step; they are made while nothing is requested.

        Returns:
            In each fork, the request that it is to run; None in the zygote, when the JVM has ended.
        """
        self._imported = Imported()
        remaining, is_complete = iter(imports), False
        while not self._over:
            events = self._selector.select(None if is_complete else 0)
            if not events:
                is_complete = next(remaining, None) is None
                self._imported = Imported()
            for key, _ in events:
                # Another event of the same round may have closed it, and a closed socket cannot be
                # looked up.
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
        """Report the end of a process to its launcher; kill it if the launcher ends first."""
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
        """Release everything of the zygote in a fork except its imports."""
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
    """Fork; return -1 if the system refuses, so that the launcher starts the process itself."""
    try:
        return os.fork()
    except OSError:
        return -1


def main(folder: str, listener: str, *parent: str) -> None:
    """Run the zygote of a JVM, and in its forks the modules that Spark has requested."""
    jvm = Parent(*map(int, parent))
    try:
        zygote = Zygote(socket.socket(fileno=int(listener)), jvm)
    except (ProcessLookupError, FileNotFoundError):
        return  # the JVM has ended; the next zygote sweeps its socket
    prefer_installed()
    preload()
    _sweep(folder)
    request = zygote.serve(preload_formats())
    if request is None:
        with suppress(FileNotFoundError):  # a cleaner of temporary files has removed it
            os.unlink(os.path.join(folder, jvm.name))
    else:
        _become(request)


def _sweep(folder: str) -> None:
    """Remove the sockets of JVMs that were killed together with their zygotes."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return  # a cleaner of temporary files has removed it
    for name in names:
        with suppress(OSError, ValueError):
            # A socket that has not got its name yet has the launcher's process id after a dot.
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
    # An imported module of this name would not be ``__main__``, of which runpy warns.
    sys.modules.pop(request.module, None)
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
