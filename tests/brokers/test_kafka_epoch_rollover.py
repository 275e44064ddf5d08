"""Producer epochs are 16 bits: a coordinator that has used up those of an id goes on with another.

Under TV2 a use of an id takes two of them, so a stream of one epoch per second is there within a
day. Ending the transaction of the last epoch, or initialising the id, gives a new producer id.
"""

import uuid

import pyarrow as pa
import pytest
from kafka_topics import Onlooker, make_topic, set_transaction_version
from patience import await_none
from producer_epochs import LAST_EPOCH, raise_epochs

from krishiv_spark.kafka import transactions
from krishiv_spark.kafka.client import KafkaClient
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.kafka.dev.brokers import KAFKA_VERSION
from krishiv_spark.kafka.topic_partition import TopicPartition
from krishiv_spark.kafka.transaction_requests import InitProducerId
from krishiv_spark.kafka.transactions import Outcome, abort_open
from krishiv_spark.sinks.base import Task
from krishiv_spark.sinks.kafka import task as tasks
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.participant import read_outcome_from_log

pytestmark = pytest.mark.long  # starts a broker for each version

SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
TIMEOUT_MS = 1_500
USES = 4
FIRST = range(LAST_EPOCH - 3, LAST_EPOCH)
"""Epochs from which the last one is passed within so many uses, under either set of rules."""
CASES = [
    (how, first)
    for how in ("committed", "aborted", "swept", "timed out", "taken over")
    for first in FIRST
]


class Bench:
    """A task for each case, so that each has an id of its own, whose epochs end soon."""

    def __init__(self, cluster) -> None:
        self.bootstrap, self.topic = cluster.bootstrap, f"t-{uuid.uuid4().hex}"
        self.query = str(uuid.uuid4())
        make_topic(self.bootstrap, self.topic)
        self.client = self._client()
        used = {case: self.stage(case).transaction for case in CASES}
        assert not transactions.end_transactions(self.client, used.values(), commit=False)
        self.await_markers()
        raise_epochs(cluster, {used[case].transactional_id: case[1] for case in CASES})
        self.client = self._client()

    def _client(self):
        return KafkaClient(KafkaConfig.from_settings({"bootstrap.servers": self.bootstrap}))

    def stage(self, case, row="row", **more):
        given = {"kafka.bootstrap.servers": self.bootstrap, "topic": self.topic, **more}
        options = KafkaSinkOptions.parse(given, "krishiv-kafka")
        task = Task(self.query, 0, CASES.index(case), 0)
        return tasks.stage([pa.record_batch({"value": [row]})], task, options)

    def await_markers(self):
        mine = f"krishiv.{self.query}."
        await_none(lambda: transactions.list_open_transactions(self.client, mine), "still open")

    def ends(self, staged, *, commit):
        """Return True if the coordinator accepts the end, which may have happened already."""
        return not transactions.end_transactions(self.client, [staged.transaction], commit=commit)

    def became(self, staged):
        (found,) = transactions.find_outcomes(self.client, [staged.transaction]).values()
        return found

    def in_log(self, staged):
        tp = TopicPartition(staged.topic, staged.partition)
        producer = staged.transaction.producer_id
        return read_outcome_from_log(self.client, tp, staged.offset, producer)

    def assert_lost(self, staged):
        """It was aborted, and cannot be committed."""
        self.await_markers()
        assert not self.ends(staged, commit=True)
        assert self.became(staged) in {Outcome.ABORTED, Outcome.UNKNOWN}
        assert self.in_log(staged) is Outcome.ABORTED

    def rows(self, case):
        onlooker = Onlooker(self.bootstrap)
        found = [record.value.decode() for record in onlooker.records(self.topic)]
        onlooker.close()
        return [row for row in found if row.startswith(str(case))]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((KAFKA_VERSION, 2), id="TV2"),
        pytest.param((KAFKA_VERSION, 1), id="TV1", marks=pytest.mark.long),
        pytest.param(("3.5.2", None), id="3.5.2", marks=pytest.mark.long),
    ],
)
def bench(request):
    version, level = request.param
    with open_cluster(ours=True, version=version, settings=SETTINGS) as cluster:
        if level == 1:
            set_transaction_version(cluster.bootstrap, level)
        yield Bench(cluster)


@pytest.fixture(params=FIRST)
def first(request):
    return request.param


def uses(bench, case, **more):
    """Use the id of a case again and again, with staged data."""
    producers = set()
    for use in range(USES):
        staged = bench.stage(case, f"{case} {use}", **more)
        producers.add(staged.transaction.producer_id)
        assert bench.became(staged) is Outcome.OPEN
        yield staged
    assert len(producers) == 2


@pytest.mark.long  # a broker of each version
def test_what_is_committed(bench, first):
    case = ("committed", first)
    for staged in uses(bench, case):
        assert bench.ends(staged, commit=True)
        assert bench.became(staged) is Outcome.COMMITTED
        bench.await_markers()
        assert bench.became(staged) is bench.in_log(staged) is Outcome.COMMITTED
        assert bench.ends(staged, commit=True)  # again
        assert not bench.ends(staged, commit=False)
    assert bench.rows(case) == [f"{case} {use}" for use in range(USES)]


@pytest.mark.long  # a broker of each version
def test_what_is_aborted(bench, first):
    case = ("aborted", first)
    for staged in uses(bench, case):
        assert bench.ends(staged, commit=False)
        assert bench.became(staged) is Outcome.ABORTED
        bench.await_markers()
        assert bench.became(staged) is bench.in_log(staged) is Outcome.ABORTED
        assert bench.ends(staged, commit=False)  # again
        assert not bench.ends(staged, commit=True)
    assert not bench.rows(case)


def test_what_is_swept(bench, first):
    case = ("swept", first)
    for staged in uses(bench, case):
        name = staged.transaction.transactional_id
        abort_open(bench.client, name, (), lambda: True)
        bench.assert_lost(staged)
    assert not bench.rows(case)


@pytest.mark.long  # it waits
def test_what_is_timed_out(bench, first):
    case = ("timed out", first)
    for staged in uses(bench, case, **{"kafka.transaction.timeout.ms": str(TIMEOUT_MS)}):
        bench.assert_lost(staged)
    assert not bench.rows(case)


@pytest.mark.long  # a broker of each version
def test_what_is_taken_over(bench, first):
    case = ("taken over", first)
    for staged in uses(bench, case):
        transactions.begin_transaction(bench.client, staged.transaction.transactional_id, 60_000)
        bench.assert_lost(staged)
    assert not bench.rows(case)


@pytest.mark.long  # half a minute
def test_the_whole_way(bench):
    """One id, initialised until its producer id changes."""
    name = f"krishiv.{bench.query}.whole.0"
    begun = transactions.begin_transaction(bench.client, name, 60_000)
    node, request = bench.client.coordinators[name].node, InitProducerId(60_000).request([name])
    producers = set()
    while producers <= {begun.producer_id}:
        answers = bench.client.ask([(node, request)] * 50)
        assert not any(answer.error_code for answer in answers)
        producers |= {answer.producer_id for answer in answers}
    assert answers[-1].producer_epoch < 50
