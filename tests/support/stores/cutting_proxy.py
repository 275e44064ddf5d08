"""A way to a server that cuts connections as it is told: real sockets, no mock of either side."""

import contextlib
import socket
import threading
from collections.abc import Callable

from typing_extensions import Self

_SIZE = 65_536


class _Fate:
    """Of one connection."""

    fault: str | None = None


class CuttingProxy:
    """Forwards to a port of loopback; at some requests it does what it is told instead.

    Args:
        port: Of the server.

    Attributes:
        port: Of the proxy.
        cuts: What happened, in order.
    """

    def __init__(self, port: int) -> None:
        self._server = port
        self._orders: list[tuple[Callable[[bytes], bool], str]] = []
        self._watchers: list[tuple[Callable[[bytes], bool], Callable[[], None]]] = []
        self._ways = {"requests": threading.Event(), "answers": threading.Event()}
        self.release()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.cuts: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def cut(self, is_it: Callable[[bytes], bool], *faults: str) -> None:
        """Apply faults to the next requests of a kind, one fault to each.

        Args:
            is_it: Recognizes a request by the bytes of one read from the client's socket.
            faults: "lost request": the server never gets it. "lost answer": the server gets it and
                answers, but the client never gets the answer. "cut": the server gets it, and the
                client is cut off at once. "silence": the server gets it, and nothing is cut, but
                the client never gets an answer to this request or to later ones.
        """
        with self._lock:
            self._orders += [(is_it, fault) for fault in faults]

    def after(self, is_it: Callable[[bytes], bool], happening: Callable[[], None]) -> None:
        """Something happens as soon as the server has been sent the next request of a kind.

        Args:
            is_it: As in `cut`.
            happening: Called once, in a thread of the proxy.
        """
        with self._lock:
            self._watchers.append((is_it, happening))

    def hold(self, way: str) -> None:
        """Let nothing through in one direction until `release`; it is late then, not lost.

        Args:
            way: "requests" or "answers".
        """
        self._ways[way].clear()

    def release(self) -> None:
        """Let through what was held, and what follows."""
        for way in self._ways.values():
            way.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()

    def refuse(self) -> None:
        """Cut all connections, and refuse new ones from now on."""
        with contextlib.suppress(OSError):  # it is closed already
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        for each in [*self._open]:
            _end(each)

    def allow(self) -> None:
        """Take connections again, at the same port."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # refused from now on
                return
            server = self._connect()
            if server is None:
                self._close(client)
                continue
            self._open |= {client, server}
            fate = _Fate()
            for way in (self._ask, self._answer):
                threading.Thread(target=way, args=(client, server, fate), daemon=True).start()

    def _connect(self) -> socket.socket | None:
        """A connection to the server; None while it is down."""
        try:
            return socket.create_connection(("127.0.0.1", self._server))
        except OSError:
            return None

    def _ask(self, client: socket.socket, server: socket.socket, fate: _Fate) -> None:
        while data := _read(client):
            self._ways["requests"].wait()
            fault = self._fault(data)
            if fault == "lost request":
                break
            fate.fault = fault or fate.fault
            if not _sent(server, data):
                break
            self._tell_watchers(data)
            if fault == "cut":
                _end(client)
        self._close(client, server)

    def _answer(self, client: socket.socket, server: socket.socket, fate: _Fate) -> None:
        while data := _read(server):
            self._ways["answers"].wait()
            if fate.fault == "silence":
                continue
            if fate.fault or not _sent(client, data):
                break
        self._close(client, server)

    def _close(self, *sockets: socket.socket) -> None:
        for each in sockets:
            _end(each)
            self._open.discard(each)
            each.close()

    def _fault(self, data: bytes) -> str | None:
        with self._lock:
            for order in self._orders:
                if order[0](data):
                    self._orders.remove(order)
                    self.cuts.append(order[1])
                    return order[1]
        return None

    def _tell_watchers(self, data: bytes) -> None:
        with self._lock:
            told = [watcher for watcher in self._watchers if watcher[0](data)]
            self._watchers = [watcher for watcher in self._watchers if watcher not in told]
        for _, happening in told:
            happening()


def _sent(side: socket.socket, data: bytes) -> bool:
    """Return True if the other side still accepted the data."""
    try:
        side.sendall(data)
    except OSError:
        return False
    return True


def _read(side: socket.socket) -> bytes:
    try:
        return side.recv(_SIZE)
    except OSError:
        return b""


def _end(side: socket.socket) -> None:
    with contextlib.suppress(OSError):
        side.shutdown(socket.SHUT_RDWR)
