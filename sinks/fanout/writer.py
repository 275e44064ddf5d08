"""The sink ``krishiv-fanout``: an epoch is committed in all targets by one intent.

A frame has a struct column for each route; a row goes to the routes whose struct is not null. Tasks
stage the rows of each route as its own sink does. The driver logs one intent that names all staged
data, and then finishes the targets one after the other, which can be repeated. In that interval,
readers of two targets may see an epoch in the first and not yet in the second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
from typing_extensions import Self

from krishiv_spark.errors import OptionError, SchemaError, SinkError
from krishiv_spark.offsets.planned import part_of_query
from krishiv_spark.sinks.base import Ownership, Task
from krishiv_spark.sinks.fanout.options import (
    FORMAT,
    FanoutOptions,
    check_columns,
    make_routes,
)
from krishiv_spark.sinks.fanout.participant import FanoutParticipant, RoutePlans, StagedParts
from krishiv_spark.sinks.logged_writer import LoggedWriter, LogView
from krishiv_spark.sinks.options import log_in_checkpoint
from krishiv_spark.spark.query_target import QueryTarget

__all__ = ["FanoutWriter", "RunningStages", "split"]


_Stage = Callable[[Iterator[pa.RecordBatch]], Any]


def split(
    batches: Iterator[pa.RecordBatch], stages: Mapping[str, _Stage], *, drops: bool
) -> dict[str, Any]:
    """Stage the rows of each route.

    One stage runs at a time, and no batch waits beside the one that is being written. So the memory
    is that of the sinks themselves, and the order of events is the same each time.

    Args:
        batches: Batches with a struct column for each route; a row goes to the routes whose struct
            is not null.
        stages: The function that takes the rows of a route, by the route's name in lower case.
        drops: True to drop rows without a route.

    Returns:
        The result of each function, by route.

    Raises:
        SchemaError: If a row has no route, and such rows are not dropped.
    """
    with RunningStages() as running:
        for name, stage in stages.items():
            running.add(name, stage)
        for batch in batches:
            _check_routed(batch, drops=drops)
            for column, name in zip(batch.columns, batch.schema.names, strict=True):
                if (rows := _rows(column)) is not None:
                    running.give(name.lower(), rows)
        return running.end()


class RunningStages:
    """Functions that stage the rows of several routes, one of which runs at a time.

    An error within the context makes all of them fail.
    """

    def __init__(self) -> None:
        self._pullers: dict[str, _Puller] = {}

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop the functions after an error."""
        if kind is not None:
            for puller in self._pullers.values():
                puller.stop()

    def add(self, name: str, stage: _Stage) -> None:
        """Add the function of a route, which starts with the first rows."""
        self._pullers[name] = _Puller(name, stage)

    def give(self, name: str, rows: pa.RecordBatch) -> None:
        """Pass rows to a route; return when it requests the next ones."""
        self._pullers[name].give(rows)

    def end(self) -> dict[str, Any]:
        """Let all functions finish, and return their results by route."""
        return {name: puller.end() for name, puller in self._pullers.items()}


def _rows(column: pa.Array) -> pa.RecordBatch | None:
    taken = column.drop_null() if column.null_count else column
    return pa.RecordBatch.from_struct_array(taken) if len(taken) else None


def _check_routed(batch: pa.RecordBatch, *, drops: bool) -> None:
    if drops or not batch.num_rows or not all(column.null_count for column in batch.columns):
        return
    nulls = [column.is_null().to_numpy(zero_copy_only=False) for column in batch.columns]
    if missed := int(np.logical_and.reduce(nulls).sum()):
        raise SchemaError(
            f"{FORMAT}: {missed} of {batch.num_rows} rows have no route: their column of each "
            "route is null. Add a route that accepts the remaining rows, or set 'unrouted' = "
            "'drop'. The query repeats this batch until then; it may continue with its "
            "checkpoint"
        )


class _StoppedError(SinkError):
    """The task has failed in another route, so the data of this route must be discarded."""


class _Puller:
    """A sink's `stage` in a thread, which runs only while it processes a batch."""

    def __init__(self, name: str, stage: _Stage) -> None:
        self._stage = stage
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._next: pa.RecordBatch | None = None
        self._is_stopped = self._is_over = False
        self._staged: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"route {name}", daemon=True)

    def give(self, batch: pa.RecordBatch) -> None:
        """Pass a batch to the stage; return when it requests the next one."""
        self._next = batch
        self._go_on()
        if self._error is not None:
            raise self._error

    def end(self) -> Any:
        """Let the stage finish, and return its result."""
        self._go_on()
        if self._error is not None:
            raise self._error
        return self._staged

    def stop(self) -> None:
        """Make the stage fail, if it has started and not ended."""
        self._is_stopped = True
        if self._thread.ident is not None:
            self._go_on()

    def _go_on(self) -> None:
        if self._is_over:
            return
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._turn.release()
        self._back.acquire()

    def _run(self) -> None:
        try:
            self._staged = self._stage(self._iter_batches())
        except BaseException as error:  # noqa: BLE001  raised in the thread that reads the rows
            self._error = error
        finally:
            self._is_over = True
            self._back.release()

    def _iter_batches(self) -> Iterator[pa.RecordBatch]:
        while self._next is not None:
            batch, self._next = self._next, None
            yield batch
            del batch
            self._back.release()
            self._turn.acquire()
            if self._is_stopped:
                raise _StoppedError("another route has failed")


class FanoutWriter(LoggedWriter[StagedParts, RoutePlans]):
    """A writer of several sinks over one epoch log."""

    options_type = FanoutOptions
    only_streams = True
    divides_queries = True
    options: FanoutOptions

    @cached_property
    def _routes(self) -> dict[str, LoggedWriter[Any, Any]]:
        return make_routes(self.options, self.schema, self.mode, streaming=self.streaming)

    def check(self) -> None:
        """Planner: check that each route has a column, and that each sink accepts its rows."""
        self._check(lambda route: route.check())

    def check_start(self) -> None:
        """Planner: check as `check`, but create and change nothing."""
        self._check(lambda route: route.check_start())

    def _check(self, check: Callable[[LoggedWriter[Any, Any]], None]) -> None:
        self._check_frame()
        for name, route in self._routes.items():
            with self.options.naming(name):
                check(route)

    def _check_frame(self) -> None:
        """Refuse a write or a frame that has no routes."""
        if not self.streaming:
            raise OptionError(
                f"{FORMAT}: a batch write has no permanent log on which several targets could "
                "agree. Write a stream, with trigger(availableNow=True) if it is to end; or "
                "number the batch, with 'txnAppId' and 'txnVersion' and 'epochLog'"
            )
        # This check is first: a misspelt route leaves another one without required options.
        check_columns(self.options, self.schema)

    def describe_target(self) -> QueryTarget:
        """Driver: describe the targets of all routes."""
        found = {name: route.describe_target() for name, route in sorted(self._routes.items())}
        shown = "; ".join(f"{name}: {target or 'not known'}" for name, target in found.items())
        ids = {name: None if target is None else target.identity for name, target in found.items()}
        identity = None
        if all(ids.values()):
            identity = "; ".join(f"{name}: {known}" for name, known in ids.items())
        restored = any(target is not None and target.may_be_restored for target in found.values())
        secrets = self.options.secrets()
        return QueryTarget.of(FORMAT, shown, identity, secrets, may_be_restored=restored)

    def plan(self, ownership: Ownership[StagedParts] | None) -> RoutePlans:
        """Planner: return the plan of each route."""
        participant, plans = self.participant(LogView(self.log_location)), {}
        for name, route in self._routes.items():
            own = None if ownership is None else participant.part_of_ownership(ownership, name)
            with self.options.naming(name):
                plans[name] = route.plan(own)
        return RoutePlans(plans)

    def stage(
        self, batches: Iterator[pa.RecordBatch], task: Task, plan: RoutePlans
    ) -> StagedParts | None:
        """Executor: stage the rows of each route, as its own sink does."""
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
        if not parts:
            return None
        carried = {n: r.carry(plan.plans[n]) for n, r in self._routes.items() if n not in parts}
        parts |= {name: (item,) for name, item in carried.items() if item is not None}
        return StagedParts(parts=parts)

    def participant(self, view: LogView) -> FanoutParticipant:
        """Driver: return the participant of all routes, each of which gets its part of the log."""
        return FanoutParticipant(
            {
                name: route.participant(replace(view, route=name))
                for name, route in self._routes.items()
            }
        )

    def log_location(self, query: str) -> str:
        """Driver: return the location in the checkpoint, or that of the option ``epochLog``."""
        return log_in_checkpoint(self.options, FORMAT, query, streaming=self.streaming)
