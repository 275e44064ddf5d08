"""Avro values beside a real registry and the records of Confluent's own serializer."""

import json
import os
import signal
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pytest
from click.testing import CliRunner
from confluent_kafka.schema_registry import SchemaReference
from registries import registry  # noqa: F401  a fixture
from registry_server import RegistryHandler, running_registry_server

from krishiv_spark.cli import main
from krishiv_spark.errors import KrishivError, OffsetError, OptionError, SchemaError
from krishiv_spark.kafka.schemas.registry import (
    RegistrySettings,
    SchemaRegistry,
    open_registry,
)
from krishiv_spark.sources.kafka.offset import KafkaOffset
from krishiv_spark.sources.kafka.options import KafkaSourceOptions
from krishiv_spark.sources.kafka.registered_values import (
    RegisteredValues,
    check_pinned,
    find_schema,
    pin,
)

pytestmark = pytest.mark.long  # starts a registry

ID = {"name": "id", "type": "long"}
NAME = {"name": "name", "type": ["null", "string"], "default": None}
PRICE = {"name": "price", "type": "double", "default": 0.5}


def record(*fields, **more):
    return {"type": "record", "name": "Order", "fields": [*fields], **more}


@pytest.fixture
def topic():
    return f"orders-{uuid.uuid4().hex[:8]}"


def options(registry, topic, **more):  # noqa: F811
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": topic, "valueFormat": "avro"}
    given |= {"registry.url": registry.url, **more}
    return KafkaSourceOptions.parse(given, "krishiv-kafka")


def reader_of(registry, topic, **more):  # noqa: F811
    found = options(registry, topic, **more)
    schema = find_schema(found)
    return RegisteredValues(found.registry, schema, schema.fields), schema.registered


def test_records_of_several_schemas_are_read_with_the_readers(registry, topic):  # noqa: F811
    old = registry.serialize(topic, record(ID), {"id": 1}, {"id": 2})
    new = registry.serialize(topic, record(ID, PRICE, NAME), {"id": 3, "price": 2.0, "name": "x"})
    reader, schema = reader_of(registry, topic)
    assert schema.version == 2
    found = reader.parse(pa.array([old[0], new[0], None, old[1]], pa.binary()))
    assert list(found.bad) == []
    assert found.objects.to_pylist() == [
        {"id": 1, "price": 0.5, "name": None},
        {"id": 3, "price": 2.0, "name": "x"},
        None,
        {"id": 2, "price": 0.5, "name": None},
    ]


def test_an_older_version_is_read_by_choice(registry, topic):  # noqa: F811
    registry.serialize(topic, record(ID), {"id": 1})
    new = registry.serialize(topic, record(ID, PRICE), {"id": 3, "price": 2.0})
    reader, _ = reader_of(registry, topic, **{"registry.version": "1"})
    assert reader.parse(pa.array(new, pa.binary())).objects.to_pylist() == [{"id": 3}]


def test_a_slice_of_values_is_read(registry, topic):  # noqa: F811
    values = registry.serialize(topic, record(ID), *({"id": n} for n in range(6)))
    reader, _ = reader_of(registry, topic)
    found = reader.parse(pa.array(values, pa.binary()).slice(2, 3)).objects
    assert found.to_pylist() == [{"id": 2}, {"id": 3}, {"id": 4}]


def test_a_schema_that_refers_to_another(registry, topic):  # noqa: F811
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}
    registry.register(f"{topic}-inner", inner)
    outer = record(ID, {"name": "inner", "type": "Inner"})
    reference = SchemaReference("Inner", f"{topic}-inner", 1)
    registry.register(f"{topic}-value", outer, references=[reference])
    schema = find_schema(options(registry, topic))
    assert [each.name for each in schema.fields] == ["id", "inner"]
    assert schema.fields[1].type == pa.struct([pa.field("x", pa.int32(), nullable=False)])


BAD = [
    (b"", "does not begin as a serializer of a schema registry writes it"),
    (b"\0\0\0\0", "does not begin as a serializer"),
    (b'{"id":1}', "does not begin as a serializer"),
    (b"\0\x7f\xff\xff\xff\x02", "has the schema 2147483647: the schema registry"),
    (b"\0%s\x80", "is not valid for its schema: field id: it ends too early"),
    (
        b"\3\0" + uuid.UUID(int=7).bytes + b"\2",
        "begins as a serializer of AWS Glue's schema registry writes it",
    ),
    (b"\3\1" + bytes(17), "does not begin as a serializer"),
]


@pytest.mark.parametrize(("value", "reason"), BAD)
def test_a_bad_value_says_why_and_spoils_no_other(registry, topic, value, reason):  # noqa: F811
    good = registry.serialize(topic, record(ID), {"id": 1})[0]
    value = value.replace(b"%s", good[1:5])
    reader, _ = reader_of(registry, topic)
    found = reader.parse(pa.array([good, value, good], pa.binary()))
    assert list(found.bad) == [1]
    assert found.objects.to_pylist() == [{"id": 1}, None, {"id": 1}]
    assert reader.explain(value).startswith(reason)


def test_a_writer_that_does_not_fit_the_reader_is_a_bad_value(registry, topic):  # noqa: F811
    registry.register(f"{topic}-value", record(ID))
    other = registry.serialize(f"{topic}-other", record(NAME), {"name": "x"})
    reader, _ = reader_of(registry, topic)
    assert list(reader.parse(pa.array(other, pa.binary())).bad) == [0]
    assert "has no field id, and the reader's has no default for it" in reader.explain(other[0])


def test_a_query_stays_with_its_schema_until_the_user_decides(registry, topic):  # noqa: F811
    registry.register(f"{topic}-value", record(ID))
    first = options(registry, topic)
    known = pin(find_schema(first), first)
    check_pinned(known, known, first)
    registry.register(f"{topic}-value", record(ID, PRICE))
    newest = pin(find_schema(first), first)
    with pytest.raises(
        OffsetError, match=r"version 1 of its schema, and the newest is version 2 .*"
    ):
        check_pinned(known, newest, first)
    for version in ("1", "2"):
        chosen = options(registry, topic, **{"registry.version": version})
        check_pinned(known, pin(find_schema(chosen), chosen), chosen)


def test_a_version_that_has_changed_is_another_registry(registry, topic):  # noqa: F811
    registry.register(f"{topic}-value", record(ID))
    given = options(registry, topic)
    now = pin(find_schema(given), given)
    with pytest.raises(OffsetError, match="this is another registry, or one that was restored"):
        check_pinned(now.model_copy(update={"fingerprint": "other"}), now, given)


def test_an_id_with_another_schema_than_before_is_found(registry, topic):  # noqa: F811
    """The planted bugs: a cache that has the schema of another id, and a position with one."""
    found = options(registry, topic)
    schema_id = registry.register(f"{topic}-value", record(ID))
    other = registry.register(f"{topic}-other", record(NAME))
    cached = open_registry(found.registry)
    cached._by_id[schema_id] = replace(cached.find(other), id=schema_id)
    with pytest.raises(SchemaError, match=f"has another schema for the id {schema_id} than before"):
        find_schema(found)
    del cached._by_id[schema_id]
    now = pin(find_schema(found), found)
    registry.register(f"{topic}-value", record(ID, PRICE))
    wrong = now.model_copy(update={"version": 2})  # with the fingerprint of version 1
    with pytest.raises(OffsetError, match=r"version 2 of the subject .* is another schema than"):
        check_pinned(wrong, pin(find_schema(found), found), found)


def test_the_subject_is_that_of_the_topic_or_the_users(registry, topic):  # noqa: F811
    registry.register("shared", record(ID))
    found = find_schema(options(registry, topic, **{"registry.subject": "shared"}))
    assert [each.name for each in found.fields] == ["id"]
    with pytest.raises(OptionError, match=r"by the option 'registry\.subject'"):
        find_schema(options(registry, f"{topic},other"))
    with pytest.raises(
        SchemaError, match=f"does not have version latest of the subject '{topic}-value'"
    ):
        find_schema(options(registry, topic))


def test_a_schema_of_another_form_is_refused(registry, topic):  # noqa: F811
    text = '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}'
    registry.register(f"{topic}-value", text, "JSON")
    with pytest.raises(SchemaError, match="of the form json-schema, and 'valueFormat' is 'avro'"):
        find_schema(options(registry, topic))


def test_a_registry_that_is_away_is_waited_for(registry, topic, caplog):  # noqa: F811
    """Known ids need no registry; an unknown one waits, and the error says how long."""
    known = registry.register(f"{topic}-value", record(ID))
    away = SchemaRegistry(registry.settings(timeout="1s"))
    assert away.find(known).kind == "avro"
    registry.server.kill()
    try:
        assert away.find(known).kind == "avro"
        with pytest.raises(KrishivError, match="was asked for the schema 9 for 1 s in vain"):
            away.find(9)
        assert "waiting for the schema registry" in caplog.text
    finally:
        registry.server.start()  # with nothing in it: it keeps its schemas in memory
        open_registry.cache_clear()  # ids are given again, to other schemas
    with pytest.raises(SchemaError, match="does not have the schema 999"):
        away.find(999)


class _Lagging(RegistryHandler):
    """A server whose first answers to each path are a 404 that the registry has not given."""

    answers: list[bytes]
    asked: dict[str, int]

    def do_GET(self) -> None:
        number = self.asked[self.path] = self.asked.get(self.path, 0) + 1
        if number > len(self.answers):
            super().do_GET()
        else:
            self.send(404, self.answers[number - 1])


@contextmanager
def lagging(registry, *answers, **given):  # noqa: F811
    """The settings of such a server, and the number of requests for each path."""
    asked = {}
    state = {"answers": answers, "asked": asked}
    with running_registry_server(_Lagging, registry.url, **state) as url:
        given = {f"registry.{name}": value for name, value in given.items()}
        yield RegistrySettings.from_options({"registry.url": url, **given}), asked


GATEWAYS = [b"<html>404 Not Found</html>", b'{"message": "no Route matched"}', b"null"]
NOT_YET = b'{"error_code": 40403, "message": "Schema not found"}'


@pytest.mark.parametrize(
    "answers", [GATEWAYS, [NOT_YET]], ids=["a gateway", "a replica without the new id"]
)
def test_a_404_that_is_no_answer_of_the_registry_makes_no_value_bad(registry, topic, answers):  # noqa: F811
    values = registry.serialize(topic, record(ID), {"id": 1}, {"id": 2})
    found = options(registry, topic)
    schema = find_schema(found)
    with lagging(registry, *answers) as (settings, _):
        reader = RegisteredValues(settings, schema, schema.fields)
        parsed = reader.parse(pa.array(values, pa.binary()))
    assert list(parsed.bad) == []
    assert parsed.objects.to_pylist() == [{"id": 1}, {"id": 2}]


def test_a_404_of_a_gateway_does_not_mean_that_a_subject_is_new(registry, topic):  # noqa: F811
    known = registry.register(f"{topic}-value", record(ID))
    with lagging(registry, *GATEWAYS) as (settings, _):
        assert SchemaRegistry(settings).find_newest(f"{topic}-value").id == known
        assert SchemaRegistry(settings).find_newest(f"{topic}-other") is None
    with lagging(registry, *GATEWAYS * 9, timeout="1s") as (settings, _):
        with pytest.raises(KrishivError, match="in vain") as caught:
            SchemaRegistry(settings).find_newest(f"{topic}-value")
        assert not isinstance(caught.value, SchemaError)


def test_unknown_ids_cost_one_pause_for_all(registry):  # noqa: F811
    """A topic with damaged values may have thousands."""
    with lagging(registry) as (settings, asked):
        found = SchemaRegistry(settings)
        began = time.monotonic()
        for number in range(9000, 9020):
            with pytest.raises(SchemaError, match=f"does not have the schema {number}"):
                found.find(number)
        assert time.monotonic() - began < 5
    assert set(asked.values()) == {2}


def test_known_ids_are_read_while_the_registry_is_silent(registry, topic, caplog):  # noqa: F811
    """The registry stops in the middle of a stream, and answers again with all its schemas."""
    old = registry.serialize(topic, record(ID), {"id": 1}, {"id": 2})
    reader, _ = reader_of(registry, topic)
    assert reader.parse(pa.array(old[:1], pa.binary())).objects.to_pylist() == [{"id": 1}]
    new = registry.serialize(topic, record(ID, PRICE), {"id": 3, "price": 2.0})
    pid = registry.server.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        assert reader.parse(pa.array(old[1:], pa.binary())).objects.to_pylist() == [{"id": 2}]
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(reader.parse, pa.array([*new, old[0]], pa.binary()))
            with pytest.raises(FutureTimeoutError):
                waiting.result(15)
            assert "waiting for the schema registry" in caplog.text
            os.kill(pid, signal.SIGCONT)
            found = waiting.result(60)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert list(found.bad) == []
    assert found.objects.to_pylist() == [{"id": 3}, {"id": 1}]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "option 'registry.url' is missing"),
        ({"registry.url": "x", "registry.verison": "1"}, "did you mean 'registry.version'"),
        ({"registry.url": "http://x", "registry.version": "new"}, "write 'latest', or the number"),
        ({"registry.url": "http://x", "registry.timeout": "soon"}, "registry.timeout"),
    ],
)
def test_bad_settings_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        RegistrySettings.from_options(given)


def test_no_secret_is_shown():
    given = {"registry.url": "http://me:hidden-word@127.0.0.1:1", "registry.timeout": "0s"}
    found = RegistrySettings.from_options(given)
    with pytest.raises(KrishivError) as caught:
        SchemaRegistry(found).find(1)
    assert "hidden-word" not in f"{caught.value} {found}"
    for url in ("http://127.0.0.1:1?key=hidden-word", "http://127.0.0.1:1/#hidden-word,http://x"):
        found = RegistrySettings.from_options({"registry.url": url})
        assert "hidden-word" not in f"{found.url} {found}"
    login = {
        "registry.url": "http://127.0.0.1:1",
        "registry.basic.auth.user.info": "me:hidden-word",
    }
    found = RegistrySettings.from_options({**login, "registry.timeout": "0s"})
    assert found.secrets() == {"me:hidden-word", "hidden-word"}
    assert "hidden-word" not in repr(found)
    assert KafkaSourceOptions.secret_keys(login) == {"registry.basic.auth.user.info"}
    for plain in ("registry.url", "registry.proxy"):
        assert KafkaSourceOptions.secret_keys({plain: "http://127.0.0.1:1,http://x:2"}) == set()
        hidden = {plain: "http://127.0.0.1:1,http://me:hidden-word@x:2"}
        assert KafkaSourceOptions.secret_keys(hidden) == {plain}


def test_the_status_shows_newer_versions(registry, topic, tmp_path, monkeypatch):  # noqa: F811
    """And a registry that is away, for which records with unknown ids wait."""
    registry.register(f"{topic}-value", record(ID))
    known = pin(find_schema(options(registry, topic)), options(registry, topic))
    position = KafkaOffset(topics={topic: {"0": 5}}, value_schema=known)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text(json.dumps({"id": "q"}))
    (tmp_path / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(position.to_dict())}")
    monkeypatch.setenv("KRISHIV_TEST_REGISTRY", registry.url)

    def status():
        url = "registry.url=${env:KRISHIV_TEST_REGISTRY}"
        done = CliRunner().invoke(main, ["status", str(tmp_path), "-o", url])
        assert done.exit_code == 0, done.output
        return done.output

    line = f"schema      values of source 0 are read with version 1 of '{topic}-value', "
    assert f"{line}the newest\n" in status()
    registry.register(f"{topic}-value", record(ID, PRICE))
    assert f"{line}and the newest is version 2: the next start needs 'registry.version'" in status()
    monkeypatch.setenv("KRISHIV_TEST_REGISTRY", "http://127.0.0.1:1")
    assert "not known   schemas: the schema registry http://127.0.0.1:1 was asked for" in status()
