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
import math
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from kafka import errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.frame import KafkaBytes

__all__ = ["SEND_LATER", "ConnectionManager", "OpenConnection", "Selector", "receive"]

# ruff: noqa: SLF001

_CHUNK = 2**16
_REFUSED = (errors.SaslAuthenticationFailedError, errors.UnsupportedSaslMechanismError)
SEND_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""What a socket says that has no room, or nothing to read, now."""

_OPENED_WITHIN_MS = 10_000.0
_SHARE_OF_SESSION = 0.8
_SHORTEST_SESSION_S = 60.0


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

    async def take_out(self, name: Any) -> OpenConnection | None:
        """Connect and log in, and have no part in the connection from then on.

        Args:
            name: Of a node that nobody else sends to.

        Returns:
            None if it cannot be had, or if the login is not for long (KIP-368).
        """
        connection = None
        try:
            connection = self.get_connection(name)
            await self.wait_for(connection.init_future, _OPENED_WITHIN_MS)
        except errors.KafkaError:
            if connection is not None:
                connection.close()
            return None
        transport: Any = connection.transport
        session_s = connection._reauth.session_lifetime_ms / 1000
        if transport is None or 0 < session_s < _SHORTEST_SESSION_S:
            connection.close()
            return None
        found = OpenConnection(
            socket=transport._sock,
            parser=connection.parser,
            versions=connection.broker_version_data,
            request_timeout_s=self.config["request_timeout_ms"] / 1000,
            most_idle_s=self.config["connections_max_idle_ms"] / 1000,
            expires_s=time.monotonic() + _SHARE_OF_SESSION * session_s if session_s else math.inf,
        )
        # Its task waits for the socket; with that gone, closing leaves the socket as it is.
        self._net.cancel(transport._read_task)
        transport._read_task = transport._sock = None
        connection.close()
        return found

    def give_up(self, node: Any, since_s: float) -> None:
        """Close the connection to a node, if nothing has come over it since a moment.

        Args:
            node: One that has not answered over another connection for as long as that may take.
            since_s: When it was asked, by the monotonic clock.
        """
        connection: Any = self._conns.get(node)
        if connection is None or connection.transport is None:
            return
        if connection.transport.last_read < since_s:
            connection.close(errors.RequestTimedOutError("no response over another connection"))

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        transport: Any = await super()._build_transport(node, timeout_at=timeout_at)
        transport._sock_recv = lambda: receive(transport._protocol.parser, transport._sock)
        transport.write = partial(_write, transport, transport.write)
        return transport


@dataclass(frozen=True)
class OpenConnection:
    """A connection to a broker, whose login is done. Whoever has it is the only one.

    Attributes:
        socket: It does not block.
        parser: kafka-python's, which tells one message from the next.
        versions: Of each message that the broker knows.
        request_timeout_s: How long an answer may take (``request.timeout.ms``).
        most_idle_s: How long it may lie unused before the broker might hang up.
        expires_s: When the login ends, by the monotonic clock; a new one needs a new connection.
    """

    socket: Any
    parser: Any
    versions: Any
    request_timeout_s: float
    most_idle_s: float
    expires_s: float

    def encoded(self, request: Any) -> bytes:
        """The bytes of a message, in the version that was agreed on; its answer comes next.

        Raises:
            KafkaError: If there is none that both know.
        """
        if request.API_VERSION is None:
            request.API_VERSION = self.versions.api_version(request)
        self.parser.send_request(request)
        return cast("bytes", self.parser.send_bytes())


def _write(transport: Any, queue: Callable[[memoryview], None], data: bytes) -> None:
    """Send what the socket takes now; kafka-python's own way sends the rest, or tells the error."""
    rest = memoryview(data)
    # What waits already goes first: a message that overtakes it would end up in its middle.
    if not transport._writing and not transport.is_closing():
        with contextlib.suppress(*SEND_LATER, OSError):
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


def receive(parser: Any, connection: Any) -> tuple[bytes, Exception | None]:
    """What has come; a large message goes right to its place, but for its last byte.

    Args:
        parser: kafka-python's, of this connection.
        connection: A socket that does not block.

    Returns:
        What the parser still has to look at, and what is wrong with the connection.
    """
    try:
        _fill(parser, connection)
        data = _piece(connection)
    except SEND_LATER:
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
