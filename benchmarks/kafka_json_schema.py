"""The speed of writing columns as JSON of a registered schema, beside ``to_json``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from benchmarks.bench import Run, benchmark, scratch
from benchmarks.kafka_avro import FIELDS, RECORD_BYTES, make_rows, rate_of, write_rows
from benchmarks.measure import Figure, Goal, figure, in_turn, ratios
from benchmarks.peer import KAFKA
from benchmarks.streams import Load, compared
from benchmarks.topics import OURS, THEIRS

__all__ = ["encode", "write"]

_TO_JSON = f"{THEIRS}, to_json"
_GOAL = Goal(1.0, at_most=False)


@benchmark("kafka.json_schema.write", "confluent_kafka", peers=(KAFKA,))
def write(run: Run) -> Iterator[Figure]:
    """Rows of 10 columns as JSON: ours exactly once, and ``to_json`` before Spark's own sink.

    Both write the same fields after the id of the schema, which our source reads back.
    """
    from krishiv_spark.arrow.schemas import arrow_schema
    from krishiv_spark.kafka.schemas.json_schema.json_schema_encode import derive_json_schema
    from krishiv_spark.kafka.schemas.registry import RegistrySettings, SchemaRegistry
    from servers.apicurio import running_registry

    load = Load(RECORD_BYTES, 200_000 if run.quick else 1_000_000)
    rows = make_rows(run, load)
    schema = derive_json_schema(pa.struct(list(arrow_schema(rows.schema))), "orders_value")
    with scratch(run.folder) as folder, running_registry(folder) as (url, _):
        form = {
            "valueFormat": "json-schema",
            "registry.url": url,
            "registry.subject": "orders-value",
            "registry.version": "1",
        }
        registry = SchemaRegistry(RegistrySettings.from_options({"registry.url": url}))
        number = registry.register("orders-value", schema, "json-schema").id
        header = (b"\0" + number.to_bytes(4, "big")).hex()
        text = f"concat(unhex('{header}'), cast(to_json(struct(*)) AS binary)) AS value"
        coded = make_rows(run, load).selectExpr(text)
        variants = {
            OURS: partial(write_rows, run, load, OURS, rows, form),
            _TO_JSON: partial(write_rows, run, load, THEIRS, coded, form),
        }
        yield from compared(run, load, variants, {(OURS, _TO_JSON): _GOAL})


@benchmark("kafka.json_schema.encode")
def encode(run: Run) -> Iterator[Figure]:
    """Columns of 10 fields into JSON in one thread, beside Python's encoder from rows that exist.

    Its texts of times, decimals and numbers are made before the measurement.
    """
    rows = 20_000 if run.quick else 100_000
    found = run.spark().range(rows).selectExpr(*FIELDS).toArrow().combine_chunks()
    column = found.to_struct_array().combine_chunks()
    variants = {"encoder": _ours(column), "Python's encoder": _python(column)}
    in_turn(1, variants, lambda what: run.told(f"warming up: {what}"))
    rates = in_turn(3, variants, lambda what: run.told(f"{rows} rows, {what}"))
    for name, each in rates.items():
        yield figure(f"{name}, {RECORD_BYTES} bytes", "rows/s", each)
    both = ratios(rates["encoder"], rates["Python's encoder"])
    yield figure(f"encoder / Python's encoder, {RECORD_BYTES} bytes", "x", both)


def _ours(column: pa.StructArray) -> Callable[[], float]:
    from krishiv_spark.kafka.schemas.json_schema.json_schema_encode import (
        JsonSchemaEncoder,
        derive_json_schema,
    )
    from krishiv_spark.kafka.schemas.registered_schemas import RegisteredSchema

    text = derive_json_schema(column.type, "orders_value")
    encoder = JsonSchemaEncoder(RegisteredSchema(1, "json-schema", text), column.type, b"", "")
    return rate_of(encoder.encode, column)


def _python(column: pa.StructArray) -> Callable[[], float]:
    rows: list[Any] = json.loads(json.dumps(column.to_pylist(), default=str))

    def once() -> float:
        began_s = time.perf_counter()
        for row in rows:
            json.dumps(row, separators=(",", ":")).encode()
        return len(rows) / (time.perf_counter() - began_s)

    return once
