"""Source and sink on a broker whose responses to Metadata lack partitions, or whole topics.

The responses are changed between the broker and the client, on the wire.
"""

import uuid

import pytest
from kafka import KafkaProducer
from kafka_reading import HASTE, find_batch_end, read_on, reader, rows
from kafka_topics import LIMITS, ask_admin, make_topic
from metadata_proxy import MetadataProxy

from krishiv_spark.errors import DataLossError, LogError
from krishiv_spark.kafka.client import KafkaFailedError, open_client
from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.kafka.transaction_requests import Transaction
from krishiv_spark.sinks.base import Epoch
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.participant import KafkaParticipant
from krishiv_spark.sinks.kafka.target_topics import count_partitions, fetch_writable_topic
from krishiv_spark.sinks.kafka.task import StagedTransaction

pytestmark = [pytest.mark.once, pytest.mark.long]  # starts a broker

LOSS = pytest.mark.parametrize("fail", ["true", "false"])
PARTIAL = pytest.mark.parametrize("kept", [(), (0, 1), (2,)], ids=["none", "two", "one"])
UNKNOWN_ID = uuid.UUID(int=0)


@pytest.fixture(scope="module")
def broker():
    with open_cluster(ours=True) as cluster:
        yield cluster


@pytest.fixture
def proxy(broker):
    with MetadataProxy(int(broker.bootstrap.rpartition(":")[2])) as found:
        yield found


@pytest.fixture
def topic(broker):
    """Four partitions."""
    return new_topic(broker)


def new_topic(broker):
    name = f"t-{uuid.uuid4().hex[:12]}"
    make_topic(broker.bootstrap, name, 4)
    return name


def send(broker, topic, *numbers):
    """Numbers, over the four partitions."""
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, **LIMITS)
    for number in numbers:
        producer.send(topic, b"%d" % number, partition=number % 4)
    producer.close()


def restarted(proxy, topic, **options):
    """A reader in a new driver: no process knows anything of the topic."""
    age = {"kafka.metadata.max.age.ms": f"{300_000 + uuid.uuid4().int % 10_000}"}
    return reader(proxy.bootstrap, topic, **age, **options)


@LOSS
@PARTIAL
def test_partitions_that_one_response_omits_are_neither_lost_nor_read_again(
    broker, proxy, topic, kept, fail
):
    send(broker, topic, *range(8))
    source = restarted(proxy, topic, failOnDataLoss=fail)
    found, end = read_on(source)
    for count in range(8, 32, 8):
        send(broker, topic, *range(count, count + 8))
        proxy.omit(topic, *kept)
        source._planner()._subscription._refresh_at_s = 0.0  # the response is old
        more, end = read_on(source, end)
        assert proxy.is_done
        found += more
    assert sorted(found) == [*range(32)]
    assert "losses" not in source.backlog()


@LOSS
@PARTIAL
def test_a_restarted_query_takes_a_partial_response_for_no_loss(broker, proxy, topic, kept, fail):
    send(broker, topic, *range(8))
    found, end = read_on(restarted(proxy, topic))
    send(broker, topic, *range(8, 16))
    proxy.omit(topic, *kept)
    again = restarted(proxy, topic, failOnDataLoss=fail)
    more, after = read_on(again, end)
    assert proxy.is_done
    assert sorted(found + more) == [*range(16)]
    assert find_batch_end(again, after) == after


@PARTIAL
def test_a_batch_read_and_a_new_query_read_all_partitions(broker, proxy, topic, kept):
    send(broker, topic, *range(8))
    proxy.omit(topic, *kept)
    batch = restarted(proxy, topic, streaming=False)
    assert sorted(read_on(batch)[0]) == [*range(8)]
    proxy.omit(topic, *kept)
    latest = restarted(proxy, topic, startingOffsets="latest")
    end = find_batch_end(latest)
    send(broker, topic, *range(8, 16))
    assert sorted(read_on(latest, end)[0]) == [*range(8, 16)]
    assert proxy.is_done


@PARTIAL
def test_what_one_broker_omits_twice_is_not_confirmed_by_that(broker, proxy, topic, kept):
    """A broker that is still starting says the same again if it is asked again at once."""
    send(broker, topic, *range(8))
    proxy.omit(topic, *kept, times=2)
    batch = restarted(proxy, topic, streaming=False)
    assert sorted(read_on(batch)[0]) == [*range(8)]
    proxy.omit(topic, *kept, times=2)
    options = {"kafka.bootstrap.servers": proxy.bootstrap, "kafka.metadata.max.age.ms": "299998"}
    sink = open_client(KafkaSinkOptions.parse(options, "krishiv-kafka").kafka)
    assert count_partitions(sink, topic, age_s=300) == 4
    assert proxy.is_done


def test_a_run_that_ends_with_what_is_there_reads_all_partitions(broker, proxy, topic):
    send(broker, topic, *range(8))
    found, end = read_on(restarted(proxy, topic))
    for kept in ((), (0, 1)):
        proxy.omit(topic, *kept)
        send(broker, topic, *range(len(found), len(found) + 8))
        run = restarted(proxy, topic)
        run.freeze()
        more, end = read_on(run, end)
        found += more
    assert sorted(found) == [*range(24)]


def test_a_pattern_finds_topics_that_one_response_omits(broker, proxy):
    one, two = new_topic(broker), new_topic(broker)
    send(broker, one, *range(4))
    send(broker, two, *range(4, 8))
    pattern = {"subscribePattern": f"{one}|{two}"}
    proxy.change(one, lambda topic: setattr(topic, "error_code", 5))
    assert sorted(read_on(restarted(proxy, None, streaming=False, **pattern))[0]) == [*range(8)]
    source = restarted(proxy, None, **pattern, failOnDataLoss="false")
    found, end = read_on(source)
    for change in (5, 3):
        proxy.change(one, lambda topic, code=change: setattr(topic, "error_code", code))
        source._planner()._subscription._refresh_at_s = 0.0
        send(broker, one, 8 if change == 5 else 9)
        more, end = read_on(source, end)
        found += more
    assert sorted(found) == [*range(10)]


@pytest.mark.long  # waits 7 s
def test_a_partition_that_stays_missing_is_waited_for_and_never_lost(broker, proxy, topic):
    send(broker, topic, *range(8))
    end = read_on(restarted(proxy, topic))[1]
    proxy.omit(topic, 0, 1, times=10_000)
    with pytest.raises(KafkaFailedError, match=f"it has no leader.*{topic}-[23], time is up"):
        find_batch_end(restarted(proxy, topic, failOnDataLoss="false", **HASTE), end)


@pytest.mark.long  # waits 7 s
@LOSS
def test_a_task_waits_for_a_partition_that_responses_omit(broker, proxy, topic, fail):
    send(broker, topic, *range(8))
    planner = restarted(proxy, topic)
    start, end = planner.initial(), find_batch_end(planner)
    task = restarted(proxy, topic, failOnDataLoss=fail, **HASTE)
    proxy.omit(topic, 0, times=3)
    assert sorted(rows(task, start, end)) == [*range(8)]
    proxy.omit(topic, 0, times=10_000)
    task = restarted(proxy, topic, failOnDataLoss=fail, **HASTE)
    with pytest.raises(KafkaFailedError, match="time is up"):
        rows(task, start, end)


@LOSS
def test_an_old_id_in_one_response_is_no_loss(broker, proxy, topic, fail):
    """A broker that lags behind names the topic that had the name before."""
    send(broker, topic, *range(8))
    source = restarted(proxy, topic, failOnDataLoss=fail)
    found, end = read_on(source)
    send(broker, topic, *range(8, 16))
    proxy.change(topic, lambda topic: setattr(topic, "topic_id", uuid.uuid4()))
    source._planner()._subscription._refresh_at_s = 0.0
    more, after = read_on(source, end)
    assert sorted(found + more) == [*range(16)]
    send(broker, topic, *range(16, 24))
    last = find_batch_end(source, after)
    task = restarted(proxy, topic, failOnDataLoss=fail)
    proxy.change(topic, lambda topic: setattr(topic, "topic_id", UNKNOWN_ID))
    assert sorted(rows(task, after, last)) == [*range(16, 24)]


@LOSS
def test_without_ids_a_second_response_decides(broker, proxy, topic, fail):
    """As with brokers before Kafka 2.8."""
    send(broker, topic, *range(8))
    found, end = read_on(restarted(proxy, topic))
    end = end.model_copy(update={"ids": {}})

    def partial(found):
        found.topic_id = UNKNOWN_ID
        found.partitions = [each for each in found.partitions if each.partition_index < 2]

    send(broker, topic, *range(8, 16))
    proxy.change(topic, partial)
    more, after = read_on(restarted(proxy, topic, failOnDataLoss=fail), end)
    assert sorted(found + more) == [*range(16)]
    after = after.model_copy(update={"ids": {}})
    proxy.change(topic, partial, times=10_000)
    source = restarted(proxy, topic, failOnDataLoss=fail)
    if fail == "true":
        with pytest.raises(DataLossError, match=f"topic '{topic}' has only 2 partitions now"):
            find_batch_end(source, after)
    else:
        assert find_batch_end(source, after).topics == {topic: {"0": 4, "1": 4}}


def test_a_topic_that_was_deleted_and_made_again_is_still_lost(broker, proxy, topic):
    send(broker, topic, *range(8))
    end = read_on(restarted(proxy, topic))[1]
    ask_admin(broker.bootstrap, "delete_topics", [topic])
    while topic in ask_admin(broker.bootstrap, "list_topics"):
        pass
    make_topic(broker.bootstrap, topic, 2)
    send(broker, topic, 20, 21)
    with pytest.raises(DataLossError, match="was deleted and recreated"):
        find_batch_end(restarted(proxy, topic), end)
    lenient = restarted(proxy, topic, failOnDataLoss="false")
    more, after = read_on(lenient, end)
    assert sorted(more) == [20, 21]
    assert find_batch_end(lenient, after) == after


@PARTIAL
def test_keys_are_spread_over_all_partitions(proxy, topic, kept):
    def client():
        options = {
            "kafka.bootstrap.servers": proxy.bootstrap,
            "kafka.metadata.max.age.ms": f"{300_000 + uuid.uuid4().int % 10_000}",
        }
        return open_client(KafkaSinkOptions.parse(options, "krishiv-kafka").kafka)

    first = client()
    proxy.omit(topic, *kept)
    assert len(fetch_writable_topic(first, topic, reads=False).leaders) == 4
    proxy.omit(topic, *kept)
    assert len(fetch_writable_topic(first, topic, reads=False).leaders) == 4
    proxy.omit(topic, *kept)
    assert count_partitions(client(), topic, age_s=300) == 4
    before = proxy.requests
    assert count_partitions(first, topic, age_s=300) == 4
    assert proxy.requests == before
    assert proxy.is_done


@pytest.mark.long  # 6 s
@pytest.mark.parametrize("code", [3, 0], ids=["missing", "with an older id"])
def test_a_committed_epoch_is_not_taken_for_one_in_a_removed_topic(broker, proxy, topic, code):
    """Its error would have the operator write the epoch again."""
    direct = {"kafka.bootstrap.servers": broker.bootstrap}
    client = open_client(KafkaSinkOptions.parse(direct, "krishiv-kafka").kafka)
    wrote = client.fetch_topics([topic])[topic].id
    given = {"kafka.bootstrap.servers": proxy.bootstrap, "topic": topic}
    options = KafkaSinkOptions.parse(given, "krishiv-kafka")
    participant = KafkaParticipant(options, lambda *_: True, streaming=True)
    transaction = Transaction(transactional_id="x", producer_id=1, producer_epoch=0, version=2)
    wrote_to = ((topic, wrote),)
    staged = [
        StagedTransaction(transaction=transaction, task=0, rows=1, checksum=0, topics=wrote_to)
    ]

    def stale(found):
        found.error_code = code
        found.topic_id = uuid.uuid4()

    proxy.change(topic, stale)
    participant.verify_committed_target(Epoch("q", 3, 1), staged)
    assert proxy.is_done
    proxy.change(topic, stale, times=10_000)
    with pytest.raises(LogError, match=f"the previous topic {topic},"):
        participant.verify_committed_target(Epoch("q", 3, 1), staged)
