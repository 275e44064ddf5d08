"""Options of the Kafka source: accepted values, and the errors for others."""

import pytest

from krishiv_spark.errors import OptionError
from krishiv_spark.kafka.topic_partition import EARLIEST, LATEST, TopicPartition
from krishiv_spark.sources.kafka.options import KafkaSourceOptions, StartingPosition
from krishiv_spark.sources.kafka.reader import KafkaOffset, KafkaReader

BROKER = {"kafka.bootstrap.servers": "nowhere:9092"}


def parse(**given):
    named = {"subscribe": "t"} if not given.keys() & {"subscribePattern", "assign"} else {}
    options = {**BROKER, **named, **given}
    return KafkaSourceOptions.parse(
        {key: value for key, value in options.items() if value is not None}, "krishiv-kafka"
    )


def started(*, streaming=True, **given):
    return parse(**given).start(streaming=streaming)


def test_spark_defaults():
    options = parse()
    assert options.subscribe == ("t",)
    assert options.start(streaming=True) == StartingPosition(LATEST)
    assert options.start(streaming=False) == StartingPosition(EARLIEST)
    assert options.end() == StartingPosition(LATEST)
    assert (options.fail_on_data_loss, options.committed) == (True, True)
    assert options.max_trigger_delay == 15 * 60_000


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"maxRowsPerTrigger": "5"}, "max_rows_per_trigger", 5),
        ({"MAXOFFSETSPERTRIGGER": "5"}, "max_rows_per_trigger", 5),
        ({"kafka.isolation.level": "read_uncommitted"}, "isolation", "read_uncommitted"),
        ({"group.id": "g"}, "group_id", "g"),
        ({"kafka.group.id": "g"}, "group_id", None),
        ({"fetchOffset.numRetries": "3"}, "num_retries", 3),
        ({"kafkaConsumer.pollTimeoutMs": "512"}, "poll_timeout_ms", 512),
        ({"groupIdPrefix": "p"}, "group_id_prefix", "p"),
        ({"columns": "key, value"}, "columns", ("key", "value")),
    ],
)
def test_names_of_spark_and_krishiv(given, field, value):
    assert getattr(parse(**given), field) == value


@pytest.mark.parametrize("name", ["topic", "kafka.topic", "subscribe"])
def test_names_of_the_topic(name):
    assert parse(**{"subscribe": None, name: "a, b"}).subscribe == ("a", "b")


def test_partitions_are_assigned():
    assigned = parse(assign='{"b": [1, 0, 1], "a": [2]}').assign
    assert assigned == (TopicPartition("b", 1), TopicPartition("b", 0), TopicPartition("a", 2))


OFFSETS = '{"t": {"0": 23, "1": -2}}'


def test_starts_have_the_precedence_of_spark():
    given = {"startingOffsets": OFFSETS}
    assert started(**given) == StartingPosition(
        each={TopicPartition("t", 0): 23, TopicPartition("t", 1): EARLIEST}
    )
    given["startingOffsetsByTimestamp"] = '{"t": {"0": 5}}'
    assert started(**given) == StartingPosition(each={TopicPartition("t", 0): 5}, is_time=True)
    given["startingTimestamp"] = "7"
    assert started(**given) == StartingPosition(7, is_time=True)


def test_words_are_read_in_any_case():
    assert started(startingOffsets="Earliest") == StartingPosition(EARLIEST)
    assert parse(endingOffsets="LATEST").end() == StartingPosition(LATEST)


BAD = [
    ({"subscribe": None}, "set one of the options 'subscribe'.*none of them"),
    ({"subscribe": "a", "assign": '{"a":[0]}'}, "given: 'subscribe' and 'assign'"),
    ({"subscribe": " , "}, "names no topic"),
    ({"subscribePattern": "a("}, "'subscribePattern' = 'a\\(' is not a valid regular expression"),
    ({"assign": '{"a": 1}'}, 'write a list of partitions: JSON such as \'{"orders"'),
    ({"assign": "{}"}, "at least one partition"),
    ({"startingOffsets": "newest"}, "write 'earliest', 'latest' or JSON such as"),
    ({"startingOffsets": '{"t": 1}'}, "'t' needs a number for each partition"),
    ({"startingOffsets": '{"t": {"0": -3}}'}, "-3 is not valid"),
    ({"startingOffsets": '{"t": {"x": 3}}'}, "'x' is not valid"),
    ({"startingOffsets": '{"t": {"0": true}}'}, "True is not valid"),
    ({"startingTimestamp": "noon"}, "milliseconds since 1970"),
    ({"startingOffsetsByTimestamp": '{"t": {"0": -1}}'}, "-1 is not valid"),
    ({"startingOffsetsByTimestampStrategy": "skip"}, "there are error, latest"),
    ({"endingOffsets": '{"t": {"0": -2}}'}, "cannot end at the earliest"),
    ({"maxOffsetsPerTrigger": "0"}, "greater than 0"),
    ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "= 9 is more than"),
    ({"maxFilesPerTrigger": "9"}, "use 'maxOffsetsPerTrigger'"),
    ({"maxBytesPerTrigger": "9"}, "use 'maxOffsetsPerTrigger'"),
    ({"eventTime": "at"}, "'eventTime' = 'at'.*only that of its own column 'timestamp'"),
    ({"maxSkew": "1 s"}, "needs the option 'eventTime'"),
    ({"valueSchema": "id INT"}, "needs the option 'valueFormat' = 'json'"),
    ({"badRecords": "null"}, "needs the option 'valueFormat' = 'json'"),
    ({"startingOffset": "latest"}, "did you mean 'startingOffsets'"),
    ({"kafka.auto.offset.reset": "earliest"}, "cannot be set: use the option 'startingOffsets'"),
    ({"kafka.enable.auto.commit": "true"}, "cannot be set"),
    ({"kafka.key.deserializer": "X"}, "cannot be set"),
    ({"kafka.interceptor.classes": "X"}, "cannot be set"),
    ({"kafka.bootstrap.servers": None}, "bootstrap.servers"),
]


@pytest.mark.parametrize(("given", "said"), BAD, ids=[str(given) for given, _ in BAD])
def test_bad_options_are_refused_by_name(given, said):
    with pytest.raises(OptionError, match=said):
        parse(**given)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name):
    value = {"endingOffsets": "latest", "endingTimestamp": "1"}.get(name, '{"t": {"0": 1}}')
    reader = KafkaReader(parse(**{name: value}), None, streaming=True)
    with pytest.raises(OptionError, match=f"'{name}' is for batch reads"):
        reader.initial()


@pytest.mark.parametrize(
    ("given", "at"),
    [
        ({}, "latest"),
        ({"startingOffsets": "earliest"}, "earliest"),
        ({"startingOffsets": OFFSETS}, "offsets"),
        ({"startingTimestamp": "1"}, "timestamps"),
    ],
)
def test_the_initial_offset_names_the_start_and_asks_nobody(given, at):
    assert KafkaReader(parse(**given), None, streaming=True).initial() == KafkaOffset(at=at)
