"""Messages whose answer is awaited at once: over connections that nobody else has."""

import contextlib
import os
import signal
import socket
import threading
import time
from contextlib import contextmanager

import psutil
import pytest
from patience import await_that

from krishiv_spark.kafka import transactions, transport
from krishiv_spark.kafka._kafka_python import OpenConnection
from krishiv_spark.kafka.client import KafkaClient, KafkaFailedError
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.kafka.list_offsets import list_offsets
from krishiv_spark.kafka.requests import send_all
from krishiv_spark.kafka.topic_partition import LATEST, TopicPartition
from krishiv_spark.kafka.transaction_requests import DescribeTransactions
from krishiv_spark.runtime.retry import Backoff

pytestmark = pytest.mark.long  # how messages travel; the other files use it


@pytest.fixture(
    scope="module", params=[pytest.param("plain", marks=pytest.mark.long), "TLS and SCRAM"]
)
def cluster(request):
    with open_cluster(ours=True, secure=request.param != "plain") as found:
        with contextlib.closing(connect(found)) as first:
            state(first)  # until there are coordinators, it takes many messages
        yield found


def connect(cluster, **settings):
    plain = {"bootstrap.servers": cluster.bootstrap}
    given = cluster.secure.options() if cluster.secure else plain
    return KafkaClient(KafkaConfig.from_settings({**given, **settings}))


@pytest.fixture
def client(cluster):
    made = connect(cluster)
    yield made
    made.close()


def state(client, name="x"):
    return transactions.describe(client, [name])[name].state


def open_line(client):
    """The connection to the one broker; asking makes that there is one."""
    assert state(client) == "Gone"
    return next(
        (line for line in client._transport._blocking._connections.values() if line.is_open), None
    )


def warmed_up(client):
    await_that(lambda: open_line(client) is not None)
    line = open_line(client)
    assert open_line(client) is line
    return line


@contextmanager
def standing_still(broker):
    process = psutil.Process(broker.pid)
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):  # killed meanwhile
            process.send_signal(signal.SIGCONT)


def used(line):
    """Return how often the connection was used since; each use has a time."""
    return line._used_s


def test_few_messages_open_no_more_connections(client):
    for _ in range(3):
        state(client)
    assert not client._transport._blocking._connections


def test_what_is_waited_for_alone_goes_over_it(client):
    line = warmed_up(client)
    before = used(line)
    assert state(client) == "Gone"
    assert used(line) > before


def test_many_threads_get_their_own_answers(client):
    warmed_up(client)
    for number in range(4):
        transactions.begin_transaction(client, f"id-{number}", 60_000)
    wrong = []

    def ask(number):
        for _ in range(50):
            (name,) = found = transactions.describe(client, [f"id-{number}"])
            if name != f"id-{number}" or found[name].producer_id < 0:
                wrong.append(found)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong
    assert open_line(client)


def test_large_answers_come_whole(client):
    line = warmed_up(client)
    names = [f"many-{'x' * 200}-{number}" for number in range(3_000)]
    found = transactions.describe(client, names)
    assert {each.state for each in found.values()} == {"Gone"}
    assert open_line(client) is line


def test_who_is_interrupted_leaves_no_answer_to_the_next(client, monkeypatch):
    line = warmed_up(client)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(OpenConnection, "receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            state(client, "another")
    assert not line.is_open
    assert line._socket.fileno() < 0
    assert state(client) == "Gone"
    warmed_up(client)


def test_a_broker_that_hung_up_is_noticed_before_anything_is_sent(client, cluster, monkeypatch):
    line = warmed_up(client)
    restart(cluster)
    with monkeypatch.context() as patch:
        patch.setattr(line, "_exchange", None)  # so that a use fails
        assert state(client) == "Gone"
    assert not line.is_open
    warmed_up(client)


def restart(cluster):
    (broker,) = cluster.brokers
    broker.kill()
    broker.start()
    cluster.wait()


def test_a_broker_that_dies_before_its_answer_is_a_connection_that_is_lost(
    client, cluster, monkeypatch
):
    # One that is just starting refuses a connection, which else would be tried a thousand messages
    # later only.
    monkeypatch.setattr(transport, "_REFUSED", 0)
    line = warmed_up(client)
    (broker,) = cluster.brokers
    found = []
    with standing_still(broker):
        asking = threading.Thread(target=lambda: found.append(state(client)))
        asking.start()
        await_that(line._lock.locked)
        broker.kill()
    broker.start()
    cluster.wait()
    asking.join()
    assert found == ["Gone"]  # asked again
    assert not line.is_open
    warmed_up(client)


def test_a_broker_that_stands_still_is_waited_for_as_long_as_was_said(client, cluster):
    line = warmed_up(client)
    with standing_still(cluster.brokers[0]):
        begin = time.monotonic()
        kind, skip = DescribeTransactions(), {"on_error": "return", "on_timeout": "skip"}
        assert send_all(client, kind, ["x"], **skip, within_s=1.0) == {}
        assert time.monotonic() - begin < 30  # of a minute
        assert not line.is_open
    assert state(client) == "Gone"


def test_a_client_that_is_closed_takes_it_along(client):
    line = warmed_up(client)
    client.close()
    assert not line.is_open
    assert line._socket.fileno() < 0
    with pytest.raises(KafkaFailedError):
        state(client)


def test_a_client_that_is_closed_while_somebody_waits_ends_the_wait(client, cluster):
    line = warmed_up(client)
    errors = []

    def ask():
        try:
            state(client)
        except KafkaFailedError as error:
            errors.append(error)

    with standing_still(cluster.brokers[0]):
        asking = threading.Thread(target=ask)
        asking.start()
        await_that(line._lock.locked)
        client.close()
        asking.join(10)
        assert not asking.is_alive()
    assert errors
    assert line._socket.fileno() < 0


def test_closing_leaves_nothing_to_be_sent_in_clear_text(client, cluster):
    line = warmed_up(client)
    with line._lock:  # as if somebody were about to send
        line.close()
        if cluster.secure:
            assert line._socket._sslobj is not None
        with pytest.raises(OSError, match=r".*"):
            line._socket.send(b"a row")


def test_a_forked_process_does_not_use_it(client):
    warmed_up(client)
    child = os.fork()
    if not child:
        os._exit(client._transport._blocking.get(client.list_nodes()[0]) is not None)
    assert os.waitpid(child, 0)[1] == 0
    assert open_line(client)


def test_a_broker_that_wants_less_is_not_asked_there_for_a_while(client, monkeypatch):
    line = warmed_up(client)
    before = used(line)
    monkeypatch.setattr(line, "_throttled_until_s", time.monotonic() + 3600)
    assert state(client) == "Gone"
    assert used(line) == before
    assert line.is_open


@pytest.mark.parametrize("limit", ["most_idle_s", "expires_s"])
def test_one_that_is_too_old_is_opened_anew(client, limit):
    line = warmed_up(client)
    object.__setattr__(line._connection, limit, 0.0)
    assert warmed_up(client) is not line
    assert line._socket.fileno() < 0


def test_one_that_cannot_be_had_is_not_asked_for_each_time(client, monkeypatch):
    begun = []

    async def refuse(name):
        begun.append(name)

    monkeypatch.setattr(client._transport._manager, "take_out", refuse)
    await_that(lambda: state(client) and begun)
    for _ in range(30):
        state(client)
    assert len(begun) == 1


def test_offsets_are_looked_up_over_it_too(client):
    name = f"t-{time.monotonic_ns()}"
    client.fetch_topics([name], create=True)
    tp = TopicPartition(name, 0)
    backoff = Backoff(30)
    while client.get_topic(name, age_s=0) is None:
        assert backoff.pause()
    line = warmed_up(client)
    before = used(line)
    assert list_offsets(client, {tp: LATEST})[tp].offset == 0
    assert used(line) > before


def test_nothing_is_left_open(client):
    lines = []
    for _ in range(5):
        lines.append(warmed_up(client))
        lines[-1].close()
    assert len(set(map(id, lines))) == 5
    # Each by itself: the process has other tests' descriptors, too, which come and go.
    assert {line._socket.fileno() for line in lines} == {-1}


@pytest.mark.parametrize(("session_ms", "is_taken"), [(2_000, False), (3_600_000, True)])
def test_logins_that_end(session_ms, is_taken):
    """Only the client's thread, which renews logins, uses connections whose login ends soon."""
    settings = {"connections.max.reauth.ms": str(session_ms)}
    with (
        open_cluster(secure=True, settings=settings) as cluster,
        contextlib.closing(connect(cluster)) as client,
    ):
        if is_taken:
            line = warmed_up(client)
            assert line._connection.expires_s - time.monotonic() < session_ms / 1000
        else:
            until = time.monotonic() + 1.5 * session_ms / 1000
            while time.monotonic() < until:
                assert open_line(client) is None


def test_sockets_are_closed_by_who_uses_them():
    """The number of a file that is closed may be another one's when somebody waits for it."""
    ours, theirs = socket.socketpair()
    with theirs:
        ours.settimeout(0)
        line = transport.BlockingConnection(OpenConnection(ours, None, None, 1.0, 60.0, 1e9))
        with line._lock:
            line.close()
            assert ours.fileno() >= 0
        assert line.ask(None, 1.0) is None
        assert ours.fileno() < 0
