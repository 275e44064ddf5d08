"""A cluster whose brokers clients reach by links that can be cut; among brokers nothing is."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cutting_proxy import CuttingProxy
from kafka import KafkaAdminClient
from kafka_topics import LIMITS
from patience import await_none

from krishiv_spark.kafka.dev import Cluster
from krishiv_spark.kafka.dev.brokers import KAFKA_VERSION, Broker, Ports, format_storage
from krishiv_spark.kafka.dev.clusters import free_ports, new_cluster_id

STATE_TOPIC = "__transaction_state"


@dataclass(frozen=True)
class LinkedCluster(Cluster):
    """Brokers, and a link to each.

    Attributes:
        links: By order of the brokers.
    """

    links: Sequence[CuttingProxy] = ()

    @property
    def by_links(self) -> str:
        """For ``bootstrap.servers`` of clients that shall meet what happens to the links."""
        return ",".join(f"127.0.0.1:{link.port}" for link in self.links)

    def await_replicas(self, topics: Sequence[str]) -> None:
        """Wait until every broker is there, and has caught up with the leaders of some topics."""
        self.wait()
        await_none(lambda: self._behind(topics), "not in sync")

    def _behind(self, topics: Sequence[str]) -> list[object]:
        with closing(KafkaAdminClient(bootstrap_servers=self.bootstrap, **LIMITS)) as admin:
            found = admin.describe_topics([*topics])
        parts = [part for topic in found for part in topic["partitions"]]
        return [part for part in parts if len(part["isr_nodes"]) < len(self.brokers)]


@contextmanager
def open_linked(brokers: int, settings: Mapping[str, str]) -> Iterator[LinkedCluster]:
    """Bring up a cluster of our own on loopback, and end it."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory(prefix="krishiv-kafka-")))
        free = iter(free_ports(3 * brokers))
        ports = [Ports(next(free), next(free)) for _ in range(brokers)]
        outside = [*free]
        links = [stack.enter_context(CuttingProxy(port)) for port in outside]
        made = [
            Broker(
                i + 1, ports, home / str(i + 1), {**settings, **_listeners(ports[i], port, link)}
            )
            for i, (port, link) in enumerate(zip(outside, links, strict=True))
        ]
        format_storage(made, new_cluster_id())
        for broker in made:
            stack.callback(broker.kill)
            broker.start()
        bootstrap = ",".join(f"127.0.0.1:{own.clients}" for own in ports)
        origin = f"Kafka {KAFKA_VERSION} from its jars in {home}"
        cluster = LinkedCluster(bootstrap, origin, made, links=links)
        cluster.wait()
        yield cluster


def _listeners(own: Ports, port: int, link: CuttingProxy) -> dict[str, str]:
    inner = own.list_listeners()
    return {
        "listeners": ",".join([*inner.values(), f"LINK://127.0.0.1:{port}"]),
        "advertised.listeners": f"{inner['CLIENT']},LINK://127.0.0.1:{link.port}",
        "listener.security.protocol.map": ",".join(
            f"{name}:PLAINTEXT" for name in ("CLIENT", "CONTROLLER", "LINK")
        ),
    }
