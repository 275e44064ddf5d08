"""The speed of rows from one system into another, in one large batch of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.bench import Run, benchmark, scratch
from benchmarks.bulk import rows_of
from benchmarks.check import totals
from benchmarks.iceberg_tables import OURS as OUR_TABLES
from benchmarks.iceberg_tables import TABLES, Warehouse, names, warehouse
from benchmarks.iceberg_tables import THEIRS as THEIR_TABLES
from benchmarks.kafka_rates import fill
from benchmarks.measure import Figure, each_once, expect
from benchmarks.peer import ICEBERG, KAFKA
from benchmarks.streams import Load, compared, rate
from benchmarks.topics import NUMBER, OURS, THEIRS

__all__ = ["into_iceberg", "parquet"]

_FILES = 16
_COLUMNS = pa.schema({"id": pa.int64(), "key": pa.binary(), "value": pa.binary()})
_TOPICS = {OUR_TABLES: OURS, THEIR_TABLES: THEIRS}


@benchmark("parquet.copy")
def parquet(run: Run) -> Iterator[Figure]:
    """From a folder of 16 Parquet files through a stream into another, against Spark's own."""
    load = _load(run)
    with scratch(run.folder) as folder:
        source = folder / "source"
        run.told(f"writing {load.rows:,} rows")
        rows = rows_of(run.spark(), load.rows, 1)
        rows.repartition(_FILES).write.parquet(str(source))
        kinds = ("krishiv-parquet", "parquet")
        variants = {kind: partial(_copied, run, load, kind, source, rows.schema) for kind in kinds}
        yield from compared(run, load, variants, {kinds: None})


def _load(run: Run) -> Load:
    return Load(100, 400_000 if run.quick else 4_000_000)


def _copied(run: Run, load: Load, kind: str, source: Path, schema: Any) -> float:
    rows = run.spark().readStream.schema(schema).format(kind).load(str(source))
    with scratch(source.parent) as target:
        places = {"path": f"{target}/table", "checkpointLocation": f"{target}/checkpoint"}
        speed = rate(run, kind, rows.writeStream.format(kind).options(**places), load.rows)
        found = totals(target / "table", "id")
        expect(f"{kind}, rows and sum of ids", found, each_once(load.rows))
    return speed


@benchmark("kafka.iceberg", "pyiceberg", peers=(KAFKA, ICEBERG), alone=True)
def into_iceberg(run: Run) -> Iterator[Figure]:
    """From a topic into a table: ours, against Spark's own source and Iceberg's own sink."""
    load = _load(run)
    with warehouse(run, "krishiv_ends") as place, run.kafka().topic() as topic:
        fill(run, topic, load)
        for name in names(run):
            place.make(TABLES[name], _COLUMNS)
        variants = {name: partial(_stored, run, load, place, topic, name) for name in names(run)}
        pairs = {names(run): None} if len(variants) > 1 else {}
        yield from compared(run, load, variants, pairs)


def _stored(run: Run, load: Load, place: Warehouse, topic: str, name: str) -> float:
    stream = run.kafka().stream(run.spark(), _TOPICS[name], topic)
    rows = stream.selectExpr(f"{NUMBER} AS id", "key", "value")
    with scratch(place.folder) as checkpoint:
        writer = rows.writeStream.format(name).options(**place.given(name))
        writer = writer.option("checkpointLocation", str(checkpoint))
        speed = rate(run, name, writer, load.rows)
    found = place.totals(TABLES[name], "id")
    expect(f"{name}, rows and sum of ids", found, each_once(load.rows))
    place.clear(TABLES[name])
    return speed
