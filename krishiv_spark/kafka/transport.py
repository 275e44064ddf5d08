"""The transport of a client: kafka-python's connections to a cluster, and the thread serving them.

kafka-python's thread sends and receives for all others. For a small message, handing it over and
its response back takes about as long as the broker does. So a message that is sent alone and waited
for at once uses a connection that the waiting thread serves itself (`BlockingConnection`):
kafka-python opens it and logs in, and does not use it afterwards. Any fault of such a connection is
reported as a lost connection, and the next message uses kafka-python's thread.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import select
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from krishiv_spark.kafka.topic_partition import BrokerAddress

if TYPE_CHECKING:
    from krishiv_spark.kafka._kafka_python import OpenConnection
    from krishiv_spark.kafka.login_tokens import LoginTokens

__all__ = ["LEAST_LOADED", "BlockingConnection", "BlockingConnections", "Node", "Transport"]

Node: TypeAlias = int | str
"""A broker: its id, or the name of one more connection to it."""

LEAST_LOADED = -1
"""The broker that has the least to do."""

_SILENCE_S = 2.0
"""Time without a response after which another broker is asked too, if any of them could answer."""

_FIRST_BOOTSTRAP_S = 4.0

_PREFIX = re.compile(r"^\[Error \d+\] |^KafkaConnectionError: |^(\w+): (?=\1: )")
"""Parts that kafka-python adds before the text of an error."""

_OPEN_AFTER = 8
"""Messages to a broker, each waited for alone, that justify a connection for such messages."""

_REFUSED = -1000
"""Initial count for a broker to which no such connection could be opened."""


class Transport:
    """The connections of one client. Any thread may use it.

    Args:
        values: Keyword arguments for kafka-python.
        tokens: The tokens of a login whose tokens have an end; None for another login.
        make_context: Makes the TLS settings of each connection; None if kafka-python makes them.

    Attributes:
        heard_s: Time of the newest response, by the monotonic clock; initially that of creation.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        tokens: LoginTokens | None = None,
        make_context: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        from krishiv_spark.kafka._kafka_python import ConnectionManager, Selector

        self._process = os.getpid()
        self._net = Selector(client_id=values["client_id"])
        self._manager = ConnectionManager(
            self._net, tokens=tokens, make_context=make_context, **values
        )
        self._request_timeout_s: float = self._manager.config["request_timeout_ms"] / 1000
        self._net.start()
        self._thread = self._net.thread
        self._blocking = BlockingConnections(
            lambda node: self._manager.call_soon(self._open_blocking, node)
        )
        self.heard_s = time.monotonic()

    def bootstrap(self, timeout_s: float) -> None:
        """Reach one of the brokers that the settings name.

        kafka-python gives the broker that it picks all of the time. So it is asked to start again
        after some seconds, and picks another broker if the first one does not respond.

        Raises:
            KafkaError: If none answers in time, the login is refused, or every one has a
                certificate that is not trusted.
        """
        from kafka.errors import KafkaTimeoutError

        until_s, slice_s = time.monotonic() + timeout_s, _FIRST_BOOTSTRAP_S
        while True:
            left_s = until_s - time.monotonic()
            try:
                self._manager.bootstrap(min(slice_s, left_s) * 1000)
            except KafkaTimeoutError:
                if left_s <= slice_s or self._is_hopeless():
                    raise
                # The next broker may need longer than that.
                slice_s *= 2
            else:
                return

    def troubles(self) -> dict[str, str]:
        """Return, by address, why the newest attempts to connect to brokers failed."""
        found = dict(self._manager.troubles)
        return {address: _PREFIX.sub("", str(error)) for address, error in found.items()}

    def _is_hopeless(self) -> bool:
        found = self.troubles().values()
        return bool(found) and all("CERTIFICATE_VERIFY_FAILED" in text for text in found)

    def close(self) -> None:
        """End the thread and the connections; do nothing in a forked process, which has neither."""
        if os.getpid() != self._process:
            return
        if threading.current_thread() is self._thread:  # the garbage collector runs anywhere
            threading.Thread(target=self.close).start()
            return
        self._blocking.close()
        with contextlib.suppress(Exception):  # an error may have ended the thread before
            self._net.call_soon_threadsafe(self._manager.close)
        self._net.stop(timeout_ms=1000)
        self._net.close()

    @property
    def is_alive(self) -> bool:
        """Return True if the thread runs, and met no error that ends it."""
        return self._thread.is_alive() and self._net.failure is None

    # --- messages

    def submit(self, request: Any, node: Node) -> Any:
        """Send a message without waiting; return kafka-python's future of the response."""
        return self._manager.call_soon(self._send, request, node)

    def wait(self, future: Any) -> Any:
        """Wait for the response of a future, or kafka-python's error, raised."""
        found = self._manager.run(_await_result, future)
        self.heard_s = time.monotonic()
        return found

    def ask(self, messages: Sequence[tuple[Node, Any]], within_s: float | None) -> list[Any]:
        """Send messages side by side; return for each its response or kafka-python's error."""
        until_s = None if within_s is None else time.monotonic() + within_s
        silent = None
        if len(messages) == 1:
            ((node, body),) = messages
            answer, silent = self._ask_blocking(node, body, within_s)
            if answer is not None:
                return [answer]
        found: list[Any] = self._manager.run(self._ask, messages, until_s, silent)
        return found

    def _ask_blocking(
        self, node: Node, request: Any, within_s: float | None
    ) -> tuple[Any, int | None]:
        """Ask from this thread, if there is a connection for that.

        Returns:
            The response, or kafka-python's error; None if kafka-python's thread has to ask. And the
            broker that did not respond, for a request that any broker could answer.
        """
        from kafka.errors import KafkaError, KafkaTimeoutError

        start_s, is_any, brokers = time.monotonic(), node == LEAST_LOADED, self.list_nodes()
        if is_any and brokers:
            node = random.choice(brokers)  # noqa: S311  no secret
            within_s = _SILENCE_S if within_s is None else min(within_s, _SILENCE_S)
        connection = self._blocking.get(node) if isinstance(node, int) and node in brokers else None
        answer = None if connection is None else connection.ask(request, within_s)
        # A link that drops idle connections has dropped the thread's connection as well, which
        # would find that out only after the whole time-out.
        waited_s = time.monotonic() - start_s
        if isinstance(answer, KafkaTimeoutError) and waited_s >= self._request_timeout_s:
            self._manager.call_soon(self._manager.give_up, node, start_s)
        if isinstance(answer, KafkaError):
            return (None, node) if is_any and isinstance(node, int) else (answer, None)
        if answer is not None:
            self.heard_s = time.monotonic()
        return answer, None

    async def _open_blocking(self, node: int) -> None:
        """Open a connection for `BlockingConnection`. Runs in kafka-python's thread."""
        connection = None
        try:
            broker = self._manager.cluster.broker_metadata(node)
            if broker is not None:
                name = f"{node}@{broker.host}:{broker.port}/direct"
                connection = await self._manager.take_out(
                    self._manager.add_node(name, broker.host, broker.port)
                )
        finally:
            self._blocking.add(node, connection)

    async def _ask(
        self,
        messages: Sequence[tuple[Node, Any]],
        until_s: float | None,
        silent: int | None,
    ) -> list[Any]:
        futures = [
            self._manager.call_soon(self._ask_least_loaded, body, silent)
            if node == LEAST_LOADED
            else self._send(body, node)
            for node, body in messages
        ]
        return [await self._await_response(future, until_s) for future in futures]

    async def _await_response(self, future: Any, until_s: float | None) -> Any:
        """Return the response or the error of a request, which goes on if time is up."""
        from kafka.errors import KafkaError

        left_ms = None if until_s is None else max(0.0, until_s - time.monotonic()) * 1000
        try:
            found = await self._manager.wait_for(future, left_ms)
        except KafkaError as error:
            return error
        self.heard_s = time.monotonic()
        return found

    async def _ask_least_loaded(self, request: Any, silent: int | None) -> Any:
        """Ask one broker, and others too while none of them responds; a silent one last."""
        from kafka.errors import KafkaTimeoutError
        from kafka.future import Future

        first = Future()
        for node in sorted(self._list_by_load(), key=lambda each: each == silent):
            _copy_result(self._send(request, node), first)
            with contextlib.suppress(KafkaTimeoutError):
                return await self._manager.wait_for(first, _SILENCE_S * 1000)
        return await first  # pyright: ignore[reportGeneralTypeIssues]  # stubs of version 2

    def _list_by_load(self) -> list[Node]:
        """Return the brokers; first the one that has the least to do."""
        least = self._manager.least_loaded_node()
        others = (node for node in self.list_nodes() if node != least)
        return [LEAST_LOADED if least is None else least, *others]

    def _send(self, request: Any, node: Node) -> Any:
        from kafka.errors import KafkaError
        from kafka.future import Future

        try:
            return self._manager.send(request, None if node == LEAST_LOADED else node)
        except KafkaError as error:  # kafka-python does not know the broker any more
            return Future().failure(error)

    # --- brokers

    @property
    def cluster_id(self) -> str | None:
        """The cluster's id, once a broker has reported it."""
        found: str | None = self._manager.cluster.cluster_id
        return found

    def list_nodes(self) -> list[int]:
        """Return the known ids of the cluster's brokers."""
        return [broker.node_id for broker in self._manager.cluster.brokers()]

    def update_brokers(self, metadata: Any) -> None:
        """Take the addresses of all brokers from a response to Metadata."""
        named = {(broker.node_id, broker.host, broker.port) for broker in metadata.brokers}
        known = {(each.node_id, each.host, each.port) for each in self._manager.cluster.brokers()}
        # Mostly nothing has changed; kafka-python's own knowledge of topics is not used.
        if self.cluster_id and named == known:
            return
        self._manager.run(_call, self._manager.cluster.update_metadata, metadata)

    def add_connection(self, name: str, broker: BrokerAddress) -> Node:
        """Add one more connection to a broker, and return its node."""
        found: Node = self._manager.run(
            _call, self._manager.add_node, name, broker.host, broker.port
        )
        return found


def _copy_result(future: Any, first: Any) -> None:
    """Let the result of one request be that of all of them, if it arrives first."""
    future.add_callback(lambda value: None if first.is_done else first.success(value))
    future.add_errback(lambda error: None if first.is_done else first.failure(error))


async def _await_result(future: Any) -> Any:
    return await future


async def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


# --- connections that the waiting thread serves itself


class BlockingConnection:
    """A connection that the thread waiting for the response serves itself.

    Any thread may use it; a thread that finds it busy does without.

    Args:
        connection: An open connection on which no request is in flight. The new object owns it.

    Attributes:
        is_open: False if it cannot be used any more. True is only a hint: the broker may have
            closed it in the meantime.
    """

    def __init__(self, connection: OpenConnection) -> None:
        self._connection = connection
        self._socket = connection.socket
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._used_s = time.monotonic()
        self._throttled_until_s = 0.0
        self.is_open = True

    def ask(self, request: Any, within_s: float | None) -> Any:
        """Send a message, and wait for its response.

        Args:
            request: A message of kafka-python's.
            within_s: Time limit for the response; None for ``request.timeout.ms``.

        Returns:
            The response, or kafka-python's error in its place; None if nothing was sent, because
            the connection is busy, throttled or closed.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._exchange(request, within_s) if self._is_ready() else None
        finally:
            if not self.is_open:
                self._socket.close()
            self._lock.release()

    def close(self) -> None:
        """End it, from any thread. A thread that waits for a response gets a connection error."""
        self.is_open = False
        # Of the socket below TLS. `SSLSocket.shutdown` removes the encryption first, and would send
        # in clear text what another thread was about to send.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        # A thread that uses it closes it afterwards: its number might be another file's by then.
        if self._lock.acquire(blocking=False):
            self._socket.close()
            self._lock.release()

    def _is_ready(self) -> bool:
        """Return True if it can be used now; notices a broker that has closed it."""
        now_s = time.monotonic()
        too_old = now_s > min(
            self._used_s + self._connection.most_idle_s, self._connection.expires_s
        )
        if self.is_open and (too_old or not self._is_silent()):
            self.is_open = False
        # Until then the broker reads nothing more from here (KIP-219).
        return self.is_open and now_s >= self._throttled_until_s

    def _is_silent(self) -> bool:
        """Return True if no unexpected bytes have arrived; TLS has messages of its own."""
        try:
            if self._poll.poll(0):
                self._socket.recv(1)  # the end of the connection, or a part of no message
                return False
        except self._connection.WOULD_BLOCK:
            return True
        except OSError:
            return False
        return True

    def _exchange(self, request: Any, within_s: float | None) -> Any:
        from kafka.errors import KafkaConnectionError, KafkaError

        limit_s = self._connection.request_timeout_s
        until_s = time.monotonic() + (limit_s if within_s is None else min(within_s, limit_s))
        # After a half-finished exchange the connection is useless: also if the caller is
        # interrupted.
        is_whole = False
        try:
            self._send(self._connection.encode(request), until_s)
            found = self._receive(until_s)
            is_whole = True
        except KafkaError as error:
            return error
        except (OSError, ValueError) as error:
            return KafkaConnectionError(error)
        finally:
            self.is_open = self.is_open and is_whole
        self._used_s = time.monotonic()
        self._throttled_until_s = self._used_s + getattr(found, "throttle_time_ms", 0) / 1000
        return found

    def _send(self, data: bytes, until_s: float) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except ssl.SSLWantReadError:
                self._await(select.POLLIN, until_s)
            except self._connection.WOULD_BLOCK:
                self._await(select.POLLOUT, until_s)

    def _receive(self, until_s: float) -> Any:
        while not (answers := self._connection.receive()):
            self._await(select.POLLIN, until_s)
        return answers[0]

    def _await(self, event: int, until_s: float) -> None:
        """Wait until the socket is ready.

        Raises:
            KafkaTimeoutError: If it is not in time.
        """
        from kafka.errors import KafkaTimeoutError

        self._poll.modify(self._socket, event)
        left_s = until_s - time.monotonic()
        is_ready = left_s > 0 and self._poll.poll(1000 * left_s)
        if event != select.POLLIN:
            self._poll.modify(self._socket, select.POLLIN)
        if not is_ready:
            raise KafkaTimeoutError("no response in time")


class BlockingConnections:
    """The blocking connections of one process, by broker. Any thread may use it.

    Args:
        start_opening: Called with a broker that is asked often. The result is passed to `add`,
            later and in any thread.
    """

    def __init__(self, start_opening: Callable[[int], object]) -> None:
        self._start_opening = start_opening
        self._process = os.getpid()
        self._connections: dict[int, BlockingConnection] = {}
        self._asked: Counter[int] = Counter()
        self._opening: set[int] = set()
        self._is_closed = False

    def get(self, broker: int) -> BlockingConnection | None:
        """Return the connection for a message to a broker; None if there is none yet."""
        if os.getpid() != self._process:
            return None  # a forked process would share it with its parent
        connection = self._connections.get(broker)
        if connection is not None and connection.is_open:
            return connection
        self._asked[broker] += 1
        is_worth_it = self._asked[broker] >= _OPEN_AFTER and broker not in self._opening
        if is_worth_it and not self._is_closed:
            self._asked[broker] = 0
            self._opening.add(broker)
            self._start_opening(broker)
        return None

    def add(self, broker: int, opened: OpenConnection | None) -> None:
        """Add an open connection; None if it could not be opened: the next try is far away."""
        self._opening.discard(broker)
        if opened is None:
            self._asked[broker] = _REFUSED
            return
        before = self._connections.get(broker)
        connection = BlockingConnection(opened)
        self._connections[broker] = connection
        if before is not None:
            before.close()
        if self._is_closed:
            connection.close()

    def close(self) -> None:
        """End all of them, of this process."""
        self._is_closed = True
        if os.getpid() == self._process:
            for connection in list(self._connections.values()):
                connection.close()
