"""A way to one real broker that offers fewer requests, or older versions of them, than it has.

It shows a client the metadata and the versions of another service. What the broker does with a
request is unchanged, so nothing here shows how another service keeps its guarantees.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from broker_proxy import BrokerProxy
from kafka.protocol.metadata import FindCoordinatorResponse, MetadataResponse
from kafka.protocol.metadata.api_versions import ApiVersionsResponse

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


class LimitedCluster(BrokerProxy):
    """Forwards to a port of loopback.

    Args:
        port: Of the broker.
        newest: The newest version of a request by its number; None for a request that is missing.
    """

    def __init__(self, port: int, newest: Mapping[int, int | None]) -> None:
        self._newest = newest
        super().__init__(port)

    def notice(self, key: int, version: int) -> bool:
        """Check that a client sends only what it was offered."""
        newest = self._newest.get(key, version)
        assert newest is not None, f"request {key}"
        assert version <= newest, f"request {key} of version {version}"
        return key in _CHANGED

    def change_response(self, message: bytes, key: int, version: int) -> bytes:
        """Name this way instead of the broker, and offer fewer requests."""
        response = _CHANGED[key].decode(message, version=version, header=True)
        if key == _METADATA:
            for broker in response.brokers:
                broker.port = self.port
        elif key == _COORDINATOR:
            for each in response.coordinators or [response]:
                each.port = self.port
        else:
            response.api_keys = [*self._limit(response.api_keys)]
        return bytes(response.encode(header=True))

    def _limit(self, offered: list[Any]) -> Iterator[Any]:
        for each in offered:
            newest = self._newest.get(each.api_key, each.max_version)
            if newest is not None:
                each.max_version = min(each.max_version, newest)
                yield each
