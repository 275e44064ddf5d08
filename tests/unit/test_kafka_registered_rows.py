"""Columns that are fields of an Avro value, and answers of a registry that are refused."""

import json
from types import SimpleNamespace

import pyarrow as pa
import pytest

from krishiv_spark.errors import SchemaError
from krishiv_spark.kafka.schemas import registry
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.registered_rows import RegisteredColumns

OPTIONS = KafkaSinkOptions.parse(
    {
        "kafka.bootstrap.servers": "h:1",
        "topic": "t",
        "valueFormat": "avro",
        "registry.url": "http://h:1",
    },
    "krishiv-kafka",
)


@pytest.mark.parametrize("name", ["KEY", "Value", "Headers", "Topic", "PARTITION", "Timestamp"])
def test_a_column_of_kafka_in_another_case_is_no_field_of_the_value(name):
    schema = pa.schema([("id", pa.int64()), (name, pa.binary())])
    with pytest.raises(SchemaError, match=rf"{name!r} would be .*rename it to {name.lower()!r}"):
        RegisteredColumns.from_schema(OPTIONS, schema)


def test_other_columns_are_the_fields_of_the_value():
    schema = pa.schema([("id", pa.int64()), ("key", pa.binary()), ("Keys", pa.binary())])
    assert RegisteredColumns.from_schema(OPTIONS, schema).fields == ("id", "Keys")


def schema_of(kind, doc="", **more):
    inner = {"type": "array", "items": ["null", {"type": kind, **more}]}
    record = {"type": "record", "name": "R", "doc": doc, "fields": [{"name": "at", "type": inner}]}
    return json.dumps(record)


def place(monkeypatch, answer, text):
    """Register a schema in a registry that has another text for its id."""
    client = SimpleNamespace(
        register_schema=lambda *_: 1,
        get_schema=lambda _: SimpleNamespace(schema_type="AVRO", references=[], schema_str=answer),
    )
    monkeypatch.setattr(registry, "_create_client", lambda _: client)
    settings = registry.RegistrySettings.from_options({"registry.url": "http://h:1"})
    return registry.SchemaRegistry(settings).register("t-value", text)


DECIMAL = {"logicalType": "decimal", "precision": 9}


@pytest.mark.parametrize(
    ("kind", "answer", "written"),
    [
        ("long", {"logicalType": "timestamp-millis"}, {"logicalType": "timestamp-micros"}),
        ("long", {"logicalType": "local-timestamp-micros"}, {"logicalType": "timestamp-micros"}),
        ("long", {}, {"logicalType": "timestamp-micros"}),
        ("bytes", {**DECIMAL, "scale": 3}, {**DECIMAL, "scale": 2}),
        ("bytes", {}, {**DECIMAL, "scale": 2}),
    ],
)
def test_an_id_of_a_schema_with_other_logical_types_is_refused(monkeypatch, kind, answer, written):
    with pytest.raises(SchemaError, match=r"has the id 1 .* returns another schema"):
        place(monkeypatch, schema_of(kind, **answer), schema_of(kind, **written))


def test_an_id_of_a_schema_with_another_description_is_accepted(monkeypatch):
    micros = {"logicalType": "timestamp-micros"}
    answer = schema_of("long", doc="moments", **micros)
    assert place(monkeypatch, answer, schema_of("long", **micros)).text == answer
