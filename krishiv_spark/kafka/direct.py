"""Asking a broker from the thread that waits for the answer.

kafka-python's thread sends and receives for all others. For a small message, to hand it over and
its answer back takes about as long as the broker does. So what is alone on its way and waited for
at once goes over a connection of its own: kafka-python opens it and logs in, and has no part in it
from then on. Whatever goes wrong there is the error of a connection that is lost, and the next
message goes by the thread again.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from krishiv_spark.kafka.internals import SEND_LATER, OpenConnection, receive

__all__ = ["DirectLine", "DirectLines"]

_AFTER = 8
"""So many messages to a broker, each waited for alone, are worth a connection for such ones."""

_REFUSED = -1000
"""Their count, where there is none to be had."""


class DirectLine:
    """One connection to a broker. Any thread may use it; one that finds it busy does without.

    Args:
        connection: Nothing is under way on it, and nobody else has it.

    Attributes:
        is_open: Whether it may be of use; only who has just looked knows whether it is.
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
        """Send a message, and wait for its answer.

        Args:
            request: A message of kafka-python's.
            within_s: How long the answer is awaited; None for ``request.timeout.ms``.

        Returns:
            The answer, or kafka-python's error in its place; None if nothing was sent, since the
            connection is in use, or is not what it was.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._answer(request, within_s) if self._is_ready() else None
        finally:
            if not self.is_open:
                self._socket.close()
            self._lock.release()

    def close(self) -> None:
        """Any thread: end it. Who waits for an answer is told that the connection is lost."""
        self.is_open = False
        # Of the socket below TLS. `SSLSocket.shutdown` takes the encryption away first, and what
        # another thread was about to send would leave in clear text.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        # Who uses it closes it afterwards: its number might be another file's by then.
        if self._lock.acquire(blocking=False):
            self._socket.close()
            self._lock.release()

    def _is_ready(self) -> bool:
        """Whether it can be used now; a broker that has hung up is noticed before that."""
        now_s = time.monotonic()
        too_old = now_s > min(
            self._used_s + self._connection.most_idle_s, self._connection.expires_s
        )
        if self.is_open and (too_old or not self._is_silent()):
            self.is_open = False
        # The broker reads nothing more from here until then (KIP-219).
        return self.is_open and now_s >= self._throttled_until_s

    def _is_silent(self) -> bool:
        """Whether nothing has come that nobody asked for; TLS has messages of its own."""
        try:
            if self._poll.poll(0):
                self._socket.recv(1)  # the end of the connection, or what belongs to no message
                return False
        except SEND_LATER:
            return True
        except OSError:
            return False
        return True

    def _answer(self, request: Any, within_s: float | None) -> Any:
        from kafka.errors import KafkaConnectionError, KafkaError

        limit_s = self._connection.request_timeout_s
        until_s = time.monotonic() + (limit_s if within_s is None else min(within_s, limit_s))
        # What is left half-way is of no use to the next one: also if the caller is interrupted.
        is_whole = False
        try:
            self._send(self._connection.encoded(request), until_s)
            found = self._received(until_s)
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
            except SEND_LATER:
                self._await(select.POLLOUT, until_s)

    def _received(self, until_s: float) -> Any:
        parser = self._connection.parser
        while True:
            data, error = receive(parser, self._socket)
            if error is not None:
                raise error
            if answers := parser.receive_bytes(data):
                return answers[0][1]
            self._await(select.POLLIN, until_s)

    def _await(self, what: int, until_s: float) -> None:
        """Wait until the socket is ready.

        Raises:
            KafkaTimeoutError: If it is not in time.
        """
        from kafka.errors import KafkaTimeoutError

        self._poll.modify(self._socket, what)
        left_s = until_s - time.monotonic()
        is_ready = left_s > 0 and self._poll.poll(1000 * left_s)
        if what != select.POLLIN:
            self._poll.modify(self._socket, select.POLLIN)
        if not is_ready:
            raise KafkaTimeoutError("no response in time")


class DirectLines:
    """Those of one process, by broker. Any thread may use it.

    Args:
        begin_to_open: Called with a broker that is asked often. What it leads to is told by `add`,
            later and in whichever thread.
    """

    def __init__(self, begin_to_open: Callable[[int], object]) -> None:
        self._begin_to_open = begin_to_open
        self._process = os.getpid()
        self._lines: dict[int, DirectLine] = {}
        self._asked: Counter[int] = Counter()
        self._opening: set[int] = set()
        self._is_closed = False

    def to(self, broker: int) -> DirectLine | None:
        """The connection to a broker that is to be asked something; None if there is none yet."""
        if os.getpid() != self._process:
            return None  # in a forked process it would be the other one's as well
        line = self._lines.get(broker)
        if line is not None and line.is_open:
            return line
        self._asked[broker] += 1
        is_worth_it = self._asked[broker] >= _AFTER and broker not in self._opening
        if is_worth_it and not self._is_closed:
            self._asked[broker] = 0
            self._opening.add(broker)
            self._begin_to_open(broker)
        return None

    def add(self, broker: int, connection: OpenConnection | None) -> None:
        """Take in what was opened; None if it could not be, which is not tried again for long."""
        self._opening.discard(broker)
        if connection is None:
            self._asked[broker] = _REFUSED
            return
        before = self._lines.get(broker)
        line = DirectLine(connection)
        self._lines[broker] = line
        if before is not None:
            before.close()
        if self._is_closed:
            line.close()

    def close(self) -> None:
        """End all of them, of this process."""
        self._is_closed = True
        if os.getpid() == self._process:
            for line in list(self._lines.values()):
                line.close()
