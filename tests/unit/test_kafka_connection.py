"""Kafka's settings as users write them."""

import pickle
import time

import pyarrow as pa
import pytest

from krishiv_spark.errors import OptionError
from krishiv_spark.kafka import config
from krishiv_spark.kafka.client import KafkaClient, KafkaFailedError, open_client
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.security import warn_of_clear_login
from krishiv_spark.runtime import once
from krishiv_spark.runtime.contact import record_contact
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.writer import check_writable

SERVERS = {"kafka.bootstrap.servers": "a:1, b:2"}
PASSWORD = "hunter2-very-secret"


def parse(**given):
    return KafkaSinkOptions.parse({**SERVERS, **given}, "krishiv-kafka")


def test_servers_are_a_list():
    assert parse().kafka.values["bootstrap_servers"] == ["a:1", "b:2"]


@pytest.mark.parametrize("name", ["bootstrap.servers", "Kafka.Bootstrap.Servers"])
def test_spellings_of_the_servers(name):
    assert KafkaSinkOptions.parse({name: "a:1"}, "x").kafka.bootstrap == "a:1"


def test_without_servers_there_is_no_connection():
    with pytest.raises(OptionError, match=r"'kafka\.bootstrap\.servers' is required"):
        KafkaSinkOptions.parse({}, "krishiv-kafka")
    with pytest.raises(OptionError, match=r"'kafka\.bootstrap\.servers' is required"):
        KafkaSinkOptions.parse({"kafka.client.id": "x"}, "krishiv-kafka")


def test_equal_settings_are_one_key_whatever_their_order():
    one = KafkaConfig.from_settings({"kafka.bootstrap.servers": "a:1", "kafka.client.id": "x"})
    other = KafkaConfig.from_settings({"client.id": "x", "bootstrap.servers": "a:1"})
    assert one == other
    assert hash(one) == hash(other)
    assert pickle.loads(pickle.dumps(one)) == other


def test_a_login_of_javas_is_understood():
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    line = f'{module} required username="u" password="{PASSWORD}";'
    values = parse(
        **{
            "kafka.security.protocol": "sasl_ssl",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": line,
        }
    ).kafka.values
    assert (values["sasl_plain_username"], values["sasl_plain_password"]) == ("u", PASSWORD)
    assert values["security_protocol"] == "SASL_SSL"


def test_no_secret_is_shown():
    given = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "u",
        "kafka.sasl.password": PASSWORD,
    }
    options = parse(**given)
    assert PASSWORD not in f"{options!r} {options} {options.kafka!r}"


BAD = {
    "kafka.sasl.jaas.config": (f"SomeModule required secret={PASSWORD};", "only PlainLoginModule"),
    "kafka.acks": ("0", "acknowledged by all"),
    "kafka.auto.offset.reset": ("latest", "'startingOffsets'"),
    "kafka.key.serializer": ("x", "strings or binary"),
    "kafka.request.timeout.ms": ("soon", "write a whole number"),
    "kafka.ssl.truststore.location": ("/x/store.jks", "keytool -importkeystore -srckeystore /x/"),
    "kafka.ssl.keystore.type": ("BKS", "there are PEM and PKCS12"),
    "kafka.sasl.mecanism": ("PLAIN", r"did you mean 'kafka\.sasl\.mechanism'"),
    "kafka.sasl.mechanism": ("PLAIN", r"needs 'kafka\.security\.protocol'"),
    "kafka.bootstrap.servers": (" , ", "at least one broker"),
    "kafka.metadata.max.age.ms": ("-1", "write a whole number"),
    "kafka.client.dns.lookup": ("use_all_dns_ip", "did you mean 'use_all_dns_ips'"),
    "kafka.security.protocol": ("SASL_SLL", "did you mean 'SASL_SSL'"),
    "kafka.ssl.endpoint.identification.algorithm": ("htps", "there are 'https', and ''"),
    "kafka.ssl.cafile": (" ", "the name of a file is needed"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_set_says_so(name):
    value, said = BAD[name]
    with pytest.raises(OptionError, match=said) as failed:
        parse(**{name: value})
    assert PASSWORD not in str(failed.value)


def test_settings_of_java_that_mean_nothing_here_do_no_harm():
    assert parse(**{"kafka.linger.ms": "5", "kafka.max.poll.records": "1"}).kafka.values


# --- what decides about security

TLS = {"kafka.security.protocol": "SSL"}
LOGIN = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.username": "u",
    "kafka.sasl.password": PASSWORD,
}


def test_host_names_are_checked_unless_the_user_says_no():
    name = "kafka.ssl.endpoint.identification.algorithm"
    assert parse(**TLS, **{name: ""}).kafka.values["ssl_check_hostname"] is False
    assert parse(**TLS, **{name: " HTTPS "}).kafka.values["ssl_check_hostname"] is True
    assert "ssl_check_hostname" not in parse(**TLS).kafka.values


@pytest.mark.parametrize("text", ["ssl ", " Ssl", "SSL"])
def test_white_space_and_case_change_no_protocol(text):
    assert parse(**{"kafka.security.protocol": text}).kafka.values["security_protocol"] == "SSL"


@pytest.mark.parametrize("text", ["TLS", "", "none", "PLAINTEXT,SSL"])
def test_there_is_no_other_protocol(text):
    with pytest.raises(OptionError, match="PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"):
        parse(**{"kafka.security.protocol": text})


@pytest.mark.parametrize(
    ("text", "said"), [("SCRAM-SHA512", "SCRAM-SHA-512"), ("OAUTHBEARER", "source of tokens")]
)
def test_mechanisms_that_do_not_work_here(text, said):
    with pytest.raises(OptionError, match=said):
        parse(**{**LOGIN, "kafka.sasl.mechanism": text})


@pytest.mark.parametrize(
    ("protocol", "key", "text", "needed"),
    [
        ("PLAINTEXT", "ssl.truststore.location", "/ca.pem", "SSL or SASL_SSL"),
        ("SASL_PLAINTEXT", "ssl.cafile", "/ca.pem", "SSL or SASL_SSL"),
        ("PLAINTEXT", "ssl.endpoint.identification.algorithm", "https", "SSL or SASL_SSL"),
        ("PLAINTEXT", "sasl.password", PASSWORD, "SASL_PLAINTEXT or SASL_SSL"),
        ("SSL", "sasl.mechanism", "PLAIN", "SASL_PLAINTEXT or SASL_SSL"),
        (None, "ssl.keystore.type", "PEM", "SSL or SASL_SSL"),
    ],
)
def test_what_would_come_to_nothing_under_a_protocol_is_refused(protocol, key, text, needed):
    login = {**LOGIN, "kafka.security.protocol": protocol} if protocol == "SASL_PLAINTEXT" else {}
    given = {} if protocol is None else {"kafka.security.protocol": protocol}
    with pytest.raises(OptionError, match=rf"'kafka\.{key}' needs .* = {needed}, ") as failed:
        parse(**{**login, **given, f"kafka.{key}": text})
    assert PASSWORD not in str(failed.value)


@pytest.mark.parametrize("missing", ["mechanism", "username", "password"])
def test_a_login_that_lacks_something_is_refused(missing):
    given = {key: text for key, text in LOGIN.items() if not key.endswith(missing)}
    with pytest.raises(OptionError, match=rf"kafka\.sasl\.{missing}"):
        parse(**given)


def test_a_login_module_of_another_mechanism_is_refused():
    """The password of one must not be sent by the other."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    line = f'{module} required username="u" password="{PASSWORD}";'
    given = {**LOGIN, "kafka.sasl.jaas.config": line}
    with pytest.raises(OptionError, match=r"ScramLoginModule, but .* = PLAIN") as failed:
        parse(**given)
    assert PASSWORD not in str(failed.value)


def test_one_thing_is_said_once():
    with pytest.raises(OptionError, match=r"'kafka\.security\.protocol' is given twice"):
        parse(**TLS, **{"security.protocol": "PLAINTEXT"})
    with pytest.raises(OptionError, match="contradicts another name"):
        parse(**TLS, **{"kafka.ssl.cafile": "/a.pem", "kafka.ssl.ca.location": "/b.pem"})


def test_a_file_that_is_not_there_is_named(tmp_path):
    options = parse(**TLS, **{"kafka.ssl.truststore.location": str(tmp_path / "ca.pem")})
    with pytest.raises(KafkaFailedError, match=r"kafka\.ssl\.truststore\.location' = .*ca\.pem"):
        KafkaClient(options.kafka)


@pytest.mark.long
def test_a_sink_gives_a_cluster_up_soon_until_its_query_has_reached_it(monkeypatch):
    monkeypatch.setattr(config, "_AT_START_S", 0.2)
    monkeypatch.setitem(config._DEFAULTS, "default_api_timeout_ms", 60_000)
    assert waited_s("/a") < 30
    record_contact("Kafka 127.0.0.1:1 for /a")
    assert waited_s("/b") < 30
    monkeypatch.setitem(config._DEFAULTS, "default_api_timeout_ms", 3000)
    assert waited_s("/a") >= 3, "a query that runs is not less patient than it was"


def waited_s(checkpoint):
    """Return the seconds that a sink waits for a missing cluster."""
    servers = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
    given = {**servers, "checkpointLocation": checkpoint}
    options = KafkaSinkOptions.parse(given, "krishiv-kafka")
    schema, begun_s = pa.schema([("value", pa.string())]), time.monotonic()
    with pytest.raises(KafkaFailedError, match="no server listens there"):
        check_writable(options, schema, OutputMode.APPEND, streaming=True)
    return time.monotonic() - begun_s


# ---------------------------------------------------------------- logins in clear text


def login(servers, mechanism="PLAIN", protocol="SASL_PLAINTEXT"):
    return KafkaConfig.from_settings({
        "bootstrap.servers": servers,
        "security.protocol": protocol,
        "sasl.mechanism": mechanism,
        "sasl.username": "spark",
        "sasl.password": PASSWORD,
        "default.api.timeout.ms": "100",
    })  # fmt: skip


@pytest.fixture
def unwarned(monkeypatch):
    monkeypatch.setattr(once, "_given", set())


@pytest.mark.usefixtures("unwarned")
def test_a_login_in_clear_text_is_warned_of_once_in_a_process(caplog):
    for servers in ("localhost:1,broker.invalid:9092", "other.invalid:9092"):
        with pytest.raises(KafkaFailedError):
            open_client(login(servers))
    (warning,) = [r.message for r in caplog.records if "clear text" in r.message]
    assert "'kafka.sasl.mechanism' = PLAIN under SASL_PLAINTEXT" in warning
    assert "broker.invalid:9092" in warning
    assert PASSWORD not in caplog.text


@pytest.mark.usefixtures("unwarned")
@pytest.mark.parametrize(
    "given",
    [
        login("localhost:1, 127.0.0.9:1, [::1]:9092"),
        login("broker.invalid:9092", "SCRAM-SHA-256"),
        login("broker.invalid:9092", protocol="SASL_SSL"),
        KafkaConfig.from_settings({"bootstrap.servers": "broker.invalid:9092"}),
    ],
)
def test_other_logins_are_not_warned_of(given, caplog):
    warn_of_clear_login(given.values)
    assert caplog.text == ""


@pytest.mark.usefixtures("unwarned")
@pytest.mark.parametrize(
    "server", ["10.0.0.1:9092", "[2001:db8::1]:9092", "broker", "localhost.example:1"]
)
def test_every_other_host_is_far(server, caplog):
    warn_of_clear_login(login(server).values)
    assert server in caplog.text
