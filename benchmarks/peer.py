"""The JVM connectors beside which ours are measured: their jars, brought once."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from krishiv_spark.errors import KrishivError
from krishiv_spark.kafka.dev.maven import Jar, bring
from servers.spark_clients import client_jars
from servers.stores import HADOOP

__all__ = ["DELTA", "ICEBERG", "KAFKA", "S3A", "SPARK_AVRO", "Peer", "gather", "peer_jars"]


@dataclass(frozen=True, eq=False)
class Peer:
    """A connector that a user might pick instead.

    Attributes:
        name: What a report calls it.
        lines: What it is made of, by the line of PySpark that it exists for, such as 4.1.
        conf: What a session is told of it.
        client: Hadoop's, by the scheme of the store that it goes to; empty for none.
    """

    name: str
    lines: Mapping[str, tuple[Jar, ...]]
    conf: Mapping[str, str] = field(default_factory=dict)
    client: str = ""

    def jars(self, version: str) -> tuple[Jar, ...]:
        """Return its components for a version of PySpark.

        Raises:
            KrishivError: If there is none for it.
        """
        line = ".".join(version.split(".")[:2])
        if line not in self.lines:
            there = " or ".join(self.lines)
            raise KrishivError(f"it exists for PySpark {there}, this is {version}: --spark {there}")
        return self.lines[line]

    def versions(self, version: str = pyspark.__version__) -> str:
        """Its jars for a version of PySpark, each with its own; empty where there are none."""
        try:
            found = [f"{jar.name} {jar.version}" for jar in self.jars(version)]
        except KrishivError:
            return ""
        return ", ".join([*found, *([f"{self.client} {HADOOP}"] if self.client else [])])


def _kafka(version: str) -> tuple[Jar, ...]:
    return (
        Jar("org.apache.spark", "spark-sql-kafka-0-10_2.13", version),
        # For delegation tokens only, which nobody asks for here; Maven Central has no later one.
        Jar("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
        Jar("org.apache.kafka", "kafka-clients", "3.9.2"),
        Jar("org.apache.commons", "commons-pool2", "2.12.1"),
    )


KAFKA = Peer(
    "Spark's own Kafka connector",
    {
        "4.0": _kafka("4.0.4"),
        "4.1": _kafka("4.1.3"),
        "4.2": _kafka("4.2.0"),
        "4.3": _kafka("4.2.0"),  # Maven Central has no later one
    },
)

SPARK_AVRO = Peer(
    "Spark's own functions of Avro",
    {
        "4.2": (Jar("org.apache.spark", "spark-avro_2.13", "4.2.0"),),
        "4.3": (Jar("org.apache.spark", "spark-avro_2.13", "4.2.0"),),  # there is no later one
    },
)

ICEBERG = Peer(
    "Iceberg's own connector",
    {
        "4.1": (
            Jar("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.12.0"),
            Jar("org.xerial", "sqlite-jdbc", "3.51.1.0"),  # for tables of our embedded catalog
        )
    },
)

DELTA = Peer(
    "Delta Lake",
    {
        "4.1": (
            Jar("io.delta", "delta-spark_4.1_2.13", "4.4.0"),
            Jar("io.delta", "delta-storage", "4.4.0"),
        )
    },
    {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # As spark.sql.shuffle.partitions: the default, 50 tasks for each look at the table, is 6 s
        # of each trigger on two cores.
        "spark.databricks.delta.snapshotPartitions": "2",
    },
)


S3A = Peer(
    "Spark's own committer, by S3A",
    # Which binds Spark's commits to S3A's committers; no later one was found in Maven Central.
    {"4.3": (Jar("org.apache.spark", "spark-hadoop-cloud_2.13", "4.0.1"),)},
    client="s3a",
)


def peer_jars(peer: Peer, version: str = pyspark.__version__) -> list[Path]:
    """Return the jars; the first call downloads them from Maven Central into the user's cache.

    Args:
        peer: Whose.
        version: Of PySpark, as `Peer.jars`.

    Raises:
        KrishivError: If they cannot be had.
    """
    jars = peer.jars(version)
    name = "-".join(("peer", *(jar.version for jar in jars)))
    client = client_jars(peer.client) if peer.client else []
    return [*sorted(bring(name, jars, transitive=False).glob("*.jar")), *client]


def gather(
    peers: Iterable[Peer], version: str = pyspark.__version__
) -> tuple[dict[Peer, list[Path]], dict[Peer, str]]:
    """Return the jars of the available peers, and the reasons why the others are unavailable.

    Args:
        peers: The connectors that are asked for.
        version: Of PySpark, as `Peer.jars`.
    """
    there: dict[Peer, list[Path]] = {}
    absent: dict[Peer, str] = {}
    for peer in dict.fromkeys(peers):
        try:
            there[peer] = peer_jars(peer, version)
        except (KrishivError, OSError, subprocess.TimeoutExpired) as error:
            absent[peer] = _first_line(error)
    return there, absent


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
