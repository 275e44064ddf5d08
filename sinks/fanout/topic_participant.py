"""Tables by topic as one target: an epoch is committed in each table that has rows of it. Driver.

The intent names the topics with rows, so that the driver that finishes it opens their tables, and
no others. It also has a record of every table that the query has written to: its identity, and the
newest epoch with rows for it. So a table that was dropped and created again, or is an older copy,
is noticed as soon as an epoch has rows for it, and a table without rows costs nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field

from krishiv_spark.errors import CommitRejected
from krishiv_spark.offsets.planned import part_of_query
from krishiv_spark.sinks.base import CommittedEpoch, Epoch
from krishiv_spark.sinks.fanout.participant import FanoutParticipant, StagedParts
from krishiv_spark.sinks.participant import Participant, TargetRecord
from krishiv_spark.sinks.topic_route import TopicTable

__all__ = [
    "KnownTable",
    "KnownTables",
    "StagedTopics",
    "TopicsParticipant",
    "explain_shared_table",
    "route_of_topic",
]

_ADOPT = (
    "or, to go on with the present table, stop the query and run 'krishiv-spark log adopt': rows "
    "of earlier epochs that the table lacks stay missing"
)


def route_of_topic(topic: str) -> str:
    """Return the name of a topic's route. Tables know the query by it, so it never changes."""
    return f"t{hashlib.sha256(topic.encode()).hexdigest()[:20]}"


def explain_shared_table(one: str, other: str, name: str | None) -> str:
    """Return the message for two topics whose table is the same one."""
    return (
        f"the topics {one!r} and {other!r} have one table, {name}: rows of one would replace those "
        "of the other. Nothing of the epoch was written: give 'table' more parts of the topic, as "
        "in '${topic.2}.${topic.last}', or leave one of the topics out of the query"
    )


class KnownTable(BaseModel, frozen=True):
    """A table that the query has written to.

    Attributes:
        target: Identity of the table, as `Participant.target`.
        epoch: The newest epoch with rows for it.
    """

    target: str
    epoch: int


class KnownTables(BaseModel, frozen=True):
    """The tables that the query has written to.

    Attributes:
        tables: The tables by topic.
        is_whole: True if there are no others. It is False after an operator's decision and after an
            epoch that was lost, which leave no record of earlier tables.
    """

    tables: dict[str, KnownTable] = Field(default={})
    is_whole: bool = False

    def with_epoch(self, targets: Mapping[str, str], epoch: int) -> KnownTables:
        """Return the tables after one more epoch.

        Args:
            targets: The tables with rows of the epoch: their identities by topic.
            epoch: Its number.
        """
        added = {t: KnownTable(target=target, epoch=epoch) for t, target in targets.items()}
        return KnownTables(tables={**self.tables, **added}, is_whole=self.is_whole)


class StagedTopics(StagedParts, frozen=True):
    """The staged data of one task, or the data that an intent names.

    Attributes:
        tables: The tables with rows, by route.
        known: The tables of earlier epochs; in an intent, also those of this epoch.
    """

    tables: dict[str, TopicTable] = Field(default={})
    known: KnownTables = Field(default=KnownTables())


class TopicsParticipant(Participant[StagedTopics]):
    """A participant of a table for each topic, as far as an epoch has rows for it.

    Args:
        open_part: Returns the participant of a table.
        describe: Returns the name of a topic's table, for messages.
        target: Identity of all tables together: it does not depend on the topics.
    """

    staged_type = StagedTopics
    may_lose = False

    def __init__(
        self,
        open_part: Callable[[TopicTable], Participant[Any]],
        describe: Callable[[str], str],
        target: str,
    ) -> None:
        self._open_part, self._describe, self._target = open_part, describe, target
        self._parts: dict[TopicTable, Participant[Any]] = {}

    def _part(self, table: TopicTable) -> Participant[Any]:
        """Return the participant of a table, which caches the table in this process."""
        if table not in self._parts:
            self._parts[table] = self._open_part(table)
        return self._parts[table]

    def _fanout(self, staged: Sequence[StagedTopics]) -> FanoutParticipant:
        """Return the fan-out to the tables of an epoch.

        Raises:
            CommitRejected: If the tasks do not agree on the key of a table.
        """
        tables: dict[str, TopicTable] = {}
        for item in staged:
            for route, table in item.tables.items():
                if (other := tables.setdefault(route, table)) != table:
                    raise CommitRejected(
                        f"the records of topic {table.topic!r} have keys of the columns "
                        f"{', '.join(table.keys)} and {', '.join(other.keys)}: name the columns "
                        "in 'keyColumns', or give the topic a separate query"
                    )
        return FanoutParticipant({route: self._part(table) for route, table in tables.items()})

    def load(self, text: str) -> StagedTopics:
        """Return the content of an intent, with all staged items checked by their tables.

        Raises:
            ValueError: If a part is damaged.
        """
        found = super().load(text)
        if any(route != route_of_topic(table.topic) for route, table in found.tables.items()):
            raise ValueError("a route is not that of its topic")
        if not found.parts.keys() <= found.tables.keys():
            raise ValueError("a part has no topic")
        parts = self._fanout([found]).load(text).parts
        return found.model_copy(update={"parts": parts})

    # --- committer

    def prepare(
        self, epoch: Epoch, staged: Sequence[StagedTopics], salvaged: Sequence[StagedTopics]
    ) -> Sequence[StagedTopics]:
        """Committer: compare the tables of the epoch with the record, and prepare each of them.

        Raises:
            CommitRejected: If two topics have one table; if a table was created again, or its
                newest epoch is not that of the record; or as the participant of a table.
        """
        del salvaged  # no table ever loses a part
        known = next((item.known for item in staged), KnownTables())
        tables = {route: table for item in staged for route, table in item.tables.items()}
        fanout = self._fanout(staged)
        targets = {t.topic: self._part(t).target() or "" for t in tables.values()}
        for route, table in tables.items():
            self._check_table(part_of_query(epoch.query, route), epoch, table, known)
        self._check_distinct(targets, known)
        for route, table in tables.items():
            if table.topic not in known.tables:  # the catalog must keep the query's property
                self._part(table).sweep(part_of_query(epoch.query, route), 0, clean=True)
        found = fanout.prepare(epoch, staged, ())
        parts = {route: items for item in found for route, items in item.parts.items()}
        after = known.with_epoch(targets, epoch.number)
        return [StagedTopics(parts=parts, tables=tables, known=after)]

    def _check_distinct(self, targets: Mapping[str, str], known: KnownTables) -> None:
        topics = {table.target: topic for topic, table in known.tables.items()}
        for topic, target in targets.items():
            other = topics.setdefault(target, topic)
            if other != topic:
                raise CommitRejected(explain_shared_table(other, topic, self._describe(topic)))

    def _check_table(self, query: str, epoch: Epoch, table: TopicTable, known: KnownTables) -> None:
        """Compare a table with the record of it.

        Args:
            query: The id by which the table knows the query.
            epoch: The epoch that is about to be committed.
            table: The table.
            known: The tables of earlier epochs.

        Raises:
            CommitRejected: If they differ.
        """
        part, before = self._part(table), known.tables.get(table.topic)
        newest = part.newest_epoch(query)
        target = part.target()
        name = f"table {self._describe(table.topic)} of topic {table.topic!r}"
        if before is not None and target != before.target:
            for other, own in known.tables.items():
                if own.target == target:
                    raise CommitRejected(
                        f"{name} is now the one that had the rows of topic {other!r}: tables were "
                        f"renamed since epoch {before.epoch}. Nothing of epoch {epoch.number} was "
                        "written: restore their names"
                    )
            raise CommitRejected(
                f"{name} was removed and created again since epoch {before.epoch}: it is {target}, "
                f"and was {before.target}, so that it lacks the rows of earlier epochs. Nothing of "
                f"epoch {epoch.number} was written. Ways on: put the old table back; {_ADOPT}"
            )
        if before is None and not known.is_whole:
            is_wrong = newest is not None and newest.epoch >= epoch.number
        else:
            is_wrong = (None if newest is None else newest.epoch) != (before and before.epoch)
        if is_wrong:
            raise CommitRejected(
                f"{name} has {_show(newest)} of query {query}, and {_show(before)} by the epoch "
                "log: the table, or the checkpoint with the log, is an older copy. Nothing of "
                f"epoch {epoch.number} was written. Ways on: put the newest copies back; {_ADOPT}"
            )

    def finish(self, epoch: Epoch, staged: Sequence[StagedTopics]) -> None:
        """Driver: finish the table of each topic that the intent names.

        Raises:
            CommitUnknown, CheckpointMismatch: As the participant of a table.
        """
        self._fanout(staged).finish(epoch, staged)

    def is_finished(self, epoch: Epoch) -> bool:
        """Driver: return False, which costs the driver that starts the query one comparison."""
        del epoch
        return False

    def discard(self, staged: Sequence[StagedTopics]) -> None:
        """Anywhere: discard the part of each table."""
        for item in staged:  # not all at once: the tasks may not agree on a table
            self._fanout([item]).discard([item])

    # --- planner

    def target(self) -> str:
        """Planner: return the identity of all tables together."""
        return self._target

    def records(self, query: str) -> Sequence[TargetRecord]:
        """Planner: return one record, of no epoch: `prepare` compares the tables."""
        del query
        return [TargetRecord(self._target)]

    def targets_without(self, epoch: Epoch, staged: Sequence[StagedTopics]) -> Sequence[str]:
        """Planner: return no table: `prepare` compares them."""
        del epoch, staged
        return []

    def verify_committed_target(self, epoch: Epoch, staged: Sequence[StagedTopics]) -> None:
        """Planner: verify each table that the intent names."""
        self._fanout(staged).verify_committed_target(epoch, staged)

    # --- operator

    def force_outcome(
        self, epoch: Epoch, staged: Sequence[StagedTopics], *, committed: bool
    ) -> None:
        """Operator: force the outcome in each table that the intent names."""
        self._fanout(staged).force_outcome(epoch, staged, committed=committed)


def _show(newest: CommittedEpoch | KnownTable | None) -> str:
    return "no epoch" if newest is None else f"epoch {newest.epoch}"
