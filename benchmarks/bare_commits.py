"""Commits without a connector: the least that makes a batch durable, and what one would write.

None of these loops knows which epoch it is at: after a crash each of them repeats rows or loses
them. They show how fast this machine could be, whatever a sink adds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.topics import Topics
from benchmarks.writers import BATCH, KEYED

__all__ = ["Loop", "appends", "synced_files", "transactions"]


@dataclass
class Loop:
    """Commits a batch over and over; it looks like a `Life`.

    Attributes:
        commit: Makes a batch durable and visible, by its number.
        batch: The batch.
        epoch: How many there were.
    """

    commit: Callable[[int], object]
    batch: pa.RecordBatch = field(default_factory=lambda: BATCH)
    epoch: int = 0

    def commits(self, count: int) -> None:
        """Several of them."""
        for _ in range(count):
            self.commit(self.epoch)
            self.epoch += 1

    @property
    def rows(self) -> tuple[int, int]:
        """Number of rows and sum of ids that must be there by now."""
        return self.epoch * self.batch.num_rows, self.epoch * sum(range(self.batch.num_rows))


def synced_files(folder: Path) -> Loop:
    """Write a Parquet file and a mark, both synced and renamed: the least that any sink does."""
    table = pa.Table.from_batches([BATCH])

    def commit(number: int) -> None:
        staged, mark = folder / f"{number}.staged", folder / f"{number}.mark"
        pq.write_table(table, staged)
        _sync(staged)
        mark.with_suffix(".new").write_text(str(number))
        _sync(mark.with_suffix(".new"))
        mark.with_suffix(".new").rename(mark)
        staged.rename(folder / f"{number}.parquet")
        _sync(folder)

    return Loop(commit)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def appends(warehouse: Path) -> Loop:
    """PyIceberg's own ``append``."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog(
        "krishiv", uri=f"sqlite:///{warehouse}/catalog.db", warehouse=f"{warehouse}"
    )
    catalog.create_namespace_if_not_exists("db")
    table = catalog.create_table("db.rows", BATCH.schema)
    rows = pa.Table.from_batches([BATCH])
    return Loop(lambda _: table.append(rows))


@contextmanager
def transactions(topics: Topics, topic: str) -> Iterator[Loop]:
    """kafka-python's own transactional producer, which sends record by record."""
    from kafka import KafkaProducer

    records = [(row["key"].encode(), row["value"].encode()) for row in KEYED.to_pylist()]
    producer = KafkaProducer(bootstrap_servers=topics.bootstrap, transactional_id=f"bare-{topic}")
    producer.init_transactions()

    def commit(number: int) -> None:
        del number
        producer.begin_transaction()
        for key, value in records:
            producer.send(topic, key=key, value=value)
        producer.commit_transaction()

    try:
        yield Loop(commit, KEYED)
    finally:
        producer.close()
