"""How transactions that tasks have left open end. Driver."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

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
    open_client,
)
from krishiv_spark.kafka.expected_topics import ExpectedTopic, retry_until_confirmed
from krishiv_spark.kafka.outcomes import COMMITTING, ONGOING
from krishiv_spark.kafka.topic_partition import TopicPartition
from krishiv_spark.kafka.transactions import Outcome
from krishiv_spark.messages.exception_chains import scrub
from krishiv_spark.messages.suggestions import NEW_CHECKPOINT
from krishiv_spark.offsets import remove_dead_logs
from krishiv_spark.sinks.base import Epoch
from krishiv_spark.sinks.kafka.attempts import StagedTransaction, slot_ids
from krishiv_spark.sinks.kafka.markers import outcome_in_log
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.sweeping import AT_ONCE_S, abort_open, abort_siblings
from krishiv_spark.sinks.kafka.topics import reach_below
from krishiv_spark.sinks.participant import LostIntentError, Participant
from krishiv_spark.sinks.replays import Replay, kafka_cannot
from krishiv_spark.spark.checkpoint import BATCH_PREFIX

__all__ = ["KafkaParticipant"]

_log = logging.getLogger(__name__)

_VISIBLE_S = 5.0
"""How long a commit waits at most for the brokers to write the markers of its transactions."""

_DEAD_AFTER_S = 7 * 24 * 3600.0
"""Coordinators have forgotten a job's transactions by then (``transactional.id.expiration.ms``)."""

_UNSURE = frozenset({Outcome.OPEN, Outcome.UNKNOWN})


class KafkaParticipant(Participant[StagedTransaction]):
    """Commits and aborts the transactions of a query.

    Args:
        options: Of the sink.
        is_owner: Whether the generation of an epoch still owns the query. Asked right before
            transactions are ended that no intent names.
        streaming: Whether epochs follow one another.
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
        """Committer: nothing that will be named has ended in the meantime.

        Raises:
            CommitRejected: If a transaction is no longer open, or if a task did not run again that
                has rows in the epoch already.
        """
        _check_complete(epoch, salvaged, staged)
        # What is salvaged has ended, as it should have: the intent names the rest.
        fresh = [item for item in staged if item not in salvaged]
        for item, outcome in self._outcomes(fresh).items():
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
        """Driver: commit every transaction side by side, then abort what lost attempts left.

        Raises:
            LostIntentError: If some were aborted by the broker before they could be committed.
            CommitUnknown: If the brokers do not answer, or no longer know.
        """
        try:
            named = [item.transaction for item in staged]
            errors = transactions.end(self._client, named, commit=True)
            refused = {i: errors[i.transaction] for i in staged if i.transaction in errors}
            self._settle(epoch, staged, refused)
        except KafkaFailedError as error:
            raise CommitUnknown(
                f"epoch {epoch.number}: its intent is logged, but not all of its transactions "
                f"could be committed: {error}; {self._advice(epoch, error)}"
            ) from error
        self._close(epoch, staged)

    def finish_or_salvage(self, epoch: Epoch, staged: Sequence[StagedTransaction]) -> None:
        """Driver: `finish`, unless a part was lost and nothing is visible: then nothing shall be.

        Raises:
            LostIntentError: As `finish`.
            CommitUnknown: As `finish`.
        """
        try:
            found = self._outcomes(staged)
            if Outcome.ABORTED in found.values() and Outcome.COMMITTED not in found.values():
                self.discard([item for item, became in found.items() if became is Outcome.OPEN])
        except KafkaFailedError as error:
            advice = self._advice(epoch, error)
            raise CommitUnknown(f"epoch {epoch.number}: {error}; {advice}") from error
        self.finish(epoch, staged)

    def is_finished(self, epoch: Epoch) -> bool:
        """Driver: Spark writes down that an epoch is over when its commit has returned."""
        checkpoint = self._options.checkpoint_of_epochs() if self._streaming else None
        return checkpoint is not None and checkpoint.is_committed(epoch.number)

    def discard(self, staged: Sequence[StagedTransaction]) -> None:
        """Driver: abort."""
        # By EndTxn under TV1 as well: a task that has handed over has no request under way, so
        # nothing can come after the markers.
        transactions.end(self._client, [item.transaction for item in staged], commit=False)

    def abandon(self, epoch: Epoch) -> None:
        """Driver: abort what failed attempts have left open."""
        self._abort_open(epoch, ())

    # --- planner

    def target(self) -> str:
        """Planner: the cluster, by its own id. Its topics may change, as with Spark's own sink.

        That of a numbered job may not: users give one number to all that a batch writes.
        """
        cluster = f"Kafka cluster {self._client.fetch_cluster_id()}"
        topic = None if self._options.job is None else self._options.topic
        return cluster if topic is None else f"{cluster}, topic {topic}"

    def contains(self, epoch: Epoch, staged: Sequence[StagedTransaction]) -> bool:
        """Planner: each topic that is still the same one reaches beyond the epoch's first records.

        A cluster that was restored from older snapshots has the same id, and lower end offsets. A
        topic that was deleted or created again since is not compared, nor is a partition that does
        not answer in time.
        """
        del epoch
        first = {
            TopicPartition(item.topic, item.partition): item.offset
            for item in staged
            if item.offset >= 0
        }
        ids = {name: number for item in staged for name, number in item.topics}
        try:
            return not reach_below(self._client, first, ids)
        except KafkaFailedError as error:
            _log.warning("the end offsets of the newest epoch's topics are unknown: %s", error)
            return True

    def verify_committed_target(self, epoch: Epoch, staged: Sequence[StagedTransaction]) -> None:
        """Planner: its topics are those that the cluster has by these names."""
        wrote = {name: number for item in staged for name, number in item.topics}
        # As it is now: what this process remembers may be of the removed topic.
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
        """Planner: a query without a log must not have written anything."""
        checkpoint = self._options.checkpoint_of_epochs() if self._streaming else None
        begun = checkpoint is not None and checkpoint.has_commits()
        if begun or transactions.known(self._client, self._start(query)):
            raise LogError(
                f"query {query} has written to Kafka or has committed epochs, but its epoch log is "
                "empty: the log was removed, or the option 'epochLog' has changed; put it back, or "
                f"use {NEW_CHECKPOINT}"
            )

    def sweep(self, query: str, generation: int, *, clean: bool) -> None:
        """Planner: whatever is open is of earlier generations, and no intent names it.

        What stragglers have open is aborted at the end of this epoch at the latest.
        """
        if not clean:
            # It asks for the generation alone: no epoch has begun yet.
            self._abort_open(Epoch(query, -1, generation), ())
        if not self._streaming and self._options.epoch_log is not None:
            self._remove_dead_logs(self._options.epoch_log.rstrip("/"))

    def _remove_dead_logs(self, base: str) -> None:
        try:
            remove_dead_logs(base, BATCH_PREFIX, _DEAD_AFTER_S, self._options.storage)
        except Exception as error:  # noqa: BLE001  no job's business but to be tidy
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
        """Operator: end what is still open that way; what has ended otherwise stays as it is."""
        named = [item.transaction for item in staged]
        for transaction, error in transactions.end(self._client, named, commit=committed).items():
            _log.warning("epoch %d: %s: %s", epoch.number, transaction.transactional_id, error)

    # --- transactions

    def _settle(
        self,
        epoch: Epoch,
        staged: Sequence[StagedTransaction],
        refused: Mapping[StagedTransaction, Exception],
    ) -> None:
        """Look what became of transactions that the coordinator refuses to commit."""
        became = self._outcomes(list(refused))
        unsure = [item for item, outcome in became.items() if outcome in _UNSURE]
        if unsure:
            listed = ", ".join(f"{i.transaction.transactional_id} ({refused[i]})" for i in unsure)
            raise CommitUnknown(
                f"epoch {epoch.number}: its intent is logged, but neither the coordinator nor "
                f"the topic shows the outcome of {listed}. Nothing was changed; see "
                "'krishiv-spark kafka transactions show'"
            )
        lost = [item for item, outcome in became.items() if outcome is Outcome.ABORTED]
        if lost:
            raise self._lost(epoch, lost, [item for item in staged if item not in lost])

    def _lost(
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
        return LostIntentError(f"{text}; {self._advice(epoch)}", kept)

    def _advice(self, epoch: Epoch, error: Exception | None = None) -> str:
        if isinstance(error, KafkaRefusedError):
            return "until that is allowed, each new attempt ends like this one"
        if self._streaming:
            return "restart the query, which resolves it"
        return f"check the topic before you run the job again (its id is {epoch.query})"

    def _outcomes(self, staged: Sequence[StagedTransaction]) -> dict[StagedTransaction, Outcome]:
        """What became of transactions: by their coordinators, or else by the topic itself."""
        if not staged:
            return {}
        found = transactions.outcomes(self._client, [item.transaction for item in staged])
        return {item: self._in_log(item, found[item.transaction]) for item in staged}

    def _in_log(self, item: StagedTransaction, outcome: Outcome) -> Outcome:
        if outcome is not Outcome.UNKNOWN or item.offset < 0:
            return outcome
        tp = TopicPartition(item.topic, item.partition)
        seen = outcome_in_log(self._client, tp, item.offset, item.transaction.producer_id)
        # Its coordinator knows the id no more, so a transaction without a marker may never get one.
        return Outcome.UNKNOWN if seen is Outcome.OPEN else seen

    def _close(self, epoch: Epoch, staged: Sequence[StagedTransaction]) -> None:
        """Abort what lost attempts left open, and wait until the epoch can be read.

        Best effort: the epoch is visible whatever happens here.
        """
        won = [item.transaction.transactional_id for item in staged]
        tasks = max((item.task for item in staged), default=-1) + 1
        siblings = set(slot_ids(self._options.id_prefix, epoch.query, tasks)) - set(won)
        try:
            # Both in one message. What is open, which is rare, is looked at again before its end.
            seen = transactions.look(self._client, [*won, *siblings], AT_ONCE_S)
            states = {name: now.state for name, now in seen.items()}
            unseen = [i for i in won if states.get(i, COMMITTING) == COMMITTING]
            transactions.await_markers(self._client, unseen, _VISIBLE_S)
            doomed = [name for name in siblings if states.get(name) == ONGOING]
            abort_siblings(self._client, doomed, lambda: self._is_owner(epoch))
        except Exception as error:  # noqa: BLE001  an error here would have a job run again that is done
            _log.error(
                "epoch %d is visible, but other open transactions are not ended",
                epoch.number,
                exc_info=scrub(error, self._options.secrets()),
            )

    def _abort_open(self, epoch: Epoch, spare: Collection[str]) -> None:
        """Abort what this query has open, if the epoch's generation still owns it."""
        abort_open(self._client, self._start(epoch.query), spare, lambda: self._is_owner(epoch))

    def _start(self, query: str) -> str:
        return f"{self._options.id_prefix}.{query}."

    @property
    def _client(self) -> KafkaClient:
        return open_client(self._options.kafka)


def _check_complete(
    epoch: Epoch, kept: Sequence[StagedTransaction], staged: Sequence[StagedTransaction]
) -> None:
    """Rows of a task that does not run again may have gone to another task."""
    missing = [item.task for item in kept if item not in staged]
    if missing:
        raise CommitRejected(
            f"epoch {epoch.number} was committed in part, with the rows of the tasks "
            f"{', '.join(str(item.task) for item in kept)}; now there are no tasks {missing}, "
            "so its rows are distributed differently: restart the query with as many tasks as "
            "before"
        )
