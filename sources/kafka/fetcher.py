"""The records of one task, fetched from the leaders of its partitions. Executor.

While one response is decoded, the next one is under way: a task keeps at most two in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from krishiv_spark.kafka.client import KafkaClient, is_retriable
from krishiv_spark.kafka.fetches import PartitionData, PartitionFetch, build_fetch, read_response
from krishiv_spark.kafka.list_offsets import list_offsets
from krishiv_spark.kafka.records import (
    BatchPolicy,
    DeadBatch,
    Decoded,
    RecordRange,
    await_warm,
    decode,
)
from krishiv_spark.kafka.records.scanner import INFLATED_BYTES
from krishiv_spark.messages.exception_chains import raise_alone
from krishiv_spark.runtime.retry import Backoff
from krishiv_spark.sources.kafka.losses import (
    AvailableRange,
    DataLossPolicy,
    probe_available_ranges,
)
from krishiv_spark.sources.kafka.ranges import OffsetRange, TaskRanges

__all__ = ["Cursor", "FetchRules", "Fetcher"]

_log = logging.getLogger(__name__)

_UNKNOWN_SERVER_ERROR, _OFFSET_OUT_OF_RANGE, _CORRUPT_MESSAGE = -1, 1, 2
_MAY_MEAN_LOSS = {_OFFSET_OUT_OF_RANGE, 3, 74, 100, 103}
"""Errors that may mean that records were lost: also UNKNOWN_TOPIC_OR_PARTITION,
FENCED_LEADER_EPOCH, UNKNOWN_TOPIC_ID and INCONSISTENT_TOPIC_ID."""

_MAX_CORRUPT = 10
"""Maximum number of consecutive responses, within a second, in which a leader reports that its own
records are damaged."""

_EARLIEST_LOCAL = -4
"""A name of a time, as `EARLIEST` is (``ListOffsetsRequest.EARLIEST_LOCAL_TIMESTAMP``)."""

_EMPTY_RESPONSES = 2
"""Number of consecutive empty responses that prove that there are no records."""


@dataclass(frozen=True)
class FetchRules:
    """The rules for fetching records, from the options.

    Attributes:
        columns: The columns of Kafka to decode.
        committed: True to read only rows of committed transactions.
        fail_on_data_loss: True if lost records are an error.
        most_bytes: Approximate maximum size of one response.
        inflated_bytes: Maximum size of the records of one batch after decompression.
        skips_bad_batches: True to skip a batch that cannot be delivered, with a warning.
    """

    columns: frozenset[str]
    committed: bool
    fail_on_data_loss: bool
    most_bytes: int
    inflated_bytes: int = INFLATED_BYTES
    skips_bad_batches: bool = False

    @property
    def policy(self) -> BatchPolicy:
        """The rules that the decoder needs."""
        return BatchPolicy(
            self.inflated_bytes, _warn_of_skipped if self.skips_bad_batches else None
        )


def _warn_of_skipped(dead: DeadBatch) -> None:
    """Log a skipped batch. The log record has its description as `dead_letter`."""
    _log.warning(
        "%s: it is skipped, because 'badBatches' is 'skip', and its rows are lost for this query",
        dead,
        extra={"dead_letter": dead},
    )


@dataclass(frozen=True)
class _PendingFetch:
    """A fetch without a response yet, and its cursors."""

    future: Any
    cursors: list[Cursor]


class Fetcher:
    """A fetcher of the rows of one task.

    Args:
        client: The client of this process.
        ranges: The offsets that the task reads.
        rules: The columns, rows and sizes to fetch.
    """

    def __init__(self, client: KafkaClient, ranges: TaskRanges, rules: FetchRules) -> None:
        self._client = client
        self._rules = rules
        self._losses = DataLossPolicy(rules.fail_on_data_loss)
        self._cursors = [Cursor(each, each.start, each.end, each.epoch) for each in ranges]
        self._names = {each.topic_id: each.tp.topic for each in ranges}
        self._backoff = Backoff(client.config.api_timeout_s)
        self._single = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows; rows of one partition are in the order of their offsets.

        Raises:
            DataLossError: If records were lost, and losses are errors.
            KafkaFailedError: If the cluster does not respond in time, or the topic may not be read.
            RecordError: If records are damaged.
        """
        pending = self._send_next()
        await_warm()
        self._backoff.reset()  # loading kernels does not count as time without a response
        while pending is not None:
            found = self._await_response(pending)
            pending = self._send_next()
            for decoded in found:
                yield from decoded.batches

    # --- requests

    def _send_next(self) -> _PendingFetch | None:
        """Send a fetch to the leader of the first unfinished partition, for all that it leads."""
        self._cursors = self._unfinished_cursors()
        while self._cursors:
            first = self._cursors[0]
            node = self._client.get_leader(first.range.tp)
            if node is not None:
                return self._send_fetch(node)
            self._retry([first], f"{first.range.tp} has no leader")
            self._cursors = self._unfinished_cursors()
        return None

    def _unfinished_cursors(self) -> list[Cursor]:
        return [cursor for cursor in self._cursors if not cursor.is_done]

    def _send_fetch(self, node: int) -> _PendingFetch:
        leader = self._client.get_leader
        theirs = [c for c in self._cursors if leader(c.range.tp) == node]
        # In a response about several partitions, one may be empty because others used up the room.
        # So after a response without records, the next request is about one partition.
        cursors = theirs[:1] if self._single else theirs
        most = self._rules.most_bytes
        wanted = [cursor.next_fetch(most) for cursor in cursors]
        message = build_fetch(wanted, committed=self._rules.committed, most_bytes=most)
        return _PendingFetch(self._client.submit(message, node), cursors)

    def _to_error(self, cursor: Cursor, why: object) -> Exception:
        return self._client.make_error(f"read {cursor.range.tp} from offset {cursor.next}", why)

    # --- responses

    def _await_response(self, pending: _PendingFetch) -> list[Decoded]:
        from kafka.errors import KafkaError

        try:
            response = self._client.wait(pending.future)
        except KafkaError as error:
            if not is_retriable(error):
                raise_alone(self._to_error(pending.cursors[0], error))
            self._retry(pending.cursors, error)
            return []
        found = list(self._handle_response(response, pending.cursors))
        self._single = not found
        if found:
            self._backoff.reset()
        return found

    def _handle_response(self, response: Any, cursors: Collection[Cursor]) -> Iterator[Decoded]:
        by_tp = {cursor.range.tp: cursor for cursor in cursors}
        if response.error_code or not response.responses:
            self._retry(cursors, _to_kafka_error(response.error_code))
            return
        # A client over its quota receives an empty response at once (KIP-219).
        throttled = response.throttle_time_ms > 0
        for answer in read_response(response, self._names):
            cursor = by_tp[answer.tp]
            if answer.code:
                self._handle_error(cursor, answer.code)
            elif len(answer.records):
                yield self._decode_partition(cursor, answer)
            elif len(cursors) == 1 and not throttled:
                self._handle_empty(cursor, answer)

    def _decode_partition(self, cursor: Cursor, answer: PartitionData) -> Decoded:
        tp = cursor.range.tp
        wanted = RecordRange(tp.topic, tp.partition, cursor.next, cursor.end)
        decoded = decode(
            answer.records, wanted, self._rules.columns, answer.aborted, self._rules.policy
        )
        cursor.advance(decoded.next_offset, len(answer.records))
        self._cursors.remove(cursor)
        self._cursors.append(cursor)  # the next request starts with another partition
        return decoded

    def _handle_empty(self, cursor: Cursor, answer: PartitionData) -> None:
        """Finish a range after several empty responses: compaction may have left no record.

        One empty response is no proof: a broker that lags behind, or that waits for tiered storage,
        sends it too.
        """
        cursor.empties += 1
        reached = answer.last_stable_offset if self._rules.committed else answer.high_watermark
        if answer.high_watermark >= cursor.end > reached:
            why = f"a transaction is open, committed records end at offset {reached}"
            self._retry([cursor], f"{why} (see 'krishiv-spark kafka transactions list')")
        elif reached < cursor.end:
            self._retry([cursor], f"it has only offsets up to {reached} yet")
        elif cursor.empties >= _EMPTY_RESPONSES and self._is_local(cursor):
            _log.info("%s has no records from offset %d", cursor.range.tp, cursor.next)
            cursor.next = cursor.end
        else:
            self._backoff_or_fail([cursor], "the responses are empty")

    def _is_local(self, cursor: Cursor) -> bool:
        """Return True if the offsets are on the broker's disks, not in tiered storage (KIP-405)."""
        tp = cursor.range.tp
        return list_offsets(self._client, {tp: _EARLIEST_LOCAL})[tp].offset <= cursor.next

    # --- errors

    def _handle_error(self, cursor: Cursor, code: int) -> None:
        error = _to_kafka_error(code)
        cursor.corrupt += code == _CORRUPT_MESSAGE
        if cursor.corrupt > _MAX_CORRUPT:
            raise self._to_error(cursor, f"{error}: the log of its leader is damaged there")
        # Kafka's own consumer repeats the request after UNKNOWN_SERVER_ERROR too.
        if not is_retriable(error) and code not in {_UNKNOWN_SERVER_ERROR, *_MAY_MEAN_LOSS}:
            raise self._to_error(cursor, error)
        if code not in _MAY_MEAN_LOSS or not self._check_remaining([cursor], final=()):
            self._retry([cursor], error)

    def _retry(self, cursors: Collection[Cursor], why: object) -> None:
        self._client.forget_leaders({cursor.range.tp.topic for cursor in cursors})
        self._backoff_or_fail(cursors, why)

    def _backoff_or_fail(self, cursors: Collection[Cursor], why: object) -> None:
        """Wait for a moment. After the time-out, treat an uncertain loss as final.

        Raises:
            DataLossError: If records were lost, and losses are errors.
            KafkaFailedError: If time is up although all records exist or the cluster does not
                respond.
        """
        if self._backoff.pause():
            return
        topics = {cursor.range.tp.topic for cursor in cursors}
        theirs = [c for c in self._unfinished_cursors() if c.range.tp.topic in topics]
        if not self._check_remaining(theirs, final=cursors):
            raise self._to_error(next(iter(cursors)), f"{why}, and the time is up")
        self._backoff.reset()

    def _check_remaining(self, cursors: Collection[Cursor], *, final: Collection[Cursor]) -> bool:
        """Check whether the records that remain to be read still exist, and apply the result.

        Args:
            cursors: The cursors to check.
            final: The cursors for which an uncertain loss is final, since their time is up.

        Returns:
            True if the next fetch differs from the last.
        """
        nexts = {cursor.range: cursor.next for cursor in cursors}
        available = probe_available_ranges(self._client, nexts, final=bool(final))
        found = [
            (cursor, available[cursor.range]) for cursor in cursors if cursor.range in available
        ]
        # All partitions of a deleted topic are lost: the time-out of one of them is enough.
        is_all_lost = any(each.whole_topic for cursor, each in found if cursor in final)
        changes = [
            cursor.apply(
                each, self._losses, final=cursor in final or (is_all_lost and each.whole_topic)
            )
            for cursor, each in found
        ]
        return any(changes)


def _to_kafka_error(code: int) -> Exception:
    from kafka.errors import for_code

    error: Exception = for_code(code)()
    return error


_LEAST_BYTES = 64 * 1024
"""Minimum size of a fetch: the size of rows is an estimate, so the rest may need more than that."""

_ROW_BYTES = 1024
"""Estimated size of a row before the first response."""


@dataclass
class Cursor:
    """The progress of a range.

    Attributes:
        range: The offsets to read.
        next: The next offset to fetch.
        end: End of the range, exclusive; less if the rest was lost.
        epoch: Leader epoch in which the log is known to contain everything before `end`.
        row_bytes: Approximate number of bytes per offset.
        empties: Number of consecutive empty responses.
        corrupt: Number of consecutive responses that report damaged records.
    """

    range: OffsetRange
    next: int
    end: int
    epoch: int
    row_bytes: int = _ROW_BYTES
    empties: int = 0
    corrupt: int = 0

    @property
    def is_done(self) -> bool:
        """True if nothing is left to fetch."""
        return self.next >= self.end

    def next_fetch(self, most_bytes: int) -> PartitionFetch:
        """Return the next request: for about as many bytes as are left, up to a maximum."""
        needed = (self.end - self.next) * self.row_bytes
        size = min(max(needed, _LEAST_BYTES), most_bytes)
        return PartitionFetch(self.range.tp, self.range.topic_id, self.next, size, self.epoch)

    def advance(self, to: int, size: int) -> None:
        """Note that `size` bytes contained everything before the offset `to`."""
        self.row_bytes = size // max(to - self.next, 1) + 1
        self.next, self.empties, self.corrupt = to, 0, 0

    def apply(self, found: AvailableRange, losses: DataLossPolicy, *, final: bool) -> bool:
        """Apply the offsets that still exist.

        Args:
            found: The existing offsets of the range.
            losses: The policy for the others.
            final: True if an uncertain loss is final.

        Returns:
            True if the next fetch differs from the last.

        Raises:
            DataLossError: If records were lost, and losses are errors.
        """
        before, tp = (self.next, self.end, self.epoch), self.range.tp
        if found.begin > self.next:
            losses.report_aged_out(tp, self.next, found.begin)
            self.next = found.begin
        if found.reason and (final or found.is_certain):
            losses.report_unavailable(tp, found.end, self.end, found.reason)
            self.end = found.end
        # The new epoch counts only if its log contains everything before the end of the batch.
        if found.end >= self.end:
            self.epoch = found.epoch
        return before != (self.next, self.end, self.epoch)
