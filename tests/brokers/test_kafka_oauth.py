"""Logins with tokens (SASL/OAUTHBEARER) at real brokers, through expiries and new keys."""

import re
import shlex
import sys
import time
import uuid

import pyarrow as pa
import pytest
from drivers import Driver
from kafka import KafkaProducer
from kafka_topics import Onlooker, make_topic
from oauth_clusters import client_options, login_options, open_oauth_cluster

from krishiv_spark.kafka import _kafka_python, login_tokens
from krishiv_spark.kafka import client as clients
from krishiv_spark.kafka.client import KafkaFailedError
from krishiv_spark.kafka.login_tokens import LoginTokens
from krishiv_spark.sinks.base import Epoch, OutputMode, Task
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.writer import KafkaWriter
from krishiv_spark.sources.base import UNLIMITED
from krishiv_spark.sources.kafka.reader import KafkaReader, KafkaSourceOptions
from servers.token_server import running_token_server, unsigned_token

pytestmark = pytest.mark.long  # brokers with TLS, and minutes for tokens to expire

LIFE_S, REAUTH_MS = 30.0, 20_000


@pytest.fixture(scope="module")
def server():
    with running_token_server(life_s=LIFE_S) as found:
        yield found


@pytest.fixture(scope="module")
def cluster(server):
    with open_oauth_cluster(server, reauth_ms=REAUTH_MS) as found:
        yield found


@pytest.fixture(autouse=True)
def new_process():
    """Tokens and clients as a process that has just started has them: none."""
    login_tokens._tokens.clear()
    for client in clients._clients.values():
        client.close()
    clients._clients.clear()


def fill(bootstrap, rows, topic=None):
    """A topic with numbers, through the listener that asks for no login."""
    if topic is None:
        topic = f"t-{uuid.uuid4().hex}"
        make_topic(bootstrap, topic, partitions=2)
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for number in rows:
        producer.send(topic, str(number).encode())
    producer.flush()
    producer.close()
    return topic


def reader(options, topic):
    given = {**options, "subscribe": topic, "startingOffsets": "earliest"}
    return KafkaReader(KafkaSourceOptions.parse(given, "krishiv-kafka"), None, streaming=True)


def read(made, start=None):
    """The numbers of the next batch, and its end."""
    start = made.initial() if start is None else start
    end = made.latest(start, UNLIMITED)
    shares = made.plan(start, end)
    rows = [v for share in shares for batch in made.read(share) for v in batch["value"].to_pylist()]
    return sorted(map(int, rows)), end


class Sink:
    """A sink step by step, as planner, tasks and committer drive it."""

    def __init__(self, options, topic, folder) -> None:
        prefix = f"p-{uuid.uuid4().hex}"  # ids of other sinks are in use at the same broker
        own = {"topic": topic, "epochLog": str(folder), "kafka.transactional.id": prefix}
        given = {**options, **own}
        parsed = KafkaSinkOptions.parse(given, "krishiv-kafka")
        self._writer = KafkaWriter(parsed, pa.schema([("value", pa.string())]), OutputMode.APPEND)
        self._writer.check()

    def write(self, number, batches):
        """One epoch with one task; the transaction is open while `batches` waits."""
        committer = self._writer.committer()
        owns = committer.begin(Epoch("query", number))
        task = Task("query", number, 0, 0, owns.generation)
        staged = self._writer.stage(iter(batches), task, self._writer.plan(owns))
        committer.publish(Epoch("query", number, owns.generation), [staged])


def batch(*numbers):
    return pa.record_batch({"value": [str(each) for each in numbers]})


def committed(cluster, topic):
    onlooker = Onlooker(cluster.bootstrap)
    found = sorted(int(each.value) for each in onlooker.records(topic))
    onlooker.close()
    return found


# --- tokens that nobody has signed


def test_unsecured_tokens_of_a_file_and_of_a_command(tmp_path):
    program = f"print({unsigned_token(600)!r})"
    (tmp_path / "token").write_text(unsigned_token(600))
    with open_oauth_cluster(reauth_ms=REAUTH_MS) as cluster:
        topic = fill(cluster.bootstrap, range(1000))
        command = shlex.join([sys.executable, "-c", program])
        for own in ({"token.endpoint.url": f"file://{tmp_path}/token"}, {"token.command": command}):
            assert read(reader(login_options(cluster, **own), topic))[0] == [*range(1000)]
        (tmp_path / "token").write_text("no.token.here")
        login_tokens._tokens.clear()
        clients._clients.clear()
        options = login_options(cluster, **{"token.endpoint.url": f"file://{tmp_path}/token"})
        with pytest.raises(KafkaFailedError, match=r"the token of the token file .* is refused"):
            read(reader(options, topic))


# --- signed tokens, of which each is valid for half a minute


def test_a_batch(cluster, server):
    topic = fill(cluster.bootstrap, range(1000))
    assert read(reader(client_options(cluster, server), topic))[0] == [*range(1000)]


def test_a_wrong_secret_is_one_clear_line_before_a_row_moves(cluster, server):
    given = client_options(cluster, server)
    given["kafka.sasl.oauthbearer.client.credentials.client.secret"] = "guessed-word"
    made, start_s = reader(given, "t"), time.monotonic()
    with pytest.raises(KafkaFailedError, match="refuses the client 'spark-client'") as failed:
        read(made)
    assert time.monotonic() - start_s < 10
    assert "guessed-word" not in str(failed.value)


def test_a_stream_and_a_sink_through_an_idle_pause(cluster, server, tmp_path, monkeypatch):
    """With a connection of the waiting thread too, which a login of 20 s is too short for."""
    monkeypatch.setattr(_kafka_python, "_SHORTEST_SESSION_S", 0.0)
    options = client_options(cluster, server)
    topic, copies = fill(cluster.bootstrap, range(100)), fill(cluster.bootstrap, ())
    made, sink = reader(options, topic), Sink(options, copies, tmp_path)
    rows, end = read(made)
    sink.write(0, [batch(*rows)])
    for pause_s in (25, 2 * 60):
        time.sleep(pause_s)
        fill(cluster.bootstrap, range(100), topic)
        rows, end = read(made, end)
        assert rows == [*range(100)]
    for _ in range(40):  # enough for a connection of the waiting thread
        assert made.latest(end, UNLIMITED) == end
    sink.write(1, [batch(*range(100, 200))])
    assert committed(cluster, copies) == [*range(200)]


def wait_between(batches, seconds):
    for each in batches:
        yield each
        time.sleep(seconds)


def test_a_transaction_stays_open_over_an_expiry(cluster, server, tmp_path):
    topic = fill(cluster.bootstrap, ())
    sink = Sink(client_options(cluster, server), topic, tmp_path)
    before = server.total
    sink.write(0, wait_between([batch(1), batch(2), batch(3)], 1.2 * LIFE_S / 2))
    assert committed(cluster, topic) == [1, 2, 3]
    assert server.total > before, "no token expired"


def test_a_new_key_signs(cluster, server):
    """As an authority does: the key is published, signs, and the old one is withdrawn later."""
    options = client_options(cluster, server)
    topic = fill(cluster.bootstrap, range(10))
    made = reader(options, topic)
    rows, end = read(made)
    server.sign_with(new := server.add_key())
    until_s = time.monotonic() + 1.5 * LIFE_S
    while time.monotonic() < until_s:
        time.sleep(5)
        fill(cluster.bootstrap, rows, topic)
        found, end = read(made, end)
        assert found == rows
    assert server.signed[new] > 0


def test_a_token_that_a_task_does_not_renew_is_found(cluster, server, tmp_path, monkeypatch):
    """The planted bug: a task goes on with its first token."""
    first = {}
    request = LoginTokens.request

    def request_once(tokens):
        if tokens.login not in first:
            first[tokens.login] = request(tokens)
        return first[tokens.login]

    monkeypatch.setattr(LoginTokens, "request", request_once)
    monkeypatch.setattr(LoginTokens, "record_refusal", lambda _: False)
    options = {**client_options(cluster, server), "kafka.default.api.timeout.ms": "5000"}
    sink = Sink(options, fill(cluster.bootstrap, ()), tmp_path)
    with pytest.raises(KafkaFailedError):
        sink.write(0, wait_between([batch(1), batch(2), batch(3)], LIFE_S))


IDLE_S = 2 * 60
SLOW = -1
"""A row at which a task of the copy waits, while its transaction is open."""


def test_an_exactly_once_copy_through_ten_expiries(cluster, server, tmp_path):
    """A stream through an idle pause, and transactions that are open while a token expires."""
    options = client_options(cluster, server)
    topic, copies = fill(cluster.bootstrap, ()), fill(cluster.bootstrap, ())
    job = {
        "options": options,
        "source": topic,
        "slow": {"value": str(SLOW), "seconds": 1.3 * LIFE_S},
        "sink": {"topic": copies, "checkpointLocation": str(tmp_path)},
    }
    before, number, slow = server.total, 0, 0
    with Driver("oauth_copy.py", job) as driver:
        driver.wait_for("STARTED")
        for phase in range(2):
            until_s = time.monotonic() + 4 * LIFE_S
            while time.monotonic() < until_s:
                fill(cluster.bootstrap, range(number, number + 50), topic)
                number += 50
                time.sleep(1)
            fill(cluster.bootstrap, [*range(number, number + 100), SLOW], topic)
            number, slow = number + 100, slow + 1
            if phase == 0:
                time.sleep(IDLE_S)
        (tmp_path / "end").touch()
        driver.wait_for("DONE")
    assert committed(cluster, copies) == [*[SLOW] * slow, *range(number)]
    assert server.total >= before + 10
    assert not [line for line in driver.lines if re.search(r"FAILED", line)]
