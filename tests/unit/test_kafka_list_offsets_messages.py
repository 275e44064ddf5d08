"""ListOffsets as bytes, compared with kafka-python's messages in each version."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import KafkaProtocolError
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.frame import KafkaBytes
from kafka.protocol.parser import KafkaProtocol

from krishiv_spark.kafka.list_offsets_messages import (
    OffsetResponse,
    PreparedListOffsets,
    convert_response,
    parse_response,
)
from krishiv_spark.kafka.partition_table import PartitionTable
from krishiv_spark.kafka.topic_partition import LATEST, MAX_TIMESTAMP, TopicPartition

VERSIONS = range(2, 12)
versions = st.sampled_from(VERSIONS)
int16, int32, int64 = (st.integers(-(2 ** (n - 1)), 2 ** (n - 1) - 1) for n in (16, 32, 64))
names = st.text("abcé.-_", min_size=1, max_size=140)
asked = st.dictionaries(
    st.builds(TopicPartition, names, st.integers(0, 2**31 - 1)), int64, min_size=1
)
answers = st.lists(
    st.tuples(names, st.lists(st.tuples(int32, int16, int64, int64, int32), max_size=5)), max_size=5
)


def prepare(times, *, committed=True):
    rows = PartitionTable(times)
    each = np.array([times[tp] for tp in rows.partitions], np.int64)
    return PreparedListOffsets(rows, each, committed=committed)


def plain_request(times, version, *, committed=True):
    """The same by kafka-python alone."""
    topic = ListOffsetsRequest.ListOffsetsTopic
    grouped = {}
    for tp in sorted(times):
        part = topic.ListOffsetsPartition(partition_index=tp.partition, timestamp=times[tp])
        grouped.setdefault(tp.topic, []).append(part)
    return ListOffsetsRequest(
        isolation_level=int(committed),
        topics=[topic(name=name, partitions=parts) for name, parts in grouped.items()],
        version=version,
    )


def plain_answer(topics, version):
    made = ListOffsetsResponse.ListOffsetsTopicResponse
    part = made.ListOffsetsPartitionResponse
    has_epochs = version >= 4
    return ListOffsetsResponse(
        throttle_time_ms=7,
        topics=[
            made(
                name=name,
                partitions=[
                    part(
                        partition_index=number,
                        error_code=code,
                        timestamp=ms,
                        offset=offset,
                        **({"leader_epoch": epoch} if has_epochs else {}),
                    )
                    for number, code, ms, offset, epoch in each
                ],
            )
            for name, each in topics
        ],
        version=version,
    )


def same(one: OffsetResponse, other: OffsetResponse):
    return all(np.array_equal(mine, its) for mine, its in zip(one, other, strict=True))


@given(asked, versions, st.booleans())
def test_a_packed_request_is_byte_for_byte_that_of_kafka_python(times, version, committed):
    ours, theirs = KafkaProtocol(client_id="x"), KafkaProtocol(client_id="x")
    request = prepare(times, committed=committed)
    for _ in range(2):  # the second one from what was kept
        message = request.build_message()
        message.API_VERSION = version
        ours.send_request(message)
        theirs.send_request(plain_request(times, version, committed=committed))
        assert ours.send_bytes() == theirs.send_bytes()


@given(answers, versions)
def test_an_answer_says_what_kafka_python_reads_in_it(topics, version):
    data = plain_answer(topics, version).encode()
    found = parse_response(memoryview(data), version)
    assert same(found, convert_response(ListOffsetsResponse[version].decode(data)))
    assert found.throttle_time_ms == 7


@given(answers, versions, st.data())
def test_an_answer_that_is_cut_off_is_refused(topics, version, data):
    whole = plain_answer(topics, version).encode()
    # The very last byte of newer ones are tagged fields of the whole.
    short = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(ValueError, match=r"bytes at|bits at"):
        parse_response(memoryview(short), version)


@given(st.binary(max_size=200), versions)
def test_any_bytes_are_read_or_refused(data, version):
    try:
        found = parse_response(memoryview(data), version)
    except ValueError:
        return
    assert found is None or len(found.numbers) == sum(found.counts)


def through_the_parser(times, version, body):
    """Return an answer as kafka-python passes it on."""
    protocol = KafkaProtocol(client_id="x")
    message = prepare(times).build_message()
    message.API_VERSION = version
    number = protocol.send_request(message)
    header = number.to_bytes(4, "big") + (b"\0" if version >= 6 else b"")
    size = (len(header) + len(body)).to_bytes(4, "big")
    ((_, found),) = protocol.receive_bytes(size + header + body)
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_kafka_python_hands_the_answer_over(version):
    times = {TopicPartition("t", 0): LATEST, TopicPartition("t", 1): LATEST}
    answer = plain_answer([("t", [(1, 0, -1, 5, 2), (0, 6, -1, -1, -1)])], version).encode()
    found = through_the_parser(times, version, answer)
    assert found.offsets.tolist() == [5, -1]
    assert found.codes.tolist() == [0, 6]
    assert prepare(times).find_rows(found).tolist() == [1, 0]


@pytest.mark.parametrize("at", ["partition", "topic", "whole"])
def test_tagged_fields_that_nobody_knows_are_passed_over(at):
    """kafka-python reads such an answer, field by field."""
    partition = b"\0\0\0\1" + b"\0\0" + b"\xff" * 8 + b"\0" * 7 + b"\5" + b"\0\0\0\2"
    field = b"\1\5\1x"  # one of them, of number 5, with one byte
    tags = {name: field if name == at else b"\0" for name in ("partition", "topic", "whole")}
    data = b"\0\0\0\0\2\2t\2" + partition + tags["partition"] + tags["topic"] + tags["whole"]
    assert parse_response(memoryview(data), 8) is None
    found = through_the_parser({TopicPartition("t", 1): LATEST}, 8, data)
    assert [found.numbers.tolist(), found.offsets.tolist()] == [[1], [5]]
    assert found.epochs.tolist() == [2]


def test_a_damaged_answer_ends_the_connection():
    with pytest.raises(KafkaProtocolError):
        through_the_parser({TopicPartition("t", 1): LATEST}, 8, b"\0\0\0\0\2\2t\x7f")


def test_the_version_is_one_that_the_broker_has():
    """Test the version, which kafka-python determines by attributes of the message."""
    message = prepare({TopicPartition("t", 0): LATEST}).build_message()
    for newest, wanted in ((3, 3), (9, 9), (99, 11)):
        assert BrokerVersionData(api_versions={2: (0, newest)}).api_version(message) == wanted
    newest = prepare({TopicPartition("t", 0): MAX_TIMESTAMP}).build_message()
    from kafka.errors import IncompatibleBrokerVersion

    with pytest.raises(IncompatibleBrokerVersion):
        BrokerVersionData(api_versions={2: (0, 6)}).api_version(newest)


def test_what_was_not_asked_about_has_no_place():
    request = prepare({TopicPartition("t", 1): LATEST, TopicPartition("u", 0): LATEST})
    topics = [("x", [(1, 0, 0, 0, 0)]), ("u", [(0, 0, 0, 0, 0), (7, 0, 0, 0, 0)])]
    answer = parse_response(memoryview(plain_answer(topics, 8).encode()), 8)
    assert request.find_rows(answer).tolist() == [-1, 1, -1]
    other = parse_response(memoryview(plain_answer(list(reversed(topics)), 8).encode()), 8)
    assert request.find_rows(other).tolist() == [1, -1, -1]


def test_a_message_of_kafka_python_has_a_place_for_what_was_received():
    assert isinstance(KafkaBytes(4).read(), bytes)
