"""A cluster: one that runs already, in a container, or of processes from Kafka's jars."""

from __future__ import annotations

import os
import random
import socket
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from krishiv_spark.errors import KrishivError
from krishiv_spark.kafka.client import KafkaClient
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.dev.brokers import (
    KAFKA_VERSION,
    Broker,
    Ports,
    format_storage,
    has_kafka_jars,
)
from krishiv_spark.kafka.dev.secure import Secure, make_secure, scram_user, server_settings
from krishiv_spark.runtime.retry import Backoff

__all__ = ["Cluster", "free_ports", "new_cluster_id", "open_cluster"]

_READY_S = 60
# An attempt has a short time limit: `Cluster.wait` makes the next one.
_LIMITS = {"default.api.timeout.ms": "2000", "request.timeout.ms": "2000"}
_VARIABLE = "KRISHIV_TEST_KAFKA"

_PORTS = range(10_000, 32_768)
"""Below the ports that kernels assign to connections: a killed broker gets its port again."""

_dice = random.SystemRandom()
"""Without a seed, or parallel tests would all draw the same ports."""


class _NotReadyError(Exception):
    pass


@dataclass(frozen=True)
class Cluster:
    """A running cluster.

    Attributes:
        bootstrap: Value for ``bootstrap.servers``.
        origin: Origin of the brokers, for messages.
        brokers: The broker processes that this package started; they can be killed.
        secure: The listener with TLS and SASL, if it was requested.
    """

    bootstrap: str
    origin: str
    brokers: Sequence[Broker] = ()
    secure: Secure | None = None

    def wait(self) -> None:
        """Wait until all brokers answer with the whole cluster's metadata.

        Each is asked: after two of three were killed, the third lists them before they are back.

        Raises:
            KrishivError: If they do not in time, with the ends of their logs.
        """
        backoff = Backoff(_READY_S)
        asked = self.bootstrap.split(",") if self.brokers else [self.bootstrap]
        while True:
            if any(not broker.is_alive() for broker in self.brokers):
                raise self._make_error("a broker has ended")  # another may answer at its port
            try:
                for server in asked:
                    _check_metadata(server, max(len(self.brokers), 1))
            except _NotReadyError as error:
                if not backoff.pause():
                    raise self._make_error(error) from error
            else:
                return

    def _make_error(self, why: object) -> KrishivError:
        logs = "\n".join(broker.read_log_end() for broker in self.brokers)
        return KrishivError(f"{self.origin} is not ready: {why}\n{logs}")


@contextmanager
def open_cluster(  # noqa: PLR0913  each has a default, and is given by its name
    brokers: int = 1,
    *,
    settings: Mapping[str, str] | None = None,
    folder: Path | None = None,
    ours: bool = False,
    secure: bool = False,
    version: str = KAFKA_VERSION,
    tell: Callable[[str], object] | None = None,
) -> Iterator[Cluster]:
    """Start a cluster on loopback, and end it.

    Args:
        brokers: Number of processes; more than one are always new ones.
        settings: Server properties, for new processes.
        folder: A new folder for the data of new processes; None for one that is deleted with them.
        ours: True to start new processes, which can be killed.
        secure: True for a second listener of new processes, with TLS and SASL.
        version: Version of Kafka; another one than the default starts new processes.
        tell: Called with a line before a step that may take a minute.

    Raises:
        KrishivError: If no broker can be started, with the reason.
    """
    with ExitStack() as stack:
        other = version != KAFKA_VERSION
        needs_ours = ours or secure or brokers > 1 or settings or folder or other
        cluster = None if needs_ours else _find_running(stack)
        if cluster is None:
            if tell is not None and not has_kafka_jars(version):
                tell(f"fetching Kafka {version}, 44 MB, from Maven Central; only the first time")
            home = folder or Path(stack.enter_context(TemporaryDirectory(prefix="krishiv-kafka-")))
            ports = [Ports(*free_ports(3 if secure else 2)) for _ in range(brokers)]
            cluster = stack.enter_context(_start_from_jars(ports, settings or {}, home, version))
        cluster.wait()
        yield cluster


def _find_running(stack: ExitStack) -> Cluster | None:
    address = os.environ.get(_VARIABLE)
    if address:
        return Cluster(address, f"{_VARIABLE}={address}")
    return stack.enter_context(_start_container()) if _has_engine() else None


def _has_engine() -> bool:
    try:
        import docker
        import docker.errors
    except ImportError:  # it comes with the extra "testing"
        return False
    try:
        docker.from_env(timeout=2).ping()
    except docker.errors.DockerException:
        return False
    return True


@contextmanager
def _start_container() -> Iterator[Cluster]:
    from testcontainers.kafka import KafkaContainer

    # Kafka 4.1. By its tag: no second source states the digest.
    with KafkaContainer("confluentinc/cp-kafka:8.1.0").with_kraft() as container:
        yield Cluster(container.get_bootstrap_server(), "a container")


@contextmanager
def _start_from_jars(
    ports: Sequence[Ports], settings: Mapping[str, str], home: Path, version: str
) -> Iterator[Cluster]:
    secure = _make_secure(ports, home)
    known = {**(server_settings(secure) if secure else {}), **settings}
    numbers = range(1, len(ports) + 1)
    made = [Broker(i, ports, home / str(i), known, version) for i in numbers]
    identity = new_cluster_id()
    format_storage(made, identity, *(scram_user(secure) if secure else ()))
    bootstrap = _join_addresses(own.clients for own in ports)
    with ExitStack() as stack:
        for broker in made:
            stack.callback(broker.kill)
            broker.start()
        yield Cluster(bootstrap, f"Kafka {version} from its jars in {home}", made, secure)


def _make_secure(ports: Sequence[Ports], home: Path) -> Secure | None:
    addresses = [own.secure for own in ports if own.secure]
    return make_secure(home / "secure", _join_addresses(addresses)) if addresses else None


def _join_addresses(ports: Iterable[int]) -> str:
    return ",".join(f"127.0.0.1:{port}" for port in ports)


def new_cluster_id() -> str:
    """Return a new cluster id for `format_storage`."""
    made = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return f"A{made[1:]}"  # one that begins with "-" would be an option of the command


def free_ports(count: int) -> list[int]:
    """Return ports of loopback at which no process listens."""
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            own, port = stack.enter_context(socket.socket()), _dice.choice(_PORTS)
            with suppress(OSError):
                # It stays bound until the last is found, so none is found twice.
                own.bind(("127.0.0.1", port))
                found.append(port)
    return found


def _check_metadata(bootstrap: str, brokers: int) -> None:
    """Request the metadata. kafka-python's ``describe_cluster`` fails with brokers before 3.7."""
    try:
        client = KafkaClient(KafkaConfig.from_settings({"bootstrap.servers": bootstrap, **_LIMITS}))
        try:
            client.fetch_topics([])
            found = len(client.list_nodes())
        finally:
            client.close()
    except (KrishivError, OSError) as error:
        raise _NotReadyError(f"{type(error).__name__}: {error}") from error
    if found < brokers:
        raise _NotReadyError(f"{found} of {brokers} brokers have joined")
