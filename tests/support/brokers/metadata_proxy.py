"""A way to one broker on which responses to Metadata are changed: real sockets on both sides."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from kafka.protocol.metadata import MetadataResponse
from typing_extensions import Self

__all__ = ["MetadataProxy"]

_METADATA = MetadataResponse.API_KEY


class MetadataProxy:
    """Forwards to a port of loopback; brokers that a response names are reached through it too.

    Args:
        port: Of the broker.

    Attributes:
        bootstrap: For ``bootstrap.servers``.
        requests: How many requests for metadata were forwarded.
        changed: How many responses were changed.
    """

    def __init__(self, port: int) -> None:
        self._broker = port
        self._changes: list[Callable[[Any], None]] = []
        self._lock = threading.Lock()
        self.requests = self.changed = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self.bootstrap = f"127.0.0.1:{self._port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def change(self, topic: str, change: Callable[[Any], None], times: int = 1) -> None:
        """Change a topic in the next responses that contain it.

        Args:
            topic: Its name.
            change: Called with the topic of the response, as kafka-python has it.
            times: In how many responses.
        """

        def changed(response: Any) -> None:
            found = [each for each in response.topics if each.name == topic and not each.error_code]
            for each in found:
                change(each)

        with self._lock:
            self._changes += [changed] * times

    def omit(self, topic: str, *kept: int, times: int = 1) -> None:
        """Let the next responses contain only these partitions of a topic."""

        def without(found: Any) -> None:
            found.partitions = [each for each in found.partitions if each.partition_index in kept]

        self.change(topic, without, times)

    @property
    def is_done(self) -> bool:
        """Return True if every response that was to be changed was sent."""
        return not self._changes

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(("127.0.0.1", self._broker))
                versions: dict[int, int] = {}
                for way in (self._ask, self._answer):
                    given = client, broker, versions
                    threading.Thread(target=way, args=given, daemon=True).start()

    def _ask(self, client: socket.socket, broker: socket.socket, versions: dict[int, int]) -> None:
        with contextlib.suppress(OSError), broker:
            for message in _messages(client.makefile("rb")):
                key, version, number = struct.unpack_from(">hhi", message)
                if key == _METADATA:
                    versions[number] = version
                    self.requests += 1
                broker.sendall(_framed(message))

    def _answer(
        self, client: socket.socket, broker: socket.socket, versions: dict[int, int]
    ) -> None:
        with contextlib.suppress(OSError), client:
            for message in _messages(broker.makefile("rb")):
                (number,) = struct.unpack_from(">i", message)
                version = versions.pop(number, None)
                answer = message if version is None else self._changed(message, version)
                client.sendall(_framed(answer))

    def _changed(self, message: bytes, version: int) -> bytes:
        response = MetadataResponse.decode(message, version=version, header=True)
        for broker in response.brokers:
            broker.port = self._port
        with self._lock:
            if self._changes and response.topics:
                self._changes.pop(0)(response)
                self.changed += 1
        return bytes(response.encode(header=True))


def _messages(incoming: BinaryIO) -> Iterator[bytes]:
    while len(size := incoming.read(4)) == 4:
        yield incoming.read(*struct.unpack(">i", size))


def _framed(message: bytes) -> bytes:
    return struct.pack(">i", len(message)) + message
