"""kafka-python's connections to one cluster, and the thread that serves them."""

from __future__ import annotations

import contextlib
import os
import random
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from krishiv_spark.kafka.topic_partition import BrokerAddress

__all__ = ["LEAST_LOADED", "Network", "Node"]

Node: TypeAlias = int | str
"""A broker: its id, or the name of one more connection to it."""

LEAST_LOADED = -1
"""Whichever broker has least to do."""

_SILENCE_S = 2.0
"""After which one more broker is asked what any of them could answer."""

_FIRST_BOOTSTRAP_S = 4.0

_SHOWN = re.compile(r"^\[Error \d+\] |^KafkaConnectionError: |^(\w+): (?=\1: )")
"""What kafka-python has before the text of an error."""


class Network:
    """What a client sends its messages over. Any thread may use it.

    Args:
        values: Keyword arguments for kafka-python.

    Attributes:
        heard_s: When the last answer came, by the monotonic clock; at first, when this was made.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        from krishiv_spark.kafka.direct import DirectLines
        from krishiv_spark.kafka.internals import ConnectionManager, Selector

        self._process = os.getpid()
        self._net = Selector(client_id=values["client_id"])
        self._manager = ConnectionManager(self._net, **values)
        self._request_timeout_s: float = self._manager.config["request_timeout_ms"] / 1000
        self._net.start()
        self._thread = self._net.thread
        self._direct = DirectLines(lambda node: self._manager.call_soon(self._open_line, node))
        self.heard_s = time.monotonic()

    def bootstrap(self, timeout_s: float) -> None:
        """Reach one of the brokers that were named.

        kafka-python gives the one that it picks all the time there is. So it is asked to begin anew
        ever so often, to have another one picked if that one is silent.

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
                # The one that is picked next may need longer than that.
                slice_s *= 2
            else:
                return

    def troubles(self) -> dict[str, str]:
        """By address, why brokers could not be connected to when that was tried last."""
        found = dict(self._manager.troubles)
        return {address: _SHOWN.sub("", str(error)) for address, error in found.items()}

    def _is_hopeless(self) -> bool:
        found = self.troubles().values()
        return bool(found) and all("CERTIFICATE_VERIFY_FAILED" in text for text in found)

    def close(self) -> None:
        """End the thread and the connections; in a forked process, which has neither, nothing."""
        if os.getpid() != self._process:
            return
        if threading.current_thread() is self._thread:  # the garbage collector runs anywhere
            threading.Thread(target=self.close).start()
            return
        self._direct.close()
        with contextlib.suppress(Exception):  # whatever ended the thread before
            self._net.call_soon_threadsafe(self._manager.close)
        self._net.stop(timeout_ms=1000)
        self._net.close()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs, and has met nothing that ends it."""
        return self._thread.is_alive() and self._net.failure is None

    def submit(self, request: Any, node: Node) -> Any:
        """Send a message without waiting; kafka-python's future of the response."""
        return self._manager.call_soon(self._send, request, node)

    def wait(self, future: Any) -> Any:
        """Wait for the response of a future, or kafka-python's error, raised."""
        found = self._manager.run(_result, future)
        self.heard_s = time.monotonic()
        return found

    def ask(self, messages: Sequence[tuple[Node, Any]], within_s: float | None) -> list[Any]:
        """Send messages side by side; for each its response or kafka-python's error."""
        until_s = None if within_s is None else time.monotonic() + within_s
        silent = None
        if len(messages) == 1:
            ((node, body),) = messages
            answer, silent = self._ask_directly(node, body, within_s)
            if answer is not None:
                return [answer]
        found: list[Any] = self._manager.run(self._ask, messages, until_s, silent)
        return found

    def _ask_directly(
        self, node: Node, request: Any, within_s: float | None
    ) -> tuple[Any, int | None]:
        """Ask from here, if there is a connection for that.

        Returns:
            The answer, or kafka-python's error; None if the thread has to ask. And the broker that
            was asked in vain already, where any of them could answer.
        """
        from kafka.errors import KafkaError, KafkaTimeoutError

        begun_s, is_any, brokers = time.monotonic(), node == LEAST_LOADED, self.nodes()
        if is_any and brokers:
            node = random.choice(brokers)  # noqa: S311  no secret
            within_s = _SILENCE_S if within_s is None else min(within_s, _SILENCE_S)
        line = self._direct.to(node) if isinstance(node, int) and node in brokers else None
        answer = None if line is None else line.ask(request, within_s)
        # A link that drops what is idle has dropped the thread's connection as well, which would
        # find that out only when all of the time is up that there is.
        waited_s = time.monotonic() - begun_s
        if isinstance(answer, KafkaTimeoutError) and waited_s >= self._request_timeout_s:
            self._manager.call_soon(self._manager.give_up, node, begun_s)
        if isinstance(answer, KafkaError):
            return (None, node) if is_any and isinstance(node, int) else (answer, None)
        if answer is not None:
            self.heard_s = time.monotonic()
        return answer, None

    async def _open_line(self, node: int) -> None:
        """Thread: open a connection for messages that are waited for at once."""
        connection = None
        try:
            broker = self._manager.cluster.broker_metadata(node)
            if broker is not None:
                name = f"{node}@{broker.host}:{broker.port}/direct"
                said = _Named(name, broker.host, broker.port)
                added = self._manager.cluster.add_coordinator(said, 1, name)
                connection = await self._manager.take_out(added)
        finally:
            self._direct.add(node, connection)

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
        return [await self._answer(future, until_s) for future in futures]

    async def _answer(self, future: Any, until_s: float | None) -> Any:
        """What comes of a request; it goes on behind our back if time is up."""
        from kafka.errors import KafkaError

        left_ms = None if until_s is None else max(0.0, until_s - time.monotonic()) * 1000
        try:
            found = await self._manager.wait_for(future, left_ms)
        except KafkaError as error:
            return error
        self.heard_s = time.monotonic()
        return found

    async def _ask_least_loaded(self, request: Any, silent: int | None) -> Any:
        """Ask one broker, and others too while none of them answers; a silent one last."""
        from kafka.errors import KafkaTimeoutError
        from kafka.future import Future

        first = Future()
        for node in sorted(self._by_load(), key=lambda each: each == silent):
            _pass_on(self._send(request, node), first)
            with contextlib.suppress(KafkaTimeoutError):
                return await self._manager.wait_for(first, _SILENCE_S * 1000)
        return await first  # pyright: ignore[reportGeneralTypeIssues]  # stubs of version 2

    def _by_load(self) -> list[Node]:
        """The brokers, that which has least to do before the others."""
        least = self._manager.least_loaded_node()
        return [LEAST_LOADED if least is None else least, *(n for n in self.nodes() if n != least)]

    def _send(self, request: Any, node: Node) -> Any:
        from kafka.errors import KafkaError
        from kafka.future import Future

        try:
            return self._manager.send(request, None if node == LEAST_LOADED else node)
        except KafkaError as error:  # a broker that is not known any more
            return Future().failure(error)

    @property
    def cluster_id(self) -> str | None:
        """Of the cluster, once a broker has said it."""
        found: str | None = self._manager.cluster.cluster_id
        return found

    def nodes(self) -> list[int]:
        """The brokers of the cluster, as far as is known."""
        return [broker.node_id for broker in self._manager.cluster.brokers()]

    def learn(self, metadata: Any) -> None:
        """Take in the answer of a broker, which names all of them."""
        named = {(broker.node_id, broker.host, broker.port) for broker in metadata.brokers}
        known = {(each.node_id, each.host, each.port) for each in self._manager.cluster.brokers()}
        # Mostly it is nothing new; of topics, kafka-python is not asked.
        if self.cluster_id and named == known:
            return
        self._manager.run(_call, self._manager.cluster.update_metadata, metadata)

    def add_connection(self, name: str, broker: BrokerAddress) -> Node:
        """One more connection to a broker."""
        # To kafka-python a coordinator is a node of its own, with a connection of its own.
        said = _Named(name, broker.host, broker.port)
        found: Node = self._manager.run(_call, self._manager.cluster.add_coordinator, said, 1, name)
        return found


class _Named:
    """What kafka-python takes for the answer that names a coordinator."""

    error_code = 0

    def __init__(self, node_id: str, host: str, port: int) -> None:
        self.node_id, self.host, self.port = node_id, host, port


def _pass_on(future: Any, first: Any) -> None:
    """What comes of one request is what comes of all, if it is the first to be answered."""
    future.add_callback(lambda value: None if first.is_done else first.success(value))
    future.add_errback(lambda error: None if first.is_done else first.failure(error))


async def _result(future: Any) -> Any:
    return await future


async def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)
