"""The Kafka source under Spark, with a real broker."""

import ast
import datetime as dt
import json
import time
import uuid
from pathlib import Path

import pytest
from available_now import ENDS_WITH_LIMITS
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewPartitions
from kafka_topics import LIMITS, in_transaction, make_topic, produce
from metadata_proxy import MetadataProxy
from patience import PATIENCE, await_that

from krishiv_spark.kafka.dev import open_cluster

# PySpark 4.0 leaves the socket of a `collect` to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

EARLIEST = {"startingOffsets": "earliest"}
MINUTE = 60_000


class Kafka:
    """A broker, and what a test does with it from outside."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.bootstrap = cluster.bootstrap
        self.producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all", linger_ms=5)
        self.admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap, **LIMITS)

    def close(self):
        self.producer.close()
        self.admin.close()

    def topic(self, partitions=1, name=None, **configs):
        name = name or f"t-{uuid.uuid4().hex[:12]}"
        make_topic(self.bootstrap, name, partitions, **configs)
        return name

    def send(self, topic, *values, partition=0, **more):
        for value in values:
            self.producer.send(topic, str(value).encode(), partition=partition, **more)
        self.producer.flush()

    def delete_before(self, topic, offset, partition=0):
        self.admin.delete_records({TopicPartition(topic, partition): offset})

    def delete(self, topic):
        if topic in self.admin.list_topics():
            self.admin.delete_topics([topic])
        await_that(lambda: topic not in self.admin.list_topics())

    def make_anew(self, topic):
        self.delete(topic)
        self.topic(name=topic)


@pytest.fixture(scope="module")
def kafka():
    with open_cluster(ours=True) as cluster:
        found = Kafka(cluster)
        yield found
        found.close()


def frame(kafka, reader, topic, **options):
    given = {"kafka.bootstrap.servers": kafka.bootstrap, **options}
    if not given.keys() & {"assign", "subscribePattern"}:
        given.setdefault("subscribe", topic)
    return reader.format("krishiv-kafka").options(**given).load()


def stream(spark, kafka, topic, **options):
    return frame(kafka, spark.readStream, topic, **{**EARLIEST, **options})


def batch(spark, kafka, topic, **options):
    return values(frame(kafka, spark.read, topic, **options).collect())


def values(rows):
    return sorted(int(row.value) for row in rows)


class Running:
    """A query that goes on until the test is over."""

    def __init__(self, rows, checkpoint, **trigger):
        self.batches = []
        writer = rows.writeStream.foreachBatch(lambda df, _: self.batches.append(df.collect()))
        writer = writer.option("checkpointLocation", checkpoint)
        self.query = writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.query.stop()

    @property
    def rows(self):
        return [row for batch in self.batches for row in batch]

    def await_values(self, *expected):
        def is_there():
            error = self.query.exception()
            assert error is None, error
            return values(self.rows) == sorted(expected)

        await_that(is_there)


def run(rows, checkpoint):
    """All that is there now."""
    with Running(rows, checkpoint, availableNow=True) as running:
        assert running.query.awaitTermination(PATIENCE)
    return running


def read_by(rows, checkpoint):
    return values(run(rows, checkpoint).rows)


# --- rows


@pytest.mark.core
def test_rows_have_the_columns_of_spark(spark, kafka):
    topic = kafka.topic()
    kafka.producer.send(
        topic, b"v", key=b"k", headers=[("h", b"1"), ("h", b"")], timestamp_ms=1357016400123
    ).get(30)
    kafka.producer.send(topic, None, key=b"gone").get(30)
    rows = frame(kafka, spark.read, topic, includeHeaders="true")
    assert [(f.name, f.dataType.simpleString(), f.nullable) for f in rows.schema] == [
        ("key", "binary", True),
        ("value", "binary", True),
        ("topic", "string", True),
        ("partition", "int", True),
        ("offset", "bigint", True),
        ("timestamp", "timestamp", True),
        ("timestampType", "int", True),
        ("headers", "array<struct<key:string,value:binary>>", True),
    ]
    first, second = rows.orderBy("offset").collect()
    assert (first.key, first.value, first.topic, first.partition) == (b"k", b"v", topic, 0)
    assert (first.offset, first.timestampType) == (0, 0)
    assert first.timestamp == dt.datetime.fromtimestamp(1357016400.123)  # noqa: DTZ006  as Spark's
    assert [tuple(header) for header in first.headers] == [("h", b"1"), ("h", b"")]
    assert (second.key, second.value, second.headers) == (b"gone", None, None)


def test_columns_and_casts(spark, kafka):
    topic = kafka.topic()
    kafka.send(topic, 7)
    assert frame(kafka, spark.read, topic, columns="offset,value").columns == ["offset", "value"]
    reader = spark.read.schema("value STRING, partition LONG")
    assert [tuple(row) for row in frame(kafka, reader, topic).collect()] == [("7", 0)]


@pytest.mark.core
def test_a_stream_reads_every_row_once_across_restarts(spark, kafka, checkpoint):
    topic = kafka.topic(3)
    for number in range(9):
        kafka.send(topic, number, partition=number % 3)
    rows = stream(spark, kafka, topic)
    assert read_by(rows, checkpoint) == list(range(9))
    assert read_by(rows, checkpoint) == []
    kafka.send(topic, 9)
    assert read_by(rows, checkpoint) == [9]


@pytest.mark.long
def test_json_values(spark, kafka, checkpoint):
    topic = kafka.topic()
    given = ['{"id": 1, "name": "a"}', "oops", '{"id": 2}', "null"]
    kafka.send(topic, *given)
    options = {"valueFormat": "json", "badRecords": "divert", "valueSchema": "id INT, name STRING"}
    rows = stream(spark, kafka, topic, **options)
    assert rows.columns == ["id", "name", "_raw", "_error"]
    found = sorted(map(tuple, run(rows, checkpoint).rows), key=str)
    no_json = "the JSON value is not valid JSON: Expecting value, at character 0"
    no_object = "the JSON value is null instead of an object"
    assert found == [
        (1, "a", None, None),
        (2, None, None, None),
        (None, None, b"null", no_object),
        (None, None, b"oops", no_json),
    ]
    reader = spark.read.schema("offset LONG, id LONG")
    found = frame(kafka, reader, topic, valueFormat="json", badRecords="null").collect()
    assert sorted(map(tuple, found)) == [(0, 1), (1, None), (2, 2), (3, None)]


# --- where a query begins and ends


def test_batches_between_offsets_and_times(spark, kafka):
    topic = kafka.topic(2)
    for minute in range(5):
        kafka.send(topic, minute, timestamp_ms=minute * MINUTE)
        kafka.send(topic, 10 + minute, partition=1, timestamp_ms=minute * MINUTE)

    def found(**options):
        return batch(spark, kafka, topic, **options)

    assert found() == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    given = json.dumps({topic: {"0": 3, "1": -2}})
    assert found(startingOffsets=given) == [3, 4, 10, 11, 12, 13, 14]
    assert found(endingOffsets=json.dumps({topic: {"0": 1, "1": -1}})) == [0, 10, 11, 12, 13, 14]
    assert found(startingTimestamp=3 * MINUTE) == [3, 4, 13, 14]
    assert found(endingTimestamp=MINUTE) == [0, 10]
    each = json.dumps({topic: {"0": 4 * MINUTE, "1": 0}})
    assert found(startingOffsetsByTimestamp=each, endingTimestamp=2 * MINUTE) == [10, 11]
    assert found(assign=json.dumps({topic: [1]})) == [10, 11, 12, 13, 14]
    late = {"startingTimestamp": 9 * MINUTE}
    assert found(**late, startingOffsetsByTimestampStrategy="latest") == []
    with pytest.raises(Exception, match="has no record at or after 540000 ms"):
        found(**late)


@pytest.mark.parametrize(
    ("options", "said"),
    [  # one that the topic refuses, and one that names a column; tests/brokers has the others
        ({"startingOffsets": '{"TOPIC": {"0": 99}}'}, "offset 99, but the newest is 3"),
        ({"columns": "val"}, "did you mean 'value'"),
    ],
)
def test_errors_reach_the_user(spark, kafka, options, said):
    topic = kafka.topic()
    kafka.send(topic, 1, 2, 3)
    given = {key: text.replace("TOPIC", topic) for key, text in options.items()}
    with pytest.raises(Exception, match=said):
        batch(spark, kafka, topic, **given)


def test_a_stream_begins_at_the_end_unless_told_otherwise(spark, kafka, checkpoint):
    topic = kafka.topic(2)
    kafka.send(topic, 1)
    rows = stream(spark, kafka, topic, startingOffsets="latest")
    assert read_by(rows, checkpoint) == []
    kafka.send(topic, 2)
    kafka.send(topic, 3, partition=1)
    assert read_by(rows, checkpoint) == [2, 3]


@pytest.mark.long
def test_a_stream_begins_at_given_offsets_and_times(spark, kafka, tmp_path):
    topic = kafka.topic(2)
    kafka.send(topic, 1, timestamp_ms=MINUTE)
    kafka.send(topic, 2, timestamp_ms=2 * MINUTE)
    kafka.send(topic, 3, partition=1, timestamp_ms=MINUTE)
    offsets = json.dumps({topic: {"0": 1, "1": -1}})
    rows = stream(spark, kafka, topic, startingOffsets=offsets)
    assert read_by(rows, str(tmp_path / "1")) == [2]
    rows = stream(spark, kafka, topic, startingTimestamp=MINUTE + 1,
                  startingOffsetsByTimestampStrategy="latest")  # fmt: skip
    assert read_by(rows, str(tmp_path / "2")) == [2]


@pytest.mark.long
def test_a_stream_has_no_end(spark, kafka, checkpoint):
    rows = stream(spark, kafka, kafka.topic(), endingOffsets="latest")
    with pytest.raises(Exception, match="'endingOffsets' is for batch reads"):
        run(rows, checkpoint)


# --- what a batch takes


def test_available_now_reads_everything_in_limited_batches(spark, kafka, checkpoint):
    topic = kafka.topic(2)
    kafka.send(topic, *range(8))
    kafka.send(topic, *range(8, 10), partition=1)
    rows = stream(spark, kafka, topic, maxOffsetsPerTrigger=5)
    found = run(rows, checkpoint)
    sizes = [len(each) for each in found.batches]
    # Before 4.2, Spark does not ask a Python source again, and the next run goes on.
    assert sizes == ([5, 5] if ENDS_WITH_LIMITS else [5])
    if not ENDS_WITH_LIMITS:
        found.batches += run(rows, checkpoint).batches
    assert values(found.rows) == list(range(10))


@pytest.mark.long
def test_a_small_batch_waits(spark, kafka, checkpoint):
    topic = kafka.topic()
    kafka.send(topic, 1)
    rows = stream(spark, kafka, topic, minOffsetsPerTrigger=3, maxTriggerDelay="1 h")
    with Running(rows, checkpoint) as running:
        running.await_values(1)
        kafka.send(topic, 2, 3)
        time.sleep(2)
        assert values(running.rows) == [1]
        kafka.send(topic, 4)
        running.await_values(1, 2, 3, 4)


@pytest.mark.long
def test_tasks(spark, kafka):
    topic = kafka.topic(2)
    kafka.send(topic, *range(20))
    kafka.send(topic, *range(20, 24), partition=1)

    def tasks(**options):
        found = frame(kafka, spark.read, topic, **options)
        return sorted(found.rdd.glom().map(len).collect())

    assert tasks() == [24]
    assert tasks(offsetsTogether=0) == [4, 20]
    assert tasks(minPartitions=3) == [4, 10, 10]
    assert tasks(maxRecordsPerPartition=7, offsetsTogether=0) == [4, 6, 7, 7]


@pytest.mark.long
def test_new_partitions_and_topics_are_read_from_their_beginning(spark, kafka, checkpoint):
    prefix = uuid.uuid4().hex[:8]
    first = kafka.topic(name=f"{prefix}-a")
    kafka.send(first, 1)
    rows = stream(spark, kafka, None, subscribePattern=f"{prefix}-.*", startingOffsets="latest")
    with Running(rows, checkpoint) as running:
        await_that(lambda: running.batches)
        kafka.admin.create_partitions({first: NewPartitions(2)})
        produce(kafka.bootstrap, first, [b"2"], partition=1)  # with metadata of its own
        kafka.send(kafka.topic(name=f"{prefix}-b"), 3)
        kafka.topic(name=f"other-{prefix}")
        running.await_values(2, 3)


def test_the_progress_shows_the_lag(spark, kafka, checkpoint):
    topic = kafka.topic()
    kafka.send(topic, *range(5))
    progress = run(stream(spark, kafka, topic, maxOffsetsPerTrigger=3), checkpoint).query
    sources = [each.sources[0] for each in progress.recentProgress]
    if ENDS_WITH_LIMITS:
        assert json.loads(sources[0].latestOffset)["lag"] == {topic: {"0": 2}}
    assert shown(sources[0].endOffset)["topics"] == {topic: {"0": 3}}


@pytest.mark.long
def test_the_position_is_shown_to_a_group(spark, kafka, checkpoint):
    topic = kafka.topic()
    group = f"g-{topic}"
    rows = stream(spark, kafka, topic, groupId=group)
    with Running(rows, checkpoint) as running:
        for number in range(3):
            kafka.send(topic, number)
            running.await_values(*range(number + 1))
        consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap, group_id=group)
        await_that(lambda: (consumer.committed(TopicPartition(topic, 0)) or 0) == 3)
        consumer.close()


# --- transactions


def transact(kafka, topic, *numbers, **more):
    return in_transaction(kafka.bootstrap, topic, [str(n).encode() for n in numbers], **more)


@pytest.mark.core
def test_only_committed_rows_are_read(spark, kafka, checkpoint):
    topic = kafka.topic()
    kafka.send(topic, 0)
    transact(kafka, topic, 1, 2, ends="commit").close()
    transact(kafka, topic, 3, 4, ends="abort").close()
    transact(kafka, topic, 5, ends="commit").close()
    rows = stream(spark, kafka, topic)
    assert read_by(rows, checkpoint) == [0, 1, 2, 5]
    opened = transact(kafka, topic, 6, ends=None)
    kafka.send(topic, 7)
    assert read_by(rows, checkpoint) == []  # what is after an open transaction is not stable yet
    everything = batch(spark, kafka, topic, **{"kafka.isolation.level": "read_uncommitted"})
    assert everything == list(range(8))
    opened.commit_transaction()
    opened.close()
    assert read_by(rows, checkpoint) == [6, 7]


@pytest.mark.long
def test_ranges_without_rows_come_to_an_end(spark, kafka, checkpoint):
    topic = kafka.topic()
    for number in range(3):
        transact(kafka, topic, number, ends="abort").close()
    rows = stream(spark, kafka, topic, maxOffsetsPerTrigger=1)
    for _ in range(1 if ENDS_WITH_LIMITS else 6):
        assert read_by(rows, checkpoint) == []
    kafka.send(topic, 9)
    assert read_by(rows, checkpoint) == [9]


@pytest.mark.long
def test_compacted_topics(spark, kafka):
    topic = kafka.topic(**{
        "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "100",
        "min.compaction.lag.ms": "0", "delete.retention.ms": "0",
    })  # fmt: skip
    for number in range(30):
        kafka.send(topic, number, key=b"k")
        time.sleep(0.02)

    def is_compacted():
        kafka.send(topic, 99, key=b"last")
        return len(batch(spark, kafka, topic)) < 20

    await_that(is_compacted, seconds=60)
    found = batch(spark, kafka, topic, maxRecordsPerPartition=4)
    assert found.count(29) == 1
    assert found[-1] == 99


# --- losses


def test_lost_records_are_an_error_or_passed_over(spark, kafka, checkpoint):
    topic = kafka.topic()
    kafka.send(topic, 1)
    rows = stream(spark, kafka, topic)
    assert read_by(rows, checkpoint) == [1]
    kafka.send(topic, *range(2, 9))
    kafka.delete_before(topic, 6)
    said = f"{topic}-0: the query is at offset 1, but the oldest remaining one is 6"
    with pytest.raises(Exception, match=said):
        run(rows, checkpoint)
    lenient = stream(spark, kafka, topic, failOnDataLoss="false", maxOffsetsPerTrigger=2)
    assert read_by(lenient, checkpoint)[:2] == [7, 8]


def run_late(rows, checkpoint, meanwhile):
    """All that is there now; something happens between the plan of each batch and its tasks."""

    def late(df, _):
        meanwhile()
        df.collect()

    writer = rows.writeStream.foreachBatch(late).option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True).start().awaitTermination(PATIENCE)


@pytest.mark.long  # tests/brokers/test_kafka_source_losses.py has them go while they are read
def test_records_that_go_between_plan_and_read(spark, kafka, checkpoint):
    topic = kafka.topic()
    kafka.send(topic, *range(10))

    def query(**options):
        rows = stream(spark, kafka, topic, **options)
        return run_late(rows, checkpoint, lambda: kafka.delete_before(topic, 4))

    with pytest.raises(Exception, match=r"is at offset 0, but .* is 4"):
        query()
    assert query(failOnDataLoss="false")


@pytest.mark.long
def test_a_topic_that_goes_between_plan_and_read(spark, kafka, checkpoint):
    topic = kafka.topic()
    kafka.send(topic, *range(10))
    hasty = {"kafka.default.api.timeout.ms": "3000"}

    def query(**options):
        rows = stream(spark, kafka, topic, **hasty, **options)
        return run_late(rows, checkpoint, lambda: kafka.delete(topic))

    for _ in range(2):  # a restart alone is of no use
        with pytest.raises(Exception, match=f"0 to 9 of the batch .* topic '{topic}' was deleted"):
            query()
    assert query(failOnDataLoss="false")


@pytest.mark.long  # for a query: tests/brokers/test_kafka_source_positions.py, without Spark
def test_a_topic_that_is_made_anew_is_another(spark, kafka, checkpoint):
    topic = kafka.topic()
    kafka.send(topic, 1, 2)
    rows = stream(spark, kafka, topic)
    assert read_by(rows, checkpoint) == [1, 2]
    kafka.make_anew(topic)
    kafka.send(topic, 3, 4, 5)
    with pytest.raises(Exception, match=f"topic '{topic}' was deleted and recreated"):
        run(rows, checkpoint)
    lenient = stream(spark, kafka, topic, failOnDataLoss="false")
    assert read_by(lenient, checkpoint) == [3, 4, 5]


@pytest.mark.long
def test_a_topic_that_is_deleted(spark, kafka, checkpoint):
    topic, other = kafka.topic(), kafka.topic()
    kafka.send(topic, 1)
    both = f"{topic}|{other}"
    rows = stream(spark, kafka, None, subscribePattern=both)
    assert read_by(rows, checkpoint) == [1]
    kafka.delete(topic)
    with pytest.raises(Exception, match=f"topic '{topic}' was deleted"):
        run(rows, checkpoint)
    kafka.send(other, 2)
    lenient = stream(spark, kafka, None, subscribePattern=both, failOnDataLoss="false")
    assert read_by(lenient, checkpoint) == [2]


@pytest.mark.long  # as in test_parquet_state.py; its offset is in tests/golden
def test_a_checkpoint_of_the_first_version_is_taken_up(spark, kafka, checkpoint):
    topic = kafka.topic()
    kafka.send(topic, 1, 2)
    rows = stream(spark, kafka, topic)
    assert read_by(rows, checkpoint) == [1, 2]
    for file in Path(checkpoint, "offsets").glob("[0-9]*"):
        file.write_text(of_first_version(file.read_text()))
        checksum(file).unlink()
    last = max(Path(checkpoint, "commits").glob("[0-9]*"))
    last.unlink()  # so the batch is repeated
    checksum(last).unlink()
    kafka.send(topic, 3)
    if ENDS_WITH_LIMITS:
        assert read_by(rows, checkpoint) == [1, 2, 3]
    else:  # such a run is one batch, and that is the repeated one
        assert read_by(rows, checkpoint) == [1, 2]
        assert read_by(rows, checkpoint) == [3]
    assert read_by(rows, checkpoint) == []


def of_first_version(stored):
    """Return the offsets as the first version stored them, without leader epochs."""
    *head, offset = stored.splitlines()
    fields = json.loads(offset)
    assert fields.pop("epochs")
    return "\n".join([*head, json.dumps({**fields, "v": 1})])


def checksum(file):
    return file.with_name(f".{file.name}.crc")


# --- event time


def watermark(run):
    ends = [shown(progress.sources[0].endOffset) for progress in run.query.recentProgress]
    return [end["watermark"]["ms"] for end in ends if "ms" in end.get("watermark", {})]


def shown(offset: str) -> dict:
    """An offset in the progress: JSON, or Python's form of it before 4.2."""
    return ast.literal_eval(offset)


TIMED = {"eventTime": "timestamp", "watermarkDelay": "1 minute"}


def test_the_watermark_is_that_of_the_slowest_partition(spark, kafka, checkpoint):
    topic = kafka.topic(2)
    for minute in (5, 3, 4):
        kafka.send(topic, minute, timestamp_ms=minute * MINUTE)
    kafka.send(topic, 2, partition=1, timestamp_ms=int(4.8 * MINUTE))
    rows = stream(spark, kafka, topic, **TIMED, lateRows="flag")
    first = run(rows, checkpoint)
    assert watermark(first)[-1:] == [int(3.8 * MINUTE)]
    assert not any(row._late for row in first.rows)
    kafka.send(topic, 3, timestamp_ms=int(3.7 * MINUTE))
    kafka.send(topic, 6, timestamp_ms=6 * MINUTE)
    second = run(rows, checkpoint)
    assert {int(row.value): row._late for row in second.rows} == {3: True, 6: False}
    # Partition 1 is read and more than 30 s behind: it holds the watermark no longer.
    assert watermark(second)[-1] == 5 * MINUTE


@pytest.mark.long
def test_the_watermark_of_a_limited_batch(spark, kafka, checkpoint):
    topic = kafka.topic()
    for minute in range(1, 7):
        kafka.send(topic, minute, timestamp_ms=minute * MINUTE)
    rows = stream(spark, kafka, topic, **TIMED, maxOffsetsPerTrigger=2)
    found = run(rows, checkpoint)
    assert watermark(found)[0] == MINUTE
    assert values(found.batches[0]) == [1, 2]


@pytest.mark.long
def test_markers_of_transactions_are_no_event_time(spark, kafka, checkpoint):
    """They are dated by the broker's clock, decades behind these records."""
    topic = kafka.topic()
    rows = stream(spark, kafka, topic, **TIMED, lateRows="flag")
    for minute in (5, 6):
        transact(kafka, topic, minute, ends="commit", timestamp_ms=minute * MINUTE).close()
        found = run(rows, checkpoint)
        assert watermark(found)[-1] == (minute - 1) * MINUTE
        assert not any(row._late for row in found.rows)


@pytest.mark.long
def test_no_partition_runs_ahead(spark, kafka, checkpoint):
    topic = kafka.topic(2)
    for minute in range(60):
        kafka.send(topic, minute, timestamp_ms=minute * MINUTE)
        if minute % 20 == 0:
            kafka.send(topic, 100 + minute, partition=1, timestamp_ms=minute * MINUTE)
    rows = stream(spark, kafka, topic, **TIMED, maxSkew="5 minutes")
    found = run(rows, checkpoint)
    for _ in range(0 if ENDS_WITH_LIMITS else 40):
        found.batches += run(rows, checkpoint).batches
    assert values(found.rows) == [*range(60), 100, 120, 140]
    times = [{int(r.value) % 100 for r in each} for each in found.batches if each]
    assert max(times[0]) <= 5
    assert len(times) > 3


# --- brokers that go away


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_running_query_takes_partial_metadata_for_no_loss(spark, kafka, checkpoint, fail):
    topic = kafka.topic(4)
    with MetadataProxy(int(kafka.bootstrap.rpartition(":")[2])) as proxy:
        through = {"kafka.bootstrap.servers": proxy.bootstrap, "failOnDataLoss": fail}
        with Running(stream(spark, kafka, topic, **through), checkpoint) as running:
            for number, kept in enumerate([(0, 1, 2, 3), (), (0, 1), (3,)]):
                proxy.omit(topic, *kept)
                await_that(lambda: proxy.is_done)
                for n in range(4):
                    kafka.send(topic, 4 * number + n, partition=n)
                running.await_values(*range(4 * number + 4))


def test_a_query_survives_a_restart_of_the_broker(spark, kafka, checkpoint):
    topic = kafka.topic(2)
    rows = stream(spark, kafka, topic)
    with Running(rows, checkpoint) as running:
        kafka.send(topic, 1)
        running.await_values(1)
        kafka.cluster.brokers[0].kill()
        time.sleep(2)
        kafka.cluster.brokers[0].start()
        kafka.cluster.wait()
        kafka.send(topic, 2, partition=1)
        running.await_values(1, 2)
