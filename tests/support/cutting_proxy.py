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
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.cuts: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def cut(self, is_it: Callable[[bytes], bool], *faults: str) -> None:
        """What happens to the next requests of a kind, one fault for each.

        Args:
            is_it: Tells a request by what one read from the client's socket returned.
            faults: "lost request": the server never gets it. "lost answer": the server gets it
                and answers, but the client never hears of it. "cut": the server gets it, and
                the client is cut off at once. "silence": it gets it, and nothing is cut, but
                the client never hears of this or of what follows.
        """
        with self._lock:
            self._orders += [(is_it, fault) for fault in faults]

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
            server = socket.create_connection(("127.0.0.1", self._server))
            self._open |= {client, server}
            fate = _Fate()
            for way in (self._ask, self._answer):
                threading.Thread(target=way, args=(client, server, fate), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket, fate: _Fate) -> None:
        while data := _read(client):
            fault = self._fault(data)
            if fault == "lost request":
                break
            fate.fault = fault or fate.fault
            server.sendall(data)
            if fault == "cut":
                _end(client)
        self._close(client, server)

    def _answer(self, client: socket.socket, server: socket.socket, fate: _Fate) -> None:
        while data := _read(server):
            if fate.fault == "silence":
                continue
            if fate.fault:
                break
            client.sendall(data)
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


def _read(side: socket.socket) -> bytes:
    try:
        return side.recv(_SIZE)
    except OSError:
        return b""


def _end(side: socket.socket) -> None:
    with contextlib.suppress(OSError):
        side.shutdown(socket.SHUT_RDWR)
