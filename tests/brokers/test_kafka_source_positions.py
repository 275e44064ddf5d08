"""The position of the Kafka source while options, transactions and partitions change."""

import json
import time
import uuid

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.admin import NewPartitions
from kafka_reading import HASTE, find_batch_end, read_on, reader
from kafka_topics import LIMITS, in_transaction, make_topic, produce
from patience import PATIENCE, await_that

from krishiv_spark.errors import DataLossError, KrishivError, OptionError
from krishiv_spark.kafka import topic_partition
from krishiv_spark.kafka.client import KafkaFailedError, open_client
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.kafka.list_offsets import ListOffsets, RepeatedLookup, list_offsets
from krishiv_spark.kafka.partition_table import PartitionTable
from krishiv_spark.kafka.requests import send_all
from krishiv_spark.kafka.topic_partition import EARLIEST, LATEST, MAX_TIMESTAMP
from krishiv_spark.sources.kafka import group as group_module
from krishiv_spark.sources.kafka.group import ConsumerGroupMirror
from krishiv_spark.sources.kafka.options import KafkaSourceOptions

pytestmark = pytest.mark.once

UNCOMMITTED = {"kafka.isolation.level": "read_uncommitted"}
LENIENT = {"failOnDataLoss": "false"}


@pytest.fixture(scope="module")
def bootstrap():
    with open_cluster() as cluster:
        yield cluster.bootstrap


@pytest.fixture
def admin(bootstrap):
    found = KafkaAdminClient(bootstrap_servers=bootstrap, **LIMITS)
    yield found
    found.close()


def topic_of(bootstrap, *numbers, partitions=1):
    name = f"t-{uuid.uuid4().hex[:12]}"
    make_topic(bootstrap, name, partitions)
    send(bootstrap, name, *numbers)
    return name


def send(bootstrap, topic, *numbers, **more):
    produce(bootstrap, topic, [b"%d" % number for number in numbers], **more)


# --- what cannot be


@pytest.fixture(scope="module")
def three(bootstrap):
    """A topic with three records."""
    return topic_of(bootstrap, 1, 2, 3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffsets": "latest"}, "a batch read cannot start at the latest offset"),
        ({"startingOffsets": '{"TOPIC": {"0": -1}}'}, "cannot start at the latest offset"),
        ({"startingOffsets": '{"TOPIC": {"0": 99}}'}, "offset 99, but the newest is 3"),
        ({"startingOffsets": '{"TOPIC": {"0": 0, "7": 0}}'}, "TOPIC-7, which is not read"),
        ({"startingOffsets": '{"other": {"0": 0}}'}, "no offset for TOPIC-0"),
        ({"assign": '{"TOPIC": [3]}'}, "names partition 3 of topic 'TOPIC', which has 1"),
        ({"subscribe": "nowhere"}, "topic 'nowhere' does not exist on"),
        ({"subscribe": "TOPIC", "assign": "{}"}, "at least one partition"),
    ],
)
def test_a_batch_that_cannot_be_read_is_refused(bootstrap, three, options, said):
    given = {key: text.replace("TOPIC", three) for key, text in options.items()}
    with pytest.raises(KrishivError, match=said.replace("TOPIC", three)):
        read_on(reader(bootstrap, three, streaming=False, **given))


# --- many offsets at once


def partitions_of(topic, count):
    return [topic_partition.TopicPartition(topic, number) for number in range(count)]


@pytest.mark.parametrize("wanted", [LATEST, EARLIEST, MAX_TIMESTAMP, 0, 2**50])
def test_what_is_looked_up_at_once_is_what_single_partitions_say(bootstrap, wanted):
    one, other = topic_of(bootstrap, 1, 2, 3, partitions=3), topic_of(bootstrap, 4)
    asked = dict.fromkeys([*partitions_of(one, 3), *partitions_of(other, 1)], wanted)
    client = open_client(KafkaConfig.from_settings({"bootstrap.servers": bootstrap}))
    alone = send_all(client, ListOffsets(asked, committed=True), asked)
    assert list_offsets(client, asked) == alone


def test_a_message_that_is_kept_finds_what_is_new(bootstrap):
    topic = topic_of(bootstrap, partitions=2)
    client = open_client(KafkaConfig.from_settings({"bootstrap.servers": bootstrap}))
    lookup, rows = RepeatedLookup(LATEST, committed=True), PartitionTable(partitions_of(topic, 2))
    for count in range(3):
        assert sum(lookup.fetch(client, rows).offsets.tolist()) == count
        send(bootstrap, topic, count)


def test_a_partition_that_nobody_leads_is_named_when_time_is_up(bootstrap):
    topic = topic_of(bootstrap, 1)
    client = open_client(KafkaConfig.from_settings({"bootstrap.servers": bootstrap, **HASTE}))
    began_s = time.monotonic()
    with pytest.raises(KafkaFailedError, match=f"it has no leader for {topic}-1, time is up"):
        list_offsets(client, dict.fromkeys(partitions_of(topic, 2), LATEST))
    assert time.monotonic() - began_s < 2 * 3.0  # the attempt at both at once counts


# --- transactions


@pytest.fixture
def held(bootstrap):
    """A topic with five records of a transaction that is open, and the transaction."""
    topic = topic_of(bootstrap)
    values = [b"%d" % number for number in range(5)]
    opened = in_transaction(bootstrap, topic, values, ends=None)
    yield topic, opened
    opened.close()


def test_records_after_an_open_transaction_are_shown_in_the_progress(bootstrap, held):
    topic, opened = held
    send(bootstrap, topic, *range(5, 105))
    found = reader(bootstrap, topic)
    end = find_batch_end(found)
    shown = found.backlog()
    assert (shown["lag"], shown["offsets_waiting"]) == ({topic: {"0": 0}}, 0)
    assert shown["offsets_held_back"] == 105
    first = shown["held_back"][topic]["0"]
    assert (first["high_watermark"], first["offsets"]) == (105, 105)
    json.dumps(shown)
    send(bootstrap, topic, 105)
    assert find_batch_end(found, end) == end
    later = await_held(found, end, 106)
    assert later["since"] == first["since"]  # it is still the same transaction
    opened.commit_transaction()
    assert len(awaited(found, end)) == 106
    assert await_held(found, end, 0) is None


def awaited(found, end):
    """The rows of the next batch, once its markers have been written."""
    return await_that(lambda: read_on(found, end)[0])


def await_held(found, end, offsets):
    """Wait until that many offsets are held back, and return the report of the one partition."""
    until = time.monotonic() + PATIENCE
    while found.backlog()["offsets_held_back"] != offsets:
        assert time.monotonic() < until, found.backlog()
        find_batch_end(found, end)
    shown = found.backlog()["held_back"]
    return next((each["0"] for each in shown.values()), None)


def test_what_is_written_after_the_look_at_the_end_is_not_held_back(bootstrap):
    topic = topic_of(bootstrap, 1)
    found = reader(bootstrap, topic)
    found.freeze()
    send(bootstrap, topic, 2, 3)
    find_batch_end(found)
    assert found.backlog()["offsets_held_back"] == 0


@pytest.mark.parametrize("loss", [{}, LENIENT], ids=["strict", "lenient"])
def test_uncommitted_rows_that_were_read_are_not_read_again_when_they_are_committed(
    bootstrap, held, loss
):
    topic, opened = held
    rows, end = read_on(reader(bootstrap, topic, **UNCOMMITTED))
    assert rows == [*range(5)]
    committed = reader(bootstrap, topic, **loss)
    assert find_batch_end(committed, end) == end
    opened.commit_transaction()
    send(bootstrap, topic, 5)
    assert awaited(committed, end) == [5]


def test_a_batch_with_an_open_transaction_waits_and_says_for_what(bootstrap, held):
    topic, opened = held
    planned = find_batch_end(reader(bootstrap, topic, **UNCOMMITTED))
    hasty = reader(bootstrap, topic, **HASTE, **LENIENT)
    with pytest.raises(KafkaFailedError, match=r"transaction is open.*kafka transactions list"):
        [*hasty.read(hasty.plan(hasty.initial(), planned)[0])]
    opened.commit_transaction()
    (batch,) = hasty.read(hasty.plan(hasty.initial(), planned)[0])
    assert batch.num_rows == 5


# --- what is read changes


def assigned(bootstrap, topic, *partitions, **options):
    return reader(bootstrap, topic, assign=json.dumps({topic: partitions}), **options)


def test_a_partition_that_is_left_out_for_a_while_is_read_on(bootstrap, caplog):
    topic = topic_of(bootstrap, partitions=2)
    for partition in (0, 1):
        send(bootstrap, topic, partition, partition + 10, partition=partition)
    both = assigned(bootstrap, topic, 0, 1)
    rows, first = read_on(both)
    assert sorted(rows) == [0, 1, 10, 11]
    one = assigned(bootstrap, topic, 0)
    rows, second = read_on(one, first)
    assert rows == []
    assert f"{topic}-1 is no longer read" in caplog.text
    assert "continues from offset 2" in caplog.text
    assert find_batch_end(one, second) == second
    for partition in (0, 1):
        send(bootstrap, topic, partition + 20, partition=partition)
    rows, third = read_on(one, second)
    assert rows == [20]
    rows, last = read_on(assigned(bootstrap, topic, 0, 1), third)
    assert rows == [21]
    assert (last.topics, last.left) == ({topic: {"0": 3, "1": 3}}, {})


def test_a_topic_that_is_left_out_for_a_while_is_read_on(bootstrap):
    kept, left = topic_of(bootstrap, 1), topic_of(bootstrap, 2)
    rows, first = read_on(reader(bootstrap, f"{kept},{left}"))
    assert sorted(rows) == [1, 2]
    send(bootstrap, left, 3)
    rows, second = read_on(reader(bootstrap, kept), first)
    assert (rows, second.left) == ([], {left: {"0": 1}})
    assert read_on(reader(bootstrap, None, subscribePattern=f"{kept}|{left}"), second)[0] == [3]


@pytest.mark.long
def test_a_topic_that_is_made_anew_while_it_is_left_out_is_another(bootstrap, admin):
    kept, left = topic_of(bootstrap, 1), topic_of(bootstrap, 2)
    both = {"subscribe": f"{kept},{left}"}
    first = find_batch_end(reader(bootstrap, None, **both))
    second = find_batch_end(reader(bootstrap, kept), first)
    make_anew(bootstrap, admin, left)
    send(bootstrap, left, 7)
    with pytest.raises(DataLossError, match=f"topic '{left}' was deleted and recreated"):
        find_batch_end(reader(bootstrap, None, **both), second)
    assert read_on(reader(bootstrap, None, **both, **LENIENT), second)[0] == [7]


def make_anew(bootstrap, admin, topic):
    admin.delete_topics([topic])
    while topic in admin.list_topics():
        time.sleep(0.05)
    make_topic(bootstrap, topic)


@pytest.mark.long
def test_a_topic_that_is_made_anew_with_fewer_partitions_is_a_loss(bootstrap, admin):
    topic = topic_of(bootstrap, partitions=2)
    send(bootstrap, topic, 1, partition=1)
    end = find_batch_end(assigned(bootstrap, topic, 0, 1))
    make_anew(bootstrap, admin, topic)
    send(bootstrap, topic, 7)
    with pytest.raises(DataLossError, match=f"topic '{topic}' was deleted and recreated"):
        find_batch_end(assigned(bootstrap, topic, 0, 1), end)
    lenient = assigned(bootstrap, topic, 0, 1, **LENIENT)
    rows, after = read_on(lenient, end)
    assert (rows, find_batch_end(lenient, after)) == ([7], after)
    with pytest.raises(OptionError, match=f"names partition 1 of topic '{topic}', which has 1"):
        find_batch_end(assigned(bootstrap, topic, 0, 1, **LENIENT), after)
    admin.create_partitions({topic: NewPartitions(total_count=2)})
    send(bootstrap, topic, 8, partition=1)
    assert read_on(assigned(bootstrap, topic, 0, 1, **LENIENT), after)[0] == [8]


@pytest.mark.long
def test_available_now_asks_what_a_deleted_topic_means_too(bootstrap, admin):
    topic, other = topic_of(bootstrap, 1), topic_of(bootstrap, 2)
    both = f"{topic},{other}"
    end = find_batch_end(reader(bootstrap, both))
    admin.delete_topics([topic])
    send(bootstrap, other, 3)
    strict, lenient = reader(bootstrap, both), reader(bootstrap, both, **LENIENT)
    for each in (strict, lenient):
        each.freeze()
    with pytest.raises(DataLossError, match=f"topic '{topic}' was deleted"):
        find_batch_end(strict, end)
    assert read_on(lenient, end)[0] == [3]


# --- groups


def test_the_position_that_is_shown_to_a_group_is_the_newest_when_the_query_is_idle(bootstrap):
    topic = topic_of(bootstrap, 1, 2, 3)
    shown = reader(bootstrap, topic, groupId=f"g-{topic}")
    end = find_batch_end(shown)
    assert find_batch_end(shown, end) == end  # Spark asks again, and finds nothing
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=f"g-{topic}")
    assert consumer.committed(TopicPartition(topic, 0)) == 3
    consumer.close()


def offset_of_group(bootstrap, group, topic, partition=0):
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=group)
    try:
        return consumer.committed(TopicPartition(topic, partition))
    finally:
        consumer.close()


@pytest.fixture
def shown(bootstrap):
    """Return a maker of drivers that show positions in partition 0 of a topic, and of the group."""
    topic = topic_of(bootstrap, 1, partitions=2)
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    connection = KafkaSourceOptions.parse(given, "krishiv-kafka").kafka
    tp = topic_partition.TopicPartition(topic, 0)

    class Driver:
        def __init__(self, since_ms=None):
            self.position = ConsumerGroupMirror(connection, f"g-{topic}", since_ms)

        def at(self, offset, **more):
            self.position.commit(
                {tp: offset, **{tp._replace(partition=1): n for n in more.values()}}
            )
            return offset_of_group(bootstrap, f"g-{topic}", topic)

    Driver.other = staticmethod(lambda: offset_of_group(bootstrap, f"g-{topic}", topic, 1))
    return Driver


def test_a_woken_driver_does_not_move_a_group_back(shown):
    a, b = shown(), shown()
    assert [a.at(10), b.at(100), a.at(20), b.at(100), a.at(30), b.at(110)] == [
        *(10, 100, 100, 100, 100, 110)
    ]


def test_a_driver_that_was_frozen_before_its_first_position_does_not_either(shown):
    frozen = shown(since_ms=1_000)
    assert shown(since_ms=2_000).at(100) == 100
    assert frozen.at(20) == 100
    assert frozen.at(30) == 100


def test_a_newer_driver_that_was_fenced_does_not_move_back_the_one_that_goes_on(shown):
    older, newer = shown(since_ms=1_000), shown(since_ms=2_000)
    assert [older.at(10), newer.at(20), older.at(200), newer.at(30)] == [10, 20, 200, 200]


def test_a_checkpoint_that_was_rewound_moves_a_group_back(shown):
    assert [shown().at(100), shown().at(40)] == [100, 40]
    again = shown()
    assert [again.at(30), again.at(35), again.at(34)] == [30, 35, 34]  # its own may go back


def test_each_partition_of_a_group_goes_on_by_itself(shown):
    a, b = shown(), shown()
    a.at(10, other=50)
    b.at(100, other=40)
    assert (a.at(20, other=60), shown.other()) == (100, 60)


def test_offsets_of_older_versions_and_of_other_programs_are_taken_over(bootstrap, shown):
    driver = shown()
    group, topic = driver.position._group, driver.position._group.removeprefix("g-")
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=group)
    consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(70, "krishiv-spark since x", -1)})
    consumer.close()
    assert driver.at(50) == 50
    assert driver.at(80) == 80


def test_a_group_whose_coordinator_is_known_costs_two_requests(shown, monkeypatch):
    driver = shown()
    driver.at(1)
    asked = []
    real = group_module._send
    monkeypatch.setattr(
        group_module, "_send", lambda *given: asked.append(given[2]) or real(*given)
    )
    driver.at(2)
    assert len(asked) == 2
    driver.at(2)
    assert len(asked) == 2
