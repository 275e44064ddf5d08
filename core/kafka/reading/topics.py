"""Which topics and partitions are read. Driver."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping

from krishiv_spark.errors import OptionError
from krishiv_spark.kafka.client import Client
from krishiv_spark.kafka.places import Place, Topic
from krishiv_spark.kafka.reading.options import KafkaSourceOptions

__all__ = ["Subscription"]

_SHARE_OF_TIME = 10
"""Topics are looked up again when that many times as long has passed as the look-up took."""

_LOOKS, _PAUSE_S = 10, 0.2
"""How often, and after which pause, a topic that is missing is looked up again."""


class Subscription:
    """The topics that the options name, looked up now and then.

    Args:
        options: The options.
    """

    def __init__(self, options: KafkaSourceOptions) -> None:
        self._options = options
        self._found: dict[str, Topic] = {}
        self._until_s = 0.0

    def topics(self, client: Client, known: Iterable[str]) -> dict[str, Topic]:
        """The topics that are there, by name.

        Args:
            client: The cluster.
            known: Topics that the query has read before. When one of them is missing, the cluster
                is asked a few times before that is believed.

        Raises:
            OptionError: If a topic or partition that is named in the options was never there.
            KafkaFailedError: If the cluster does not answer, or a topic may not be read.
        """
        if time.monotonic() >= self._until_s:
            began_s = time.monotonic()
            self._found = self._looked_up(client, {name for name in known if self.wants(name)})
            now_s = time.monotonic()
            self._until_s = now_s + _SHARE_OF_TIME * (now_s - began_s)
        return self._found

    def places(self, topics: Mapping[str, Topic]) -> list[Place]:
        """The partitions of these topics that are read."""
        found = [place for topic in topics.values() for place in topic.places]
        if self._options.assign is None:
            return found
        assigned = set(self._options.assign)
        return [place for place in found if place in assigned]

    def _looked_up(self, client: Client, known: set[str]) -> dict[str, Topic]:
        found = self._look(client)
        for _ in range(_LOOKS):
            if known <= found.keys():
                break
            time.sleep(_PAUSE_S)
            found = self._look(client)
        self._refuse_missing(found, known)
        return found

    def _look(self, client: Client) -> dict[str, Topic]:
        if self._options.subscribe_pattern is None:
            return client.topics(self._names())
        return {name: topic for name, topic in client.topics().items() if self.wants(name)}

    def _names(self) -> set[str]:
        assigned = self._options.assign or ()
        return {*(self._options.subscribe or ()), *(place.topic for place in assigned)}

    def wants(self, name: str) -> bool:
        """Whether the options ask for a topic of this name."""
        pattern = self._options.subscribe_pattern
        return name in self._names() if pattern is None else bool(re.fullmatch(pattern, name))

    def _refuse_missing(self, found: Mapping[str, Topic], known: set[str]) -> None:
        missing = sorted(self._names() - found.keys() - known)
        if missing:
            raise OptionError(
                f"{self._options.format_name}: topic {missing[0]!r} does not exist on "
                f"{self._options.kafka.bootstrap}: create it, or correct the option"
            )
        for topic, partition in self._options.assign or ():
            if topic in found and partition not in found[topic].leaders:
                raise OptionError(
                    f"{self._options.format_name}: option 'assign' names partition {partition} of "
                    f"topic {topic!r}, which has {len(found[topic].leaders)}"
                )
