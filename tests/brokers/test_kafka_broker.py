"""The brokers that all Kafka tests use: real ones, that keep what was acknowledged."""

import os
import signal
import socket
import ssl
import subprocess
import sys
from contextlib import suppress

import psutil
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType
from kafka.errors import KafkaError, TopicAuthorizationFailedError
from patience import PATIENCE

from krishiv_spark.errors import KrishivError
from krishiv_spark.kafka.client import KafkaClient
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.dev import ACLS, clusters, open_cluster

pytestmark = pytest.mark.long  # starts a broker

ONE = TopicPartition("a", 0)
REPLICATED = {"default.replication.factor": "3", "min.insync.replicas": "2"}


@pytest.fixture(scope="module")
def cluster():
    with open_cluster(ours=True) as found:
        yield found


def write(cluster, *values, **login):
    producer = KafkaProducer(**{"bootstrap_servers": cluster.bootstrap, **login}, acks="all")
    for value in values:
        producer.send("a", value, partition=0).get(timeout=30)
    producer.close()


def read(cluster, count, **login) -> list[bytes]:
    given = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 30_000}
    consumer = KafkaConsumer(**{"bootstrap_servers": cluster.bootstrap, **login}, **given)
    consumer.assign([ONE])
    found = [message.value for _, message in zip(range(count), consumer, strict=False)]
    consumer.close()
    return found


def await_end_of(pid):
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(30)


@pytest.mark.long  # Kafka's own promise
def test_a_broker_that_is_killed_keeps_what_it_has_acknowledged(cluster):
    write(cluster, b"1", b"2")
    cluster.brokers[0].kill()
    cluster.brokers[0].start()
    cluster.wait()
    write(cluster, b"3")
    assert read(cluster, 3) == [b"1", b"2", b"3"]


@pytest.mark.long  # so do those of test_kafka_sink_failover.py
def test_three_brokers_survive_the_loss_of_one():
    with open_cluster(3, settings=REPLICATED) as cluster:
        write(cluster, b"1")
        cluster.brokers[2].kill()
        write(cluster, b"2")
        assert read(cluster, 2) == [b"1", b"2"]


@pytest.mark.long
def test_a_broker_ends_with_whoever_started_it():
    program = (
        "import os, signal\n"
        "from krishiv_spark.kafka.dev import open_cluster\n"
        "with open_cluster(ours=True) as cluster:\n"
        "    print(cluster.brokers[0].pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    died = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    await_end_of(int(died.stdout))


def test_a_cluster_that_runs_already_is_taken(cluster, monkeypatch):
    monkeypatch.setenv("KRISHIV_TEST_KAFKA", cluster.bootstrap)
    with open_cluster() as found:
        assert (found.bootstrap, list(found.brokers)) == (cluster.bootstrap, [])


def test_a_setting_that_kafka_refuses_is_shown():
    refused = open_cluster(settings={"log.segment.bytes": "many"})
    with pytest.raises(KrishivError, match=r"(.|\n)*log\.segment\.bytes"), refused:
        pass


# --- TLS and SASL

MECHANISMS = ("SCRAM-SHA-512", "PLAIN")


@pytest.fixture(scope="module")
def guarded():
    """A cluster whose user may do everything with the topic "a", and nothing with others."""
    with open_cluster(secure=True, settings=ACLS) as found:
        topic = ResourcePattern(ResourceType.TOPIC, "a")
        user = f"User:{found.secure.user}"
        admin = KafkaAdminClient(bootstrap_servers=found.bootstrap)
        admin.create_acls([ACL(user, "*", ACLOperation.ALL, ACLPermissionType.ALLOW, topic)])
        admin.close()
        yield found


def login(secure, mechanism="SCRAM-SHA-512"):
    return {
        "bootstrap_servers": [secure.bootstrap],
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(secure.authority),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": secure.user,
        "sasl_plain_password": secure.password,
    }


def test_a_user_logs_in_by_each_mechanism(guarded):
    for mechanism in MECHANISMS:
        write(guarded, mechanism.encode(), **login(guarded.secure, mechanism))
    for mechanism in MECHANISMS:
        found = read(guarded, 2, **login(guarded.secure, mechanism))
        assert found == [b"SCRAM-SHA-512", b"PLAIN"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_options_are_those_of_the_connector(guarded, mechanism):
    known = KafkaConfig.from_settings(guarded.secure.options(mechanism)).values
    assert known.items() >= login(guarded.secure, mechanism).items()


@pytest.mark.long  # one more broker
@pytest.mark.parametrize(
    "wrong",
    [
        *({"sasl_mechanism": name, "sasl_plain_password": "guessed"} for name in MECHANISMS),
        {"sasl_plain_username": "nobody"},
    ],
    ids=["SCRAM password", "PLAIN password", "user"],
)
def test_whoever_cannot_log_in_is_refused(guarded, wrong):
    given = {**login(guarded.secure), **wrong}
    with pytest.raises(KafkaError):
        KafkaAdminClient(**given, bootstrap_timeout_ms=3000)


def test_only_the_certificate_of_the_run_is_shown(guarded):
    shake_hands(guarded.secure, str(guarded.secure.authority))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(guarded.secure, None)


def shake_hands(secure, authority):
    host, port = secure.bootstrap.split(":")
    context = ssl.create_default_context(cafile=authority)
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    with socket.create_connection((host, port)) as connection:
        context.wrap_socket(connection, server_hostname=host).close()


@pytest.mark.long  # one more broker
def test_a_user_may_do_only_what_an_acl_allows(guarded):
    producer = KafkaProducer(**login(guarded.secure))
    with pytest.raises(TopicAuthorizationFailedError):
        producer.send("b", b"1").get(timeout=30)
    producer.close()


@pytest.mark.long  # one more broker
def test_the_password_is_shown_to_its_owner_alone(guarded):
    password = guarded.secure.password
    assert password not in repr(guarded)
    home = guarded.secure.authority.parents[1]
    files = [path for path in home.rglob("*") if path.is_file()]
    holding = [path for path in files if password.encode() in path.read_bytes()]
    assert {path.name for path in holding} == {"server.properties", "password"}
    modes = {path.name: path.stat().st_mode & 0o077 for path in (*holding, home / "secure")}
    assert modes == dict.fromkeys(modes, 0)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_command_prints_the_options_and_leaves_nothing(tmp_path, number):
    command = [sys.executable, "-c", "from krishiv_spark.cli import main; main()"]
    with subprocess.Popen(
        [*command, "dev", "kafka", "--secure"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:
        printed = dict(process.stdout.readline().strip().split(" = ", 1) for _ in range(6))
        KafkaClient(KafkaConfig.from_settings(printed)).close()
        assert list(tmp_path.glob("krishiv-kafka-*"))
        process.send_signal(number)
    assert process.returncode == 0
    assert not list(tmp_path.glob("krishiv-kafka-*"))


def test_what_takes_a_minute_is_told_before(monkeypatch):
    """The jars are not there: nothing is downloaded in this test."""
    told = []

    def fail(*_):
        raise KrishivError(f"after {told}")

    monkeypatch.setattr(clusters, "has_kafka_jars", lambda _: False)
    monkeypatch.setattr(clusters, "format_storage", fail)
    with (
        pytest.raises(KrishivError, match=r"after .'fetching Kafka .*, 44 MB, from Maven Central"),
        open_cluster(ours=True, tell=told.append),
    ):
        pass


@pytest.mark.long
def test_a_broker_ends_though_another_process_holds_its_input():
    """As one does that was forked since: it has inherited the pipe."""
    with open_cluster(ours=True) as cluster:
        pipe = cluster.brokers[0]._keeper.stdin.fileno()
        holder = subprocess.Popen(["sleep", str(PATIENCE)], pass_fds=[pipe])
    assert holder.poll() is None
    holder.kill()
    holder.wait()
