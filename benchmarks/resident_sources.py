"""The growth of the process that plans a source's batches."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.apart import apart, resident_mib
from benchmarks.bench import MEMORY, Run, benchmark, scratch
from benchmarks.iceberg_files import filled
from benchmarks.iceberg_tables import OURS as ICEBERG
from benchmarks.iceberg_tables import Warehouse
from benchmarks.measure import Figure, expect
from benchmarks.resident import LOOKS, Seen, figures, how_many
from benchmarks.topics import OURS as KAFKA
from benchmarks.writers import numbered

__all__ = ["iceberg", "kafka", "parquet"]


@dataclass(frozen=True)
class _Source:
    """A source whose every batch is one unit: a file, or a record.

    Attributes:
        kind: The reader's class.
        options: As the user would give them.
        epochs: How many units there are.
        unit: Which limit is one of them.
        before: Called with its number before each batch.
    """

    kind: type[Any]
    options: Mapping[str, str]
    epochs: int
    unit: str
    before: Callable[[int], None] | None = None

    def life(self) -> tuple[Seen, int]:
        """Memory meanwhile, and how many parts were planned."""
        from krishiv_spark.sources.base import Limit

        reader = self.kind(
            self.kind.options_type.parse(self.options, "bench"), None, streaming=True
        )
        limit, at, planned = Limit(**{self.unit: 1}), reader.initial(), 0
        seen: Seen = {}
        for number in range(self.epochs):
            if self.before is not None:
                self.before(number)
            end = _travelled(reader.latest(at, limit))
            planned += len(reader.plan(at, end))
            reader.committed(end)
            at = end
            if (number + 1) % (self.epochs // LOOKS) == 0:
                seen[number + 1] = resident_mib()
        return seen, planned


def _travelled(offset: Any) -> Any:
    """As Spark hands it back: from its text."""
    return type(offset).from_dict(json.loads(json.dumps(offset.to_dict())))


def _source(run: Run, name: str, source: _Source, **more: Any) -> Iterator[Figure]:
    run.told(f"{source.epochs:,} batches of {name}")
    seen, planned = apart(source.life)
    expect(f"{name}: parts that were planned", planned, source.epochs)
    yield from figures(f"{name}, source", seen, **more)


@benchmark("resident.source.parquet", "krishiv_spark.sources.parquet.reader", long=True)
def parquet(run: Run) -> Iterator[Figure]:
    """Memory of the planner of the Parquet source, over 10 000 epochs with a new file each.

    It remembers the files of the folder, so it may grow with these.
    """
    from krishiv_spark.sources.parquet.reader import ParquetReader

    with scratch(MEMORY) as folder:
        table = folder / "table"
        table.mkdir()
        pq.write_table(pa.Table.from_batches([numbered(1)]), folder / "first")
        given = {"path": str(table), "maxFilesPerTrigger": "1"}
        arrives = _Arrival(folder / "first", table)
        source = _Source(ParquetReader, given, how_many(run), "files", arrives)
        yield from _source(run, "krishiv-parquet", source, goal=None)


@dataclass(frozen=True)
class _Arrival:
    """One more file in a folder: a link, which costs nothing."""

    file: Path
    folder: Path

    def __call__(self, number: int) -> None:
        os.link(self.file, self.folder / f"part-{number:07}.parquet")


@benchmark("resident.source.iceberg", "krishiv_spark.sources.iceberg.reader", long=True)
def iceberg(run: Run) -> Iterator[Figure]:
    """Memory of the planner of the Iceberg source, over 10 000 epochs with a file each.

    It remembers the files of the snapshots that it reads, 200 000 of them at most.
    """
    from krishiv_spark.sources.iceberg.reader import IcebergReader

    epochs = how_many(run)
    with scratch(MEMORY) as folder:
        options = filled(run, Warehouse(folder, "krishiv_resident"), epochs, epochs // 100)
        source = _Source(IcebergReader, options, epochs, "files")
        yield from _source(run, ICEBERG, source, goal=None)


@benchmark("resident.source.kafka", long=True)
def kafka(run: Run) -> Iterator[Figure]:
    """Memory of the planner of the Kafka source, over 10 000 epochs with a record each."""
    from krishiv_spark.sources.kafka.reader import KafkaReader

    with run.kafka().topic(1) as topic:
        run.kafka().put(topic, how_many(run))
        given = {**run.kafka().cluster, "subscribe": topic, "startingOffsets": "earliest"}
        yield from _source(run, KAFKA, _Source(KafkaReader, given, how_many(run), "rows"))
