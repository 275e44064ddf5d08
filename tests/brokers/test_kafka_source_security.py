"""The Kafka source through TLS and SASL, with what an ACL allows."""

import pickle
import re
import time
import uuid

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from kafka_topics import make_topic
from patience import PATIENCE

from krishiv_spark.kafka.client import KafkaFailedError, KafkaRefusedError
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.dev import ACLS, open_cluster
from krishiv_spark.kafka.dev.secure import make_secure
from krishiv_spark.sources.base import UNLIMITED
from krishiv_spark.sources.kafka.reader import KafkaReader, KafkaSourceOptions

pytestmark = pytest.mark.long  # a cluster with TLS and ACLs

ROWS = 50_000


@pytest.fixture(scope="module")
def guarded():
    with open_cluster(secure=True, settings=ACLS) as cluster:
        yield cluster


@pytest.fixture
def topic(guarded):
    name = f"t-{uuid.uuid4().hex}"
    make_topic(guarded.bootstrap, name)
    producer = KafkaProducer(bootstrap_servers=guarded.bootstrap, linger_ms=50)
    for number in range(ROWS):
        producer.send(name, str(number).encode())
    producer.flush()
    producer.close()
    return name


def allow(guarded, topic, *operations):
    admin = KafkaAdminClient(bootstrap_servers=guarded.bootstrap)
    user, place = f"User:{guarded.secure.user}", ResourcePattern(ResourceType.TOPIC, topic)
    admin.create_acls([ACL(user, "*", what, ACLPermissionType.ALLOW, place) for what in operations])
    admin.close()


def forbid(guarded, topic):
    admin = KafkaAdminClient(bootstrap_servers=guarded.bootstrap)
    place = ResourcePatternFilter(ResourceType.TOPIC, topic, ACLResourcePatternType.ANY)
    any_of = ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, place)
    admin.delete_acls([any_of])
    admin.close()


def reader(guarded, topic, *, streaming=False, **given):
    options = {**guarded.secure.options(), **given}
    if "subscribePattern" not in given:
        options["subscribe"] = topic
    parsed = KafkaSourceOptions.parse(options, "krishiv-kafka")
    made = KafkaReader(parsed, None, streaming=streaming)
    assert guarded.secure.password not in repr(parsed) + repr(vars(made))
    return pickle.loads(pickle.dumps(made))


def read(made):
    start = made.initial()
    shares = made.plan(start, made.latest(start, UNLIMITED))
    return sum(len(batch) for share in shares for batch in made.read(share))


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_rows_come_through_tls(guarded, topic, mechanism):
    allow(guarded, topic, ACLOperation.READ)
    assert read(reader(guarded, topic, **guarded.secure.options(mechanism))) == ROWS


def test_a_topic_that_may_not_be_read_is_an_error_at_once(guarded, topic):
    with pytest.raises(KafkaFailedError, match="Authorization") as failure:
        read(reader(guarded, topic))
    assert topic in str(failure.value)
    allow(guarded, topic, ACLOperation.DESCRIBE)  # seen, but not read
    with pytest.raises(KafkaFailedError, match="Authorization") as failure:
        read(reader(guarded, topic))
    assert topic in str(failure.value)


def test_a_topic_that_may_not_be_seen_any_more_was_not_deleted(guarded, topic):
    given = {"subscribePattern": f"{topic}.*", "failOnDataLoss": "false"}
    allow(guarded, topic, ACLOperation.READ)
    made = reader(guarded, topic, streaming=True, **given)
    end = made.latest(made.initial(), UNLIMITED)
    forbid(guarded, topic)
    for each in (made, reader(guarded, topic, streaming=True, **given)):
        with pytest.raises(KafkaRefusedError, match="TopicAuthorizationFailed"):
            stay(each, end)


def stay(made, end):
    """Ask for the next batch, of which there is none."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        assert made.latest(end, UNLIMITED) == end
        time.sleep(0.1)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_a_login_that_is_refused_is_an_error_at_once_without_the_password(
    guarded, topic, mechanism
):
    given = guarded.secure.options(mechanism)
    login = given["kafka.sasl.jaas.config"]
    given["kafka.sasl.jaas.config"] = login.replace(guarded.secure.password, "guessed-word")
    made = reader(guarded, topic, **given)  # which else is tried for a minute
    with pytest.raises(KafkaFailedError, match=r"reach.*AuthenticationFailed") as failure:
        read(made)
    assert "guessed-word" not in str(failure.value)


# --- what cannot be reached: the reason, and soon


def unreachable(options):
    """Return the error of a query's first contact with the cluster, and its duration."""
    begun = time.monotonic()
    given = KafkaSourceOptions.parse({**options, "subscribe": "t"}, "krishiv-kafka")
    reader = KafkaReader(given, None, streaming=True)
    with pytest.raises(KafkaFailedError) as failed:
        reader.latest(reader.initial(), UNLIMITED)
    return str(failed.value), time.monotonic() - begun


def trusting(guarded, folder):
    """Settings by which another authority is trusted than the brokers'."""
    other = make_secure(folder / "other", guarded.secure.bootstrap)
    return {**guarded.secure.options(), "kafka.ssl.truststore.location": str(other.authority)}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (lambda *_: {"kafka.bootstrap.servers": "127.0.0.1:1"}, "127.0.0.1:1: .*ECONNREFUSED"),
        (lambda *_: {"kafka.bootstrap.servers": "none.invalid:9"}, "none.invalid:9: .*DNS"),
        (trusting, "Handshake failed: .*CERTIFICATE_VERIFY_FAILED"),
        (
            lambda guarded, _: {
                **guarded.secure.options(),
                "kafka.bootstrap.servers": guarded.bootstrap,
            },
            "Handshake failed: .*SSL",
        ),
    ],
    ids=["no server listens", "no such host", "another authority", "no TLS there"],
)
def test_a_start_says_soon_why_the_cluster_is_not_reached(guarded, tmp_path, options, said):
    text, took_s = unreachable(options(guarded, tmp_path))
    assert re.search(said, text), text
    assert "password" not in text, "which nobody has looked at"
    assert took_s < 25, "ten seconds, on a busy machine"


def test_a_time_that_is_given_is_kept():
    servers = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "1500"}
    assert unreachable(servers)[1] < 8
    assert KafkaConfig.from_settings(servers).connect_timeout_s(at_start=True) == 1.5
    longer = {**servers, "kafka.default.api.timeout.ms": "90000"}
    assert KafkaConfig.from_settings(longer).connect_timeout_s(at_start=True) == 90
    del longer["kafka.default.api.timeout.ms"]
    assert KafkaConfig.from_settings(longer).connect_timeout_s(at_start=False) == 60
