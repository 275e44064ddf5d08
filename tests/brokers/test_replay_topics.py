"""Replays of queries that read topics, and the two ways on for those that write to one."""

import json
from collections import Counter

import pyarrow as pa
import pytest
from click.testing import CliRunner
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka_topics import make_topic, produce
from replays import Stream, forget, refused, said
from spark_starts import files, make_checkpoint

from krishiv_spark.cli import main
from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.kafka.writer import KafkaWriter
from krishiv_spark.sinks.parquet.writer import ParquetWriter

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def bootstrap():
    with open_cluster() as cluster:
        yield cluster.bootstrap


@pytest.fixture
def checkpoint(tmp_path):
    return make_checkpoint(tmp_path / "c", -1)


@pytest.fixture
def topic(bootstrap, tmp_path):
    make_topic(bootstrap, tmp_path.name)
    return tmp_path.name


class Reads(Stream):
    """A query that reads ten records of a topic in an epoch."""

    topic = ""

    def offset(self, number, end):
        del number
        return json.dumps({"kind": "kafka", "topics": {self.topic: {"0": end}}, "v": 2})

    def _end_of(self, number):
        return 10 * number + 10


def test_records_that_have_aged_out_are_missed_before_anything_changes(
    bootstrap, topic, checkpoint, tmp_path
):
    produce(bootstrap, topic, [b"x"] * 40, partition=0)
    stream = Reads(ParquetWriter, checkpoint, path=f"{tmp_path}/t")
    stream.topic = topic
    for epoch in range(4):
        stream.run(epoch)
    words = ("--table", tmp_path / "t", "-o", f"kafka.bootstrap.servers={bootstrap}")
    shown = said(checkpoint, "--from", 2, *words, "--dry-run")
    assert "its 1 partitions still have the rows from there on" in shown
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.delete_records({TopicPartition(topic, 0): 25})
    admin.close()
    before = files(tmp_path)
    text = refused(checkpoint, "--from", 2, *words)
    assert (
        f"topic {topic}, partition 0: the rows from offset 20 on are needed, and there are those "
        "from 25 to 40"
    ) in text
    assert files(tmp_path) == before
    said(checkpoint, "--from", 3, *words)


def test_records_of_a_partition_that_was_first_read_later_are_needed_too(
    bootstrap, checkpoint, tmp_path
):
    topic = tmp_path.name
    make_topic(bootstrap, topic, partitions=2)
    for partition in (0, 1):
        produce(bootstrap, topic, [b"x"] * 40, partition=partition)
    stream = Reads(ParquetWriter, checkpoint, path=f"{tmp_path}/t")
    stream.offset = lambda number, end: json.dumps(
        {"kind": "kafka", "v": 2, "topics": {topic: {"0": end}}}
        if number < 2
        else {"kind": "kafka", "v": 2, "topics": {topic: {"0": end, "1": 10}}}
        | ({"began": {topic: {"1": 3}}} if number == 2 else {})
    )
    for epoch in range(4):
        stream.run(epoch)
    words = ("--table", tmp_path / "t", "-o", f"kafka.bootstrap.servers={bootstrap}", "--dry-run")
    assert "its 2 partitions still have" in said(checkpoint, "--from", 2, *words)
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.delete_records({TopicPartition(topic, 1): 5})
    admin.close()
    text = refused(checkpoint, "--from", 2, *words)
    assert f"topic {topic}, partition 1: the rows from offset 3 on are needed" in text
    said(checkpoint, "--from", 3, *words)


def test_a_topic_that_was_created_again_has_other_records(bootstrap, topic, checkpoint, tmp_path):
    produce(bootstrap, topic, [b"x"] * 40, partition=0)
    stream = Reads(ParquetWriter, checkpoint, path=f"{tmp_path}/t")
    old = {"ids": {topic: "11111111-2222-3333-4444-555555555555"}, "v": 2}
    stream.offset = lambda _, end: json.dumps(
        {"kind": "kafka", "topics": {topic: {"0": end}}, **old}
    )
    for epoch in range(4):
        stream.run(epoch)
    words = ("--table", tmp_path / "t", "-o", f"kafka.bootstrap.servers={bootstrap}")
    text = refused(checkpoint, "--from", 2, *words)
    assert f"topic {topic} was deleted and created again since" in text


class Writes(Stream):
    """A query that writes the numbers of its rows to a topic."""

    COLUMNS = pa.schema([("value", pa.string())])

    def __init__(self, checkpoint, bootstrap, topic):
        super().__init__(KafkaWriter, checkpoint)
        self.given = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
        options = {**self.given, "checkpointLocation": str(checkpoint)}
        parsed = KafkaWriter.options_type.parse(options, "krishiv-kafka")
        self._make = lambda: KafkaWriter(parsed, self.COLUMNS, OutputMode.APPEND)

    def rows(self, begin, end):
        return pa.record_batch([[str(n) for n in range(begin, end)]], schema=self.COLUMNS)


def numbers_in(bootstrap, topic):
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        consumer_timeout_ms=3000,
    )
    found = Counter(int(record.value) for record in consumer)
    consumer.close()
    return found


def command(*words):
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    forget()


@pytest.mark.long
def test_the_two_ways_on_that_a_refusal_names_lead_on(bootstrap, topic, checkpoint, tmp_path):
    stream = Writes(checkpoint, bootstrap, topic)
    for epoch in range(4):
        stream.run(epoch)
    given = [word for name, text in stream.given.items() for word in ("-o", f"{name}={text}")]
    before = files(checkpoint)
    for words in ((), ("--format", "kafka"), given):
        text = refused(checkpoint, "--from", 2, *words)
        assert "krishiv-kafka cannot remove committed records" in text
    assert files(checkpoint) == before

    other = f"{topic}-again"
    make_topic(bootstrap, other)
    command("checkpoint", "copy", checkpoint, tmp_path / "new", "--to", 1)
    Writes(tmp_path / "new", bootstrap, other).run(2, 45)
    assert numbers_in(bootstrap, other) == Counter(range(20, 45))

    log = ("--format", "kafka", "--checkpoint", checkpoint, *given)
    command("log", "resolve", *log)
    command("checkpoint", "rewind", checkpoint, "--to", 1)
    command("log", "adopt", *log)
    stream.run(2, 45)
    assert numbers_in(bootstrap, topic) == Counter(range(45)) + Counter(range(20, 40))
