"""Values that options say by where they are, and secrets that are written out."""

import logging
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_spark.errors import OptionError
from krishiv_spark.options.plain_secrets import warn_of_plain_secrets
from krishiv_spark.options.references import Referenced, resolve
from krishiv_spark.runtime import once
from krishiv_spark.sinks.fanout.options import FanoutOptions
from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.storage import Storage
from krishiv_spark.storage.base import StoreUrl
from krishiv_spark.storage.storage import find_store_secrets

JAAS = 'org.apache.kafka.PlainLoginModule required username="u" password="hunter2";'


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    monkeypatch.setenv("PASSWORD", "hunter2")
    monkeypatch.setattr(once, "_given", set())
    (tmp_path / "secret").write_text("hunter3\n")


def test_what_is_named_is_looked_up_and_shown_by_its_name(tmp_path):
    text = f"db://u:${{env:PASSWORD}}@h/${{file:{tmp_path}/secret}}?$${{env:X}}&${{X}}"
    found = resolve(text)
    assert str(found) == "db://u:hunter2@h/hunter3?${env:X}&${X}"
    assert repr(found) == repr(text)
    assert repr(pickle.loads(pickle.dumps(found))) == repr(text)
    assert resolve(found) is found, "a secret may look like a reference"


@given(st.text().filter(lambda text: "${" not in text))
def test_what_names_nothing_stays_as_it_is(text):
    assert resolve(text) is text


def test_options_from_python_may_be_numbers():
    given = {"path": "t", "warehouse": "/w", "keepSnapshots": 5, "mergeManifests": False}
    assert IcebergSinkOptions.parse(given, "krishiv-iceberg").keep_snapshots == 5


@given(st.text())
def test_a_secret_is_not_read_as_a_reference_again(text):
    secret = Referenced(text, "${env:SECRET}")
    assert resolve(pickle.loads(pickle.dumps(secret))) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${env:NOT_THERE}", "has no variable 'NOT_THERE'"),
        ("${file:/not/there}", "'/not/there' cannot be read"),
        ("${file:secret}", "the whole path"),
        ("${evn:PASSWORD}", r"did you mean '\$\{env:PASSWORD\}'"),
        ("${vault:PASSWORD}", r"there are \$\{env:NAME\}"),
    ],
)
def test_what_cannot_be_looked_up_is_refused_with_its_option(text, said):
    with pytest.raises(OptionError, match=f"'warehouse': .*{said}"):
        IcebergSinkOptions.parse({"path": "t", "warehouse": text}, "krishiv-iceberg")
    with pytest.raises(OptionError, match=f"'storage.s3.region': .*{said}"):
        Storage.for_query({"storage.s3.region": text})


def test_what_spark_reads_too_is_no_reference():
    for key in ("path", "checkpointLocation"):
        given = {"path": "t", "warehouse": "/w", key: "/x/${env:PASSWORD}"}
        with pytest.raises(OptionError, match=f"'{key}': Spark reads it too"):
            IcebergSinkOptions.parse(given, "krishiv-iceberg")


def test_a_value_that_is_wrong_is_shown_by_its_name():
    with pytest.raises(OptionError, match=r"'commitTimeout' = '\$\{env:PASSWORD\}'") as error:
        IcebergSinkOptions.parse(
            {"path": "t", "warehouse": "/w", "commitTimeout": "${env:PASSWORD}"}, "krishiv-iceberg"
        )
    assert "hunter2" not in str(error.value)


def test_connectors_get_what_is_named(monkeypatch):
    iceberg = IcebergSinkOptions.parse(
        {
            "path": "db.t",
            "catalog.uri": "postgresql://u:${env:PASSWORD}@h/db",
            "storage.s3.secretAccessKey": "${env:PASSWORD}",
        },
        "krishiv-iceberg",
    )
    assert iceberg.catalog_properties()["uri"] == "postgresql://u:hunter2@h/db"
    assert find_store_secrets(dict(iceberg.storage.options)) == {"hunter2"}
    monkeypatch.delenv("PASSWORD")  # as on an executor, which opens the same store
    travelled = pickle.loads(pickle.dumps(iceberg))
    assert find_store_secrets(dict(travelled.storage.options)) == {"hunter2"}
    travelled.storage.folder(StoreUrl.parse("s3://bucket/x"))


def test_routes_look_their_values_up_once(monkeypatch):
    monkeypatch.setenv("PASSWORD", "a$${env:X}")  # what a password may be
    options = FanoutOptions.parse(
        {
            "route.a.format": "krishiv-kafka",
            "route.a.kafka.bootstrap.servers": "h:1",
            "route.a.kafka.security.protocol": "SASL_SSL",
            "route.a.kafka.sasl.mechanism": "PLAIN",
            "route.a.kafka.sasl.username": "u",
            "route.a.kafka.sasl.password": "${env:PASSWORD}",
        },
        "krishiv-fanout",
    )
    own = dict(pickle.loads(pickle.dumps(options)).routes["a"])
    del own["format"]
    settings = KafkaSinkOptions.parse(own, "krishiv-kafka").kafka.values
    assert settings["sasl_plain_password"] == "a$${env:X}"


PLAIN = [
    (KafkaSinkOptions, {"kafka.sasl.jaas.config": JAAS}),
    (KafkaSinkOptions, {"kafka.ssl.key.password": "hunter2"}),
    (IcebergSinkOptions, {"catalog.uri": "postgresql://u:hunter2@h/db"}),
    (IcebergSinkOptions, {"catalog.s3.secret-access-key": "hunter2"}),
    (IcebergSinkOptions, {"storage.azure.accountKey": "hunter2"}),
    (KafkaSinkOptions, {"storage.hdfs.proxy": "http://u:hunter2@h"}),
    (FanoutOptions, {"route.a.format": "krishiv-kafka", "route.A.sasl.password": "hunter2"}),
]
HARMLESS = [
    (KafkaSinkOptions, {"kafka.bootstrap.servers": "h:1", "topic": "password"}),
    (KafkaSinkOptions, {"kafka.sasl.password": "${env:PASSWORD}"}),
    (KafkaSinkOptions, {"kafka.ssl.keystore.location": "/key.pem", "storage.s3.proxy": "http://h"}),
    (IcebergSinkOptions, {"catalog.uri": "https://h/rest", "keyColumns": "id"}),
    (IcebergSinkOptions, {"catalog.uri": "postgresql://u:${env:PASSWORD}@h/db"}),
    (FanoutOptions, {"route.a.format": "krishiv-iceberg", "route.a.catalog.uri": "sqlite:////x"}),
    (FanoutOptions, {"route.a.kafka.sasl.password": "of no format"}),  # an error, when it is opened
]


@pytest.mark.parametrize(("model", "given"), PLAIN)
def test_a_secret_that_is_written_out_is_told_of_once_and_not_shown(model, given, caplog):
    for _ in range(2):
        warn_of_plain_secrets(model, given, "krishiv-x")
    (line,) = caplog.messages
    assert line.startswith(f"krishiv-x: {list(given)[-1]}: a secret is written out")
    assert "hunter" not in line


@pytest.mark.parametrize(("model", "given"), HARMLESS)
def test_other_values_are_not_told_of(model, given, caplog):
    caplog.set_level(logging.DEBUG)
    warn_of_plain_secrets(model, given, "krishiv-x")
    assert not caplog.messages
