"""The JVM connectors beside which ours are measured: their jars, brought once."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from krishiv_spark.errors import KrishivError
from krishiv_spark.maven import Jar, bring

__all__ = ["ICEBERG", "KAFKA", "Peer", "gather", "peer_jars"]


@dataclass(frozen=True)
class Peer:
    """A connector that a user might pick instead.

    Attributes:
        name: What a report calls it.
        jars: What it is made of.
        line: How PySpark's version begins, where it exists for that one only.
    """

    name: str
    jars: tuple[Jar, ...]
    line: str = ""

    @property
    def versions(self) -> str:
        """Its jars, each with its version."""
        return ", ".join(f"{jar.name} {jar.version}" for jar in self.jars)


KAFKA = Peer(
    "Spark's own Kafka connector",
    (
        Jar("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
        # For delegation tokens only, which nobody asks for here; Maven Central has no later one.
        Jar("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
        Jar("org.apache.kafka", "kafka-clients", "3.9.2"),
        Jar("org.apache.commons", "commons-pool2", "2.12.1"),
    ),
)
"""With PySpark 4.2 and 4.3 alike."""

ICEBERG = Peer(
    "Iceberg's own connector",
    (
        Jar("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.12.0"),
        Jar("org.xerial", "sqlite-jdbc", "3.51.1.0"),  # to read the tables of our embedded catalog
    ),
    line="4.1.",
)


def peer_jars(peer: Peer = KAFKA) -> list[Path]:
    """The jars; the first call downloads them from Maven Central into the user's cache.

    Raises:
        KrishivError: If they cannot be had.
    """
    name = "-".join(("peer", *(jar.version for jar in peer.jars)))
    return sorted(bring(name, peer.jars, transitive=False).glob("*.jar"))


def gather(peers: Iterable[Peer], pyspark: str) -> tuple[list[Path], dict[Peer, str]]:
    """The jars of those that can be had, and why the others cannot.

    Args:
        peers: The connectors that are asked for.
        pyspark: PySpark's version.
    """
    jars: list[Path] = []
    absent: dict[Peer, str] = {}
    for peer in dict.fromkeys(peers):
        try:
            jars += _jars_for(peer, pyspark)
        except (KrishivError, OSError, subprocess.TimeoutExpired) as error:
            absent[peer] = _first_line(error)
    return jars, absent


def _jars_for(peer: Peer, pyspark: str) -> list[Path]:
    if not pyspark.startswith(peer.line):
        wanted = peer.line.rstrip(".")
        raise KrishivError(f"it exists for PySpark {wanted}, this is {pyspark}: --spark {wanted}")
    return peer_jars(peer)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
