"""The headers of the batches at an offset, where metadata does not say enough. Driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from krishiv_spark.kafka.client import Client, is_retriable
from krishiv_spark.kafka.fetches import PartitionData, Wanted, answers, request, usable_id
from krishiv_spark.kafka.topic_partition import TopicPartition
from krishiv_spark.messages.exception_chains import raise_alone
from krishiv_spark.runtime.retry import Backoff

__all__ = ["BatchHeader", "read_batch_headers"]

_BYTES = 64 * 1024
"""Of each partition; a whole batch comes at least (KIP-74)."""

_ANSWERED = {0, 1}
"""Without an error, or OFFSET_OUT_OF_RANGE: the offset has just aged out, or was cut off."""


class BatchHeader(NamedTuple):
    """What the header of a batch says.

    Attributes:
        base: Its first offset.
        last: Its last offset.
        newest_ms: The greatest timestamp in it; below 0 if it has none.
        is_marker: Whether it is no batch of records: it ends a transaction, and has the time at
            which that was done.
    """

    base: int
    last: int
    newest_ms: int
    is_marker: bool


def read_batch_headers(
    client: Client, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, list[BatchHeader]]:
    """Look at the batches that hold some offsets, or follow them, and a few after each.

    Args:
        client: Of this process.
        offsets: An offset for each partition, before its end.

    Returns:
        By partition; none for those that have nothing there.

    Raises:
        KafkaFailedError: If a partition has no answer in time, or may not be read.
    """
    found: dict[TopicPartition, list[BatchHeader]] = {}
    backoff = Backoff(client.connection.api_timeout_s)
    while waiting := [tp for tp in offsets if tp not in found]:
        for answer in _asked(client, waiting, offsets):
            if answer.code in _ANSWERED:
                found[answer.tp] = list(_headers(answer.records))
            elif not _passes(answer):
                raise client.failed(f"read {answer.tp}", _error(answer))
        if len(found) < len(offsets):
            client.forget_leaders({tp.topic for tp in offsets})
            backoff.pause_or_raise(
                lambda: client.failed("read records", f"no answer for {waiting[0]}")
            )
    return found


def _asked(
    client: Client, partitions: Iterable[TopicPartition], offsets: Mapping[TopicPartition, int]
) -> Iterator[PartitionData]:
    """Ask for each partition by itself, all at once, since a message brings one whole batch."""
    from kafka.errors import KafkaError

    asked: list[tuple[Any, dict[str, str]]] = []
    for tp in partitions:
        node, topic = client.leader(tp), client.topic_of(tp.topic)
        if node is not None and topic is not None:
            wanted = Wanted(tp, usable_id(topic), offsets[tp], _BYTES)
            message = request([wanted], committed=False, most_bytes=_BYTES)
            asked.append((client.submit(message, node), {topic.id: topic.name}))
    for future, names in asked:
        try:
            yield from answers(client.wait(future), names)
        except KafkaError as error:
            if not is_retriable(error):
                raise_alone(client.failed("read records", error))


def _error(answer: PartitionData) -> Exception:
    from kafka.errors import for_code

    error: Exception = for_code(answer.code)()
    return error


def _passes(answer: PartitionData) -> bool:
    return is_retriable(_error(answer))


def _headers(records: Any) -> Iterator[BatchHeader]:
    from krishiv_spark.kafka.records.layout import CONTROL, HEADER, HEADER_BYTES, LOG_OVERHEAD

    at = 0
    # The last batch may be cut off: its header is enough.
    while at + HEADER_BYTES <= len(records):
        base, length, _, _, _, attributes, delta, _, newest, *_ = HEADER.unpack_from(records, at)
        yield BatchHeader(base, base + delta, newest, bool(attributes & CONTROL))
        # A damaged length must not lead back.
        at += LOG_OVERHEAD + max(length, 0)
