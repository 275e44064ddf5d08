"""The only door to kafka-python's private parts.

Transport and messages use kafka-python's public names, and the classes of this module. They report
the state of its thread, end the bootstrap at a refused login, receive large responses without
copying them, send messages at once, and hand connections over (`ConnectionManager.take_out`).
``tests/unit/test_kafka_python.py`` names every private name in use.

kafka-python reads a socket 4 KiB at a time, and copies the bytes four times before it decodes a
message. For a response to Fetch, that takes three times as long as decoding its records. It asks
the selector before each message whether the socket has room, which it nearly always has; that takes
as long as a broker needs to answer a small message.
"""

# pyright: reportAttributeAccessIssue=false
# It carries stubs of kafka-python 2.

from __future__ import annotations

import contextlib
import json
import math
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast

from kafka import errors
from kafka.future import Future as KafkaFuture
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl import register_sasl_mechanism
from kafka.net.sasl.msk import AwsMskIamClient, SaslMechanismAwsMskIam
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.selector import NetworkSelector
from kafka.protocol.frame import KafkaBytes

from krishiv_spark.kafka.login_tokens import LoginTokenError, LoginTokens, Token
from krishiv_spark.kafka.msk_iam import find_region

__all__ = ["ConnectionManager", "OpenConnection", "Selector"]

# ruff: noqa: SLF001

_CHUNK = 2**16
_REFUSED = (errors.SaslAuthenticationFailedError, errors.UnsupportedSaslMechanismError)
_WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""Errors of a socket that has no room, or no bytes, at the moment."""

_TOKEN_WITHIN_MS = 30_000.0
_OPENED_WITHIN_MS = 10_000.0
_SHARE_OF_SESSION = 0.8
_SHORTEST_SESSION_S = 60.0


class Selector(NetworkSelector):  # type: ignore[misc]  # it has no types
    """A selector of kafka-python's that reports the state of its thread."""

    @property
    def thread(self) -> threading.Thread:
        """The thread, once it is started."""
        return cast("threading.Thread", self._io_thread)

    @property
    def failure(self) -> BaseException | None:
        """The error that has ended the thread, or will."""
        return cast("BaseException | None", self._exception)


class ConnectionManager(KafkaConnectionManager):  # type: ignore[misc]  # it has no types
    """A connection manager of kafka-python's that reads sockets in large pieces.

    Args:
        given: Arguments for kafka-python.
        tokens: The tokens of a login whose tokens have an end; None for another login.
        make_context: Makes the TLS settings of each connection; None if kafka-python makes them.
        more: Keyword arguments for kafka-python.

    Attributes:
        troubles: By address of a broker, the error of the newest attempt to connect, if it failed.
    """

    def __init__(
        self,
        *given: Any,
        tokens: LoginTokens | None = None,
        make_context: Callable[[], ssl.SSLContext] | None = None,
        **more: Any,
    ) -> None:
        if tokens is not None:
            more["sasl_oauth_token_provider"] = _TokenProvider(tokens)
        super().__init__(*given, **more)
        self._tokens = tokens
        self._make_context = make_context
        self.troubles: dict[str, Exception] = {}

    async def _connect(self, node: Any, conn: Any, *given: Any, **more: Any) -> None:
        """Connect; a refused login ends the bootstrap, as in Java's clients.

        kafka-python stores such an error to raise it at the next attempt, but the bootstrap does
        not check for it: it would log in repeatedly, until time is up or the account is locked.
        """
        if self._tokens is not None:
            # Each login of the connection, the first one and those of KIP-368, calls this.
            conn._sasl_authenticate = partial(self._log_in, self._tokens, conn._sasl_authenticate)
        await super()._connect(node, conn, *given, **more)
        error = conn.init_future.exception
        self.troubles.pop(f"{node.host}:{node.port}", None)
        if error is not None:
            self.troubles[f"{node.host}:{node.port}"] = error
        if isinstance(error, _REFUSED) and self.cluster.is_bootstrap(node.node_id):
            self._auth_failures[node.node_id] = error

    async def _log_in(
        self, tokens: LoginTokens, authenticate: Callable[..., Any], timeout_at: float | None = None
    ) -> None:
        """Log in with a token that does not expire soon.

        kafka-python asks for the token in its own thread, where waiting for another server would
        stop all connections. So another thread fetches it before the login starts.
        """
        try:
            await self._await_token(tokens.request())
        except LoginTokenError as error:
            raise errors.KafkaConnectionError(str(error)) from None
        try:
            await authenticate(timeout_at)
        except errors.SaslAuthenticationFailedError as error:
            if tokens.record_refusal():
                # A retriable error: the next attempt has another token.
                raise errors.KafkaConnectionError(str(error)) from None
            raise
        tokens.record_login()

    async def _await_token(self, fetch: Future[Token]) -> None:
        done = KafkaFuture()

        def report(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the client was closed in the meantime
                self._net.call_soon_threadsafe(lambda: done.success(None))

        fetch.add_done_callback(report)
        await self.wait_for(done, _TOKEN_WITHIN_MS)
        fetch.result(0)

    def add_node(self, name: str, host: str, port: int) -> Any:
        """Add one more connection to a broker, under a name; return kafka-python's node of it.

        To kafka-python a coordinator is a separate node, with a connection of its own.
        """
        return self.cluster.add_coordinator(_Named(name, host, port), 1, name)

    async def take_out(self, name: Any) -> OpenConnection | None:
        """Connect, log in, and hand the connection over; kafka-python does not use it afterwards.

        Args:
            name: Name of a node to which no other request is sent.

        Returns:
            None if it cannot be opened, or if the login expires soon (KIP-368).
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
        # Its task waits for the socket; without one, closing does not touch the socket.
        self._net.cancel(transport._read_task)
        transport._read_task = transport._sock = None
        connection.close()
        return found

    def give_up(self, node: Any, since_s: float) -> None:
        """Close the connection to a node if no bytes have arrived over it since a time.

        Args:
            node: A node that did not respond over another connection within the time-out.
            since_s: Time of that request, by the monotonic clock.
        """
        connection: Any = self._conns.get(node)
        if connection is None or connection.transport is None:
            return
        if connection.transport.last_read < since_s:
            connection.close(errors.RequestTimedOutError("no response over another connection"))

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        if self._make_context is not None:
            self.config["ssl_context"] = self._make_context()
        transport: Any = await super()._build_transport(node, timeout_at=timeout_at)
        transport._sock_recv = lambda: _receive(transport._protocol.parser, transport._sock)
        transport.write = partial(_write, transport, transport.write)
        return transport


class _TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # it has no types
    """The newest token of a login, and its extensions, as kafka-python asks for them."""

    def __init__(self, tokens: LoginTokens) -> None:
        super().__init__()
        self._tokens = tokens

    def token(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]  # it is abstract
        """Return the newest token, which `ConnectionManager` has just renewed if necessary."""
        return self._tokens.text

    def extensions(self) -> dict[str, str]:
        """Return the SASL extensions of the login."""
        return dict(self._tokens.login.extensions)


class _MskIam(SaslMechanismAwsMskIam):  # type: ignore[misc]  # it has no types
    """The mechanism of MSK with credentials that `ConnectionManager` has just renewed.

    kafka-python's own looks for credentials in the thread of the connections, and for the region
    in the environment only.
    """

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self._provider = config.get("sasl_oauth_token_provider")

    def _build_client(self) -> AwsMskIamClient:
        if not isinstance(self._provider, _TokenProvider):  # another user of kafka-python
            return super()._build_client()
        access_key, secret_key, token, default = json.loads(self._provider.token())
        region = find_region(self.host, default)
        if region is None:
            raise errors.KafkaConfigurationError(
                f"the region of {self.host} is not known: set AWS_DEFAULT_REGION"
            )
        return AwsMskIamClient(self.host, access_key, secret_key, region, token)


register_sasl_mechanism("AWS_MSK_IAM", _MskIam, overwrite=True)


class _Named:
    """A stand-in for the response that names a coordinator, as kafka-python takes it."""

    error_code = 0

    def __init__(self, node_id: str, host: str, port: int) -> None:
        self.node_id, self.host, self.port = node_id, host, port


@dataclass(frozen=True)
class OpenConnection:
    """A connection to a broker, logged in, with one owner.

    Attributes:
        socket: A non-blocking socket.
        parser: kafka-python's parser, which separates messages.
        versions: The versions of each message that the broker supports.
        request_timeout_s: Time limit for a response (``request.timeout.ms``).
        most_idle_s: Time without use after which the broker might close it.
        expires_s: End of the login, by the monotonic clock; a new one needs a new connection.
    """

    WOULD_BLOCK: ClassVar[tuple[type[OSError], ...]] = _WOULD_BLOCK
    """Errors of a socket that has no room, or no bytes, at the moment."""

    socket: Any
    parser: Any
    versions: Any
    request_timeout_s: float
    most_idle_s: float
    expires_s: float

    def encode(self, request: Any) -> bytes:
        """Return the bytes of a message, in the newest version that both sides support.

        The next message that `receive` returns must be its response.

        Raises:
            KafkaError: If there is no such version.
        """
        if request.API_VERSION is None:
            request.API_VERSION = self.versions.api_version(request)
        self.parser.send_request(request)
        return cast("bytes", self.parser.send_bytes())

    def receive(self) -> list[Any]:
        """Read the bytes that have arrived; return the responses that they complete.

        Raises:
            KafkaError: If the connection is closed or damaged.
        """
        data, error = _receive(self.parser, self.socket)
        if error is not None:
            raise error
        return [answer for _, answer in self.parser.receive_bytes(data)]


def _write(transport: Any, queue: Callable[[memoryview], None], data: bytes) -> None:
    """Send as much as the socket takes now; kafka-python sends the rest, or reports the error."""
    rest = memoryview(data)
    # Only if no other message waits: one that overtakes it would end up in its middle.
    if not transport._writing and not transport.is_closing():
        with contextlib.suppress(*_WOULD_BLOCK, OSError):
            rest = memoryview(data)[transport._sock.send(data) :]
            transport.last_write = time.monotonic()
    if rest:
        queue(rest)


class _Frame(KafkaBytes):  # type: ignore[misc]  # it has no types
    """A message that lends its bytes instead of copying them."""

    def read(self, nbytes: int | None = None) -> Any:
        """Return the next bytes, or all that are left."""
        if nbytes is not None:
            return super().read(nbytes)
        begin = self.tell()
        self.seek(len(self))
        return memoryview(self)[begin:]


def _receive(parser: Any, connection: Any) -> tuple[bytes, Exception | None]:
    """Read the bytes that have arrived; a large message goes into its frame but for its last byte.

    Args:
        parser: kafka-python's parser of this connection.
        connection: A non-blocking socket.

    Returns:
        The bytes for the parser, and the error of the connection.
    """
    try:
        _fill(parser, connection)
        data = _read_piece(connection)
    except _WOULD_BLOCK:
        return b"", None
    except Exception as error:  # noqa: BLE001  as kafka-python does: the connection is given up
        return b"", errors.KafkaConnectionError(error)
    return data, None


def _fill(parser: Any, connection: Any) -> None:
    """Receive a started message up to its last byte, at which the parser continues."""
    frame = parser._rbuffer
    while frame is not None and len(frame) - frame.tell() > _CHUNK:
        if not isinstance(frame, _Frame):
            frame = parser._rbuffer = _to_frame(frame)
        with memoryview(frame) as view, view[frame.tell() : -1] as room:
            frame.seek(frame.tell() + _require(connection.recv_into(room)))


def _to_frame(started: Any) -> _Frame:
    frame = _Frame(len(started))
    with memoryview(started) as view:
        frame.write(view[: started.tell()])
    return frame


def _read_piece(connection: Any) -> bytes:
    """Read one piece, and the bytes that TLS has buffered, which no selector reports."""
    pieces = [_require(connection.recv(_CHUNK))]
    while getattr(connection, "pending", int)():
        pieces.append(_require(connection.recv(_CHUNK)))
    return b"".join(pieces)


def _require(received: Any) -> Any:
    """Return the received bytes, or their number; none at all means a closed connection."""
    if not received:
        raise ConnectionError("socket disconnected")
    return received
