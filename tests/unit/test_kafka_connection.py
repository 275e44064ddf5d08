"""Kafka's settings as users write them."""

import pickle

import pytest

from krishiv_spark.errors import OptionError
from krishiv_spark.kafka.connection import Connection
from krishiv_spark.kafka.writing.options import KafkaSinkOptions

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
    one = Connection.of({"kafka.bootstrap.servers": "a:1", "kafka.client.id": "x"})
    other = Connection.of({"client.id": "x", "bootstrap.servers": "a:1"})
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
    "kafka.request.timeout.ms": ("soon", "a whole number is needed"),
    "kafka.ssl.truststore.location": ("/x/store.jks", "only PEM"),
    "kafka.ssl.keystore.type": ("PKCS12", "only PEM"),
    "kafka.sasl.mecanism": ("PLAIN", r"did you mean 'kafka\.sasl\.mechanism'"),
    "kafka.sasl.mechanism": ("PLAIN", r"needs 'kafka\.security\.protocol'"),
    "kafka.bootstrap.servers": (" , ", "at least one broker"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_set_says_so(name):
    value, said = BAD[name]
    with pytest.raises(OptionError, match=said) as failed:
        parse(**{name: value})
    assert PASSWORD not in str(failed.value)


def test_settings_of_java_that_mean_nothing_here_do_no_harm():
    assert parse(**{"kafka.linger.ms": "5", "kafka.max.poll.records": "1"}).kafka.values


def test_host_names_are_checked_unless_the_user_says_no():
    off = parse(**{"kafka.ssl.endpoint.identification.algorithm": ""}).kafka.values
    assert off["ssl_check_hostname"] is False
    assert "ssl_check_hostname" not in parse().kafka.values
