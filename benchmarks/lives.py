"""A life of each sink, as it is measured wherever its epochs are what is measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.writers import KEYED, Life, SeparateKafkaLogs, SeparateLogs

__all__ = ["delta_life", "iceberg_life", "kafka_life", "memory_life", "parquet_life"]


def memory_life(name: str) -> Life:
    """Into a result of this name."""
    from krishiv_spark.sinks.memory import MemoryWriter

    return Life(MemoryWriter, {"queryName": name})


def parquet_life(table: Path, tasks: int = 1) -> Life:
    """Into a folder, with the checkpoint in it."""
    given = {"path": str(table), "checkpointLocation": f"{table}/_checkpoint"}
    return Life(SeparateLogs, given, tasks)


def delta_life(table: Path) -> Life:
    """Into a table of Delta."""
    from krishiv_spark.sinks.delta.writer import DeltaWriter

    return Life(DeltaWriter, {"path": str(table)})


def iceberg_life(warehouse: Path) -> Life:
    """Into a table of an embedded catalog that keeps ten snapshots and metadata files."""
    from krishiv_spark.sinks.iceberg.writer import IcebergWriter

    kept = dict.fromkeys(("keepSnapshots", "keepMetadataFiles"), "10")
    given = {"path": "db.rows", "warehouse": str(warehouse), **kept}
    return Life(IcebergWriter, given, apart="catalog.role")  # a catalog for each, as in Spark


def kafka_life(cluster: Mapping[str, str], topic: str, checkpoint: Path, tasks: int = 1) -> Life:
    """Into a topic, exactly once; `cluster` are the options that name the broker."""
    given = {**cluster, "topic": topic, "checkpointLocation": str(checkpoint)}
    return Life(SeparateKafkaLogs, given, tasks, KEYED)
