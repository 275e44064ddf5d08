"""Tasks of the Kafka sink write each row once to real brokers, through every failure of these."""

import re
import threading
from collections import Counter
from contextlib import closing
from datetime import datetime, timezone

import pyarrow as pa
import pytest
from kafka.admin import KafkaAdminClient
from kafka.errors import NotLeaderForPartitionError
from kafka.future import Future
from kafka.protocol.producer import ProduceRequest
from kafka_topics import Onlooker, make_topic, set_transaction_version
from patience import await_that

from krishiv_spark.errors import KrishivError, SchemaError
from krishiv_spark.kafka import transactions
from krishiv_spark.kafka.client import KafkaClient, KafkaFailedError, open_client
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.kafka.list_offsets import list_offsets
from krishiv_spark.kafka.topic_partition import LATEST, TopicPartition
from krishiv_spark.sinks.base import OutputMode, Task
from krishiv_spark.sinks.kafka import task as tasks
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.sender import PartitionQueue
from krishiv_spark.sinks.kafka.writer import KafkaWriter

UTC = timezone.utc
ROWS = 200_000
YOUNG = {"kafka.metadata.max.age.ms": "1"}
REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "num.partitions": "6",
}


class Bench:
    """Stages rows as a task does, and commits them as the driver does."""

    def __init__(self, cluster) -> None:
        self.cluster = cluster
        self._epochs = 0

    def options(self, topic: str, **more: str) -> KafkaSinkOptions:
        given = {"kafka.bootstrap.servers": self.cluster.bootstrap, "topic": topic, **more}
        return KafkaSinkOptions.parse(given, "krishiv-kafka")

    def stage(self, topic: str, batches, **more: str) -> tasks.StagedTransaction:
        self._epochs += 1
        task = Task("query", self._epochs, 0, self._epochs, generation=self._epochs)
        return tasks.stage(batches, task, self.options(topic, **more))

    def commit(self, staged: tasks.StagedTransaction) -> None:
        assert not transactions.end_transactions(self.client, [staged.transaction], commit=True)

    @property
    def client(self):
        return open_client(KafkaConfig.from_settings({"bootstrap.servers": self.cluster.bootstrap}))

    def assert_exact(self, topic: str, rows: int = ROWS) -> None:
        onlooker = Onlooker(self.cluster.bootstrap)
        found = Counter(int(record.value) for record in onlooker.records(topic))
        onlooker.close()
        assert found == Counter(range(rows))


@pytest.fixture(scope="module")
def bench():
    with open_cluster(ours=True, settings={"auto.create.topics.enable": "false"}) as cluster:
        yield Bench(cluster)


@pytest.fixture
def topic(bench, request) -> str:
    name = f"t-{abs(hash(request.node.name))}"
    make_topic(bench.cluster.bootstrap, name, partitions=4)
    return name


def rows(total: int = ROWS, size: int = 5_000, half_way=lambda: None):
    """Batches of numbered rows; something happens when half of them were handed out."""
    for first in range(0, total, size):
        if first == total // 2:
            half_way()
        values = [b"%0100d" % number for number in range(first, min(first + size, total))]
        yield pa.record_batch({"value": pa.array(values, pa.binary())})


@pytest.mark.long  # 5 s
def test_more_rows_than_may_be_unacknowledged(bench, topic):
    bench.commit(bench.stage(topic, rows()))
    bench.assert_exact(topic)


@pytest.mark.long
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_codecs(bench, topic, codec):
    bench.commit(bench.stage(topic, rows(10_000), **{"kafka.compression.type": codec}))
    bench.assert_exact(topic, 10_000)


@pytest.mark.long  # test_kafka_sink_failover.py has it with three
def test_a_broker_that_dies_and_comes_back(bench, topic):
    def restart():
        bench.cluster.brokers[0].kill()
        threading.Timer(1.0, bench.cluster.brokers[0].start).start()

    staged = bench.stage(topic, rows(half_way=restart))
    bench.cluster.wait()
    bench.commit(staged)
    bench.assert_exact(topic)


@pytest.mark.long  # waits for a broker
def test_a_broker_that_does_not_answer_for_a_while(bench, topic):
    def pause():
        bench.cluster.brokers[0].pause()
        threading.Timer(3.0, bench.cluster.brokers[0].resume).start()

    impatient = {"kafka.request.timeout.ms": "1000"}
    bench.commit(bench.stage(topic, rows(half_way=pause), **impatient))
    bench.assert_exact(topic)


@pytest.mark.long  # test_kafka_sink_failover.py kills a leader too, which comes back
def test_a_leader_that_dies_for_good():
    with open_cluster(3, settings=REPLICATED) as cluster:
        bench = Bench(cluster)
        bench.client.fetch_topics(["t"], create=True)
        staged = bench.stage("t", rows(half_way=cluster.brokers[1].kill))
        bench.commit(staged)
        bench.assert_exact("t")


@pytest.mark.long
def test_the_rules_of_older_brokers(bench, topic):
    """TV1: partitions are added to a transaction one by one. A client notices the change."""
    assert (
        transactions.get_transaction_version(open_client(bench.options(topic, **YOUNG).kafka)) == 2
    )
    set_transaction_version(bench.cluster.bootstrap, 1)
    staged = bench.stage(topic, rows(20_000), **YOUNG)
    assert staged.transaction.version == 1
    bench.commit(staged)
    bench.commit(staged)  # repeating it changes nothing
    bench.assert_exact(topic, 20_000)


def refuse_the_first_batches(monkeypatch):
    """A leader that does not know yet that it is one: what it refuses does not reach the log."""
    submit, refused = KafkaClient.submit, []

    def refuse(client, request, node):
        if refused or not isinstance(request, ProduceRequest):
            return submit(client, request, node)
        refused.append(request)
        return Future().failure(NotLeaderForPartitionError())

    monkeypatch.setattr(KafkaClient, "submit", refuse)
    return refused


@pytest.mark.long
@pytest.mark.parametrize("version", [1, 2])
def test_a_leader_that_takes_the_first_batch_only_the_second_time(
    bench, topic, monkeypatch, version
):
    """Were the second batch there already, it would take the first never again (KAFKA-15591)."""
    set_transaction_version(bench.cluster.bootstrap, version)
    refused = refuse_the_first_batches(monkeypatch)
    staged = bench.stage(topic, rows(20_000), **YOUNG, **{"kafka.batch.size": "1000"})
    assert staged.transaction.version == version
    assert len(refused) == 1
    bench.commit(staged)
    bench.assert_exact(topic, 20_000)


MANY = 200


@pytest.fixture
def wide(bench, request) -> str:
    """A topic of many partitions."""
    name = f"w-{abs(hash(request.node.name))}"
    make_topic(bench.cluster.bootstrap, name, partitions=MANY)
    tp = TopicPartition(name, MANY - 1)
    list_offsets(bench.client, {tp: LATEST})
    return name


def counted(monkeypatch, owner, name) -> list:
    """The calls of a function."""
    calls, function = [], getattr(owner, name)

    def call(*args, **kwargs):
        calls.append(args)
        return function(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)
    return calls


def spread_rows(total: int, size: int = 5_000):
    """Rows that name their partitions in turn."""
    for batch in rows(total, size):
        partitions = pa.array([n % MANY for n in range(len(batch))], pa.int32())
        yield batch.append_column("partition", partitions)


@pytest.mark.long
def test_many_partitions_are_added_together(bench, wide, monkeypatch):
    """Under the older rules; one by one that is a second."""
    set_transaction_version(bench.cluster.bootstrap, 1)
    calls = counted(monkeypatch, transactions, "add_partitions")
    staged = bench.stage(wide, spread_rows(20_000), **YOUNG)
    assert staged.transaction.version == 1
    assert 1 <= len(calls) <= 2
    bench.commit(staged)
    bench.assert_exact(wide, 20_000)


@pytest.mark.long
def test_the_work_for_a_batch_does_not_grow_with_the_partitions(bench, wide, monkeypatch):
    looks = counted(monkeypatch, PartitionQueue, "is_ready")
    batches = counted(monkeypatch, PartitionQueue, "put")
    bench.commit(bench.stage(wide, spread_rows(40_000), **{"kafka.batch.size": "1000"}))
    assert len(batches) > 10 * MANY
    assert len(looks) < MANY / 4 * len(batches)
    bench.assert_exact(wide, 40_000)


REFUSED = {
    "no value": ({"key": ["x"]}, {}, "no column 'value'"),
    "a number as value": ({"value": [1]}, {}, "string or binary"),
    "a column too many": (
        {"value": ["x"], "number": [1]},
        {},
        "'number' cannot be part of a record",
    ),
    "no topic": ({"value": ["x"]}, {"topic": ""}, "topic"),
    "a misspelt option": ({"value": ["x"]}, {"topics": "x"}, "did you mean 'topic'"),
    "a misspelt setting": ({"value": ["x"]}, {"kafka.compresion.type": "x"}, "compression.type"),
    "acks": ({"value": ["x"]}, {"kafka.acks": "1"}, "'kafka.acks' cannot be set"),
    "no codec": ({"value": ["x"]}, {"kafka.compression.type": "rar"}, "rar"),
}


def check(options, schema):
    """As the planner does, before a row moves."""
    KafkaWriter(options, schema, OutputMode.APPEND).check()


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_record_is_refused_before_the_first_row(bench, topic, case):
    columns, options, said = REFUSED[case]
    with pytest.raises(KrishivError, match=re.escape(said)):
        check(bench.options(**{"topic": topic, **options}), pa.record_batch(columns).schema)


def stage_one(bench, topic, **columns):
    arrays = {name: pa.array([value]) for name, value in columns.items()}
    return bench.stage(topic, [pa.record_batch(arrays)])


def test_a_record_that_is_too_large(bench, topic):
    with pytest.raises(KafkaFailedError, match=r"max\.message\.bytes"):
        stage_one(bench, topic, value=b"x" * 2_000_000)


def test_a_partition_that_does_not_exist(bench, topic):
    with pytest.raises(SchemaError, match="partition 4, but the topic has the partitions 0 to 3"):
        stage_one(bench, topic, value=b"x", partition=4)


def test_a_time_before_1970(bench, topic):
    bench.commit(stage_one(bench, topic, value=b"x", timestamp=None))
    unknown = datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)  # as a source delivers it
    bench.commit(stage_one(bench, topic, value=b"x", timestamp=unknown))
    with pytest.raises(SchemaError, match=r"timestamp 1969-12-31 .*no times before 1970"):
        stage_one(bench, topic, value=b"x", timestamp=datetime(1969, 12, 31, tzinfo=UTC))


def test_a_topic_that_was_deleted(bench, topic):
    assert bench.client.get_topic(topic) is not None
    with closing(KafkaAdminClient(bootstrap_servers=bench.cluster.bootstrap)) as admin:
        admin.delete_topics([topic])
    await_that(lambda: bench.client.get_topic(topic, age_s=0) is None)
    assert bench.client.get_leader(TopicPartition(topic, 0)) is None


@pytest.mark.long
def test_a_topic_that_does_not_exist(bench):
    with pytest.raises(KafkaFailedError, match=r"'nowhere'.*create it"):
        stage_one(bench, "nowhere", value=b"x")


def test_a_time_out_that_brokers_do_not_allow(bench, topic):
    with pytest.raises(KafkaFailedError, match=r"transaction\.max\.timeout\.ms"):
        bench.stage(topic, rows(1), **{"kafka.transaction.timeout.ms": "1000000"})


@pytest.mark.long  # 6 s
def test_an_attempt_that_was_fenced_cannot_go_on(bench, topic):
    def fence():
        name = max(transactions.list_open_transactions(bench.client, "krishiv.query."))
        transactions.begin_transaction(bench.client, name, 60_000)

    with pytest.raises(KafkaFailedError, match="the producer was fenced"):
        bench.stage(topic, rows(half_way=fence))
    assert not transactions.list_open_transactions(bench.client, "krishiv.query.")
