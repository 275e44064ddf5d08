"""A broker from Kafka's jars: a process that can be killed and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from krishiv_spark.kafka.dev.maven import Jar, bring, is_brought, java, run_java
from krishiv_spark.kafka.dev.secure import write_secret

__all__ = ["KAFKA_VERSION", "Broker", "Ports", "format_storage", "has_kafka_jars", "kafka_jars"]

KAFKA_VERSION = "4.3.1"
_FOLDER = "kafka-{}"

_KEEPER = """
exec 3<&0
"$@" >"$LOG" 2>&1 3<&- & broker=$!
echo $broker
{ cat <&3 >/dev/null; kill -9 $broker; } & watcher=$!
wait $broker
kill $watcher
"""
"""A shell that ends the broker when its own input ends, so also when its parent is killed."""


@dataclass(frozen=True)
class Ports:
    """The ports of a broker on loopback.

    Attributes:
        clients: Port for clients and other brokers.
        controllers: Port for the quorum of controllers.
        secure: Port for clients with TLS and SASL; 0 for none.
    """

    clients: int
    controllers: int
    secure: int = 0

    def list_listeners(self) -> dict[str, str]:
        """Return the addresses by the listener's name."""
        known = {"CLIENT": self.clients, "CONTROLLER": self.controllers, "SECURE": self.secure}
        return {name: f"{name}://127.0.0.1:{port}" for name, port in known.items() if port}


class Broker:
    """A broker that is a controller too (KRaft, ``process.roles=broker,controller``).

    Attributes:
        number: Node id, from 1.
        version: Version of Kafka, such as "4.3.0".
        pid: Process id of the newest process.

    Args:
        number: Node id, from 1.
        ports: Ports of each broker of the cluster, in the order of the node ids.
        folder: A separate folder for data, properties and log.
        settings: Other server properties, which override those set here.
        version: Version of Kafka, such as "4.3.0"; its jars are downloaded once.
    """

    def __init__(
        self,
        number: int,
        ports: Sequence[Ports],
        folder: Path,
        settings: Mapping[str, str],
        version: str = KAFKA_VERSION,
    ) -> None:
        self.number = number
        self.version = version
        self.folder = folder
        self.properties = folder / "server.properties"
        folder.mkdir(mode=0o700, parents=True)
        known = {**_properties(number, ports, folder), **settings}
        text = "".join(f"{key}={value}\n" for key, value in known.items())
        write_secret(self.properties, text)  # a password may be among them
        self.pid = 0
        self._keeper: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process, which is ready some seconds later."""
        program = _kafka(self.version, "kafka.Kafka", str(self.properties))
        self._keeper = subprocess.Popen(  # noqa: S603  Java, with Kafka's jars
            ["/bin/sh", "-c", _KEEPER, "keeper", java(), *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # the shell's message about the killed process
            text=True,
            env={**os.environ, "LOG": str(self.folder / "server.log")},
            start_new_session=True,
        )
        self.pid = int(self._keeper.stdout.readline()) if self._keeper.stdout else 0

    def pause(self) -> None:
        """Stop the process until `resume` (SIGSTOP)."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the process (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def is_alive(self) -> bool:
        """Return True if the process runs."""
        return self._keeper is not None and self._keeper.poll() is None

    def kill(self) -> None:
        """Kill the process, if it runs (SIGKILL). A later fork may keep its input open."""
        if self._keeper is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._keeper.communicate()
            self._keeper = None

    def read_log_end(self) -> str:
        """Return the end of the log."""
        log = self.folder / "server.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return "\n".join(lines[-20:])


def format_storage(brokers: Sequence[Broker], cluster: str, *more: str) -> None:
    """Create the storage of a new cluster (``kafka-storage.sh format``).

    Args:
        brokers: All of its brokers.
        cluster: Its new id.
        more: Other arguments, the same for each broker.

    Raises:
        KrishivError: If the properties are refused, with the reason.
    """
    for broker in brokers:
        given = ("format", "-t", cluster, "-c", str(broker.properties), *more)
        failure = f"Kafka refuses {broker.properties}"
        tool = _kafka(broker.version, "kafka.tools.StorageTool", *given)
        run_java(*tool, failure=failure)


def kafka_jars(version: str = KAFKA_VERSION) -> Path:
    """Return the folder with a broker's jars; the first call downloads 44 MB from Maven Central.

    Args:
        version: Of Kafka's release, such as "4.3.0".

    Raises:
        KrishivError: If they cannot be had.
    """
    broker = Jar("org.apache.kafka", "kafka_2.13", version)
    return bring(_FOLDER.format(version), [broker], transitive=True)


def has_kafka_jars(version: str = KAFKA_VERSION) -> bool:
    """Return True if `kafka_jars` downloads nothing."""
    return is_brought(_FOLDER.format(version))


def _kafka(version: str, main: str, *args: str) -> list[str]:
    # For a short life: a small heap, one thread that collects, the quick compiler.
    heap = ("-Xms128m", "-Xmx1536m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    return [*heap, "-cp", f"{kafka_jars(version)}/*", main, *args]


def _properties(number: int, ports: Sequence[Ports], folder: Path) -> dict[str, str]:
    own, copies = ports[number - 1], str(min(3, len(ports)))
    voters = (f"{i}@127.0.0.1:{other.controllers}" for i, other in enumerate(ports, 1))
    return {
        "process.roles": "broker,controller",
        "node.id": str(number),
        "controller.quorum.voters": ",".join(voters),
        "controller.listener.names": "CONTROLLER",
        "listeners": ",".join(own.list_listeners().values()),
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
        "inter.broker.listener.name": "CLIENT",
        "log.dirs": str(folder / "data"),
        "log.retention.ms": "-1",  # records of years ago would be gone in half a minute
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": copies,
        # A majority: one of three may be killed.
        "transaction.state.log.min.isr": str((len(ports) + 1) // 2),
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": copies,
        # By default a new group waits for more members, for three seconds.
        "group.initial.rebalance.delay.ms": "0",
        "broker.session.timeout.ms": "3000",  # after kill -9 it may come back that soon
        "broker.heartbeat.interval.ms": "500",
    }
