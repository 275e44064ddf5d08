"""The speed of turning Protobuf values into columns, beside a pandas UDF with Google's parser."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from benchmarks.bench import Run, benchmark, scratch
from benchmarks.measure import Figure, Goal, each_once, expect, figure, in_turn, ratios
from benchmarks.peer import KAFKA
from benchmarks.streams import Load, compared, rate
from benchmarks.topics import OURS, THEIRS

__all__ = ["decode", "encode", "read"]

_UDF = f"{THEIRS}, pandas UDF"
_GOAL = Goal(2.0, at_most=False)
_SIZE = 200
_FILLER = "a customer and where they live, what they bought, and when, in some words; "
_SCHEMA = """syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1;
  int64 account = 2;
  int32 product = 3;
  double price = 4;
  bool paid = 5;
  string customer = 6;
  string city = 7;
  sint64 total = 8;
  google.protobuf.Timestamp at = 9;
  repeated string tags = 10;
}
"""
_FIELDS = (
    "id BIGINT, account BIGINT, product INT, price DOUBLE, paid BOOLEAN, customer STRING, "
    "city STRING, total BIGINT, at TIMESTAMP, tags ARRAY<STRING>"
)
_HEADER_BYTES = 6  # a zero byte, the id of the schema, the number of the message


@benchmark("kafka.protobuf.read", "grpc_tools", peers=(KAFKA,))
def read(run: Run) -> Iterator[Figure]:
    """Values of 10 fields into columns: ours, and a pandas UDF on Spark's own source.

    Both give the same rows.
    """
    load = Load(_SIZE, 100_000 if run.quick else 500_000)
    with _registry(run) as (url, header), run.kafka().topic() as topic:
        run.told(f"{load}: filling a topic with {load.rows:,} Protobuf values")
        _fill(run, topic, load, header)
        ours = {"valueFormat": "protobuf", "registry.url": url, "registry.subject": "orders-value"}
        frames = {
            OURS: run.kafka().stream(run.spark(), OURS, topic, **ours),
            _UDF: _parsed(run.kafka().stream(run.spark(), THEIRS, topic)),
        }
        _check(run, topic, load, ours)
        variants = {
            name: partial(rate, run, name, frame.writeStream.format("noop"), load.rows)
            for name, frame in frames.items()
        }
        yield from compared(run, load, variants, {(OURS, _UDF): _GOAL})


@benchmark("kafka.protobuf.decode", "grpc_tools")
def decode(run: Run) -> Iterator[Figure]:
    """Decode records of 10 fields in one thread, beside Google's parser alone."""
    rows = 20_000 if run.quick else 100_000
    make = _message_class()
    records = [_write(make, number) for number in range(rows)]
    variants = {"decoder": _ours(records), "Google's parser": _google(make, records)}
    in_turn(1, variants, lambda what: run.told(f"warming up: {what}"))
    rates = in_turn(3, variants, lambda what: run.told(f"{rows} rows, {what}"))
    for name, each in rates.items():
        yield figure(f"{name}, {_SIZE} bytes", "rows/s", each)
    both = ratios(rates["decoder"], rates["Google's parser"])
    yield figure(f"decoder / Google's parser, {_SIZE} bytes", "x", both)


@benchmark("kafka.protobuf.encode", "grpc_tools")
def encode(run: Run) -> Iterator[Figure]:
    """Columns of 10 fields into Protobuf in one thread, beside Google's class from rows that exist.

    Both write the same bytes.
    """
    import pyarrow as pa

    from krishiv_spark.kafka.schemas.protobuf.protobuf_decode import ProtobufDecoder
    from krishiv_spark.kafka.schemas.protobuf.protobuf_encode import ProtobufEncoder
    from krishiv_spark.kafka.schemas.protobuf.protobuf_types import read_message

    rows = 20_000 if run.quick else 100_000
    make = _message_class()
    records = [_write(make, number) for number in range(rows)]
    descriptor = _descriptor()
    names = [each.name for each in descriptor.fields]
    decoder = ProtobufDecoder(descriptor.file, descriptor, names)
    columns = [decoder.decode(*piece).values for piece in _frame(records)]
    encoder = ProtobufEncoder(read_message(descriptor), columns[0].type)
    written = pa.concat_arrays([encoder.encode(each) for each in columns])
    expect("records", written.equals(pa.array(records, pa.binary())), wanted=True)

    def ours() -> float:
        began_s = time.perf_counter()
        size = sum(len(encoder.encode(each)) for each in columns)
        return size / (time.perf_counter() - began_s)

    def google() -> float:
        began_s = time.perf_counter()
        for number in range(rows):
            _write(make, number)
        return rows / (time.perf_counter() - began_s)

    variants = {"encoder": ours, "Google's class": google}
    in_turn(1, variants, lambda what: run.told(f"warming up: {what}"))
    rates = in_turn(3, variants, lambda what: run.told(f"{rows} rows, {what}"))
    for name, each in rates.items():
        yield figure(f"{name}, {_SIZE} bytes", "rows/s", each)
    both = ratios(rates["encoder"], rates["Google's class"])
    yield figure(f"encoder / Google's class, {_SIZE} bytes", "x", both)


def _descriptor() -> Any:
    from krishiv_spark.kafka.schemas.protobuf.protobuf_files import compile_proto, find_message
    from krishiv_spark.kafka.schemas.registered_schemas import RegisteredSchema

    return find_message(compile_proto(RegisteredSchema(1, "protobuf", _SCHEMA)), None)


def _message_class() -> Any:
    from krishiv_spark.kafka.schemas.protobuf.protobuf_files import message_class

    return message_class(_descriptor())


def _write(make: Any, number: int) -> bytes:
    found = make(
        id=number,
        account=number * 7919 % 1_000_003,
        product=number % 997,
        price=number / 8,
        paid=number % 3 == 0,
        customer=f"{_FILLER[:110]}{number}",
        city=f"city {number % 100}",
        total=number,
        at={"seconds": 1_700_000_000 + number},
        tags=["new", f"tag {number % 10}"],
    )
    encoded: bytes = found.SerializeToString()
    return encoded


def _ours(records: list[bytes]) -> Callable[[], float]:
    from krishiv_spark.kafka.schemas.protobuf.protobuf_decode import ProtobufDecoder

    descriptor = _descriptor()
    decoder = ProtobufDecoder(
        descriptor.file, descriptor, [each.name for each in descriptor.fields]
    )
    pieces = _frame(records)

    def once() -> float:
        began_s = time.perf_counter()
        size = sum(len(decoder.decode(*piece).values) for piece in pieces)
        return size / (time.perf_counter() - began_s)

    return once


def _frame(records: list[bytes]) -> list[tuple[Any, Any, Any]]:
    """Return records as batches of Kafka have them, as many in each as a megabyte has."""
    pieces = []
    for at in range(0, len(records), 5_000):
        framed = [b"\0" + each for each in records[at : at + 5_000]]
        ends = np.cumsum([len(each) for each in framed])
        starts = ends - [len(each) for each in framed]
        pieces.append((np.frombuffer(b"".join(framed), np.uint8), starts, ends))
    return pieces


def _google(make: Any, records: list[bytes]) -> Callable[[], float]:
    def once() -> float:
        began_s = time.perf_counter()
        for each in records:
            make.FromString(each)
        return len(records) / (time.perf_counter() - began_s)

    return once


@contextmanager
def _registry(run: Run) -> Iterator[tuple[str, bytes]]:
    """Start a registry that has the schema; yield its address, and the bytes before a record."""
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

    from servers.apicurio import running_registry

    with scratch(run.folder) as folder, running_registry(folder) as (url, _):
        client = SchemaRegistryClient({"url": url})
        number = client.register_schema("orders-value", Schema(_SCHEMA, "PROTOBUF"))
        yield url, b"\0" + number.to_bytes(4, "big") + b"\0"


def _fill(run: Run, topic: str, load: Load, header: bytes) -> None:
    """Write numbered records with Google's classes."""

    def encode(batches: Iterator[Any]) -> Iterator[Any]:
        make = _message_class()
        for batch in batches:
            values = [header + _write(make, int(number)) for number in batch["id"]]
            yield batch.assign(value=values)[["value"]]

    rows = run.spark().range(0, load.rows, 1, 2).mapInPandas(encode, "value BINARY")
    given = {**run.kafka().cluster, "topic": topic}
    rows.write.format(THEIRS).options(**given).mode("append").save()


def _parsed(rows: Any) -> Any:
    import pandas as pd
    from pyspark.sql.functions import pandas_udf

    def parse(values: Any) -> Any:
        make = _message_class()
        found = [make.FromString(each[_HEADER_BYTES:]) for each in values]
        columns: dict[str, Any] = {
            name: [getattr(each, name) for each in found]
            for name in ("id", "account", "product", "price", "paid", "customer", "city", "total")
        }
        times = [each.at.seconds * 1_000_000 + each.at.nanos // 1000 for each in found]
        columns["at"] = pd.to_datetime(times, unit="us", utc=True)
        columns["tags"] = [list(each.tags) for each in found]
        return pd.DataFrame(columns)

    # PySpark reads the annotations, which this module has as texts.
    parse.__annotations__ = {"values": pd.Series, "return": pd.DataFrame}
    columns = pandas_udf(parse, _FIELDS)("value")  # type: ignore[call-overload,unused-ignore]
    return rows.select(columns.alias("v")).select("v.*")


def _check(run: Run, topic: str, load: Load, ours: dict[str, str]) -> None:
    """Compare the rows of both readers, by their number, ids and hashes."""
    given = {**run.kafka().cluster, "subscribe": topic, "startingOffsets": "earliest"}
    reader = run.spark().read
    found = {
        OURS: reader.format(OURS).options(**given, **ours).load(),
        _UDF: _parsed(run.spark().read.format(THEIRS).options(**given).load()),
    }
    sums = {name: _sums(rows) for name, rows in found.items()}
    for name, row in sums.items():
        expect(f"{name}, rows and sum of ids", row[:2], each_once(load.rows))
        expect(f"{name}, hashes", row[2], sums[_UDF][2])


def _sums(rows: Any) -> tuple[Any, ...]:
    hashed = rows.selectExpr("id", "xxhash64(*) AS hash")
    row = hashed.selectExpr("count(*)", "sum(id)", "sum(cast(hash AS decimal(38, 0)))").first()
    return tuple(row)
