"""Fetch: the request and the response of each partition, and the headers of batches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from krishiv_spark.kafka.client import KafkaClient, is_retriable
from krishiv_spark.kafka.topic_partition import NO_ID, TopicPartition
from krishiv_spark.messages.exception_chains import raise_alone
from krishiv_spark.runtime.retry import Backoff

__all__ = [
    "BatchHeader",
    "PartitionData",
    "PartitionFetch",
    "build_fetch",
    "read_batch_headers",
    "read_response",
]

_WAIT_MS = 500
"""The default of Java's ``fetch.max.wait.ms``."""

_FIRST_WITH_IDS = 13
_FIRST_WITH_ISOLATION = 4


@dataclass(frozen=True)
class PartitionFetch:
    """A request for records of one partition.

    Attributes:
        tp: The partition; the request is sent to its leader.
        topic_id: Id of its topic; empty if the cluster has no ids.
        offset: First offset.
        most_bytes: Approximate maximum number of bytes; a batch of records is never split.
        epoch: The leader epoch in which the log is known to contain the offset: a leader of another
            epoch refuses the request (KIP-320). -1 for any leader.
    """

    tp: TopicPartition
    topic_id: str
    offset: int
    most_bytes: int
    epoch: int = -1


@dataclass(frozen=True)
class PartitionData:
    """The response of a node for one partition.

    Attributes:
        tp: The partition.
        code: Error code, 0 for none.
        records: Batches of records; the last one may be truncated.
        aborted: Producer id and first offset of aborted transactions among them.
        last_stable_offset: The last stable offset.
        high_watermark: The high watermark.
        oldest: First offset that the partition still has; -1 if the response lacks it.
    """

    tp: TopicPartition
    code: int
    records: Any
    aborted: tuple[tuple[int, int], ...]
    last_stable_offset: int
    high_watermark: int
    oldest: int


def build_fetch(wanted: Collection[PartitionFetch], *, committed: bool, most_bytes: int) -> Any:
    """Return the message that requests records of a node.

    A topic with an id is requested by it (KIP-516), so that a recreated topic is never confused
    with its predecessor of the same name.
    """
    from kafka.protocol.consumer import FetchRequest

    topic = FetchRequest.FetchTopic
    grouped: dict[tuple[str, str], list[Any]] = {}
    for each in wanted:
        grouped.setdefault((each.tp.topic, each.topic_id), []).append(_build_partition(each))
    topics = [
        topic(topic=name, topic_id=UUID(number or NO_ID), partitions=parts)
        for (name, number), parts in grouped.items()
    ]
    has_ids = all(each.topic_id for each in wanted)
    return FetchRequest(
        max_wait_ms=_WAIT_MS,
        min_bytes=1,
        max_bytes=most_bytes,
        isolation_level=int(committed),
        session_id=0,
        session_epoch=-1,  # a full fetch outside any session (KIP-227)
        topics=topics,
        min_version=_FIRST_WITH_ISOLATION,
        max_version=None if has_ids else _FIRST_WITH_IDS - 1,
    )


def _build_partition(wanted: PartitionFetch) -> Any:
    from kafka.protocol.consumer import FetchRequest

    return FetchRequest.FetchTopic.FetchPartition(
        partition=wanted.tp.partition,
        current_leader_epoch=wanted.epoch,
        fetch_offset=wanted.offset,
        # Only followers use these two.
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=wanted.most_bytes,
    )


def read_response(response: Any, names: Mapping[str, str]) -> Iterator[PartitionData]:
    """Yield the part of a response about each partition.

    Args:
        response: The response to `build_fetch`, of any version.
        names: Names of topics by their ids, for responses that contain only ids.
    """
    for topic in response.responses:
        by_id = response.API_VERSION >= _FIRST_WITH_IDS
        name = names[str(topic.topic_id)] if by_id else topic.topic
        for each in topic.partitions:
            aborted = each.aborted_transactions or ()
            yield PartitionData(
                tp=TopicPartition(name, each.partition_index),
                code=each.error_code,
                records=each.records or b"",
                aborted=tuple((one.producer_id, one.first_offset) for one in aborted),
                last_stable_offset=each.last_stable_offset,
                high_watermark=each.high_watermark,
                oldest=each.log_start_offset,
            )


_HEADERS_BYTES = 64 * 1024
"""Maximum number of bytes of each partition; a response has at least one whole batch (KIP-74)."""

_ANSWERED = {0, 1}
"""No error, or OFFSET_OUT_OF_RANGE: the offset has just aged out or was truncated."""


class BatchHeader(NamedTuple):
    """The header of a batch.

    Attributes:
        base: Its first offset.
        last: Its last offset.
        newest_ms: Its greatest timestamp, in milliseconds; below 0 if it has none.
        is_marker: True for the marker that ends a transaction, whose timestamp is that of the end.
    """

    base: int
    last: int
    newest_ms: int
    is_marker: bool


def read_batch_headers(
    client: KafkaClient, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, list[BatchHeader]]:
    """Fetch the headers of the batches that contain or follow some offsets, and of a few more.

    Args:
        client: The client of this process.
        offsets: An offset for each partition, before its end.

    Returns:
        The headers by partition; an empty list for a partition without a batch there.

    Raises:
        KafkaFailedError: If a partition has no response in time, or may not be read.
    """
    found: dict[TopicPartition, list[BatchHeader]] = {}
    backoff = Backoff(client.config.api_timeout_s)
    while waiting := [tp for tp in offsets if tp not in found]:
        for answer in _fetch_each(client, waiting, offsets):
            if answer.code in _ANSWERED:
                found[answer.tp] = list(_parse_headers(answer.records))
            elif not is_retriable(error := _to_error(answer)):
                raise client.make_error(f"read {answer.tp}", error)
        if len(found) < len(offsets):
            client.forget_leaders({tp.topic for tp in offsets})
            backoff.pause_or_raise(
                lambda: client.make_error("read records", f"no response for {waiting[0]}")
            )
    return found


def _fetch_each(
    client: KafkaClient, partitions: Iterable[TopicPartition], offsets: Mapping[TopicPartition, int]
) -> Iterator[PartitionData]:
    """Send a request for each partition, in parallel: a response has only one whole batch."""
    from kafka.errors import KafkaError

    asked: list[tuple[Any, dict[str, str]]] = []
    for tp in partitions:
        node, topic = client.get_leader(tp), client.get_topic(tp.topic)
        if node is not None and topic is not None:
            wanted = PartitionFetch(tp, topic.usable_id, offsets[tp], _HEADERS_BYTES)
            message = build_fetch([wanted], committed=False, most_bytes=_HEADERS_BYTES)
            asked.append((client.submit(message, node), {topic.id: topic.name}))
    for future, names in asked:
        try:
            yield from read_response(client.wait(future), names)
        except KafkaError as error:
            if not is_retriable(error):
                raise_alone(client.make_error("read records", error))


def _to_error(answer: PartitionData) -> Exception:
    from kafka.errors import for_code

    error: Exception = for_code(answer.code)()
    return error


def _parse_headers(records: Any) -> Iterator[BatchHeader]:
    from krishiv_spark.kafka.records.batch_format import CONTROL, HEADER, HEADER_BYTES, LOG_OVERHEAD

    at = 0
    # The last batch may be truncated: its header is enough.
    while at + HEADER_BYTES <= len(records):
        base, length, _, _, _, attributes, delta, _, newest, *_ = HEADER.unpack_from(records, at)
        yield BatchHeader(base, base + delta, newest, bool(attributes & CONTROL))
        # A damaged length must not move the position back.
        at += LOG_OVERHEAD + max(length, 0)
