"""The records of one task, from the leaders of its partitions. Executor.

While what one response brought is decoded, the next one is under way: a task holds two at most.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from krishiv_spark.kafka.client import Client, is_retriable
from krishiv_spark.kafka.fetches import PartitionData, answers, request
from krishiv_spark.kafka.offset_lookups import list_offsets
from krishiv_spark.kafka.records import (
    BatchPolicy,
    DeadBatch,
    Decoded,
    RecordRange,
    await_warm,
    decode,
)
from krishiv_spark.kafka.records.wanted import INFLATED_BYTES
from krishiv_spark.messages.exception_chains import raise_alone
from krishiv_spark.runtime.retry import Backoff
from krishiv_spark.sources.kafka.cursor import Cursor
from krishiv_spark.sources.kafka.losses import Losses
from krishiv_spark.sources.kafka.ranges import TaskRanges
from krishiv_spark.sources.kafka.remains import look_at_remains

__all__ = ["FetchRules", "Fetcher"]

_log = logging.getLogger(__name__)

_UNKNOWN_SERVER_ERROR, _OFFSET_OUT_OF_RANGE, _CORRUPT_MESSAGE = -1, 1, 2
_TELLING = {_OFFSET_OUT_OF_RANGE, 3, 74, 100, 103}
"""Errors that may mean that something has gone: also UNKNOWN_TOPIC_OR_PARTITION,
FENCED_LEADER_EPOCH, UNKNOWN_TOPIC_ID and INCONSISTENT_TOPIC_ID."""

_MOST_CORRUPT = 10
"""How often in a row a leader may find its own records damaged, within a second."""

# A word for a time, as `EARLIEST` (``ListOffsetsRequest.EARLIEST_LOCAL_TIMESTAMP``).
_EARLIEST_LOCAL = -4
_EMPTY_ANSWERS = 2
"""How many empty answers in a row are believed."""


@dataclass(frozen=True)
class FetchRules:
    """How records are fetched.

    Attributes:
        columns: Which columns of Kafka's are wanted.
        committed: Whether only rows of committed transactions are.
        fail_on_data_loss: Whether records that have gone are an error.
        most_bytes: About the most bytes of one response.
        inflated_bytes: Most bytes that the records of one batch may become.
        skips_bad_batches: Whether a batch that cannot be delivered is skipped, with a warning.
    """

    columns: frozenset[str]
    committed: bool
    fail_on_data_loss: bool
    most_bytes: int
    inflated_bytes: int = INFLATED_BYTES
    skips_bad_batches: bool = False

    @property
    def policy(self) -> BatchPolicy:
        """The same for the decoder."""
        return BatchPolicy(self.inflated_bytes, _warn if self.skips_bad_batches else None)


def _warn(dead: DeadBatch) -> None:
    """Log a batch that is skipped; the record of the log carries its description."""
    _log.warning(
        "%s: it is skipped, since 'badBatches' is 'skip', and its rows are lost for this query",
        dead,
        extra={"dead_letter": dead},
    )


@dataclass(frozen=True)
class _Flight:
    """A message that is under way, and the cursors that it is about."""

    future: Any
    cursors: list[Cursor]


class Fetcher:
    """Fetches the rows of one task.

    Args:
        client: Of this process.
        ranges: The offsets that the task reads.
        rules: Which columns and rows are wanted, and how much at once.
    """

    def __init__(self, client: Client, ranges: TaskRanges, rules: FetchRules) -> None:
        self._client = client
        self._rules = rules
        self._losses = Losses(rules.fail_on_data_loss)
        self._cursors = [Cursor(each, each.start, each.end, each.epoch) for each in ranges]
        self._names = {each.topic_id: each.tp.topic for each in ranges}
        self._backoff = Backoff(client.connection.api_timeout_s)
        self._alone = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, those of one partition in the order of their offsets.

        Raises:
            DataLossError: If records have gone.
            KafkaFailedError: If the cluster does not answer in time, or the topic may not be read.
            RecordError: If records are damaged.
        """
        flight = self._ask()
        await_warm()
        self._backoff.succeeded()  # that took none of the cluster's time
        while flight is not None:
            found = self._await_response(flight)
            flight = self._ask()
            for decoded in found:
                yield from decoded.batches

    # --- asking

    def _ask(self) -> _Flight | None:
        """Ask the leader of the first open partition, for others of its partitions too."""
        self._cursors = self._open()
        while self._cursors:
            first = self._cursors[0]
            node = self._client.leader(first.range.tp)
            if node is not None:
                return self._sent(node)
            self._try_again([first], f"{first.range.tp} has no leader")
            self._cursors = self._open()
        return None

    def _open(self) -> list[Cursor]:
        return [cursor for cursor in self._cursors if not cursor.is_done]

    def _sent(self, node: int) -> _Flight:
        leader = self._client.leader
        theirs = [c for c in self._cursors if leader(c.range.tp) == node]
        # Of several partitions, one may have nothing in an answer because others have used up its
        # room. So when nothing came at all, the next question is about one.
        cursors = theirs[:1] if self._alone else theirs
        most = self._rules.most_bytes
        wanted = [cursor.wanted(most) for cursor in cursors]
        message = request(wanted, committed=self._rules.committed, most_bytes=most)
        return _Flight(self._client.submit(message, node), cursors)

    def _failed(self, cursor: Cursor, why: object) -> Exception:
        return self._client.failed(f"read {cursor.range.tp} from offset {cursor.next}", why)

    # --- answers

    def _await_response(self, flight: _Flight) -> list[Decoded]:
        from kafka.errors import KafkaError

        try:
            response = self._client.wait(flight.future)
        except KafkaError as error:
            if not is_retriable(error):
                raise_alone(self._failed(flight.cursors[0], error))
            self._try_again(flight.cursors, error)
            return []
        found = list(self._taken(response, flight.cursors))
        self._alone = not found
        if found:
            self._backoff.succeeded()
        return found

    def _taken(self, response: Any, cursors: Collection[Cursor]) -> Iterator[Decoded]:
        by_tp = {cursor.range.tp: cursor for cursor in cursors}
        if response.error_code or not response.responses:
            self._try_again(cursors, _error(response.error_code))
            return
        # A client over its quota is sent an empty answer at once (KIP-219).
        throttled = response.throttle_time_ms > 0
        for answer in answers(response, self._names):
            cursor = by_tp[answer.tp]
            if answer.code:
                self._wrong(cursor, answer.code)
            elif len(answer.records):
                yield self._decode_partition(cursor, answer)
            elif len(cursors) == 1 and not throttled:
                self._nothing(cursor, answer)

    def _decode_partition(self, cursor: Cursor, answer: PartitionData) -> Decoded:
        tp = cursor.range.tp
        wanted = RecordRange(tp.topic, tp.partition, cursor.next, cursor.end)
        decoded = decode(
            answer.records, wanted, self._rules.columns, answer.aborted, self._rules.policy
        )
        cursor.advance(decoded.next_offset, len(answer.records))
        self._cursors.remove(cursor)
        self._cursors.append(cursor)  # others go first next time
        return decoded

    def _nothing(self, cursor: Cursor, answer: PartitionData) -> None:
        """Compaction may have left nothing up to the end; but one empty answer is no proof.

        A broker that lags behind, or one that waits for tiered storage, answers the same.
        """
        cursor.empties += 1
        reached = answer.last_stable_offset if self._rules.committed else answer.high_watermark
        if answer.high_watermark >= cursor.end > reached:
            why = f"a transaction is open, committed records end at offset {reached}"
            self._try_again([cursor], f"{why} (see 'krishiv-spark kafka transactions list')")
        elif reached < cursor.end:
            self._try_again([cursor], f"it has only offsets up to {reached} yet")
        elif cursor.empties >= _EMPTY_ANSWERS and self._is_local(cursor):
            _log.info("%s has no records from offset %d", cursor.range.tp, cursor.next)
            cursor.next = cursor.end
        else:
            self._wait([cursor], "the answers are empty")

    def _is_local(self, cursor: Cursor) -> bool:
        """Whether the offsets lie on the broker's own disks, not in tiered storage (KIP-405)."""
        tp = cursor.range.tp
        return list_offsets(self._client, {tp: _EARLIEST_LOCAL})[tp].offset <= cursor.next

    # --- what goes wrong

    def _wrong(self, cursor: Cursor, code: int) -> None:
        error = _error(code)
        cursor.corrupt += code == _CORRUPT_MESSAGE
        if cursor.corrupt > _MOST_CORRUPT:
            raise self._failed(cursor, f"{error}: its leader's own log is damaged there")
        # After UNKNOWN_SERVER_ERROR Kafka's own consumer asks again, too.
        if not is_retriable(error) and code not in {_UNKNOWN_SERVER_ERROR, *_TELLING}:
            raise self._failed(cursor, error)
        if code not in _TELLING or not self._look([cursor], believed=()):
            self._try_again([cursor], error)

    def _try_again(self, cursors: Collection[Cursor], why: object) -> None:
        self._client.forget_leaders({cursor.range.tp.topic for cursor in cursors})
        self._wait(cursors, why)

    def _wait(self, cursors: Collection[Cursor], why: object) -> None:
        """Wait a little; when that has gone on for too long, believe what the cluster says.

        Raises:
            DataLossError: If something will not come, and losses are errors.
            KafkaFailedError: If everything is there, or the cluster does not say, but time is up.
        """
        if self._backoff.pause():
            return
        topics = {cursor.range.tp.topic for cursor in cursors}
        theirs = [c for c in self._open() if c.range.tp.topic in topics]
        if not self._look(theirs, believed=cursors):
            raise self._failed(next(iter(cursors)), f"{why}, time is up")
        self._backoff.succeeded()

    def _look(self, cursors: Collection[Cursor], *, believed: Collection[Cursor]) -> bool:
        """Find out whether what is still to be read will come.

        Args:
            cursors: What is looked at.
            believed: For which of them patience is over.

        Returns:
            Whether the next fetch is another one than the last.
        """
        nexts = {cursor.range: cursor.next for cursor in cursors}
        remains = look_at_remains(self._client, nexts, closely=bool(believed))
        found = [(cursor, remains[cursor.range]) for cursor in cursors if cursor.range in remains]
        # A topic goes with all of its partitions: patience with one of them is enough.
        all_go = any(each.whole_topic for cursor, each in found if cursor in believed)
        news = [
            cursor.learn(
                each, self._losses, believed=cursor in believed or (all_go and each.whole_topic)
            )
            for cursor, each in found
        ]
        return any(news)


def _error(code: int) -> Exception:
    from kafka.errors import for_code

    error: Exception = for_code(code)()
    return error
