"""A driver of Spark's: one query, batch after batch (``MicroBatchExecution``)."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

from krishiv_spark.errors import LogError
from krishiv_spark.lifecycle.epoch_write import StreamWrite
from krishiv_spark.sinks.base import Writer
from krishiv_spark.spark.checkpoint import SparkCheckpoint
from simulation.history import Event, Plan
from simulation.scenario import Scenario
from simulation.scheduler import Process
from simulation.spark.tasks import JobFailedError, Stage
from simulation.storage import Checkpoint
from simulation.world import World

__all__ = ["LOCATION", "QUERY", "Driver", "QueryFailedError"]

LOCATION, QUERY = "/chk", "q"


class QueryFailedError(Exception):
    """The query stops with an error.

    Attributes:
        cause: What the sink raised; None if it is not to blame.
    """

    def __init__(self, text: str, cause: Exception | None = None) -> None:
        super().__init__(f"{text}: {cause!r}")
        self.cause = cause


class Driver:
    """One run of the query.

    Args:
        world: Of the history.
        scenario: Of it.
        checkpoint: Of the query.
        writer: Makes the sink's writer.
        application: Name of the JVM; runs in one JVM follow one another.
        goal: After which epoch the query stops.

    Attributes:
        process: The JVM.
        processes: Its Python workers.
        stage: The tasks that run.
        error: Why the query has stopped; None as long as it runs, or if it has reached its goal.
        is_over: Whether it has stopped.
    """

    def __init__(
        self,
        world: World,
        scenario: Scenario,
        checkpoint: Checkpoint,
        writer: Callable[[], Writer[Any]],
        application: str,
        goal: int,
    ) -> None:
        self.number = world.new_number()
        self.application = application
        self.process = Process(f"driver {application}", self.number, application)
        self.processes: list[Process] = []
        self.stage: Stage | None = None
        self.error: Exception | None = None
        self.goal = goal
        self._world = world
        self._scenario = scenario
        self._checkpoint = checkpoint
        self._writer = writer
        self._idle: list[Process] = []
        self._is_done = False
        self.actor = world.begin(f"driver {application}", self.process, self._run)

    @property
    def is_over(self) -> bool:
        return self._is_done or not self.process.alive

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as error:  # noqa: BLE001  also of the checkpoint's storage
            self.error = error
            self._world.say(f"the query fails: {error}")
            self._check_what_is_said(error)
        self._is_done = True

    def _check_what_is_said(self, error: BaseException | None) -> None:
        """Check that neither the error nor a cause of it reports damage: the log has none."""
        while self._scenario.honest and error is not None:
            if isinstance(error, LogError):
                self._world.violate(f"the epoch log is whole, and yet {error}")
            error = error.__cause__ or error.__context__

    def _follow(self) -> None:
        planned, over = (
            self._checkpoint.newest("/chk/offsets"),
            self._checkpoint.newest("/chk/commits"),
        )
        epoch = 0 if planned is None else planned + (planned == over)
        while epoch <= self.goal:
            self._batch(self._plan(epoch))
            epoch += 1

    # --- one batch

    def _plan(self, epoch: int) -> Plan:
        begins = self._end(epoch - 1)
        if f"{LOCATION}/offsets/{epoch}" not in self._checkpoint.files:
            sizes = self._scenario.sizes
            ends = begins + sizes[(epoch + self._world.history.runs()) % len(sizes)]
            text = f'v1\n{{"batchWatermarkMs":0}}\n{{"end":{ends}}}'
            if not self._checkpoint.create(f"{LOCATION}/offsets/{epoch}", text):
                raise QueryFailedError("another driver runs on the checkpoint")
        plan = Plan(epoch, begins, self._end(epoch))
        self._tell("planned", plan)
        return plan

    def _end(self, epoch: int) -> int:
        """Return the end of an epoch; of the one before the first, the start of the source."""
        if epoch < 0:
            return 0
        text = self._checkpoint.files[f"{LOCATION}/offsets/{epoch}"]
        return int(json.loads(text.splitlines()[2])["end"])

    def _batch(self, plan: Plan) -> None:
        pickled = self._in_worker("planner", lambda: pickle.dumps(self._write()))
        self._tell("begun", plan)
        shift = self._world.history.runs(plan) if self._scenario.moving else 0
        how = (self._scenario.tasks, shift, self._scenario.stragglers)
        self.stage = Stage(self._world, self, QUERY, plan, pickled, *how)
        try:
            messages = self.stage.run()
        except JobFailedError as failed:
            self._abort(plan, failed.messages)
            raise QueryFailedError("the job fails", failed) from failed
        finally:
            self.stage = None
        self._commit(plan, messages)

    def _write(self) -> StreamWrite:
        return StreamWrite(self._writer(), QUERY, SparkCheckpoint(LOCATION))

    def _commit(self, plan: Plan, messages: list[Any]) -> None:
        self._tell("publishing", plan)
        try:
            self._in_worker("committer", lambda: self._write().commit(messages, plan.epoch))
        except QueryFailedError:
            self._abort(plan, messages)
            raise
        self._tell("returned", plan)
        created = self._checkpoint.create(f"{LOCATION}/commits/{plan.epoch}", "v1\n{}")
        if not created and not self._scenario.lenient:
            raise QueryFailedError("another driver runs on the checkpoint")
        self._tell("committed", plan)

    def _abort(self, plan: Plan, messages: Any) -> None:
        self._in_worker("aborter", lambda: self._write().abort(messages, plan.epoch))

    def _tell(self, kind: str, plan: Plan) -> None:
        self._world.history.add(Event(self._world.steps, kind, plan, by=self.number))

    # --- Python workers

    def _in_worker(self, role: str, work: Callable[[], Any]) -> Any:
        """Have something done in a Python worker."""
        process = self.take()
        actor = self._world.begin(f"{process} ({role})", process, work)
        self._world.wait(lambda: actor.is_over)
        if not actor.is_done:
            raise QueryFailedError(f"the {role} was killed")
        self.give_back(process)
        if actor.error is not None:
            raise QueryFailedError(f"the {role} fails", actor.error) from actor.error
        return actor.result

    def take(self) -> Process:
        self._idle = [process for process in self._idle if process.alive]
        if self._idle and self._scenario.reuse:
            return self._idle.pop()
        number = self._world.new_number()
        process = Process(f"{self.application}/{number}", number, self.application)
        self.processes.append(process)
        return process

    def give_back(self, process: Process) -> None:
        self._idle.append(process)
