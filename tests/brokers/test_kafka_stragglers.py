"""Tasks that write on when their driver has given them up.

A broker before 3.6 takes whatever comes in the current epoch of a producer, also after the end of
its transaction; newer ones ask the coordinator, or know the epoch as an old one (KIP-890).
"""

import time
import uuid

import pyarrow as pa
import pytest
from kafka_topics import Onlooker, make_topic, set_transaction_version
from patience import PATIENCE, await_that

from krishiv_spark.errors import LogError
from krishiv_spark.kafka import transactions
from krishiv_spark.kafka.client import KafkaClient, KafkaFailedError
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.kafka.dev.brokers import KAFKA_VERSION
from krishiv_spark.kafka.list_offsets import list_offsets
from krishiv_spark.kafka.topic_partition import LATEST, TopicPartition
from krishiv_spark.kafka.transactions import abort_open
from krishiv_spark.sinks.base import Epoch, Task
from krishiv_spark.sinks.kafka import task as tasks
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.participant import KafkaParticipant

pytestmark = pytest.mark.long  # starts a broker for each version

BEFORE_VERIFICATION = "3.5.2"
UNVERIFIED = {"transaction.partition.verification.enable": "false"}
OPTIONS = {"kafka.batch.size": "200"}  # so that rows leave at once


class Bench:
    """A driver of one query, in another process than its tasks as far as Kafka can see."""

    def __init__(self, cluster) -> None:
        self.bootstrap = cluster.bootstrap
        self.client = KafkaClient(
            KafkaConfig.from_settings({"bootstrap.servers": cluster.bootstrap})
        )
        self.query, self.topic = str(uuid.uuid4()), f"t-{uuid.uuid4().hex}"
        self._ids = f"krishiv.{self.query}."
        make_topic(self.bootstrap, self.topic)
        self.end(committed=False)  # once its leader answers, what is sent arrives at the first try

    def stage(self, turn, *parts, attempt=0, number=0):
        given = {"kafka.bootstrap.servers": self.bootstrap, "topic": self.topic, **OPTIONS}
        task = Task(self.query, turn, 0, attempt, turn, attempt_number=number)
        options = KafkaSinkOptions.parse(given, "krishiv-kafka")
        return tasks.stage(self._batches(parts), task, options, turn)

    def _batches(self, parts):
        """Rows, and between them things that happen."""
        for part in parts:
            if callable(part):
                part()
            else:
                yield pa.record_batch({"value": [f"{part} {n:50}" for n in range(20)]})

    def sweep(self):
        """As soon as there is something to abort; then wait for the markers."""
        await_that(lambda: abort_open(self.client, self._ids, (), lambda: True))
        self._await_markers()

    def await_open(self, count):
        """Wait until the sent data has arrived."""
        await_that(lambda: list(self._listed().values()).count(transactions.ONGOING) >= count)

    def _listed(self):
        return transactions.list_open_transactions(self.client, self._ids)

    def commit(self, staged):
        return transactions.end_transactions(self.client, [staged.transaction], commit=True)

    def end(self, *, committed):
        tp = TopicPartition(self.topic, 0)
        return list_offsets(self.client, {tp: LATEST}, committed=committed)[tp].offset

    def read(self):
        onlooker = Onlooker(self.bootstrap)
        found = {record.value.decode().split()[0] for record in onlooker.records(self.topic)}
        onlooker.close()
        return found

    def _await_markers(self):
        until = time.monotonic() + PATIENCE
        while left := self._listed():
            assert transactions.ONGOING not in left.values()
            assert time.monotonic() < until, left

    def assert_nothing_is_open(self):
        self._await_markers()
        assert self.end(committed=True) == self.end(committed=False)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((KAFKA_VERSION, {}, None), id="TV2"),
        pytest.param((KAFKA_VERSION, UNVERIFIED, 1), id="unverified"),
        pytest.param((KAFKA_VERSION, {}, 1), id="TV1", marks=pytest.mark.long),
        pytest.param((BEFORE_VERIFICATION, {}, None), id="3.5.2", marks=pytest.mark.long),
    ],
)
def cluster(request):
    version, settings, level = request.param
    with open_cluster(ours=True, version=version, settings=settings) as found:
        if level is not None:
            set_transaction_version(found.bootstrap, level)
        yield found


@pytest.fixture
def bench(cluster):
    found = Bench(cluster)
    yield found
    found.client.close()


@pytest.mark.long  # a cluster of each version
def test_whoever_was_swept_writes_nothing_more(bench):
    with pytest.raises(KafkaFailedError, match="the producer was fenced"):
        bench.stage(1, "before", bench.sweep, "after")
    bench.assert_nothing_is_open()
    assert not bench.read()


@pytest.mark.long  # a broker of each version
def test_rows_of_a_straggler_are_never_committed_with_the_next_use_of_its_id(bench):
    with pytest.raises(KafkaFailedError):
        bench.stage(1, "before", bench.sweep, "after")
    for turn in range(2, 10):
        assert not bench.commit(bench.stage(turn, f"epoch-{turn}"))
    bench.assert_nothing_is_open()
    assert bench.read() == {f"epoch-{turn}" for turn in range(2, 10)}


def test_an_attempt_that_fails_aborts_what_it_has_written(bench):
    def fail():
        raise OSError("no more rows")

    with pytest.raises(OSError, match="no more rows"):
        bench.stage(1, "before", fail)
    bench.assert_nothing_is_open()
    assert not bench.read()


def test_transactions_of_a_sink_whose_prefix_begins_like_the_query_are_left_alone(bench):
    given = {"kafka.bootstrap.servers": bench.bootstrap, "topic": bench.topic}
    options = KafkaSinkOptions.parse(given, "krishiv-kafka")
    participant = KafkaParticipant(options, lambda _: True, streaming=True)
    query, bench.query = bench.query, f"{bench.query}.other"
    other = bench.stage(1, "other")
    participant.verify_empty_log(query)  # has written nothing
    bench.query = query
    own = bench.stage(1, "own")
    with pytest.raises(LogError, match="has written to Kafka"):
        participant.verify_empty_log(query)
    participant.abandon(Epoch(query, 1, 1))
    assert not bench.commit(other)
    assert bench.commit(own)
    assert bench.read() == {"other"}


# --- attempts that are alive at the same time: each has an id, as long as there are any

ALIVE = 4
"""A task, its speculative copy, and both once more in the second run of their stage."""


@pytest.fixture
def alive(bench):
    """Attempts at one task, each begun while those before it write: all complete, and open."""
    found = []

    def begin(run, number):
        others = [(0, 0), (0, 1), (1, 0), (1, 1)]
        following = others[others.index((run, number)) + 1 :]
        parts = [f"{run}.{number}", lambda: bench.await_open(ALIVE - len(following))]
        more = [lambda: begin(*following[0])] if following else []
        found.append(bench.stage(1, *parts, *more, "the rest", number=number))

    begin(0, 0)
    return found


@pytest.mark.parametrize("winner", range(ALIVE))
def test_attempts_that_spark_has_alive_leave_each_other_alone(bench, alive, winner):
    assert not bench.commit(alive[winner])
    bench.sweep()
    bench.assert_nothing_is_open()
    assert len(bench.read()) == 2  # what it wrote first, and the rest


def test_whoever_finds_no_id_free_takes_one_over(bench, alive):
    fifth = bench.stage(1, "fifth", number=0)
    refused = [staged for staged in alive if bench.commit(staged)]
    assert len(refused) == 1  # which the driver would see before it commits
    assert transactions.find_outcomes(bench.client, [each.transaction for each in refused])
    assert not bench.commit(fifth)


def test_an_attempt_that_was_taken_over_leaves_its_successor_alone(bench):
    others, successor = [], []

    def take_over():
        others.extend(bench.stage(1, "other", number=number) for number in (1, 2, 3))
        successor.append(bench.stage(1, "successor", number=4))

    with pytest.raises(KafkaFailedError, match="the producer was fenced"):
        bench.stage(1, "before", lambda: bench.await_open(1), take_over, "after")
    assert not bench.commit(successor[0])
    bench.sweep()
    bench.assert_nothing_is_open()
    assert bench.read() == {"successor"}


@pytest.mark.long  # a broker of each version
def test_an_attempt_leaves_those_of_other_generations_alone(bench):
    later = []

    def go_on():
        for turn in (2, 3, 4):
            later.append(bench.stage(turn, f"epoch-{turn}"))
            assert not bench.commit(later[-1])

    straggler = bench.stage(1, "before", lambda: bench.await_open(1), go_on, "after")
    ids = {staged.transaction.transactional_id for staged in (straggler, *later)}
    assert len(ids) == 3  # turns 2 and 4 share one
    bench.sweep()
    bench.assert_nothing_is_open()
    assert bench.read() == {"epoch-2", "epoch-3", "epoch-4"}
