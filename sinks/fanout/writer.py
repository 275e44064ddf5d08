"""``krishiv-fanout``: rows go several routes, and an epoch is true in all targets by one intent.

A frame has a struct column for each route; a row goes where its struct is not null. Tasks stage
the rows of each route as its own sink does. The driver logs one intent that names all of it, and
only then finishes the targets, one after the other, which can be repeated. Readers of two targets
may see an epoch in the first and not yet in the second, as long as that takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import pyarrow as pa

from krishiv_spark.errors import OptionError
from krishiv_spark.offsets.query_parts import part_of_query
from krishiv_spark.sinks.base import Ownership, Task
from krishiv_spark.sinks.fanout.options import FORMAT, FanoutOptions
from krishiv_spark.sinks.fanout.participant import FanoutParticipant
from krishiv_spark.sinks.fanout.routes import check_columns, make_routes, naming
from krishiv_spark.sinks.fanout.splitting import split
from krishiv_spark.sinks.fanout.values import RoutePlans, StagedParts
from krishiv_spark.sinks.log_places import log_in_checkpoint
from krishiv_spark.sinks.log_view import LogView
from krishiv_spark.sinks.logged_writer import LoggedWriter
from krishiv_spark.spark.query_target import QueryTarget

__all__ = ["FanoutWriter"]


class FanoutWriter(LoggedWriter[StagedParts, RoutePlans]):
    """Several sinks over one epoch log."""

    options_type = FanoutOptions
    only_streams = True
    options: FanoutOptions

    @cached_property
    def _routes(self) -> dict[str, LoggedWriter[Any, Any]]:
        return make_routes(self.options, self.schema, self.mode, streaming=self.streaming)

    def check(self) -> None:
        """Planner: the rows have a column for each route, and each sink can take its rows."""
        self._check(lambda route: route.check())

    def check_start(self) -> None:
        """Planner: likewise, and nothing is made or changed."""
        self._check(lambda route: route.check_start())

    def _check(self, check: Callable[[LoggedWriter[Any, Any]], None]) -> None:
        if not self.streaming:
            raise OptionError(
                f"{FORMAT}: a batch write has no log that outlives it, by which several targets "
                "would agree. Write a stream, with trigger(availableNow=True) if it is to end; or "
                "number the batch, by 'txnAppId' and 'txnVersion' with 'epochLog'"
            )
        # First: a misspelt route leaves another one without what it needs.
        check_columns(self.options, self.schema)
        for name, route in self._routes.items():
            with naming(name):
                check(route)

    def describe_target(self) -> QueryTarget:
        """Driver: the targets of all routes."""
        found = {name: route.describe_target() for name, route in sorted(self._routes.items())}
        shown = "; ".join(f"{name}: {target or 'not known'}" for name, target in found.items())
        ids = {name: None if target is None else target.identity for name, target in found.items()}
        identity = None
        if all(ids.values()):
            identity = "; ".join(f"{name}: {known}" for name, known in ids.items())
        return QueryTarget.of(FORMAT, shown, identity, self.options.secrets())

    def plan(self, ownership: Ownership[StagedParts] | None) -> RoutePlans:
        """Planner: what the tasks of each route have to know."""
        participant, plans = self.participant(LogView(self.log_location)), {}
        for name, route in self._routes.items():
            own = None if ownership is None else participant.part_of_ownership(ownership, name)
            with naming(name):
                plans[name] = route.plan(own)
        return RoutePlans(plans)

    def stage(
        self, batches: Iterator[pa.RecordBatch], task: Task, plan: RoutePlans
    ) -> StagedParts | None:
        """Executor: the rows of each route, as its own sink stages them."""
        stages = {
            name: partial(
                route.stage,
                task=replace(task, query=part_of_query(task.query, name)),
                plan=plan.plans[name],
            )
            for name, route in self._routes.items()
        }
        staged = split(batches, stages, drops=self.options.unrouted == "drop")
        parts = {name: (item,) for name, item in staged.items() if item is not None}
        return StagedParts(parts=parts) if parts else None

    def participant(self, view: LogView) -> FanoutParticipant:
        """Driver: the participants of all routes, each of which sees its part of the log."""
        return FanoutParticipant(
            {
                name: route.participant(replace(view, route=name))
                for name, route in self._routes.items()
            }
        )

    def log_location(self, query: str) -> str:
        """Driver: in the checkpoint, or where the option ``epochLog`` says."""
        return log_in_checkpoint(self.options, FORMAT, query, streaming=self.streaming)
