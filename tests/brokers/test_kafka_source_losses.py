"""The Kafka source on a broker that loses records: one policy decides, wherever it is detected."""

import uuid
from itertools import chain

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import NewPartitions
from kafka_reading import HASTE, batches, cut_log, damage_log, find_batch_end, read_on, reader, rows
from kafka_topics import LIMITS, ask_admin, make_topic

from krishiv_spark.errors import DataLossError
from krishiv_spark.kafka.client import KafkaFailedError
from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.sources.kafka import start_offsets
from krishiv_spark.sources.kafka.fetcher import Fetcher

pytestmark = pytest.mark.once

LENIENT = {"failOnDataLoss": "false"}
SMALL = {"maxFetchBytes": "64k"}


class Kafka:
    """A broker that can be killed, and what is done with it from outside."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.bootstrap = cluster.bootstrap
        self.broker = cluster.brokers[0]

    def admin(self, what, *args):
        return ask_admin(self.bootstrap, what, *args)

    def topic(self, *numbers, partitions=1, **more):
        name = f"t-{uuid.uuid4().hex[:12]}"
        make_topic(self.bootstrap, name, partitions)
        self.send(name, *numbers, **more)
        return name

    def long_topic(self):
        """2000 records in three fetches of 64 KB at least."""
        return self.topic(*range(2000), at_once=50, key=bytes(100))

    def send(self, topic, *numbers, at_once=1, **more):
        """Numbers, so many in a batch of records."""
        producer = KafkaProducer(bootstrap_servers=self.bootstrap, linger_ms=1000, **LIMITS)
        for place, number in enumerate(numbers, 1):
            producer.send(topic, b"%d" % number, **more)
            if place % at_once == 0:
                producer.flush()
        producer.close()

    def delete(self, topic):
        self.admin("delete_topics", [topic])
        while topic in self.admin("list_topics"):
            pass

    def lose(self, topic, offset):
        """The broker dies, and comes back without a topic's records from an offset on."""
        self.broker.kill()
        cut_log(self.broker, topic, offset)
        self.broker.start()
        self.cluster.wait()


@pytest.fixture(scope="module")
def kafka():
    with open_cluster(ours=True) as cluster:
        yield Kafka(cluster)


def reading(kafka, topic, **options):
    return reader(kafka.bootstrap, topic, **options)


def begun(reader):
    """The batches of a long topic, the first of which is read and the second on its way."""
    end = find_batch_end(reader)
    found = batches(reader, reader.initial(), end)
    first = next(found)
    assert len(first) < 900, "two fetches bring everything"
    return chain([first], found), end


def rest(batches):
    return [value for some in batches for value in some]


# --- a topic goes in mid-batch


@pytest.mark.long  # waits 12 s
@pytest.mark.parametrize(
    "fresh",
    [
        pytest.param(True, id="a new worker"),
        pytest.param(False, id="a worker that knew it", marks=pytest.mark.long),
    ],
)
def test_a_topic_that_goes_before_its_batch_is_read_is_lost(kafka, fresh):
    topic = kafka.topic(1, 2, 3)
    planner = reading(kafka, topic, **({} if fresh else HASTE))
    start, end = planner.initial(), find_batch_end(planner)
    kafka.delete(topic)
    why = f"{topic}-0: offsets 0 to 2 of the batch no longer exist: topic '{topic}' was deleted"
    with pytest.raises(DataLossError, match=why):
        rows(reading(kafka, topic, **HASTE), start, end)
    assert rows(reading(kafka, topic, **HASTE, **LENIENT), start, end) == []


@pytest.mark.long
def test_a_query_goes_on_without_a_topic_that_was_deleted(kafka):
    topic, other = kafka.topic(1), kafka.topic(2)
    both = {"subscribe": f"{topic},{other}"}
    end = find_batch_end(reading(kafka, None, **both))
    kafka.delete(topic)
    with pytest.raises(DataLossError, match=f"topic '{topic}' was deleted.*1 in {topic}-0"):
        find_batch_end(reading(kafka, None, **both), end)
    lenient = reading(kafka, None, **both, **LENIENT)
    later = find_batch_end(lenient, end)
    assert later.topics == {other: {"0": 1}}
    assert any(topic in loss for loss in lenient.backlog()["losses"])
    restarted = reading(kafka, None, **both, **LENIENT)
    assert find_batch_end(restarted, later) == later  # nor is the option wrong now
    make_topic(kafka.bootstrap, topic)
    kafka.send(topic, 3)
    assert read_on(reading(kafka, None, **both, **LENIENT), later)[0] == [3]


@pytest.mark.parametrize(
    "anew",
    [
        pytest.param(False, id="for good", marks=pytest.mark.long),
        pytest.param(True, id="and is made anew"),
    ],
)
def test_a_topic_that_goes_while_it_is_read_is_lost_from_there_on(kafka, anew):
    topic = kafka.long_topic()
    strict, _ = begun(reading(kafka, topic, **HASTE, **SMALL))
    lenient, _ = begun(reading(kafka, topic, **HASTE, **SMALL, **LENIENT))
    kafka.delete(topic)
    if anew:
        make_topic(kafka.bootstrap, topic)
        kafka.send(topic, *range(5000, 5010))
    with pytest.raises(DataLossError, match=f"to 1999 of the batch .* topic '{topic}' was deleted"):
        rest(strict)
    found = rest(lenient)
    assert found == [*range(len(found))]
    assert len(found) < 2000


# --- the log loses its beginning


def test_records_that_age_out_while_they_are_read_are_lost(kafka):
    topic = kafka.long_topic()
    strict, _ = begun(reading(kafka, topic, **SMALL))
    lenient, _ = begun(reading(kafka, topic, **SMALL, **LENIENT))
    kafka.admin("delete_records", {TopicPartition(topic, 0): 1950})
    with pytest.raises(DataLossError, match=f"{topic}-0: .* the oldest remaining one is 1950"):
        rest(strict)
    found = rest(lenient)
    assert found[-50:] == [*range(1950, 2000)]
    assert found[:-50] == [*range(len(found) - 50)]


def test_a_new_partition_that_has_lost_its_first_records_is_noticed(kafka):
    topic = kafka.topic(1, 2)
    _, end = read_on(reading(kafka, topic))
    kafka.admin("create_partitions", {topic: NewPartitions(2)})
    kafka.send(topic, *range(5), partition=1)
    kafka.admin("delete_records", {TopicPartition(topic, 1): 3})
    why = f"{topic}-1: the query has not read the partition yet, but the oldest .* is 3"
    with pytest.raises(DataLossError, match=why):
        find_batch_end(reading(kafka, topic), end)
    lenient = reading(kafka, topic, **LENIENT)
    assert read_on(lenient, end)[0] == [3, 4]
    assert lenient.backlog()["offsets_passed_over"] == 3


@pytest.mark.parametrize("by", ["subscribe", "assign", "subscribePattern"])
def test_only_a_user_adds_an_old_topic_without_a_loss(kafka, by):
    old, added = kafka.topic(1), kafka.topic(*range(5))
    kafka.admin("delete_records", {TopicPartition(added, 0): 3})
    given = {
        "subscribe": (old, f"{old},{added}"),
        "assign": (f'{{"{old}": [0]}}', f'{{"{old}": [0], "{added}": [0]}}'),
        "subscribePattern": (old, f"{old}|{added}"),
    }[by]
    _, end = read_on(reading(kafka, None, **{by: given[0]}))
    wider = reading(kafka, None, **{by: given[1]})
    if by == "subscribePattern":
        with pytest.raises(DataLossError, match=f"{added}-0: the query has not read the partition"):
            find_batch_end(wider, end)
    else:
        assert read_on(wider, end)[0] == [3, 4]


def test_a_start_that_is_named_and_has_aged_out_is_lost(kafka):
    topic = kafka.topic(*range(5))
    kafka.admin("delete_records", {TopicPartition(topic, 0): 3})
    named = {"startingOffsets": f'{{"{topic}": {{"0": 1}}}}'}
    why = f"{topic}-0: the start is given as offset 1, but the oldest .* is 3: set it to that"
    with pytest.raises(DataLossError, match=why):
        find_batch_end(reading(kafka, topic, **named))
    lenient = reading(kafka, topic, **named, **LENIENT)
    assert read_on(lenient)[0] == [3, 4]
    assert lenient.backlog()["offsets_passed_over"] == 2


def test_a_record_that_appears_while_the_start_is_looked_up_is_read(kafka, monkeypatch):
    topic = kafka.topic(1, timestamp_ms=1000)
    ask, late = start_offsets.list_offsets, [2]

    def ask_and_be_late(*args, **more):
        found = ask(*args, **more)
        if late:
            kafka.send(topic, late.pop(), timestamp_ms=3000)
        return found

    monkeypatch.setattr(start_offsets, "list_offsets", ask_and_be_late)
    start = {"startingTimestamp": "2000", "startingOffsetsByTimestampStrategy": "latest"}
    found = reading(kafka, topic, **start)
    seen, end = read_on(found)
    kafka.send(topic, 3, timestamp_ms=4000)
    assert [*seen, *read_on(found, end)[0]] == [2, 3]


# --- the log loses its end


@pytest.mark.long  # restarts brokers
def test_a_log_that_was_cut_off_and_has_grown_again_is_noticed(kafka):
    topic = kafka.topic(*range(10))
    seen, end = read_on(reading(kafka, topic))
    planned = find_batch_end(reading(kafka, topic), start=None)
    kafka.lose(topic, 4)
    kafka.send(topic, *range(104, 116))
    # between two batches
    said = f"{topic}-0: the query is at offset 10, but its new leader has only .* offset 4 of"
    with pytest.raises(DataLossError, match=said):
        find_batch_end(reading(kafka, topic), end)
    lenient = reading(kafka, topic, **LENIENT)
    more, after = read_on(lenient, end)
    assert (seen, more) == ([*range(10)], [*range(104, 116)])
    assert "losses" in lenient.backlog()
    assert find_batch_end(lenient, after) == after
    # within a batch that had been planned
    start = lenient.initial()
    why = f"{topic}-0: offsets 4 to 9 of the batch no longer exist"
    with pytest.raises(DataLossError, match=why):
        rows(reading(kafka, topic), start, planned)
    assert rows(reading(kafka, topic, **LENIENT), start, planned) == [*range(4)]


@pytest.mark.long
def test_a_task_that_is_reading_when_the_log_is_cut_off_takes_no_new_records_for_old_ones(kafka):
    topic = kafka.long_topic()
    lenient = reading(kafka, topic, **LENIENT, **SMALL)
    found, end = begun(lenient)
    kafka.lose(topic, 1950)
    kafka.send(topic, *range(3000, 3100))
    assert rest(found) == [*range(1950)]
    assert read_on(lenient, end)[0] == [*range(3000, 3100)]


@pytest.mark.long
def test_a_batch_beyond_the_end_of_the_log_is_lost_when_patience_is_over(kafka):
    """As with an offset of the first version, which knows no leader epoch."""
    topic = kafka.topic(*range(10))
    planner = reading(kafka, topic)
    start, end = planner.initial(), find_batch_end(planner)
    planned = end.model_copy(update={"topics": {topic: {"0": 15}}, "epochs": {}})
    why = f"{topic}-0: offsets 10 to 14 of the batch no longer exist: the partition ends at 10"
    with pytest.raises(DataLossError, match=why):
        rows(reading(kafka, topic, **HASTE), start, planned)
    assert rows(reading(kafka, topic, **HASTE, **LENIENT), start, planned) == [*range(10)]
    with pytest.raises(DataLossError, match="is at offset 15, but the partition ends at 10"):
        find_batch_end(reading(kafka, topic, **HASTE), planned)
    kafka.send(topic, 10)
    assert read_on(reading(kafka, topic, **HASTE, **LENIENT), planned)[1].topics == {
        topic: {"0": 11}
    }


# --- the log is damaged


def test_records_that_their_leader_finds_damaged_are_asked_for_again_but_not_for_ever(
    kafka, monkeypatch
):
    topic = kafka.topic(*range(5))
    after = reading(kafka, topic, startingOffsets=f'{{"{topic}": {{"0": 3}}}}')
    mend = damage_log(kafka.broker, topic, 2)  # a leader walks through it to get to 3
    with pytest.raises(
        KafkaFailedError, match="CorruptRecordError: the log of its leader is damaged"
    ):
        read_on(after)
    tried = Fetcher._handle_error
    monkeypatch.setattr(Fetcher, "_handle_error", lambda *args: (mend(), tried(*args)))
    assert read_on(after)[0] == [3, 4]
