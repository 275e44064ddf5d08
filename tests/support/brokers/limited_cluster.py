"""A way to one real broker that offers fewer requests, or older versions of them, than it has.

It shows a client the metadata and the versions of another service. What the broker does with a
request is unchanged, so nothing here shows how another service keeps its guarantees.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from kafka.protocol.metadata import FindCoordinatorResponse, MetadataResponse
from kafka.protocol.metadata.api_versions import ApiVersionsResponse
from typing_extensions import Self

__all__ = ["NO_IDS", "NO_LEADER_EPOCHS", "NO_TRANSACTIONS", "LimitedCluster"]

_METADATA = MetadataResponse.API_KEY
_COORDINATOR = FindCoordinatorResponse.API_KEY
_VERSIONS = ApiVersionsResponse.API_KEY
_CHANGED = {
    _METADATA: MetadataResponse,
    _COORDINATOR: FindCoordinatorResponse,
    _VERSIONS: ApiVersionsResponse,
}

NO_IDS = {3: 9, 1: 12}
"""By the number of a request its newest version: Metadata and Fetch before KIP-516."""
NO_LEADER_EPOCHS = {**NO_IDS, 23: None, 2: 3, 3: 6, 1: 8}
"""Without OffsetForLeaderEpoch and the epochs in Metadata, ListOffsets and Fetch (KIP-320)."""
NO_TRANSACTIONS = dict.fromkeys((24, 25, 26, 28, 65, 66))
"""Without the requests about transactions. InitProducerId remains, for idempotent producers."""


class LimitedCluster:
    """Forwards to a port of loopback.

    Args:
        port: Of the broker.
        newest: The newest version of a request by its number; None for a request that is missing.

    Attributes:
        bootstrap: For ``bootstrap.servers``.
    """

    def __init__(self, port: int, newest: Mapping[int, int | None]) -> None:
        self._broker, self._newest = port, newest
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self.bootstrap = f"127.0.0.1:{self._port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(("127.0.0.1", self._broker))
                asked: dict[int, tuple[int, int]] = {}
                for way in (self._ask, self._answer):
                    given = client, broker, asked
                    threading.Thread(target=way, args=given, daemon=True).start()

    def _ask(self, client: socket.socket, broker: socket.socket, asked: dict[int, Any]) -> None:
        with contextlib.suppress(OSError), broker:
            for message in _messages(client.makefile("rb")):
                key, version, number = struct.unpack_from(">hhi", message)
                newest = self._newest.get(key, version)
                assert newest is not None, f"request {key}"
                assert version <= newest, f"request {key} of version {version}"
                if key in _CHANGED:
                    asked[number] = key, version
                broker.sendall(_framed(message))

    def _answer(self, client: socket.socket, broker: socket.socket, asked: dict[int, Any]) -> None:
        with contextlib.suppress(OSError), client:
            for message in _messages(broker.makefile("rb")):
                (number,) = struct.unpack_from(">i", message)
                found = asked.pop(number, None)
                client.sendall(_framed(message if found is None else self._change(message, *found)))

    def _change(self, message: bytes, key: int, version: int) -> bytes:
        response = _CHANGED[key].decode(message, version=version, header=True)
        if key == _METADATA:
            for broker in response.brokers:
                broker.port = self._port
        elif key == _COORDINATOR:
            for each in response.coordinators or [response]:
                each.port = self._port
        else:
            response.api_keys = [*self._limit(response.api_keys)]
        return bytes(response.encode(header=True))

    def _limit(self, offered: list[Any]) -> Iterator[Any]:
        for each in offered:
            newest = self._newest.get(each.api_key, each.max_version)
            if newest is not None:
                each.max_version = min(each.max_version, newest)
                yield each


def _messages(incoming: BinaryIO) -> Iterator[bytes]:
    while len(size := incoming.read(4)) == 4:
        yield incoming.read(*struct.unpack(">i", size))


def _framed(message: bytes) -> bytes:
    return struct.pack(">i", len(message)) + message
