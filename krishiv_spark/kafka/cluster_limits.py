"""The limits of clusters that are older than Kafka 3.0, or are another service with its protocol.

A broker lists the requests that it answers, with their versions (ApiVersions). A cluster may lack
topic ids, leader epochs or transactions; source and sink then do less, with a warning, or refuse.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from krishiv_spark.runtime.once import warn_once

__all__ = ["ClusterFeatures", "explain_unsupported", "warn_of_limits"]

_log = logging.getLogger(__name__)

_NO_TRANSACTIONS = (
    "set 'delivery' = 'at-least-once', or write to a cluster with the transactions of Kafka 3.0"
)
_REMEDIES = {
    "ListOffsets": "the newest timestamp of a partition needs Kafka 3.0: leave out 'eventTime'",
    "OffsetCommit": "leave out 'groupId'",
    "OffsetFetch": "leave out 'groupId'",
    "FindCoordinator": "it needs Kafka 3.0: leave out 'groupId' of a source, and set 'delivery' = "
    "'at-least-once' of a sink",
    "InitProducerId": "the sink needs idempotent producers, which this cluster does not have",
    "Produce": "the sink needs the record format of Kafka 0.11",
    "Fetch": "the source needs the record format of Kafka 0.11",
    **dict.fromkeys(
        ("AddPartitionsToTxn", "DescribeTransactions", "EndTxn", "ListTransactions"),
        _NO_TRANSACTIONS,
    ),
}
"""By the name of a request: what to do if a cluster does not have it, or an older version only."""

_FOR_TRANSACTIONS = {
    10: ("FindCoordinator", 4),
    22: ("InitProducerId", 3),
    24: ("AddPartitionsToTxn", 0),
    26: ("EndTxn", 0),
    65: ("DescribeTransactions", 0),
    66: ("ListTransactions", 0),
}
"""By number: requests without which no epoch can be decided, and the version that they need."""
_EPOCH_ENDS = 23

_RECREATED = "a topic that is deleted and created again under its name is"
_ELECTED = "records that a partition loses by an unclean election are"


@dataclass(frozen=True)
class ClusterFeatures:
    """The features of a cluster, as one of its brokers lists them.

    Attributes:
        levels: The level of each feature that the cluster has agreed on (KIP-584).
        newest: By number the newest version of each request.
    """

    levels: Mapping[str, int] = field(default_factory=dict)
    newest: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def from_response(cls, response: Any) -> ClusterFeatures:
        """Return the features in a response to ApiVersions, of any version."""
        levels = getattr(response, "finalized_features", None) or []
        return cls(
            {each.name: int(each.max_version_level) for each in levels},
            {int(each.api_key): int(each.max_version) for each in response.api_keys},
        )

    @property
    def has_epoch_ends(self) -> bool:
        """True if brokers report the ends of leader epochs (KIP-320)."""
        return _EPOCH_ENDS in self.newest

    def find_missing_transactions(self) -> list[str]:
        """Return the names of requests that exactly-once writing needs and the cluster lacks."""
        needed = _FOR_TRANSACTIONS.items()
        return [name for number, (name, least) in needed if self.newest.get(number, -1) < least]


def explain_unsupported(error: object) -> str:
    """Return the remedy if an error states that a broker does not have a request; "" otherwise."""
    from kafka.errors import IncompatibleBrokerVersion

    if not isinstance(error, IncompatibleBrokerVersion):
        return ""
    text = str(error)
    return next((hint for name, hint in _REMEDIES.items() if f"'{name}Request'" in text), "")


def warn_of_limits(bootstrap: str, ids: Iterable[str], epochs: Iterable[int]) -> None:
    """Log once what a source cannot notice, since the cluster lacks topic ids or leader epochs.

    Args:
        bootstrap: The brokers to contact first, for the message.
        ids: The usable id of each topic of the query.
        epochs: The leader epoch of each partition; -1 if a broker does not know it.
    """
    ids_found, epochs_found = [bool(each) for each in ids], [each >= 0 for each in epochs]
    for what, found, loss in (
        ("topic ids (Kafka 2.8 and newer have them)", ids_found, _RECREATED),
        ("leader epochs (Kafka 2.1 and newer have them)", epochs_found, _ELECTED),
    ):
        if found and not any(found):
            text = (
                "Kafka at %s has no %s: %s noticed only while there are fewer records than before"
            )
            warn_once(_log, (bootstrap, what), text, bootstrap, what, loss)
