"""The imports and calls of each of Spark's Python processes for a first epoch, by its role."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.counts.case import Given, case
from benchmarks.counts.count import Count
from benchmarks.measure import expect
from benchmarks.writers import BATCH, KEYED

__all__ = ["iceberg", "kafka", "memory", "parquet"]

_HEAVY = ("kafka", "numba", "llvmlite", "pyiceberg", "sqlalchemy", "obstore", "boto3", "azure")
_HEAVY += ("requests", "pyarrow.compute", "pyarrow.dataset", "yaml", "click", "pytest", "duckdb")
"""Modules that take a tenth of a second or more: each that a role imports is a count of its own."""

_NOT_OTHERS = {"pyspark", "py4j", "pyarrow", "numpy", "pandas", "benchmarks", "krishiv_spark"}
_SCHEMA = '{"type":"struct","fields":[%s]}'
_FIELD = '{"name":"%s","type":"%s","nullable":true,"metadata":{}}'


@case("processes.memory")
def memory(given: Given) -> Iterator[Count]:
    """Count the processes of a copy from pushed rows into a memory result."""
    from krishiv_spark.sources.memory.handle import memory_source

    memory_source("rows").add(BATCH)
    yield from _first_epoch(Query(given.folder, "memory", {"path": "rows"}, {"name": "counts"}))


@case("processes.parquet")
def parquet(given: Given) -> Iterator[Count]:
    """Count the processes of a copy from a folder of Parquet files into another."""
    import pyarrow.parquet as pq

    come, go = given.folder / "in", given.folder / "out"
    come.mkdir()
    pq.write_table(pa.Table.from_batches([BATCH]), come / "rows.parquet")
    yield from _first_epoch(Query(given.folder, "parquet", {"path": str(come)}, {"path": str(go)}))


@case("processes.iceberg")
def iceberg(given: Given) -> Iterator[Count]:
    """Count the processes of a copy from an Iceberg table into another."""
    from benchmarks.writers import Life
    from krishiv_spark.sinks.iceberg.writer import IcebergWriter

    named = {"warehouse": str(given.folder)}
    Life(IcebergWriter, {**named, "path": "db.rows"}).commit()
    come, go = {**named, "path": "db.rows"}, {**named, "path": "db.copy"}
    yield from _first_epoch(Query(given.folder, "iceberg", come, go))


@case("processes.kafka", "kafka")
def kafka(given: Given) -> Iterator[Count]:
    """Count the processes of a copy from topic to topic, exactly once."""
    with given.topics.topic() as come, given.topics.topic() as go:
        given.topics.put_one({come: 4})
        source = {**given.topics.cluster, "subscribe": come, "startingOffsets": "earliest"}
        sink = {**given.topics.cluster, "topic": go}
        yield from _first_epoch(Query(given.folder, "kafka", source, sink, KEYED, calls=False))


@dataclass
class Query:
    """A stream whose first epoch is played, process by process.

    Attributes:
        folder: For its checkpoints.
        name: Of its format, source and sink.
        source: Options of the source.
        sink: Options of the sink.
        batch: What a task is given.
        calls: Whether calls are counted: not where a broker decides how often it is asked.
    """

    folder: Path
    name: str
    source: Mapping[str, str]
    sink: Mapping[str, str]
    batch: pa.RecordBatch = field(default_factory=lambda: BATCH)
    calls: bool = True


def _first_epoch(query: Query) -> Iterator[Count]:
    """Once more if anything had to be compiled first, as where nobody has imported it before."""
    played = _epoch(query)
    if any(each.compiled for each in played):
        played = _epoch(query)
    for each in played:
        yield from each.counts(query)


def _epoch(query: Query) -> list[_Played]:
    """Run epoch 0 of a new checkpoint, by the roles in their order."""
    sink = {**query.sink, "checkpointLocation": str(_checkpoint(query.folder))}
    schema = _SCHEMA % ",".join(_FIELD % (each.name, _type(each)) for each in query.batch.schema)
    planned = _Played("planner of writes", query.name, sink, schema)
    written = _Played("task that writes", planned.result, _stream(query.batch))
    committed = _Played("committer", query.name, sink, schema, written.result)
    parts = _Played("planner of reads", query.name, dict(query.source))
    read = _Played("task that reads", parts.result[0])
    expect("whether rows were read", read.result > 0, wanted=True)
    return [planned, written, committed, parts, read]


def _type(column: pa.Field) -> str:
    return "long" if pa.types.is_integer(column.type) else "string"


def _checkpoint(folder: Path) -> Path:
    """As Spark leaves it before a first epoch."""
    made = folder / f"checkpoint-{uuid.uuid4().hex[:8]}"
    (made / "offsets").mkdir(parents=True)
    (made / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    (made / "offsets" / "0").write_text('v1\n{"batchWatermarkMs":0}\n0')
    return made


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


class _Played:
    """A role that was played in a process of its own.

    Attributes:
        result: What it hands over.
        compiled: How many modules it had to compile.
    """

    def __init__(self, role: str, *arguments: Any) -> None:
        self._role = role
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.counts.roles"],
            input=pickle.dumps((role, arguments)),
            stdout=subprocess.PIPE,
            check=True,
        )
        told = json.loads(done.stdout.splitlines()[-1])
        self.result: Any = pickle.loads(bytes.fromhex(told["result"]))
        self.compiled: int = told["compiled"]
        self._modules: list[str] = told["modules"]
        self._calls: int = told["calls"]

    def counts(self, query: Query) -> Iterator[Count]:
        """Modules beyond PySpark, PyArrow and Python's own, and calls, imports included."""
        roots = [name.partition(".")[0] for name in self._modules]
        ours = roots.count("krishiv_spark")
        known = _NOT_OTHERS | set(sys.stdlib_module_names)
        others = sum(root not in known for root in roots)
        yield Count(f"{self._role}: modules of ours", "modules", ours)
        yield Count(f"{self._role}: modules of others", "modules", others)
        for name in _HEAVY:
            if name in self._modules:
                yield Count(f"{self._role}: {name}", "heavy modules", 1)
        if query.calls:
            yield Count(f"{self._role}: calls", "calls of a process", self._calls)
