"""Change data into an Iceberg table: events per second, and the age of a row that is readable."""

from __future__ import annotations

import io
import json
import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import DataFileContent
from pyiceberg.table.snapshots import Operation

from benchmarks.apart import apart, resident_mib
from benchmarks.bench import Run, benchmark, scratch
from benchmarks.measure import Figure, Wrong, expect, figure, in_turn, ratios
from benchmarks.topics import OURS, Topics
from benchmarks.writers import Life

__all__ = ["age", "rates"]

_TABLE = "db.mirror"
_COLUMNS = "id INT, born BIGINT, note STRING, amount DECIMAL(12, 2)"
_MIRROR = {
    "mode": "upsert",
    "changeFormat": "debezium",
    "keyColumns": "id",
    "tableSchema": _COLUMNS,
}
_RECORDS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)
_NOTE = "what the customer has written about the order, " * 4


def _event(number: int, key: int, born_ns: int) -> bytes:
    """Return an update as Debezium writes it, of about 400 bytes."""
    return (
        f'{{"before":null,"after":{{"id":{key},"born":{born_ns},"note":"{_NOTE}{number}",'
        f'"amount":"AfQ="}},"source":{{"connector":"postgresql","lsn":{number + 1}}},'
        '"op":"u","ts_ms":1}'
    ).encode()


def _records(numbers: range, keys: Sequence[int]) -> pa.RecordBatch:
    count = len(numbers)
    born = time.time_ns()
    return pa.RecordBatch.from_arrays(
        [
            pa.array([f'{{"id":{key}}}'.encode() for key in keys], pa.binary()),
            pa.array([_event(n, k, born) for n, k in zip(numbers, keys, strict=True)], pa.binary()),
            pa.array(["t"] * count, pa.string()),
            pa.array([0] * count, pa.int32()),
            pa.array(numbers, pa.int64()),
        ],
        schema=_RECORDS,
    )


def _life(folder: Path, given: dict[str, str], batch: pa.RecordBatch) -> Life:
    from krishiv_spark.sinks.iceberg.writer import IcebergWriter

    options = {"path": _TABLE, "warehouse": str(folder), **given}
    return Life(IcebergWriter, options, batch=batch, apart="catalog.role")


# --- rates


@benchmark("iceberg.mirror", "krishiv_spark.sinks.iceberg.writer", "confluent_kafka", "fastavro")
def rates(run: Run) -> Iterator[Figure]:
    """One epoch of rows from Debezium's JSON and Avro, beside the same rows appended."""
    rows = 20_000 if run.quick else 200_000
    records = _records(range(rows), range(rows))
    plain = pa.RecordBatch.from_pydict(
        {"id": pa.array(range(rows), pa.int32()), "born": pa.array(range(rows), pa.int64()),
         "note": [f"{_NOTE}{n}" for n in range(rows)]}
    )  # fmt: skip
    keyed = {"mode": "upsert", "keyColumns": "id"}
    with _registered(run) as (url, header):
        coded = _encode(records, header)
        variants = {
            "append": partial(_write, run, {}, plain),
            "upsert": partial(_write, run, keyed, plain),
            "mirror, JSON": partial(_write, run, _MIRROR, records),
            "mirror, Avro": partial(_write, run, {**_MIRROR, "registry.url": url}, coded),
        }
        in_turn(1, variants, lambda what: run.told(f"warming up: {what}"))
        found = in_turn(3, variants, lambda what: run.told(f"{rows} rows, {what}"))
    for name, each in found.items():
        yield figure(name, "rows/s", each)
    for name in ("mirror, JSON", "mirror, Avro"):
        yield figure(f"{name} / append", "x", ratios(found[name], found["append"]))


_SCHEMA = """{"type": "record", "name": "Envelope", "fields": [
  {"name": "before", "default": null, "type": ["null", {"type": "record", "name": "Value",
    "fields": [{"name": "id", "type": "int"}, {"name": "born", "type": "long"},
      {"name": "note", "type": "string"},
      {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12,
        "scale": 2}}]}]},
  {"name": "after", "default": null, "type": ["null", "Value"]},
  {"name": "source", "type": {"type": "record", "name": "Source", "fields": [
    {"name": "connector", "type": "string"}, {"name": "lsn", "type": ["null", "long"]}]}},
  {"name": "op", "type": "string"}, {"name": "ts_ms", "type": ["null", "long"]}]}"""


@contextmanager
def _registered(run: Run) -> Iterator[tuple[str, bytes]]:
    """Start a registry that has the schema; yield its address, and the bytes before a record."""
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

    from servers.apicurio import running_registry

    with scratch(run.folder) as folder, running_registry(folder) as (url, _):
        client = SchemaRegistryClient({"url": url})
        number = client.register_schema("t-value", Schema(_SCHEMA, "AVRO"))
        yield url, b"\0" + number.to_bytes(4, "big")


def _encode(records: pa.RecordBatch, header: bytes) -> pa.RecordBatch:
    """Return the same events in Avro; their keys stay JSON."""
    import fastavro

    schema = fastavro.parse_schema(json.loads(_SCHEMA))
    values = []
    for text in records["value"].to_pylist():
        event = json.loads(text)
        event["after"]["amount"] = Decimal("5.00")
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, event)
        values.append(header + out.getvalue())
    place = records.schema.get_field_index("value")
    return records.set_column(place, records.schema.field(place), pa.array(values, pa.binary()))


def _write(run: Run, given: dict[str, str], batch: pa.RecordBatch) -> float:
    with scratch(run.folder) as folder:
        life = _life(folder, given, batch)
        began_s = time.perf_counter()
        life.commit()
        taken_s = time.perf_counter() - began_s
        expect("rows", _load(folder).scan().to_arrow().num_rows, batch.num_rows)
    return batch.num_rows / taken_s


def _load(folder: Path) -> Any:
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("krishiv", uri=f"sqlite:///{folder}/catalog.db", warehouse=str(folder))
    return catalog.load_table(_TABLE)


# --- ages

_RATE = 1000
_KEYS = 50_000
_EPOCHS = 1000
_LOOKS = 10
"""The number of readings of the memory meanwhile: the first is after a tenth of the epochs."""
_SETTLED = 5  # batches
_PATIENCE_S = 180
_FIRST_NUMBER = 10**9
"""Of the changes that are sent, after all those of the epochs before."""


@benchmark("iceberg.mirror.age", "pyiceberg", long=True)
def age(run: Run) -> Iterator[Figure]:
    """From a change to a snapshot that has it: 1 000 changes/s, a trigger of 2 s, compact = auto.

    Then the same in a table that has had 1 000 epochs before, and the memory of planner, tasks and
    commit process together while these were written: they share one process here.
    """
    with scratch(run.folder) as folder:
        yield from _watch(run, folder, "new table")
    with scratch(run.folder) as folder:
        epochs = _EPOCHS // 10 if run.quick else _EPOCHS
        run.told(f"{epochs} epochs")
        seen = apart(_fill, folder, epochs)
        for epoch in (min(seen), max(seen)):
            name = f"planner, tasks and commit, memory at epoch {epoch:,}"
            yield figure(name, "MiB", [seen[epoch]], smaller=True)
        yield from _watch(run, folder, f"after {epochs:,} epochs")


def _fill(folder: Path, epochs: int) -> dict[int, float]:
    """Write epochs of 100 changes each; return the resident memory by epoch, MiB."""
    dice = random.Random(1)
    seen: dict[int, float] = {}
    life = _life(folder, {**_MIRROR, "compact": "auto"}, _records(range(0), []))
    for epoch in range(epochs):
        keys = [dice.randrange(_KEYS) for _ in range(100)]
        life.batch = _records(range(epoch * 100, epoch * 100 + 100), keys)
        life.commit()
        life.spent.clear()
        if (epoch + 1) % (epochs // _LOOKS) == 0:
            seen[epoch + 1] = resident_mib()
    return seen


def _watch(run: Run, folder: Path, name: str) -> Iterator[Figure]:
    kafka = run.kafka()
    with kafka.topic(1) as topic, scratch(run.folder) as checkpoint:
        given = {**_MIRROR, "compact": "auto", "warehouse": str(folder), "path": _TABLE}
        writer = kafka.stream(run.spark(), OURS, topic).writeStream.format("krishiv-iceberg")
        writer = writer.options(**given, checkpointLocation=str(checkpoint))
        query = writer.trigger(processingTime="2 seconds").start()
        watcher = Watcher(folder)
        thread = threading.Thread(target=watcher.watch)
        thread.start()
        try:
            first = _produce(kafka, topic, query, 10 if run.quick else 60)
            query.processAllAvailable()
            times = [one.durationMs["triggerExecution"] for one in query.recentProgress[_SETTLED:]]
        finally:
            query.stop()
            watcher.over.set()
            thread.join()
    ages = [age_ns / 1e9 for born, age_ns in watcher.taken if born >= first]
    cuts = statistics.quantiles(ages, n=100)
    yield figure(f"p50, {name}", "s", [cuts[49]])
    yield figure(f"p99, {name}", "s", [cuts[98]])
    yield figure(f"trigger, {name}", "ms", [statistics.median(times)])


def _produce(kafka: Topics, topic: str, query: Any, seconds: float) -> int:
    """Send changes until some time after the query has settled; return when that was, in ns."""
    from kafka import KafkaProducer

    dice = random.Random(2)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    begin, count, first = time.monotonic(), 0, 0
    while not first or time.time_ns() < first + seconds * 1e9:
        end = int((time.monotonic() - begin) * _RATE)
        for number in range(count, end):
            key = dice.randrange(_KEYS)
            event = _event(_FIRST_NUMBER + number, key, time.time_ns())
            producer.send(topic, event, f'{{"id":{key}}}'.encode())
        count = end
        time.sleep(0.001)
        if not first and len(query.recentProgress) > _SETTLED:
            first = time.time_ns()
        if time.monotonic() > begin + _PATIENCE_S + seconds:
            raise Wrong(f"the query has not settled: {query.exception()}")
    producer.flush()
    producer.close()
    return first


@dataclass
class Watcher:
    """Sees snapshots come.

    Attributes:
        folder: The warehouse.
        taken: When each row was born, and its age when a reader could see it, nanoseconds.
        over: Whether to stop.
    """

    folder: Path
    taken: list[tuple[int, int]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """Until it is over, and the newest snapshot has been seen."""
        known, is_last = self._list(), False
        while not is_last:
            is_last = self.over.is_set()
            try:
                table = _load(self.folder)
            except NoSuchTableError:
                continue
            now = time.time_ns()
            for snapshot in table.metadata.snapshots:
                if snapshot.snapshot_id not in known:
                    known.add(snapshot.snapshot_id)
                    self._take(table, snapshot, now)
            time.sleep(0.05)

    def _list(self) -> set[int]:
        try:
            return {each.snapshot_id for each in _load(self.folder).metadata.snapshots}
        except NoSuchTableError:
            return set()

    def _take(self, table: Any, snapshot: Any, now: int) -> None:
        if snapshot.summary.operation is Operation.REPLACE:  # a compaction
            return
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id != snapshot.snapshot_id:
                continue
            for entry in manifest.fetch_manifest_entry(table.io):
                if entry.data_file.content is DataFileContent.DATA:
                    path = entry.data_file.file_path.removeprefix("file://")
                    born = pq.read_table(path, columns=["born"])["born"].to_pylist()
                    self.taken += [(each, now - each) for each in born]
