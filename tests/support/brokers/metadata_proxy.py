"""A way to one broker on which responses to Metadata are changed: real sockets on both sides."""

import threading
from collections.abc import Callable
from typing import Any

from broker_proxy import BrokerProxy
from kafka.protocol.metadata import MetadataResponse

__all__ = ["MetadataProxy"]

_METADATA = MetadataResponse.API_KEY


class MetadataProxy(BrokerProxy):
    """Forwards to a port of loopback; brokers that a response names are reached through it too.

    Args:
        port: Of the broker.

    Attributes:
        requests: How many requests for metadata were forwarded.
        changed: How many responses were changed.
    """

    def __init__(self, port: int) -> None:
        self._changes: list[Callable[[Any], None]] = []
        self._lock = threading.Lock()
        self.requests = self.changed = 0
        super().__init__(port)

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

    def notice(self, key: int, version: int) -> bool:
        """Notice and count requests for metadata."""
        del version
        self.requests += key == _METADATA
        return key == _METADATA

    def change_response(self, message: bytes, key: int, version: int) -> bytes:
        """Name this way instead of the broker, and apply the next change."""
        del key
        response = MetadataResponse.decode(message, version=version, header=True)
        for broker in response.brokers:
            broker.port = self.port
        with self._lock:
            if self._changes and response.topics:
                self._changes.pop(0)(response)
                self.changed += 1
        return bytes(response.encode(header=True))
