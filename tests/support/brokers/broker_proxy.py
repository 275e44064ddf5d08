"""A way to one real broker on which some responses are changed: real sockets on both sides."""

import contextlib
import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import BinaryIO

from typing_extensions import Self

__all__ = ["BrokerProxy"]


class BrokerProxy(ABC):
    """Forwards to a port of loopback.

    Args:
        port: Of the broker.

    Attributes:
        port: Port that clients connect to.
        bootstrap: For ``bootstrap.servers``.
    """

    def __init__(self, port: int) -> None:
        self._broker = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.bootstrap = f"127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    @abstractmethod
    def notice(self, key: int, version: int) -> bool:
        """Return True if the response to a request is to be changed."""

    @abstractmethod
    def change_response(self, message: bytes, key: int, version: int) -> bytes:
        """Return a changed response.

        Args:
            message: The response with its header.
            key: The number of the request.
            version: The version of the request.
        """

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(("127.0.0.1", self._broker))
                noticed: dict[int, tuple[int, int]] = {}
                for way in (self._ask, self._answer):
                    given = client, broker, noticed
                    threading.Thread(target=way, args=given, daemon=True).start()

    def _ask(
        self, client: socket.socket, broker: socket.socket, noticed: dict[int, tuple[int, int]]
    ) -> None:
        with contextlib.suppress(OSError), broker:
            for message in _messages(client.makefile("rb")):
                key, version, number = struct.unpack_from(">hhi", message)
                if self.notice(key, version):
                    noticed[number] = key, version
                broker.sendall(_framed(message))

    def _answer(
        self, client: socket.socket, broker: socket.socket, noticed: dict[int, tuple[int, int]]
    ) -> None:
        with contextlib.suppress(OSError), client:
            for message in _messages(broker.makefile("rb")):
                (number,) = struct.unpack_from(">i", message)
                found = noticed.pop(number, None)
                changed = message if found is None else self.change_response(message, *found)
                client.sendall(_framed(changed))


def _messages(incoming: BinaryIO) -> Iterator[bytes]:
    while len(size := incoming.read(4)) == 4:
        yield incoming.read(*struct.unpack(">i", size))


def _framed(message: bytes) -> bytes:
    return struct.pack(">i", len(message)) + message
