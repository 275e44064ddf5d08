"""The speed of Avro records, beside ``to_avro`` and ``from_avro`` with Spark's own connector."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa

from benchmarks.bench import Run, benchmark, scratch
from benchmarks.measure import Figure, Goal, each_once, expect, figure, in_turn, ratios
from benchmarks.peer import KAFKA, SPARK_AVRO
from benchmarks.streams import Load, compared, rate
from benchmarks.topics import OURS, THEIRS

__all__ = [
    "FIELDS",
    "RECORD_BYTES",
    "encode",
    "make_rows",
    "rate_of",
    "read",
    "write",
    "write_rows",
]

_TO_AVRO = f"{THEIRS}, to_avro"
_FROM_AVRO = f"{THEIRS}, from_avro"
_GOAL = Goal(1.0, at_most=False)
_READ_GOAL = Goal(1.5, at_most=False)
_FILLER = "a customer and where they live, what they bought, and when, in some words; "
FIELDS = (
    "id",
    "id * 7919 % 1000003 AS account",
    "cast(id % 997 AS int) AS product",
    "id / 8 AS price",
    "id % 3 = 0 AS paid",
    f"concat('{_FILLER}{_FILLER}', cast(id AS string)) AS customer",
    "concat('city ', cast(id % 100 AS string)) AS city",
    "cast(id / 100 AS decimal(12, 2)) AS total",
    "timestamp_micros(1700000000000000 + id) AS at",
    "array('new', concat('tag ', cast(id % 10 AS string))) AS tags",
)
"""Ten fields, which are about 200 bytes of Avro."""
RECORD_BYTES = 200
_HEADER_BYTES = 5  # a zero byte, and the id of the schema


@benchmark("kafka.avro.write", "confluent_kafka", peers=(KAFKA, SPARK_AVRO))
def write(run: Run) -> Iterator[Figure]:
    """Rows of 10 columns as Avro: ours exactly once, and ``to_avro`` before Spark's own sink.

    Both write the same bytes, which our source reads back.
    """
    load = Load(RECORD_BYTES, 200_000 if run.quick else 1_000_000)
    with _registry(run) as (url, header, schema):
        variants = {
            OURS: partial(_write, run, load, OURS, make_rows(run, load), url),
            _TO_AVRO: partial(_write, run, load, THEIRS, _coded(run, load, header, schema), url),
        }
        yield from compared(run, load, variants, {(OURS, _TO_AVRO): _GOAL})


@benchmark("kafka.avro.read", "confluent_kafka", peers=(KAFKA, SPARK_AVRO))
def read(run: Run) -> Iterator[Figure]:
    """Avro values of 10 fields into columns: ours, and ``from_avro`` on Spark's own source.

    Both give the same rows.
    """
    load = Load(RECORD_BYTES, 200_000 if run.quick else 1_000_000)
    with _registry(run) as (url, header, schema), run.kafka().topic() as topic:
        run.told(f"{load}: filling a topic with {load.rows:,} Avro values")
        rows = run.spark().range(0, load.rows, 1, 2).selectExpr(*FIELDS)
        given = {**run.kafka().cluster, "topic": topic}
        coded = rows.selectExpr(_to_avro(header, schema))
        coded.write.format(THEIRS).options(**given).mode("append").save()
        ours = {"valueFormat": "avro", **_subject(url)}
        _check(run, topic, load, ours, schema)
        frames = {
            OURS: run.kafka().stream(run.spark(), OURS, topic, **ours),
            _FROM_AVRO: _parsed(run.kafka().stream(run.spark(), THEIRS, topic), schema),
        }
        variants = {
            name: partial(rate, run, name, frame.writeStream.format("noop"), load.rows)
            for name, frame in frames.items()
        }
        yield from compared(run, load, variants, {(OURS, _FROM_AVRO): _READ_GOAL})


@benchmark("kafka.avro.encode", "fastavro")
def encode(run: Run) -> Iterator[Figure]:
    """Columns of 10 fields into Avro in one thread, beside fastavro from rows that exist."""
    rows = 20_000 if run.quick else 100_000
    found = run.spark().range(rows).selectExpr(*FIELDS).toArrow().combine_chunks()
    column = found.to_struct_array().combine_chunks()
    variants = {"encoder": _ours(column), "fastavro": _fastavro(column)}
    in_turn(1, variants, lambda what: run.told(f"warming up: {what}"))
    rates = in_turn(3, variants, lambda what: run.told(f"{rows} rows, {what}"))
    for name, each in rates.items():
        yield figure(f"{name}, {RECORD_BYTES} bytes", "rows/s", each)
    both = ratios(rates["encoder"], rates["fastavro"])
    yield figure(f"encoder / fastavro, {RECORD_BYTES} bytes", "x", both)


def _schema_of(kind: pa.DataType) -> str:
    from krishiv_spark.kafka.schemas.avro.avro_derive import derive_schema

    return derive_schema(kind, "orders_value")


def _ours(column: pa.StructArray) -> Callable[[], float]:
    from krishiv_spark.kafka.schemas.avro.avro_encode import AvroEncoder
    from krishiv_spark.kafka.schemas.avro.avro_types import parse_avro_schema

    encoder = AvroEncoder(parse_avro_schema(_schema_of(column.type)), column.type)
    return rate_of(encoder.encode, column)


def rate_of(encode: Callable[[pa.Array], pa.Array], column: pa.StructArray) -> Callable[[], float]:
    """Return a function that encodes a column, in pieces as Spark has them, and returns rows/s."""
    pieces = [column.slice(at, 10_000) for at in range(0, len(column), 10_000)]

    def once() -> float:
        began_s = time.perf_counter()
        size = sum(len(encode(piece)) for piece in pieces)
        return size / (time.perf_counter() - began_s)

    return once


def _fastavro(column: pa.StructArray) -> Callable[[], float]:
    import fastavro

    schema = fastavro.parse_schema(json.loads(_schema_of(column.type)))
    rows = column.to_pylist()

    def once() -> float:
        began_s = time.perf_counter()
        for row in rows:
            out = io.BytesIO()
            fastavro.schemaless_writer(out, schema, row)
            out.getvalue()
        return len(rows) / (time.perf_counter() - began_s)

    return once


@contextmanager
def _registry(run: Run) -> Iterator[tuple[str, bytes, str]]:
    """Start a registry that has the schema of the rows.

    Yields:
        Its address, the bytes before each record, and the schema.
    """
    from krishiv_spark.arrow.schemas import arrow_schema
    from krishiv_spark.kafka.schemas.registry import RegistrySettings, SchemaRegistry
    from servers.apicurio import running_registry

    schema = _schema_of(pa.struct(list(arrow_schema(make_rows(run, Load(RECORD_BYTES, 1)).schema))))
    with scratch(run.folder) as folder, running_registry(folder) as (url, _):
        settings = RegistrySettings.from_options({"registry.url": url})
        number = SchemaRegistry(settings).register("orders-value", schema).id
        yield url, b"\0" + number.to_bytes(4, "big"), schema


def make_rows(run: Run, load: Load) -> Any:
    """Return a stream of one batch of new rows, with the columns of `FIELDS`."""
    reader = run.spark().readStream.format("rate-micro-batch").option("rowsPerBatch", load.rows)
    made = reader.option("numPartitions", 2).load().selectExpr("value AS id")
    return made.selectExpr(*FIELDS)


def _coded(run: Run, load: Load, header: bytes, schema: str) -> Any:
    return make_rows(run, load).selectExpr(_to_avro(header, schema))


def _to_avro(header: bytes, schema: str) -> str:
    return f"concat(unhex('{header.hex()}'), to_avro(struct(*), '{schema}')) AS value"


def _parsed(rows: Any, schema: str) -> Any:
    text = f"from_avro(substring(value, {_HEADER_BYTES + 1}), '{schema}', map()) AS v"
    return rows.selectExpr(text).select("v.*")


def _check(run: Run, topic: str, load: Load, ours: Mapping[str, str], schema: str) -> None:
    """Compare the rows of both readers, by their number, ids and hashes."""
    given = {**run.kafka().cluster, "subscribe": topic, "startingOffsets": "earliest"}
    reader = run.spark().read
    found = {
        OURS: reader.format(OURS).options(**given, **ours).load(),
        _FROM_AVRO: _parsed(run.spark().read.format(THEIRS).options(**given).load(), schema),
    }
    hashed = "sum(cast(xxhash64(*) AS decimal(38, 0)))"
    sums = {n: tuple(f.selectExpr("count(*)", "sum(id)", hashed).first()) for n, f in found.items()}
    for name, row in sums.items():
        expect(f"{name}, rows and sum of ids", row[:2], each_once(load.rows))
        expect(f"{name}, hashes", row[2], sums[_FROM_AVRO][2])


def _write(run: Run, load: Load, sink: str, rows: Any, url: str) -> float:
    form = {"valueFormat": "avro", **_subject(url)}
    return write_rows(run, load, sink, rows, form)


def _subject(url: str) -> dict[str, str]:
    return {"registry.url": url, "registry.subject": "orders-value", "registry.version": "1"}


def write_rows(run: Run, load: Load, sink: str, rows: Any, form: Mapping[str, str]) -> float:
    """Write one batch into a new topic, check it with our source, and return rows per second.

    Args:
        run: The call of the command.
        load: The number of rows.
        sink: The format of the sink; Spark's own gets encoded values.
        rows: The stream.
        form: The options of the records' form, for our sink and our source.
    """
    kafka = run.kafka()
    with kafka.topic() as topic, scratch(run.folder) as checkpoint:
        more = form if sink == OURS else {}
        writer = rows.writeStream.format(sink).options(**kafka.cluster, topic=topic, **more)
        writer = writer.option("checkpointLocation", str(checkpoint))
        speed = rate(run, sink, writer, load.rows)
        given = {**kafka.cluster, **form, "subscribe": topic, "startingOffsets": "earliest"}
        found = run.spark().read.format(OURS).options(**given).load()
        row = found.selectExpr("count(*)", "sum(id)").first()
        expect(f"{sink}, rows and sum of ids", tuple(row), each_once(load.rows))
    return speed
