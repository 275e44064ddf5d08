"""A worker of Kafka Connect that runs a connector of Debezium, for PostgreSQL or MariaDB.

The worker is distributed: it keeps its offsets in Kafka. A standalone worker overwrites a file; a
kill during that write would start a second snapshot, which lacks the deletions before it.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from krishiv_spark.kafka.dev.brokers import KAFKA_VERSION
from krishiv_spark.kafka.dev.clusters import free_ports
from krishiv_spark.kafka.dev.maven import Jar, bring, java
from servers.processes import Server, running

__all__ = ["OFFSETS_TOPIC", "Source", "mariadb_source", "postgres_source", "running_debezium"]

_POSTGRES = Jar("io.debezium", "debezium-connector-postgres", "3.6.1.Final")
_MARIADB = Jar("io.debezium", "debezium-connector-mariadb", "3.5.0.Final")  # the newest
_AVRO = Jar("io.apicurio", "apicurio-registry-utils-converter", "2.6.13.Final")
_WORKER_JARS = (
    Jar("org.apache.kafka", "connect-runtime", KAFKA_VERSION),
    Jar("org.apache.kafka", "connect-json", KAFKA_VERSION),
    Jar("org.slf4j", "slf4j-simple", "1.7.36"),  # the log
)
OFFSETS_TOPIC = "connect-offset"
"""The topic in which a worker stores how far its connector has read."""

_NAME = "source"
_MAIN = "org.apache.kafka.connect.cli.ConnectDistributed"
_WORKER = {
    "group.id": "connect",
    "plugin.discovery": "service_load",
    "offset.storage.partitions": "1",
    "status.storage.partitions": "1",
    "offset.flush.interval.ms": "2000",
    # The shortest that a broker accepts: a new worker waits as long for one that was killed.
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "2000",
    "scheduled.rebalance.max.delay.ms": "0",
}


@dataclass(frozen=True)
class Source:
    """A connector, and its configuration.

    Attributes:
        jar: The connector.
        settings: Its properties.
    """

    jar: Jar
    settings: Mapping[str, str]

    def bring_jars(self, *, avro: bool = False) -> Path:
        """Return the folder with the jars of a worker that has the connector.

        Args:
            avro: Whether the worker has the converter to Avro too.
        """
        kind = self.jar.name.rpartition("-")[2]
        name = f"debezium-{kind}-{self.jar.version}-kafka-{KAFKA_VERSION}"
        jars = [*_WORKER_JARS, self.jar]
        if avro:
            name, jars = f"{name}-avro-{_AVRO.version}", [*jars, _AVRO]
        return bring(name, jars, transitive=True)


def postgres_source(uri: str) -> Source:
    """Return a connector for all tables of the schema ``public``.

    Args:
        uri: The database, with user and password. Its server has ``wal_level = logical``.
    """
    database = urlsplit(uri)
    settings = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "plugin.name": "pgoutput",
        "database.hostname": str(database.hostname),
        "database.port": str(database.port),
        "database.user": str(database.username),
        "database.password": str(database.password),
        "database.dbname": database.path.removeprefix("/"),
        "topic.prefix": "srv",
        "schema.include.list": "public",
        "publication.autocreate.mode": "filtered",
        "poll.interval.ms": "100",
        "slot.retry.delay.ms": "1000",
    }
    return Source(_POSTGRES, settings)


def mariadb_source(uri: str, bootstrap: str) -> Source:
    """Return a connector for all tables of a database.

    Args:
        uri: The database, with user and password. Its server has ``binlog-format = ROW``.
        bootstrap: Addresses of the brokers: a topic has the history of the tables' schemas.
    """
    database = urlsplit(uri)
    settings = {
        "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
        "tasks.max": "1",
        "database.hostname": str(database.hostname),
        "database.port": str(database.port),
        "database.user": str(database.username),
        "database.password": str(database.password),
        "database.server.id": "7",  # it reads the log as a replica, with an id of its own
        "topic.prefix": "srv",
        "database.include.list": database.path.removeprefix("/"),
        "schema.history.internal.kafka.bootstrap.servers": bootstrap,
        "schema.history.internal.kafka.topic": "history",
        "poll.interval.ms": "100",
    }
    return Source(_MARIADB, settings)


@contextmanager
def running_debezium(
    folder: Path,
    bootstrap: str,
    source: Source,
    *,
    schemas: bool = False,
    registry: str | None = None,
) -> Iterator[Server]:
    """Run a worker with one connector, which writes to ``srv.<schema>.<table>``.

    Args:
        folder: An empty folder, for the worker's properties and log.
        bootstrap: Addresses of the brokers.
        source: The connector.
        schemas: True to wrap each key and value in its schema.
        registry: Address of Apicurio Registry, for Avro instead of JSON.

    Yields:
        The process, which can be killed and restarted.

    Raises:
        KrishivError: If the jars cannot be downloaded, or there is no Java.
    """
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    properties = folder / "worker.properties"
    converter = _in_json(schemas=schemas) if registry is None else _in_avro(registry)
    known = {**_list_properties(bootstrap, converter), "listeners": url}
    properties.write_text("".join(f"{key}={value}\n" for key, value in known.items()))
    command = [java(), "-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    jars = source.bring_jars(avro=registry is not None)
    command += ["-cp", f"{jars}/*", _MAIN, str(properties)]
    with running(command, folder, lambda: _expect_running(url, source.settings)) as server:
        yield server


def _in_json(*, schemas: bool) -> dict[str, str]:
    """Return the properties of a converter to JSON."""
    return {
        "": "org.apache.kafka.connect.json.JsonConverter",
        ".schemas.enable": str(schemas).lower(),
    }


def _in_avro(registry: str) -> dict[str, str]:
    """Return the properties of a converter to Avro, which writes as Confluent's does."""
    return {
        "": "io.apicurio.registry.utils.converter.AvroConverter",
        ".apicurio.registry.url": f"{registry.partition('/apis/')[0]}/apis/registry/v2",
        ".apicurio.registry.auto-register": "true",
        ".apicurio.registry.as-confluent": "true",
        ".apicurio.registry.use-id": "contentId",
        ".apicurio.registry.headers.enabled": "false",
    }


def _list_properties(bootstrap: str, converter: Mapping[str, str]) -> dict[str, str]:
    known = {"bootstrap.servers": bootstrap, **_WORKER}
    for store in ("config", "offset", "status"):
        known[f"{store}.storage.topic"] = f"connect-{store}"
        known[f"{store}.storage.replication.factor"] = "1"
    for part in ("key", "value"):
        known |= {f"{part}.converter{name}": text for name, text in converter.items()}
    return known


def _expect_running(url: str, settings: Mapping[str, str]) -> None:
    """Raise unless the connector's task runs; configure it if the worker does not know it."""
    try:
        status = _request("GET", f"{url}/connectors/{_NAME}/status")
    except urllib.error.HTTPError as error:
        if error.code == 404:  # noqa: PLR2004  "not found"
            _request("PUT", f"{url}/connectors/{_NAME}/config", settings)
        raise
    states = [task["state"] for task in status["tasks"]]
    if states != ["RUNNING"]:
        raise ConnectionError(f"{_NAME} does not run: {status}")


def _request(method: str, url: str, body: Mapping[str, str] | None = None) -> dict:
    content = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, content, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)
