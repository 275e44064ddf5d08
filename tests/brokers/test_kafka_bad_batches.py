"""A small batch that becomes huge, in the middle of a topic on a real broker."""

import logging
import uuid

import pytest
from kafka import KafkaProducer
from kafka_reading import find_batch_end, read_on, reader, rows
from kafka_topics import LIMITS, make_topic

from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.kafka.records import RecordError
from krishiv_spark.sources.kafka.offset import KafkaOffset

pytestmark = pytest.mark.once

MIB = 2**20
BOMBS = {
    "value": (bytes(64 * MIB), []),
    "headers": (b"", [("", b"")] * (MIB // 2)),
}
LIMIT = {"maxInflatedBytes": "8m", "includeHeaders": "true"}
SKIP = {**LIMIT, "badBatches": "skip"}
GOOD = [*range(5), *range(5, 10)]


@pytest.fixture(scope="module")
def bootstrap():
    with open_cluster() as cluster:
        yield cluster.bootstrap


@pytest.fixture(params=BOMBS)
def topic(request, bootstrap):
    """Numbers, a bomb at offset 5 that the broker takes with its defaults, and more numbers."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    make_topic(bootstrap, name)
    value, headers = BOMBS[request.param]
    with KafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type="zstd",
        max_request_size=2**30,
        batch_size=2**30,
        **LIMITS,
    ) as producer:
        for number in range(5):
            producer.send(name, b"%d" % number)
            producer.flush()
        assert producer.send(name, value, headers=headers).get(60).offset == 5
        for number in range(5, 10):
            producer.send(name, b"%d" % number)
            producer.flush()
    return name


def warnings_of(caplog):
    return [r for r in caplog.records if "maxInflatedBytes" in r.message]


@pytest.mark.long
def test_by_default_the_query_fails_and_says_where_and_what_to_do(bootstrap, topic):
    source = reader(bootstrap, topic, **LIMIT)
    with pytest.raises(RecordError, match=rf"^{topic}-0 at offset 5: .*8388608") as caught:
        read_on(source)
    for part in ("offsets 5 to 5", "'maxInflatedBytes'", "'badBatches' to 'skip'", "are then lost"):
        assert part in str(caught.value)


def test_with_skip_all_other_rows_come_once_and_one_warning(bootstrap, topic, caplog):
    found, end = read_on(reader(bootstrap, topic, **SKIP))
    assert found == GOOD
    (warning,) = warnings_of(caplog)
    assert warning.levelno == logging.WARNING
    dead = warning.dead_letter
    assert (dead.topic, dead.partition, dead.first_offset, dead.last_offset) == (topic, 0, 5, 5)
    assert 0 < dead.size < MIB
    assert f"{topic}-0: the batch of offsets 5 to 5, {dead.size} bytes" in warning.message
    assert read_on(reader(bootstrap, topic, **SKIP), end) == ([], end)


@pytest.mark.long
def test_a_batch_that_is_replayed_after_a_restart_skips_the_same(bootstrap, topic, caplog):
    first = reader(bootstrap, topic, **SKIP)
    start, end = first.initial(), find_batch_end(first)
    again = reader(bootstrap, topic, **SKIP)
    stored = KafkaOffset.from_json(end.to_json())
    assert rows(first, start, end) == rows(again, start, stored) == GOOD
    one, other = (each.dead_letter for each in warnings_of(caplog))
    assert one == other


@pytest.mark.long
@pytest.mark.parametrize("most", ["1", "3", "6"])
def test_batches_that_end_beside_the_bad_one_go_on_after_it(bootstrap, topic, caplog, most):
    source = reader(bootstrap, topic, **SKIP, maxOffsetsPerTrigger=most)
    start, found = source.initial(), []
    for _ in range(20):
        some, start = read_on(source, start)
        found += some
    assert found == GOOD
    assert len(warnings_of(caplog)) == 1


@pytest.mark.long
def test_with_a_limit_that_is_large_enough_it_is_delivered(bootstrap, topic):
    source = reader(bootstrap, topic, includeHeaders="true")
    start, end = source.initial(), find_batch_end(source)
    (share,) = source.plan(start, end)
    found = [len(value) for batch in source.read(share) for value in batch["value"].to_pylist()]
    assert (len(found), max(found) in {1, 64 * MIB}) == (11, True)


def test_tasks_that_read_parts_of_a_bad_batch_both_leave_it_out(bootstrap, caplog):
    topic = f"t-{uuid.uuid4().hex[:12]}"
    make_topic(bootstrap, topic)
    with KafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type="gzip",
        max_request_size=2**30,
        batch_size=2**30,
        linger_ms=5000,
        **LIMITS,
    ) as producer:
        for _ in range(8):
            producer.send(topic, bytes(2 * MIB))
        producer.flush()
        producer.send(topic, b"7")
    source = reader(bootstrap, topic, **SKIP, maxRecordsPerPartition="3")
    start, end = source.initial(), find_batch_end(source)
    assert len(source.plan(start, end)) == 3
    assert rows(source, start, end) == [7]
    assert len({warning.dead_letter for warning in warnings_of(caplog)}) == 1
