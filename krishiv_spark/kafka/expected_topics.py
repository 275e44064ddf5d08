"""Topics that must be there, and how long a response that lacks them is doubted.

A broker that has just started, or that lags behind, may answer without an error and know only a
part of the metadata, or the topic that had the name before. So one response alone never shows that
a topic or partition is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias, TypeVar

from krishiv_spark.kafka.fetches import usable_id
from krishiv_spark.kafka.topic_partition import Topic

__all__ = ["Expected", "ExpectedTopic", "are_confirmed", "look_again"]

_Found = TypeVar("_Found", bound=Mapping[str, Topic] | None)

_LOOKS, _PAUSE_S = 10, 0.2
"""Number of further requests, and the pause before each, when metadata lack an expected topic."""


class ExpectedTopic(NamedTuple):
    """A topic as an offset or an earlier response has it.

    Attributes:
        id: Its id; empty if it is not known.
        partitions: Partitions that it had.
    """

    id: str
    partitions: frozenset[int]

    @classmethod
    def of(cls, topic: Topic) -> ExpectedTopic:
        """Return what a response says of a topic."""
        return cls(usable_id(topic), frozenset(topic.leaders))

    def is_same(self, found: Topic) -> bool:
        """Return True if a topic certainly is this one, by its id."""
        return self.id != "" and usable_id(found) == self.id

    def is_other(self, found: Topic) -> bool:
        """Return True if a topic has another id: this one was deleted."""
        return "" not in (self.id, usable_id(found)) and not self.is_same(found)

    def is_confirmed_by(self, found: Topic | None) -> bool:
        """Return True if a response leaves no doubt that this topic is still whole.

        One with the same id is, whatever partitions the response has: Kafka never removes one.
        Without ids (before Kafka 2.8), all partitions must be there.
        """
        if found is None or self.is_other(found):
            return False
        return self.is_same(found) or self.partitions <= found.leaders.keys()


Expected: TypeAlias = Mapping[str, ExpectedTopic]
"""Expected topics by name."""


def are_confirmed(expected: Expected, found: Mapping[str, Topic]) -> bool:
    """Return True if a response leaves no doubt about any of these topics."""
    return all(each.is_confirmed_by(found.get(name)) for name, each in expected.items())


def look_again(look: Callable[[], _Found], expected: Expected) -> _Found:
    """Request metadata until a response confirms all of these topics, for two seconds at most.

    Args:
        look: Requests them; None if there is no response.
        expected: Topics that must be there.

    Returns:
        The last response.
    """
    found = look()
    for _ in range(_LOOKS):
        if found is None or are_confirmed(expected, found):
            break
        time.sleep(_PAUSE_S)
        found = look()
    return found
