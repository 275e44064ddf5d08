"""Records of AWS Glue's serializers, whose schemas are files of a folder."""

import json
import threading
import uuid
import zlib

import pyarrow as pa
import pytest
from avro_cases import encode, of, record

from krishiv_spark.errors import KrishivError, SchemaError
from krishiv_spark.kafka.schemas.registry import open_registry
from krishiv_spark.sources.kafka.options import KafkaSourceOptions
from krishiv_spark.sources.kafka.registered_values import (
    RegisteredValues,
    check_pinned,
    find_schema,
    pin,
)

ID, NAME = of("id", "long"), of("name", "string", default="-")
OLD, NEW = record(ID), record(ID, NAME)
FIRST, SECOND = (uuid.UUID(int=n << 100) for n in (1, 2))


@pytest.fixture
def folder(tmp_path):
    open_registry.cache_clear()
    return tmp_path


def put(folder, version, guid, schema, form="avsc"):
    (folder / f"orders-value.{version}.{guid}.{form}").write_text(json.dumps(schema))


def frame(guid, data, *, packed=False):
    """As AWS's serializer does: version, compression, UUID."""
    return (
        b"\3"
        + (b"\5" if packed else b"\0")
        + guid.bytes
        + (zlib.compress(data) if packed else data)
    )


def options(folder, **more):
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders", "valueFormat": "avro"}
    given |= {"registry.url": folder.as_uri(), "registry.wire.format": "glue", **more}
    return KafkaSourceOptions.parse(given, "krishiv-kafka")


def reader_of(folder, **more):
    found = options(folder, **more)
    schema = find_schema(found)
    return RegisteredValues(found.registry, schema, schema.fields)


def test_records_of_two_versions_plain_and_compressed(folder):
    put(folder, 9, FIRST, OLD)
    put(folder, 10, SECOND, NEW)
    (folder / "README").write_text("other files are ignored")
    (one,) = encode(OLD, {"id": 1})
    (two,) = encode(NEW, {"id": 2, "name": "x" * 1000})
    values = [
        frame(FIRST, one, packed=True),
        None,
        frame(SECOND, two, packed=True),
        frame(FIRST, one),
    ]
    bad = [b"\3\0short", b"\0\0\0\0\1" + bytes(20), frame(FIRST, two, packed=True)[:-9], b""]
    reader = reader_of(folder)
    found = reader.parse(pa.array([*values, *bad], pa.binary()))
    assert found.objects.to_pylist()[:4] == [
        {"id": 1, "name": "-"},
        None,
        {"id": 2, "name": "x" * 1000},
        {"id": 1, "name": "-"},
    ]
    assert list(found.bad) == [4, 5, 6, 7]
    for value in bad:
        assert reader.explain(value).startswith("does not begin as a serializer of AWS Glue's")


def test_json_of_a_schema(folder):
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    put(folder, 1, FIRST, schema, "json")
    reader = reader_of(folder, valueFormat="json-schema")
    found = reader.parse(pa.array([frame(FIRST, b'{"id": 3}', packed=True)], pa.binary()))
    assert found.objects.to_pylist() == [{"id": 3}]


def test_a_version_that_is_missing_is_waited_for(folder):
    put(folder, 1, FIRST, OLD)
    values = pa.array([frame(SECOND, encode(NEW, {"id": 2, "name": "x"})[0])], pa.binary())
    with pytest.raises(KrishivError, match=f"for 0 s in vain: .*no file .* the UUID {SECOND}: add"):
        reader_of(folder, **{"registry.timeout": "0s"}).parse(values)
    reader = reader_of(folder)
    timer = threading.Timer(0.3, put, (folder, 2, SECOND, NEW))
    timer.start()
    assert reader.parse(values).objects.to_pylist() == [{"id": 2}]
    timer.join()


def test_the_readers_schema_is_pinned(folder):
    put(folder, 1, FIRST, OLD)
    known = pin(find_schema(options(folder)), options(folder))
    assert (known.version, known.subject) == (1, "orders-value")
    assert open_registry(options(folder).registry).find(known.id).text == json.dumps(OLD)
    put(folder, 2, SECOND, NEW)
    newest = pin(find_schema(options(folder)), options(folder))
    with pytest.raises(KrishivError, match="version 1 of its schema, and the newest is version 2"):
        check_pinned(known, newest, options(folder))


def test_two_files_of_a_version_and_a_missing_subject(folder):
    with pytest.raises(SchemaError, match="does not have version latest of the subject"):
        find_schema(options(folder))
    put(folder, 1, FIRST, OLD)
    put(folder, 1, SECOND, NEW)
    with pytest.raises(SchemaError, match="has two files for one schema version"):
        find_schema(options(folder))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"registry.url": "http://127.0.0.1:1"}, "belong together"),
        ({"registry.wire.format": "confluent"}, "belong together"),
        ({"valueFormat": "protobuf"}, "is for Avro and JSON Schema, and not for Protobuf"),
    ],
)
def test_options_that_do_not_fit_are_named(folder, more, message):
    with pytest.raises(ValueError, match=message):
        options(folder, **more)
