"""The records of one task, from the leaders of its partitions. Executor.

While what one response brought is decoded, the next one is under way: a task holds two at most.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from krishiv_spark.kafka.client import Client, is_passing
from krishiv_spark.kafka.fetches import Answer, Wanted, answers, request, usable_id
from krishiv_spark.kafka.pauses import Pauses
from krishiv_spark.kafka.places import EARLIEST
from krishiv_spark.kafka.reading.losses import Losses
from krishiv_spark.kafka.reading.shares import Piece, Share
from krishiv_spark.kafka.records import Decoded, Range, await_warm, decode

__all__ = ["Feed", "FetchRules"]

_log = logging.getLogger(__name__)

_OFFSET_OUT_OF_RANGE = 1
_LEAST_BYTES = 64 * 1024
_ROW_BYTES = 1024
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
    """

    columns: frozenset[str]
    committed: bool
    fail_on_data_loss: bool
    most_bytes: int


@dataclass
class _Cursor:
    """How far a piece has been fetched.

    Attributes:
        piece: The piece.
        next: The offset that is fetched next.
        row_bytes: About how many bytes an offset takes.
        empties: How many answers in a row were empty.
    """

    piece: Piece
    next: int
    row_bytes: int = _ROW_BYTES
    empties: int = 0

    @property
    def is_done(self) -> bool:
        return self.next >= self.piece.end

    def wanted(self, most_bytes: int) -> Wanted:
        needed = (self.piece.end - self.next) * self.row_bytes
        size = min(max(needed, _LEAST_BYTES), most_bytes)
        return Wanted(self.piece.place, self.piece.topic_id, self.next, size)

    def advance(self, to: int, size: int) -> None:
        self.row_bytes = size // max(to - self.next, 1) + 1
        self.next, self.empties = to, 0


@dataclass(frozen=True)
class _Flight:
    """A message that is under way, and the cursors that it is about."""

    future: Any
    cursors: list[_Cursor]


class Feed:
    """The rows of a share.

    Args:
        client: The cluster.
        share: What is read.
        rules: How.
    """

    def __init__(self, client: Client, share: Share, rules: FetchRules) -> None:
        self._client = client
        self._rules = rules
        self._losses = Losses(rules.fail_on_data_loss)
        self._cursors = [_Cursor(piece, piece.start) for piece in share]
        self._names = {piece.topic_id: piece.place.topic for piece in share}
        self._pauses = Pauses(client.connection.patience_s)
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
        while flight is not None:
            found = self._landed(flight)
            flight = self._ask()
            for decoded in found:
                yield from decoded.batches

    # --- asking

    def _ask(self) -> _Flight | None:
        """Ask the leader of the first open partition, for others of its partitions too."""
        self._cursors = [cursor for cursor in self._cursors if not cursor.is_done]
        while self._cursors:
            node = self._client.leader(self._cursors[0].piece.place)
            if node is not None:
                return self._sent(node)
            self._try_again(f"{self._cursors[0].piece.place} has no leader")
        return None

    def _sent(self, node: int) -> _Flight:
        leader = self._client.leader
        theirs = [c for c in self._cursors if leader(c.piece.place) == node]
        cursors = theirs[:1] if self._alone else theirs
        most = self._rules.most_bytes
        wanted = [cursor.wanted(most) for cursor in cursors]
        message = request(wanted, committed=self._rules.committed, most_bytes=most)
        return _Flight(self._client.submit(message, node), cursors)

    def _try_again(self, why: object) -> None:
        topics = {cursor.piece.place.topic for cursor in self._cursors}
        self._client.forget_leaders(topics)
        self._pauses.pause_or(lambda: self._failed(f"{why}, time is up"))

    def _failed(self, why: object) -> Exception:
        first = self._cursors[0]
        return self._client.failed(f"read {first.piece.place} from offset {first.next}", why)

    # --- answers

    def _landed(self, flight: _Flight) -> list[Decoded]:
        from kafka.errors import KafkaError

        try:
            response = self._client.wait(flight.future)
        except KafkaError as error:
            if not is_passing(error):
                raise self._failed(error) from error
            self._try_again(error)
            return []
        found = list(self._taken(response, flight.cursors))
        self._alone = not found
        if found:
            self._pauses.succeeded()
        return found

    def _taken(self, response: Any, cursors: Collection[_Cursor]) -> Iterator[Decoded]:
        by_place = {cursor.piece.place: cursor for cursor in cursors}
        if response.error_code or not response.responses:
            self._try_again(_error(response.error_code))
            return
        throttled = response.throttle_time_ms > 0
        for answer in answers(response, self._names):
            cursor = by_place[answer.place]
            if answer.code:
                self._wrong(cursor, answer)
            elif len(answer.records):
                yield self._brought(cursor, answer)
            elif len(cursors) == 1 and not throttled:
                self._nothing(cursor, answer)

    def _brought(self, cursor: _Cursor, answer: Answer) -> Decoded:
        place, piece = cursor.piece.place, cursor.piece
        wanted = Range(place.topic, place.partition, cursor.next, piece.end)
        decoded = decode(answer.records, wanted, self._rules.columns, answer.aborted)
        cursor.advance(decoded.next_offset, len(answer.records))
        self._cursors.remove(cursor)
        self._cursors.append(cursor)  # others go first next time
        return decoded

    def _nothing(self, cursor: _Cursor, answer: Answer) -> None:
        """Compaction may have left nothing up to the end; but one empty answer is no proof.

        A broker that lags behind, or one that waits for tiered storage, answers the same.
        """
        cursor.empties += 1
        reached = answer.stable if self._rules.committed else answer.high
        if reached < cursor.piece.end:
            self._try_again(f"it has only offsets up to {reached} yet")
        elif cursor.empties >= _EMPTY_ANSWERS and self._is_local(cursor):
            _log.info("%s has no records from offset %d", cursor.piece.place, cursor.next)
            cursor.next = cursor.piece.end
        else:
            self._pauses.pause_or(lambda: self._failed("the answers are empty"))

    def _is_local(self, cursor: _Cursor) -> bool:
        """Whether the offsets lie on the broker's own disks, not in tiered storage (KIP-405)."""
        place = cursor.piece.place
        return self._client.list_offsets({place: _EARLIEST_LOCAL})[place].offset <= cursor.next

    def _wrong(self, cursor: _Cursor, answer: Answer) -> None:
        error = _error(answer.code)
        if answer.code == _OFFSET_OUT_OF_RANGE:
            self._out_of_range(cursor)
        elif is_passing(error):
            self._check_topic(cursor, error)
        else:
            raise self._failed(error)

    def _check_topic(self, cursor: _Cursor, error: Exception) -> None:
        """Try again, if the topic is still the one that the batch was chosen from."""
        piece = cursor.piece
        self._client.forget_leaders([piece.place.topic])
        topic = self._client.topic_of(piece.place.topic)
        if topic is None and not self._pauses.pause():
            self._gone(piece, f"topic {piece.place.topic!r} was deleted")
        elif topic is not None and piece.topic_id and usable_id(topic) != piece.topic_id:
            self._gone(piece, f"topic {piece.place.topic!r} was deleted and made anew")
        elif topic is not None:
            self._try_again(error)

    def _gone(self, piece: Piece, what: str) -> None:
        topic = piece.place.topic
        left = [c for c in self._cursors if c.piece.place.topic == topic and not c.is_done]
        for cursor in left:
            self._losses.happened(what, cursor.piece.end - cursor.next)
            cursor.next = cursor.piece.end

    def _out_of_range(self, cursor: _Cursor) -> None:
        place = cursor.piece.place
        oldest = self._client.list_offsets({place: EARLIEST})[place].offset
        if oldest > cursor.next:
            self._losses.passed(place, cursor.next, oldest)
            cursor.next = min(oldest, cursor.piece.end)
        elif not self._pauses.pause():
            # A leader that has just been elected may lag for a moment, but not for long.
            what = f"{place} has no offset {cursor.next} any more: the cluster has lost records"
            self._losses.happened(what, cursor.piece.end - cursor.next)
            cursor.next = cursor.piece.end


def _error(code: int) -> Exception:
    from kafka.errors import for_code

    error: Exception = for_code(code)()
    return error
