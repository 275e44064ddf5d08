"""A table for each topic: a fan-out whose routes are made as topics get rows.

The option ``table`` is an expression over the topic, such as ``lake.${topic.last}``. A task divides
its rows by their topic, and opens or creates the table of a topic at its first row. Each topic is a
route of one fan-out over one epoch log, so an epoch is in all of its tables or in none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.errors import OptionError, SchemaError
from krishiv_spark.offsets.planned import part_of_query
from krishiv_spark.options import Options
from krishiv_spark.runtime.lazy import later
from krishiv_spark.sinks.base import OutputMode, Ownership, Task
from krishiv_spark.sinks.fanout.options import FORMAT, kind_of_route
from krishiv_spark.sinks.fanout.topic_participant import (
    KnownTables,
    StagedTopics,
    TopicsParticipant,
    explain_shared_table,
    route_of_topic,
)
from krishiv_spark.sinks.fanout.writer import RunningStages
from krishiv_spark.sinks.logged_writer import Examined, Examiner, LoggedWriter, LogView
from krishiv_spark.sinks.options import CheckpointOptions
from krishiv_spark.sinks.participant import Participant
from krishiv_spark.sinks.topic_route import TopicRoute, TopicTable
from krishiv_spark.spark.checkpoint import KRISHIV
from krishiv_spark.spark.query_target import QueryTarget
from krishiv_spark.storage import StoreUrl

__all__ = ["TopicTablesWriter"]

_TOPIC = "topic"

_OF_TOPIC = "_krishiv_topic"
"""The last column of changes that the examiner has decoded: the topic of all of them."""


@dataclass(frozen=True)
class TopicPlan:
    """The plan of an epoch, for the tasks.

    Attributes:
        known: The tables of earlier epochs.
    """

    known: KnownTables = field(default_factory=KnownTables)


class _Opened(NamedTuple):
    """A table that a task has opened.

    Attributes:
        table: The table.
        route: Its writer.
        plan: The plan of that writer.
    """

    table: TopicTable
    route: TopicRoute[Any, Any]
    plan: Any


class TopicTablesWriter(LoggedWriter[StagedTopics, TopicPlan]):
    """A writer with a table for each topic that rows come from."""

    options_type = later("krishiv_spark.sinks.iceberg.options", "IcebergSinkOptions")
    format_name: ClassVar[str] = "krishiv-iceberg"
    only_streams = True
    divides_queries = True
    options: CheckpointOptions

    @cached_property
    def _pattern(self) -> TopicRoute[Any, Any]:
        """The sink, whose table is an expression."""
        return self._make_pattern(self.options)

    @cached_property
    def _pattern_of_tasks(self) -> TopicRoute[Any, Any]:
        """The sink for tasks, which must not read or change the checkpoint."""
        return self._make_pattern(self.options.model_copy(update={"checkpoint_location": None}))

    def _make_pattern(self, options: Options) -> TopicRoute[Any, Any]:
        kind = kind_of_route({"format": self.format_name})
        found = kind(options, self._rows, self.mode, streaming=self.streaming)
        assert isinstance(found, TopicRoute), kind
        return found

    @property
    def _keeps_topic(self) -> bool:
        """True if the column of topics is part of the rows, as in records of change data."""
        return getattr(self.options, "change_format", None) is not None

    @cached_property
    def _place(self) -> int:
        """Index of the column of topics; -1 without one."""
        names = [name.lower() for name in self.schema.names]
        return names.index(_TOPIC) if _TOPIC in names else -1

    @cached_property
    def _rows(self) -> pa.Schema:
        return self.schema if self._keeps_topic else self._without_topic(self.schema)

    def _without_topic(self, rows: Any) -> Any:
        """Return a schema or a batch without the column of topics."""
        if self._place < 0:
            return rows
        if isinstance(rows, pa.Schema):
            return rows.remove(self._place)
        return rows.remove_column(self._place)

    # --- planner

    def check(self) -> None:
        """Planner: check rows and options, and open the catalog."""
        self._check(starts=True)

    def check_start(self) -> None:
        """Planner: check as `check`, but create and change nothing."""
        self._check(starts=False)

    def _check(self, *, starts: bool) -> None:
        table = getattr(self.options, "table_name", "")
        if not self.streaming:
            raise OptionError(
                f"{self.format_name}: 'table' = {table!r} is for streams: a batch write has no "
                "permanent log on which several tables could agree. Write a stream, with "
                "trigger(availableNow=True) if it is to end"
            )
        if self.mode is not OutputMode.APPEND:
            raise OptionError(
                f"{self.format_name}: 'table' = {table!r} needs the output mode append: another "
                "mode would replace the rows of tables that an epoch does not name"
            )
        kind = self.schema.field(self._place).type if self._place >= 0 else None
        if kind is None or not pa.types.is_string(kind):
            found = "is missing" if kind is None else f"is {kind}"
            raise SchemaError(
                f"{self.format_name}: 'table' = {table!r} needs a column 'topic' STRING, which "
                f"chooses the table, and it {found}; the columns are {', '.join(self.schema.names)}"
            )
        self._pattern.check_topics(starts=starts)

    def describe_target(self) -> QueryTarget:
        """Driver: describe the tables by the expression and the catalog."""
        return QueryTarget.of(FORMAT, self._target, self._target, self.options.secrets())

    @property
    def _target(self) -> str:
        return f"tables by topic {self.options.target_text()}"

    def plan(self, ownership: Ownership[StagedTopics] | None) -> TopicPlan:
        """Planner: return the tables of earlier epochs, from the newest intent."""
        if ownership is None:
            return TopicPlan()
        intents = [StagedTopics.model_validate(item) for item in ownership.newest or ()]
        first = KnownTables(is_whole=ownership.is_first)
        return TopicPlan(next((intent.known for intent in intents), first))

    # --- task

    @cached_property
    def _opened(self) -> dict[str, _Opened]:
        """The tables that this task has opened, by topic."""
        return {}

    @contextmanager
    def _opening(self) -> Iterator[None]:
        """Forget the tables at the end of a task: the next one may have other keys."""
        try:
            yield
        finally:
            self._opened.clear()

    def _open(self, topic: str, rows: pa.RecordBatch, plan: TopicPlan) -> _Opened:
        """Open the table of a topic, or create it."""
        if topic in self._opened:
            return self._opened[topic]
        table = self._pattern_of_tasks.find_table(topic, rows)
        before = plan.known.tables.get(topic)
        if before is None:
            self._check_distinct(topic, plan)
        route = self._pattern_of_tasks.of_topic(table, must_exist=before is not None)
        try:
            found = _Opened(table, route, route.plan(None))
        except (OptionError, SchemaError) as error:
            known = "" if before is None else f"; it has rows up to epoch {before.epoch}"
            raise type(error)(f"topic {topic!r}{known}: {error}") from error
        self._opened[topic] = found
        return found

    def _check_distinct(self, topic: str, plan: TopicPlan) -> None:
        """Refuse a new topic whose table is that of another topic, before its rows are staged.

        New topics of one epoch in several tasks are compared when it is committed.
        """
        name = self._name_table(topic)
        for other in {**plan.known.tables, **self._opened}:
            if other != topic and self._name_table(other) == name:
                raise OptionError(f"{self.format_name}: {explain_shared_table(other, topic, name)}")

    def _name_table(self, topic: str) -> str | None:
        """Return the name of a topic's table; None if the present expression gives it none."""
        if topic not in self._names:
            try:
                named = self._pattern_of_tasks.of_topic(TopicTable(topic=topic)).options
            except OptionError:
                return None
            self._names[topic] = getattr(named, "table_name", topic)
        return self._names[topic]

    @cached_property
    def _names(self) -> dict[str, str]:
        """The names of topics' tables, each computed once in a task."""
        return {}

    def stage(
        self, batches: Iterator[pa.RecordBatch], task: Task, plan: TopicPlan
    ) -> StagedTopics | None:
        """Executor: stage the rows of each topic, as the sink of its table does."""
        tables: dict[str, TopicTable] = {}
        with self._opening(), RunningStages() as stages:
            for topic, rows in self._divide(batches):
                name = route_of_topic(topic)
                if name not in tables:
                    opened = self._open(topic, rows, plan)
                    tables[name] = opened.table
                    own = replace(task, query=part_of_query(task.query, name))
                    stages.add(name, partial(opened.route.stage, task=own, plan=opened.plan))
                stages.give(name, rows if self._keeps_topic else self._without_topic(rows))
            staged = stages.end()
        parts = {name: (item,) for name, item in staged.items() if item is not None}
        if not parts:
            return None
        named = {name: tables[name] for name in parts}
        return StagedTopics(parts=parts, tables=named, known=plan.known)

    def carry(self, plan: TopicPlan) -> StagedTopics:
        """Executor: return the record of tables, for an epoch that has rows for other targets."""
        return StagedTopics(parts={}, known=plan.known)

    def _divide(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of each topic.

        Raises:
            SchemaError: If a row has no topic.
        """
        for batch in batches:
            if batch.num_rows:
                yield from self._divide_batch(batch)

    def _divide_batch(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        last = batch.num_columns - 1
        if batch.schema.names[last] == _OF_TOPIC:
            yield batch.column(last)[0].as_py(), batch.remove_column(last)
            return
        column = batch.column(self._place)
        if column.null_count:
            raise SchemaError(
                f"{self.format_name}: {column.null_count} of {batch.num_rows} rows have no topic, "
                "so that no table is theirs: leave them out. Nothing of this batch was written; "
                "the query repeats it, and may continue with its checkpoint"
            )
        topics = column.unique()
        if len(topics) == 1:
            yield topics[0].as_py(), batch
            return
        for topic in topics:
            yield topic.as_py(), batch.filter(pc.equal(column, topic))

    @property
    def examines_rows(self) -> bool:
        """True for records of change data, which tasks decode."""
        return self._pattern.examines_rows

    def create_examiner(self, plan: TopicPlan) -> Examiner | None:
        """Executor: return a function that finds the bad records of all topics.

        The good ones are returned as changes, a batch for each topic: the changes of different
        tables have different columns.
        """
        if not self.examines_rows:
            return None
        examiners: dict[str, Examiner] = {}

        def examine(batch: pa.RecordBatch) -> Examined:
            good: list[pa.RecordBatch] = []
            bad: dict[int, str] = {}
            column = batch.column(self._place)
            for topic, rows in self._divide(iter([batch])):
                if topic not in examiners:
                    opened = self._open(topic, rows, plan)
                    made = opened.route.create_examiner(opened.plan)
                    assert made is not None, topic
                    examiners[topic] = made
                numbers = pc.indices_nonzero(pc.equal(column, topic))
                found = examiners[topic](rows)
                bad |= {numbers[row].as_py(): reason for row, reason in found.bad.items()}
                good += [
                    each.append_column(_OF_TOPIC, pa.repeat(topic, each.num_rows))
                    for each in found.rows
                ]
            return Examined(good, bad)

        return examine

    # --- driver

    def participant(self, view: LogView) -> TopicsParticipant:
        """Driver: return the participant of all tables."""

        def open_part(table: TopicTable) -> Participant[Any]:
            found: Participant[Any] = self._pattern.of_topic(table, must_exist=True).participant(
                view
            )
            return found

        def describe(topic: str) -> str:
            named = self._pattern.of_topic(TopicTable(topic=topic)).options
            return str(getattr(named, "table_name", topic))

        return TopicsParticipant(open_part, describe, self._target)

    def log_location(self, query: str) -> str:
        """Driver: return the location of the log in the query's checkpoint."""
        location = self.options.checkpoint_location
        if location is None:
            raise OptionError(
                f"{self.format_name}: query {query} has tables by topic, whose epoch log is in the "
                "checkpoint: set 'checkpointLocation'"
            )
        return str(StoreUrl.parse(location) / KRISHIV)
