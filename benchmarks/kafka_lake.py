"""From Kafka into an Iceberg table of a REST catalog, with its files in S3: exactly once."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.bench import Run, benchmark, scratch
from benchmarks.measure import Figure, Wrong, each_once, expect, figure
from benchmarks.peer import KAFKA
from benchmarks.stores import Bucket
from benchmarks.topics import NUMBER, OURS

__all__ = ["lake"]

_SINK = "krishiv-iceberg"
_PARTITIONS, _VALUE = 16, 132
"""The shape of a published comparison: records of 142 bytes, of which ten are the key."""

_LOGIN = {
    "endpoint": "endpoint",
    "region": "region",
    "access-key-id": "accessKeyId",
    "secret-access-key": "secretAccessKey",
}
"""By PyIceberg's names of settings of S3, those of this package."""

_PATIENCE_S = 3_600
_PAUSES_S = (0.5, 4.0)
"""The shortest and the longest time before a kill."""


@benchmark(
    "kafka.iceberg.rest",
    "pyiceberg",
    peers=(KAFKA,),
    long=True,
    sizes=("rows", "epoch", "kills"),
)
def lake(run: Run) -> Iterator[Figure]:
    """Append 10 million records of 142 bytes from 16 partitions, undisturbed and with ten kills.

    An epoch has the rows of the size ``epoch``, by default a tenth of all. A kill ends one Python
    process of the query at a random moment; then the query starts again from its checkpoint.
    """
    from servers.rest_catalog import open_rest_catalog

    rows = run.size("rows", 10_000_000, 100_000)
    epoch, kills = run.size("epoch", rows // 10, rows // 10), run.size("kills", 10, 2)
    bucket = run.bucket()
    with ExitStack() as stack:
        folder = stack.enter_context(scratch(run.folder))
        uri = stack.enter_context(open_rest_catalog(folder, bucket.store))
        topic = stack.enter_context(run.kafka().topic(_PARTITIONS))
        run.told(f"filling a topic with {rows:,} rows")
        run.kafka().fill(run.spark(), topic, rows, _VALUE)
        for count in (0, kills):
            query = _Query(run, topic, bucket, uri, epoch, folder / f"{count}", f"t{count}")
            yield from _measure(query, rows, count)


@dataclass(frozen=True)
class _Query:
    """One stream into a table of its own.

    Attributes:
        run: The call of the command.
        topic: The source.
        bucket: With the files of the table.
        uri: Of the catalog.
        epoch: Rows of an epoch.
        folder: Of the checkpoint.
        table: Name in the namespace ``db``.
    """

    run: Run
    topic: str
    bucket: Bucket
    uri: str
    epoch: int
    folder: Path
    table: str

    @property
    def options(self) -> dict[str, str]:
        """The options of the sink."""
        catalog = {"catalog.uri": self.uri, "warehouse": self.bucket.store.url}
        return {**catalog, **self.bucket.options()}

    def start(self) -> Any:
        """Start it, from its checkpoint if it has one."""
        limit = {"maxOffsetsPerTrigger": str(self.epoch)}
        rows = self.run.kafka().stream(self.run.spark(), OURS, self.topic, **limit)
        writer = rows.selectExpr(f"{NUMBER} AS id", "key", "value").writeStream.format(_SINK)
        writer = writer.options(**self.options, path=f"db.{self.table}")
        writer = writer.option("checkpointLocation", str(self.folder))
        return writer.trigger(availableNow=True).start()

    def totals(self) -> tuple[int, int]:
        """Return the number of rows and the sum of ids, as PyIceberg alone reads them."""
        import pyarrow.compute as pc
        from pyiceberg.catalog import load_catalog

        said = {name.rpartition(".")[2]: text for name, text in self.bucket.options().items()}
        files = {f"s3.{key}": said[name] for key, name in _LOGIN.items()}
        table = load_catalog("rest", uri=self.uri, **files).load_table(f"db.{self.table}")
        ids = table.scan(selected_fields=("id",)).to_arrow()["id"]
        return len(ids), pc.sum(ids).as_py() or 0


def _measure(query: _Query, rows: int, kills: int) -> Iterator[Figure]:
    query.run.told(f"{_SINK}, {kills} kills")
    epochs: dict[int, float] = {}
    begin = time.monotonic()
    killed = _run_to_end(query, kills, epochs)
    seconds = time.monotonic() - begin
    name = f"{_SINK}, {killed} kills" if kills else _SINK
    expect(f"{name}: rows and sum of ids", query.totals(), each_once(rows))
    yield figure(f"{name}, with all starts", "rows/s", [rows / seconds])
    if not kills:
        yield figure(f"{name}, an epoch", "s", list(epochs.values()), smaller=True)
        yield figure(f"{name}, epochs", "rows/s", [rows / sum(epochs.values())])


def _run_to_end(query: _Query, kills: int, epochs: dict[int, float]) -> int:
    """Start the query until it ends without an error; note the seconds of epochs.

    Returns:
        The number of processes that were killed.
    """
    killed, until = 0, time.monotonic() + _PATIENCE_S
    while True:
        running, strike = query.start(), _choose_moment()
        while running.isActive:
            if killed < kills and time.monotonic() > strike:
                killed, strike = killed + _kill_one(query.run), _choose_moment()
            time.sleep(0.05)
        for progress in running.recentProgress:
            if progress.numInputRows:
                epochs[progress.batchId] = progress.durationMs["triggerExecution"] / 1000
        if running.exception() is None:
            return killed
        if not kills or time.monotonic() > until:
            raise Wrong(f"the query has ended: {running.exception()}")


def _choose_moment() -> float:
    return time.monotonic() + random.uniform(*_PAUSES_S)


def _kill_one(run: Run) -> int:
    """Kill one of the Python processes below the JVM; return the number of killed ones."""
    jvm = psutil.Process(run.spark().sparkContext._gateway.proc.pid)  # noqa: SLF001  as `Costs` has it
    found = [each for each in jvm.children(recursive=True) if "pyspark" in " ".join(each.cmdline())]
    if not found:
        return 0
    random.choice(found).kill()
    return 1
