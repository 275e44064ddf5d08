"""Event time in Kafka with timestamps that producers choose: some lie in the year 2262."""

import time
import uuid

import pytest
from kafka import KafkaProducer
from kafka_reading import find_batch_end, read_on, reader
from kafka_topics import LIMITS, make_topic

from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.sources.base import Limit

pytestmark = pytest.mark.once

YEAR_2262 = 9_214_646_400_000
MINUTE = 60_000
TIMED = {"eventTime": "timestamp", "watermarkDelay": "1 minute"}
AHEAD = "event times more than 1 days ahead of the clock"


@pytest.fixture(scope="module")
def bootstrap():
    with open_cluster() as cluster:
        yield cluster.bootstrap


def new_topic(bootstrap, partitions=1):
    name = f"t-{uuid.uuid4().hex[:12]}"
    make_topic(bootstrap, name, partitions, **{"message.timestamp.after.max.ms": str(2**62)})
    return name


def send(bootstrap, topic, *records, together=False):
    """Records of (value, milliseconds), or (value, milliseconds, partition)."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=1000, **LIMITS)
    for value, ms, *partition in records:
        at = partition[0] if partition else 0
        producer.send(topic, b"%d" % value, timestamp_ms=ms, partition=at)
        if not together:
            producer.flush()
    producer.close()


def test_one_time_at_the_end_moves_nothing_and_the_others_do(bootstrap):
    topic = new_topic(bootstrap)
    send(bootstrap, topic, (1, 5 * MINUTE), (2, YEAR_2262), (3, 4 * MINUTE))
    source = reader(bootstrap, topic, **TIMED)
    found, end = read_on(source)
    assert found == [1, 2, 3]
    assert end.watermark.ms == 4 * MINUTE - MINUTE  # the last record before the end
    assert f"1 {AHEAD}" in end.watermark.held
    assert "2262-01-01" in end.watermark.held
    assert source.backlog()["event_times_ahead"] == 1
    assert end.times == {topic: {"0": 4 * MINUTE}}
    send(bootstrap, topic, (4, 8 * MINUTE))
    found, end = read_on(source, end)
    assert (found, end.watermark.ms, end.watermark.held) == ([4], 7 * MINUTE, None)
    assert source.backlog()["event_times_ahead"] == 1  # that of the batch before is not counted
    # in a batch of records with others, and without any other
    send(bootstrap, topic, (5, 9 * MINUTE), (6, YEAR_2262), together=True)
    found, end = read_on(source, end)
    assert (found, end.watermark.ms) == ([5, 6], 7 * MINUTE)
    send(bootstrap, topic, (7, 11 * MINUTE))
    assert read_on(source, end)[1].watermark.ms == 10 * MINUTE


def test_a_partition_with_nothing_else_does_not_stop_the_watermark(bootstrap):
    topic = new_topic(bootstrap, 2)
    send(bootstrap, topic, (1, 5 * MINUTE), (2, YEAR_2262, 1))
    source = reader(bootstrap, topic, **TIMED)
    end = read_on(source)[1]
    assert end.watermark.ms is None
    assert end.quiet == {topic: {"1": 5 * MINUTE}}
    send(bootstrap, topic, (3, 6 * MINUTE), (4, YEAR_2262, 1))
    found, end = read_on(source, end)
    assert sorted(found) == [3, 4]
    assert end.idle == {topic: (1,)}
    assert end.watermark.ms == 5 * MINUTE


def test_aligned_partitions_are_read_past_it(bootstrap):
    topic = new_topic(bootstrap, 2)
    minutes = [(n, n * MINUTE) for n in range(30)]
    send(bootstrap, topic, *minutes, *((100 + n, ms, 1) for n, ms in minutes[:5]), together=True)
    send(bootstrap, topic, (200, YEAR_2262, 1), *((100 + n, n * MINUTE, 1) for n in range(5, 30)))
    send(bootstrap, topic, *((n, n * MINUTE) for n in range(30, 60)))
    source, end, found = reader(bootstrap, topic, **TIMED, maxSkew="5 minutes"), None, []
    for _ in range(60):
        start = source.initial() if end is None else end
        end = source.latest(start, Limit(rows=10))
        if end == start:
            break
        found += [
            int(value)
            for share in source.plan(start, end)
            for batch in source.read(share)
            for value in batch.column("value").to_pylist()
        ]
    assert sorted(found) == [*range(60), *range(100, 130), 200]
    assert end.watermark.ms == 58 * MINUTE


@pytest.mark.long
def test_partitions_do_not_wait_for_one_in_which_only_such_times_come(bootstrap):
    topic = new_topic(bootstrap, 2)
    send(bootstrap, topic, *((n, n * MINUTE) for n in range(40)))
    send(bootstrap, topic, (100, MINUTE, 1))
    source, end, found = reader(bootstrap, topic, **TIMED, maxSkew="5 minutes"), None, []
    for count in range(12):
        send(bootstrap, topic, (200 + count, YEAR_2262, 1))  # so something always waits there
        more, end = read_on(source, end)
        found += more
    assert sorted(found) == [*range(40), 100, *range(200, 212)]


def test_an_offset_of_an_older_release_that_knew_such_times_goes_on(bootstrap):
    topic = new_topic(bootstrap, 3)
    send(bootstrap, topic, (1, 5 * MINUTE), (2, YEAR_2262, 1))
    end = read_on(reader(bootstrap, topic, **TIMED))[1]
    old = end.model_copy(
        update={
            "times": {topic: {"0": 5 * MINUTE, "1": YEAR_2262}},
            "quiet": {topic: {"2": YEAR_2262}},
            "watermark": end.watermark.model_copy(update={"ms": 4 * MINUTE}),
        }
    )
    send(bootstrap, topic, (3, 6 * MINUTE), (4, 6 * MINUTE, 1))
    end = find_batch_end(reader(bootstrap, topic, **TIMED), type(end).from_json(old.to_json()))
    assert end.times == {topic: {"0": 6 * MINUTE, "1": 6 * MINUTE}}
    assert end.quiet == {topic: {"2": 6 * MINUTE}}
    assert end.watermark.ms == 4 * MINUTE
    send(bootstrap, topic, (5, 7 * MINUTE), (6, 7 * MINUTE, 1))
    assert find_batch_end(reader(bootstrap, topic, **TIMED), end).watermark.ms == 6 * MINUTE


def test_a_clock_that_went_back_holds_the_watermark_only_as_long(bootstrap, monkeypatch):
    topic = new_topic(bootstrap)
    now = time.time_ns() // 1_000_000
    send(bootstrap, topic, (1, now))
    end = find_batch_end(reader(bootstrap, topic, **TIMED))
    assert end.watermark.ms == now - MINUTE
    send(bootstrap, topic, (2, now + 1000))
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: (now - 10 * 86_400_000) * 1_000_000)
        found, held = read_on(reader(bootstrap, topic, **TIMED), end)
    assert found == [2]
    assert held.watermark.ms == now - MINUTE
    assert AHEAD in held.watermark.held
    send(bootstrap, topic, (3, now + 2000))
    end = find_batch_end(reader(bootstrap, topic, **TIMED), held)
    assert end.watermark.ms == now + 2000 - MINUTE
