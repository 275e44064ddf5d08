"""What is used of kafka-python besides its public names. Here, and nowhere else, they are touched.

Its thread says whether it lives; large answers are received right into their place, and messages
are sent at once. ``tests/unit/test_kafka_python.py`` names all that is relied on.

kafka-python reads a socket 4 KiB at a time, and copies what it has read four times before a message
is decoded. For what a Fetch brings, that takes three times as long as to decode its records. And it
asks the selector before each message whether there is room for it, which there nearly always is;
that takes as long as a broker needs to answer a small one.
"""

# pyright: reportAttributeAccessIssue=false
# It carries stubs of kafka-python 2.

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from kafka import errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.frame import KafkaBytes

__all__ = ["ConnectionManager", "Selector"]

# ruff: noqa: SLF001

_CHUNK = 2**16
_REFUSED = (errors.SaslAuthenticationFailedError, errors.UnsupportedSaslMechanismError)
_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Selector(NetworkSelector):  # type: ignore[misc]  # it has no types
    """kafka-python's, which says what became of its thread."""

    @property
    def thread(self) -> threading.Thread:
        """The thread, once it was started."""
        return cast("threading.Thread", self._io_thread)

    @property
    def failure(self) -> BaseException | None:
        """What has ended the thread, or will."""
        return cast("BaseException | None", self._exception)


class ConnectionManager(KafkaConnectionManager):  # type: ignore[misc]  # it has no types
    """kafka-python's, over sockets that are read in large pieces.

    Attributes:
        troubles: By address of a broker, why it could not be connected to when that was tried last.
    """

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.troubles: dict[str, Exception] = {}

    async def _connect(self, node: Any, conn: Any, *given: Any, **more: Any) -> None:
        """Connect; a login that is refused ends the bootstrap, as in Java's clients.

        kafka-python keeps such an error to raise it at the next try, but looks for it where it does
        not come by: it would log in again and again, until time is up or the account is locked.
        """
        await super()._connect(node, conn, *given, **more)
        error = conn.init_future.exception
        self.troubles.pop(f"{node.host}:{node.port}", None)
        if error is not None:
            self.troubles[f"{node.host}:{node.port}"] = error
        if isinstance(error, _REFUSED) and self.cluster.is_bootstrap(node.node_id):
            self._auth_failures[node.node_id] = error

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        transport = await super()._build_transport(node, timeout_at=timeout_at)
        transport._sock_recv = partial(_receive, transport)
        transport.write = partial(_write, transport, transport.write)
        return transport


def _write(transport: Any, queue: Callable[[memoryview], None], data: bytes) -> None:
    """Send what the socket takes now; kafka-python's own way sends the rest, or tells the error."""
    rest = memoryview(data)
    # What waits already goes first: a message that overtakes it would end up in its middle.
    if not transport._writing and not transport.is_closing():
        with contextlib.suppress(*_LATER, OSError):
            rest = memoryview(data)[transport._sock.send(data) :]
            transport.last_write = time.monotonic()
    if rest:
        queue(rest)


class _Frame(KafkaBytes):  # type: ignore[misc]  # it has no types
    """A message that lends its bytes instead of copying them."""

    def read(self, nbytes: int | None = None) -> Any:
        """The next bytes, or all that are left."""
        if nbytes is not None:
            return super().read(nbytes)
        begin = self.tell()
        self.seek(len(self))
        return memoryview(self)[begin:]


def _receive(transport: Any) -> tuple[bytes, Exception | None]:
    """What has come; a large message goes right to its place, but for its last byte.

    Returns:
        What kafka-python still has to look at, and what is wrong with the connection.
    """
    parser, connection = transport._protocol.parser, transport._sock
    try:
        _fill(parser, connection)
        data = _piece(connection)
    except _LATER:
        return b"", None
    except Exception as error:  # noqa: BLE001  as kafka-python does: the connection is given up
        return b"", errors.KafkaConnectionError(error)
    return data, None


def _fill(parser: Any, connection: Any) -> None:
    """Receive a message that has begun, up to its last byte, which lets the parser go on."""
    frame = parser._rbuffer
    while frame is not None and len(frame) - frame.tell() > _CHUNK:
        if not isinstance(frame, _Frame):
            frame = parser._rbuffer = _larger(frame)
        with memoryview(frame) as view, view[frame.tell() : -1] as room:
            frame.seek(frame.tell() + _some(connection.recv_into(room)))


def _larger(begun: Any) -> _Frame:
    frame = _Frame(len(begun))
    with memoryview(begun) as view:
        frame.write(view[: begun.tell()])
    return frame


def _piece(connection: Any) -> bytes:
    """A piece; TLS may hold more in its own buffer, of which a selector knows nothing."""
    pieces = [_some(connection.recv(_CHUNK))]
    while getattr(connection, "pending", int)():
        pieces.append(_some(connection.recv(_CHUNK)))
    return b"".join(pieces)


def _some(received: Any) -> Any:
    """What was received, or its size, unless it is nothing: then the other side has hung up."""
    if not received:
        raise ConnectionError("socket disconnected")
    return received
