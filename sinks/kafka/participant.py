"""The end of the transactions that tasks have left open. Driver.

The epoch log's intent makes an epoch true (`EpochLog.intend`), and `KafkaParticipant.finish`
makes it visible. If a coordinator no longer knows the outcome of a transaction, the topic shows it:
coordinators forget an id after days, and report only its newest use; the log keeps the marker that
ended a transaction as long as it keeps the records. The first marker of a producer after one of its
records is that of the record's transaction (`read_outcome_from_log`).
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Mapping, Sequence

from krishiv_spark.errors import (
    CommitRejected,
    CommitUnknown,
    LogError,
    OptionError,
    SinkError,
)
from krishiv_spark.kafka import transactions
from krishiv_spark.kafka.client import (
    KafkaClient,
    KafkaFailedError,
    KafkaRefusedError,
    is_retriable,
    open_client,
)
from krishiv_spark.kafka.expected_topics import ExpectedTopic, retry_until_confirmed
from krishiv_spark.kafka.fetches import PartitionFetch, build_fetch, read_response
from krishiv_spark.kafka.list_offsets import RepeatedLookup
from krishiv_spark.kafka.partition_table import PartitionTable
from krishiv_spark.kafka.topic_partition import LATEST, TopicPartition
from krishiv_spark.kafka.transactions import (
    AT_ONCE_S,
    COMMITTING,
    ONGOING,
    Outcome,
    abort_open,
    abort_other_attempts,
)
from krishiv_spark.messages.exception_chains import scrub
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.offsets import remove_dead_logs
from krishiv_spark.runtime.retry import Backoff
from krishiv_spark.sinks.base import Epoch
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.task import (
    IDS_AFTER_QUERY,
    StagedTransaction,
    list_all_transactional_ids,
)
from krishiv_spark.sinks.participant import (
    LostIntentError,
    Participant,
    Replay,
    advise_retry,
    kafka_cannot,
)
from krishiv_spark.spark.checkpoint import BATCH_PREFIX

__all__ = ["KafkaParticipant", "find_truncated", "read_outcome_from_log"]

_log = logging.getLogger(__name__)

_VISIBLE_S = 5.0
"""Time limit of a commit for the brokers to write the markers of its transactions."""

_DEAD_AFTER_S = 7 * 24 * 3600.0
"""Coordinators forget a job's transactions before that (``transactional.id.expiration.ms``)."""

_UNDECIDED = frozenset({Outcome.OPEN, Outcome.UNKNOWN})
_MAY_BE_VISIBLE = frozenset({Outcome.COMMITTED, Outcome.UNKNOWN})

_REQUESTS, _PAUSE_S, _WITHIN_S = 10, 0.2, 5.0
"""A leader that was just elected may report a lower high watermark for a moment."""

_FETCH_BYTES = 8 * 2**20
_ABORT, _COMMIT = 0, 1
_NEEDS_READ = (
    "the user needs the ACL READ on this topic, because its coordinator no longer knows the outcome"
)


class KafkaParticipant(Participant[StagedTransaction]):
    """The brokers as a participant: they commit and abort the transactions of a query.

    Args:
        options: Options of the sink.
        is_owner: Returns True if the generation of an epoch still owns the query. Called right
            before transactions are ended that no intent names.
        streaming: True if epochs follow one another.
    """

    staged_type = StagedTransaction
    salvages = True

    def __init__(
        self, options: KafkaSinkOptions, is_owner: Callable[[Epoch], bool], *, streaming: bool
    ) -> None:
        self._options = options
        self._is_owner = is_owner
        self._streaming = streaming

    def prepare(
        self,
        epoch: Epoch,
        staged: Sequence[StagedTransaction],
        salvaged: Sequence[StagedTransaction],
    ) -> Sequence[StagedTransaction]:
        """Committer: check that no transaction of the future intent has ended in the meantime.

        Raises:
            CommitRejected: If a transaction is no longer open, or if a task did not run again whose
                rows the epoch already contains.
        """
        _check_complete(epoch, salvaged, staged)
        # Salvaged transactions are committed: the intent names the others.
        fresh = [item for item in staged if item not in salvaged]
        for item, outcome in self._find_outcomes(fresh).items():
            if outcome is not Outcome.OPEN:
                raise CommitRejected(
                    f"epoch {epoch.number}: the transaction of task {item.task}, "
                    f"{item.transaction.transactional_id}, is no longer open ({outcome.value}): "
                    "the batch took longer than 'kafka.transaction.timeout.ms' = "
                    f"{self._options.timeout_ms}, or another program ended it; raise the "
                    "time-out, or make batches smaller, and restart the query"
                )
        return fresh

    def finish(self, epoch: Epoch, staged: Sequence[StagedTransaction]) -> None:
        """Driver: commit all transactions side by side, then abort those of lost attempts.

        Raises:
            LostIntentError: If some were aborted by the broker before they could be committed.
            CommitUnknown: If the brokers do not answer, or no longer know the outcome.
        """
        try:
            named = [item.transaction for item in staged]
            errors = transactions.end_transactions(self._client, named, commit=True)
            refused = {i: errors[i.transaction] for i in staged if i.transaction in errors}
            self._resolve_refused(epoch, staged, refused)
        except KafkaFailedError as error:
            raise CommitUnknown(
                f"epoch {epoch.number}: its intent is logged, but not all of its transactions "
                f"could be committed: {error}; {self._advise(epoch, error)}"
            ) from error
        self._abort_leftovers_and_wait(epoch, staged)

    def finish_or_salvage(self, epoch: Epoch, staged: Sequence[StagedTransaction]) -> None:
        """Driver: `finish`; if a part was lost and nothing is visible, abort the rest before.

        Raises:
            LostIntentError: As `finish`.
            CommitUnknown: As `finish`.
        """
        try:
            found = self._find_outcomes(staged)
            if Outcome.ABORTED in found.values() and not _MAY_BE_VISIBLE & {*found.values()}:
                self.discard([item for item, now in found.items() if now is Outcome.OPEN])
        except KafkaFailedError as error:
            advice = self._advise(epoch, error)
            raise CommitUnknown(f"epoch {epoch.number}: {error}; {advice}") from error
        self.finish(epoch, staged)

    def is_finished(self, epoch: Epoch) -> bool:
        """Driver: return True if Spark's commit log has the epoch: its commit has returned."""
        checkpoint = self._options.checkpoint_of_epochs() if self._streaming else None
        return checkpoint is not None and checkpoint.is_committed(epoch.number)

    def discard(self, staged: Sequence[StagedTransaction]) -> None:
        """Driver: abort the transactions."""
        # By EndTxn under TV1 as well: a task that has returned has no request in flight, so no
        # record can follow the markers.
        named = [item.transaction for item in staged]
        transactions.end_transactions(self._client, named, commit=False)

    def abandon(self, epoch: Epoch) -> None:
        """Driver: abort the open transactions of failed attempts."""
        self._abort_open(epoch)

    # --- planner

    def target(self) -> str:
        """Planner: return the cluster's id. The topics may change, as with Spark's own sink.

        The topic of a numbered job may not: users give one number to everything a batch writes.
        """
        cluster = f"Kafka cluster {self._client.fetch_cluster_id()}"
        topic = None if self._options.job is None else self._options.topic
        return cluster if topic is None else f"{cluster}, topic {topic}"

    def contains(self, epoch: Epoch, staged: Sequence[StagedTransaction]) -> bool:
        """Planner: return True if each unchanged topic extends beyond the epoch's first records.

        A cluster that was restored from older snapshots has the same id, and lower end offsets. A
        topic that was deleted or recreated since is not compared, nor is a partition that does not
        answer in time.
        """
        del epoch
        first = {
            TopicPartition(item.topic, item.partition): item.offset
            for item in staged
            if item.offset >= 0
        }
        ids = {name: number for item in staged for name, number in item.topics}
        try:
            return not find_truncated(self._client, first, ids)
        except KafkaFailedError as error:
            _log.warning("the end offsets of the newest epoch's topics are unknown: %s", error)
            return True

    def verify_committed_target(self, epoch: Epoch, staged: Sequence[StagedTransaction]) -> None:
        """Planner: check that the epoch's topics were not removed or recreated."""
        wrote = {name: number for item in staged for name, number in item.topics}
        # Requested now: this process may have cached the removed topic.
        expected = {name: ExpectedTopic(number, frozenset()) for name, number in wrote.items()}
        now = (
            retry_until_confirmed(lambda: self._client.fetch_topics(wrote), expected)
            if expected
            else {}
        )
        gone = sorted(n for n, each in expected.items() if not each.is_confirmed_by(now.get(n)))
        if gone:
            raise LogError(
                f"epoch {epoch.number} of query {epoch.query} was written to the previous topic "
                f"{', '.join(gone)}, which has since been removed or recreated. Nothing was "
                "written. 'krishiv-spark log resolve --assume aborted' writes the epoch again, "
                "into the current topic; '--assume committed' skips it"
            )

    def verify_empty_log(self, query: str) -> None:
        """Planner: check that a query without a log has not written anything."""
        checkpoint = self._options.checkpoint_of_epochs() if self._streaming else None
        begun = checkpoint is not None and checkpoint.has_commits()
        if begun or self._list_ids(query):
            raise LogError(
                f"query {query} has written to Kafka or has committed epochs, but its epoch log is "
                "empty: the log was removed, or the option 'epochLog' has changed; put it back, or "
                f"use {NEW_CHECKPOINT}"
            )

    def sweep(self, query: str, generation: int, *, clean: bool) -> None:
        """Planner: abort all open transactions; they are of earlier generations, without an intent.

        Those that stragglers open later are aborted at the end of this epoch.
        """
        if not clean:
            # The owner check uses the generation alone: no epoch has started yet.
            self._abort_open(Epoch(query, -1, generation))
        if not self._streaming and self._options.epoch_log is not None:
            self._remove_dead_logs(self._options.epoch_log.rstrip("/"))

    def _remove_dead_logs(self, base: str) -> None:
        try:
            remove_dead_logs(base, BATCH_PREFIX, _DEAD_AFTER_S, self._options.storage)
        except Exception as error:  # noqa: BLE001  the job itself does not need it
            shown = scrub(error, self._options.secrets())
            _log.error("logs of dead jobs in %s remain", base, exc_info=shown)

    # --- operator

    def plan_replay(self, replay: Replay) -> list[str]:
        """Operator: refuse; records that were committed stay in a topic.

        Raises:
            OptionError: Always.
        """
        raise OptionError(kafka_cannot(replay.checkpoint, replay.first))

    def force_outcome(
        self, epoch: Epoch, staged: Sequence[StagedTransaction], *, committed: bool
    ) -> None:
        """Operator: end the open transactions that way; ended ones do not change."""
        named = [item.transaction for item in staged]
        ended = transactions.end_transactions(self._client, named, commit=committed)
        for transaction, error in ended.items():
            _log.warning("epoch %d: %s: %s", epoch.number, transaction.transactional_id, error)

    # --- transactions

    def _resolve_refused(
        self,
        epoch: Epoch,
        staged: Sequence[StagedTransaction],
        refused: Mapping[StagedTransaction, Exception],
    ) -> None:
        """Determine the outcomes of transactions that the coordinator refuses to commit."""
        found = self._find_outcomes(list(refused))
        undecided = [item for item, outcome in found.items() if outcome in _UNDECIDED]
        if undecided:
            listed = ", ".join(
                f"{item.transaction.transactional_id} ({refused[item]})" for item in undecided
            )
            raise CommitUnknown(
                f"epoch {epoch.number}: its intent is logged, but neither the coordinator nor "
                f"the topic shows the outcome of {listed}. Nothing was changed; see "
                "'krishiv-spark kafka transactions show'"
            )
        lost = [item for item, outcome in found.items() if outcome is Outcome.ABORTED]
        if lost:
            raise self._make_lost_error(epoch, lost, [item for item in staged if item not in lost])

    def _make_lost_error(
        self,
        epoch: Epoch,
        lost: Sequence[StagedTransaction],
        kept: Sequence[StagedTransaction],
    ) -> SinkError:
        text = (
            f"epoch {epoch.number}: brokers have aborted {len(lost)} of its "
            f"{len(lost) + len(kept)} transactions, because the driver was away for longer than "
            "'kafka.transaction.timeout.ms'"
        )
        # A batch job has no next driver that could write the rest: its next run is another job.
        if kept and (self._options.on_lost_transactions == "error" or not self._streaming):
            tasks = ", ".join(str(item.task) for item in kept)
            return CommitUnknown(
                f"{text}; the rows of the tasks {tasks} are visible, the rows of the other "
                "tasks are not. With onLostTransactions = 'repair', a restart of the stream "
                "writes the rest"
            )
        return LostIntentError(f"{text}; {self._advise(epoch)}", kept)

    def _advise(self, epoch: Epoch, error: Exception | None = None) -> str:
        if isinstance(error, KafkaRefusedError):
            return "until that is allowed, each new attempt ends like this one"
        if self._streaming:
            return advise_retry(epoch.query)
        return f"check the topic before you run the job again (its id is {epoch.query})"

    def _find_outcomes(
        self, staged: Sequence[StagedTransaction]
    ) -> dict[StagedTransaction, Outcome]:
        """Return the outcomes by the coordinators, or else by the topic itself."""
        if not staged:
            return {}
        named = [item.transaction for item in staged]
        found = transactions.find_outcomes(self._client, named)
        return {item: self._outcome_from_markers(item, found[item.transaction]) for item in staged}

    def _outcome_from_markers(self, item: StagedTransaction, outcome: Outcome) -> Outcome:
        if outcome is not Outcome.UNKNOWN or item.offset < 0:
            return outcome
        tp = TopicPartition(item.topic, item.partition)
        producer_id = item.transaction.producer_id
        found = read_outcome_from_log(self._client, tp, item.offset, producer_id)
        # The coordinator no longer knows the id, so a missing marker may never be written.
        return Outcome.UNKNOWN if found is Outcome.OPEN else found

    def _abort_leftovers_and_wait(self, epoch: Epoch, staged: Sequence[StagedTransaction]) -> None:
        """Abort the open transactions of lost attempts, and wait until the epoch can be read.

        Best effort: an error here does not make the epoch invisible.
        """
        committed = [item.transaction.transactional_id for item in staged]
        tasks = max((item.task for item in staged), default=-1) + 1
        all_ids = list_all_transactional_ids(self._options.id_prefix, epoch.query, tasks)
        other_attempts = set(all_ids) - set(committed)
        try:
            # Both in one message. `abort_other_attempts` requests the state of open ones again.
            ids = [*committed, *other_attempts]
            found = transactions.describe_available(self._client, ids, AT_ONCE_S)
            states = {name: now.state for name, now in found.items()}
            unmarked = [i for i in committed if states.get(i, COMMITTING) == COMMITTING]
            transactions.await_markers(self._client, unmarked, _VISIBLE_S)
            to_abort = [name for name in other_attempts if states.get(name) == ONGOING]
            abort_other_attempts(self._client, to_abort, lambda: self._is_owner(epoch))
        except Exception as error:  # noqa: BLE001  an error would repeat a finished job
            _log.error(
                "epoch %d is visible, but other open transactions are not ended",
                epoch.number,
                exc_info=scrub(error, self._options.secrets()),
            )

    def _abort_open(self, epoch: Epoch) -> None:
        """Abort the query's open transactions, if the epoch's generation still owns it."""
        abort_open(
            self._client,
            self._get_prefix(epoch.query),
            (),
            lambda: self._is_owner(epoch),
            rest=IDS_AFTER_QUERY,
        )

    def _list_ids(self, query: str) -> dict[str, str]:
        prefix = self._get_prefix(query)
        return transactions.list_transactions(self._client, prefix, rest=IDS_AFTER_QUERY)

    def _get_prefix(self, query: str) -> str:
        return f"{self._options.id_prefix}.{query}."

    @property
    def _client(self) -> KafkaClient:
        return open_client(self._options.kafka)


def _check_complete(
    epoch: Epoch, kept: Sequence[StagedTransaction], staged: Sequence[StagedTransaction]
) -> None:
    """Refuse an epoch without all tasks of a salvaged part: its rows may be in another task."""
    missing = [item.task for item in kept if item not in staged]
    if missing:
        raise CommitRejected(
            f"epoch {epoch.number} was committed in part, with the rows of the tasks "
            f"{', '.join(str(item.task) for item in kept)}; now there are no tasks {missing}, "
            "so its rows are distributed differently: restart the query with as many tasks as "
            "before"
        )


# --- evidence in the topics


def read_outcome_from_log(
    client: KafkaClient, tp: TopicPartition, offset: int, producer_id: int
) -> Outcome:
    """Search a partition for the marker that ended a transaction. Driver.

    Args:
        client: The client of this process.
        tp: A partition to which the transaction wrote.
        offset: Offset of one of its records there.
        producer_id: Producer id of the transaction.

    Returns:
        OPEN if there is no marker yet, UNKNOWN if the record is no longer in the log.

    Raises:
        KafkaFailedError: If the partition may not be read, or its leader does not answer in time.
    """
    while True:
        records = _fetch(client, tp, offset)
        if records is None:
            return Outcome.UNKNOWN
        found, after = _find_marker(records, producer_id, offset)
        if found is not None or after == offset:
            return found or Outcome.OPEN
        offset = after


def _find_marker(records: bytes, producer_id: int, offset: int) -> tuple[Outcome | None, int]:
    """Return the outcome by the first marker of a producer, and the offset after the last batch."""
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
    """Read records from an offset, also of open transactions; None if the offset is deleted."""
    from kafka.errors import OffsetOutOfRangeError, TopicAuthorizationFailedError

    backoff = Backoff(client.config.api_timeout_s)
    while True:
        error, records = _fetch_once(client, tp, offset)
        if error is None:
            return records
        if isinstance(error, OffsetOutOfRangeError):
            return None
        if not is_retriable(error) or not backoff.pause():
            hint = _NEEDS_READ if isinstance(error, TopicAuthorizationFailedError) else ""
            what = f"find the end of a transaction in {tp}"
            raise client.make_error(what, error, hint)
        client.forget_leaders([tp.topic])


def _fetch_once(
    client: KafkaClient, tp: TopicPartition, offset: int
) -> tuple[Exception | None, bytes]:
    from kafka.errors import KafkaError, LeaderNotAvailableError, for_code

    node = client.get_leader(tp)
    if node is None:
        return LeaderNotAvailableError(str(tp)), b""
    # By name and uncommitted: readers of committed records get nothing of an open transaction.
    wanted = PartitionFetch(tp, "", offset, _FETCH_BYTES)
    message = build_fetch([wanted], committed=False, most_bytes=_FETCH_BYTES)
    (answer,) = client.ask([(node, message)])
    if isinstance(answer, KafkaError):
        return answer, b""
    (found,) = read_response(answer, {})
    return for_code(found.code)() if found.code else None, bytes(found.records)


def find_truncated(
    client: KafkaClient, offsets: Mapping[TopicPartition, int], ids: Mapping[str, str]
) -> set[TopicPartition]:
    """Return the partitions that end at or before an offset, after two seconds at most.

    Args:
        client: The client of this process.
        offsets: Offsets of acknowledged records, by partition.
        ids: Ids of the topics when the records were written. A topic without an id, or with another
            one now, is not compared: it was deleted on purpose.

    Raises:
        KafkaFailedError: If the cluster does not answer.
    """
    left = _select_unchanged(client, offsets, ids)
    for count in range(_REQUESTS):
        if not left:
            break
        if count:
            time.sleep(_PAUSE_S)
            client.forget_leaders({tp.topic for tp in left})
        rows = PartitionTable(left)
        found, is_known = RepeatedLookup(LATEST, committed=False).fetch_within(
            client, rows, _WITHIN_S
        )
        ends = zip(rows.partitions, found.offsets, is_known, strict=True)
        left = {tp for tp, end, known in ends if known and end <= offsets[tp]}
    return left


def _select_unchanged(
    client: KafkaClient, offsets: Mapping[TopicPartition, int], ids: Mapping[str, str]
) -> set[TopicPartition]:
    names = {tp.topic for tp in offsets if ids.get(tp.topic)}
    topics = client.fetch_topics(names) if names else {}
    same = {
        name
        for name, topic in topics.items()
        if ExpectedTopic(ids[name], frozenset()).is_same(topic)
    }
    return {tp for tp in offsets if tp.topic in same and tp.partition in topics[tp.topic].leaders}
