"""What a partition's own log says of a transaction, when its coordinator no longer knows.

A coordinator forgets an id after days, and shows of an id only its newest use. The log keeps the
marker that ended a transaction as long as it keeps the records: after a record of a producer, its
first marker is that of the record's transaction.
"""

from __future__ import annotations

import struct

from krishiv_spark.kafka.client import KafkaClient, is_retriable
from krishiv_spark.kafka.fetches import PartitionFetch, build_fetch, read_response
from krishiv_spark.kafka.topic_partition import TopicPartition
from krishiv_spark.kafka.transactions import Outcome
from krishiv_spark.runtime.retry import Backoff

__all__ = ["outcome_in_log"]

_MOST_BYTES = 8 * 2**20
_ABORT, _COMMIT = 0, 1
_READ = (
    "the user needs the ACL READ on this topic, because its coordinator no longer knows the outcome"
)


def outcome_in_log(
    client: KafkaClient, tp: TopicPartition, offset: int, producer_id: int
) -> Outcome:
    """Look for the marker that ended a transaction. Driver.

    Args:
        client: Of this process.
        tp: A partition that the transaction wrote to.
        offset: Of a record that it wrote there.
        producer_id: Of the transaction.

    Returns:
        OPEN if there is no marker yet, UNKNOWN if the record is no longer in the log.

    Raises:
        KafkaFailedError: If the partition may not be read, or its leader does not answer in time.
    """
    while True:
        records = _fetch(client, tp, offset)
        if records is None:
            return Outcome.UNKNOWN
        found, after = _scan(records, producer_id, offset)
        if found is not None or after == offset:
            return found or Outcome.OPEN
        offset = after


def _scan(records: bytes, producer_id: int, offset: int) -> tuple[Outcome | None, int]:
    """The first marker of a producer, and the offset after what was looked at."""
    from kafka.record import MemoryRecords

    batches = MemoryRecords(records)
    while batch := batches.next_batch():
        offset = batch.next_offset
        if batch.is_control_batch and batch.producer_id == producer_id:
            # The key of a control record: version, then type (KIP-98).
            _, kind = struct.unpack(">hh", next(iter(batch)).key)
            return {_ABORT: Outcome.ABORTED, _COMMIT: Outcome.COMMITTED}[kind], offset
    return None, offset


def _fetch(client: KafkaClient, tp: TopicPartition, offset: int) -> bytes | None:
    """Records from an offset, also of open transactions; None if the offset is not there."""
    from kafka.errors import OffsetOutOfRangeError, TopicAuthorizationFailedError

    backoff = Backoff(client.config.api_timeout_s)
    while True:
        error, records = _ask(client, tp, offset)
        if error is None:
            return records
        if isinstance(error, OffsetOutOfRangeError):
            return None
        if not is_retriable(error) or not backoff.pause():
            hint = _READ if isinstance(error, TopicAuthorizationFailedError) else ""
            raise client.make_error(f"look for the end of a transaction in {tp}", error, hint)
        client.forget_leaders([tp.topic])


def _ask(client: KafkaClient, tp: TopicPartition, offset: int) -> tuple[Exception | None, bytes]:
    from kafka.errors import KafkaError, LeaderNotAvailableError, for_code

    node = client.get_leader(tp)
    if node is None:
        return LeaderNotAvailableError(str(tp)), b""
    # By name and uncommitted: of an open transaction, readers of committed records see nothing.
    wanted = PartitionFetch(tp, "", offset, _MOST_BYTES)
    (answer,) = client.ask([(node, build_fetch([wanted], committed=False, most_bytes=_MOST_BYTES))])
    if isinstance(answer, KafkaError):
        return answer, b""
    (found,) = read_response(answer, {})
    return for_code(found.code)() if found.code else None, bytes(found.records)
