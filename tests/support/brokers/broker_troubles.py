"""Troubles of some brokers of a cluster, or of the links to them, for a limited time."""

import threading
from collections.abc import Collection
from typing import Literal, TypeAlias, get_args

from linked_brokers import LinkedCluster
from patience import PATIENCE

Harm: TypeAlias = Literal["kill", "pause", "cut", "hold requests", "hold answers"]
HARMS: tuple[Harm, ...] = get_args(Harm)

PRODUCE, END_TXN = 0, 26
"""Kinds of requests (``ApiKeys``)."""


class Trouble:
    """Some brokers are harmed, and all is well again some seconds later.

    Args:
        cluster: Of the brokers.
        nodes: Their ids.
        harm: "kill": -9, and they are started again. "pause": they stand still. "cut": clients lose
            their connections, and get no new ones. "hold requests", "hold answers": what goes in
            that direction between clients and the brokers arrives when it is over.
        seconds: How long it lasts; a broker that was killed takes some more to start.
    """

    def __init__(
        self, cluster: LinkedCluster, nodes: Collection[int], harm: Harm, seconds: float
    ) -> None:
        self._cluster, self._nodes, self._harm = cluster, nodes, harm
        self._seconds = seconds
        self._lock = threading.Lock()
        self._begun, self._over = threading.Event(), threading.Event()

    def begin(self) -> None:
        """Begin, unless it has begun."""
        with self._lock:
            if self._begun.is_set():
                return
            self._begun.set()
            for node in self._nodes:
                self._strike(node)
            threading.Timer(self._seconds, self._end).start()

    def begin_after(self, request: int) -> None:
        """Begin as soon as any broker has been sent a request of a kind."""
        for link in self._cluster.links:
            link.after(lambda data: data[4:6] == request.to_bytes(2, "big"), self.begin)

    def await_end(self) -> bool:
        """Wait until it is over, or see to it that it does not begin; whether it has begun."""
        with self._lock:
            has_begun = self._begun.is_set()
            self._begun.set()
        assert not has_begun or self._over.wait(PATIENCE), "nobody has ended it"
        return has_begun

    def _strike(self, node: int) -> None:
        broker, link = self._cluster.brokers[node - 1], self._cluster.links[node - 1]
        {
            "kill": broker.kill,
            "pause": broker.pause,
            "cut": link.refuse,
            "hold requests": lambda: link.hold("requests"),
            "hold answers": lambda: link.hold("answers"),
        }[self._harm]()

    def _end(self) -> None:
        try:
            for node in self._nodes:
                self._heal(node)
        finally:
            self._over.set()

    def _heal(self, node: int) -> None:
        broker, link = self._cluster.brokers[node - 1], self._cluster.links[node - 1]
        {
            "kill": broker.start,
            "pause": broker.resume,
            "cut": link.allow,
            "hold requests": link.release,
            "hold answers": link.release,
        }[self._harm]()
