"""The tasks of one batch: attempts, copies of them, and the message of each that came first."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from simulation.history import Plan
from simulation.scheduler import Actor, Process
from simulation.world import CallKind, World

__all__ = ["Attempt", "Host", "JobFailedError", "Stage", "TaskSide", "rows_of_task"]

_MOST_FAILURES = 2
SOURCE = CallKind("source", lambda what: OSError(5, "the source fails", what))


class JobFailedError(Exception):
    """A task has failed too often, at last with `why`; the messages are those of other tasks."""

    def __init__(self, why: object, messages: Sequence[Any]) -> None:
        super().__init__(f"a task has failed too often: {why!r}")
        self.messages = messages


class Host(Protocol):
    """A host that starts Python workers."""

    def take(self) -> Process:
        """A worker; one that was used before, or a new one."""
        ...

    def give_back(self, process: Process) -> None:
        """A worker that may be used again."""
        ...


@dataclass(frozen=True)
class TaskSide:
    """The values of Spark's ``TaskContext`` on an executor."""

    epoch: int
    query: str
    partition: int
    attempt: int
    number: int

    def getLocalProperty(self, name: str) -> str:
        known = {"streaming.sql.batchId": str(self.epoch), "sql.streaming.queryId": self.query}
        return known[name]

    def partitionId(self) -> int:
        return self.partition

    def taskAttemptId(self) -> int:
        return self.attempt

    def attemptNumber(self) -> int:
        return self.number


@dataclass
class Attempt:
    """One attempt at a task."""

    task: int
    number: int
    actor: Actor
    process: Process


def rows_of_task(plan: Plan, task: int, tasks: int, shift: int) -> list[int]:
    """Return the rows of a plan that a task reads."""
    return [row for row in plan.rows if (row + shift) % tasks == task]


@dataclass
class Stage:
    """Tasks that run.

    Attributes:
        world: Of the history.
        host: Of the driver.
        query: Its id.
        plan: What is written.
        pickled: The planner's writer.
        tasks: How many.
        shift: How rows fall into tasks.
        stragglers: Whether attempts that have lost go on.
    """

    world: World
    host: Host
    query: str
    plan: Plan
    pickled: bytes
    tasks: int
    shift: int
    stragglers: bool
    running: list[Attempt] = field(default_factory=list)
    messages: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)

    def run(self) -> list[Any]:
        """The message of each task.

        Raises:
            JobFailedError: If a task has failed too often.
        """
        for task in range(self.tasks):
            self.begin(task)
        while len(self.messages) < self.tasks:
            self.world.wait(lambda: any(attempt.actor.is_over for attempt in self.running))
            for attempt in [a for a in self.running if a.actor.is_over]:
                self.running.remove(attempt)
                self._take(attempt)
        self._let_go()
        return [self.messages[task] for task in range(self.tasks)]

    def begin(self, task: int, *, anew: bool = False) -> None:
        """One more attempt at a task; anew: in a stage that is run again, which counts from 0."""
        number = 0 if anew else self.numbers.get(task, 0)
        self.numbers[task] = number + 1
        attempt = self.world.new_number()
        side = TaskSide(self.plan.epoch, self.query, task, attempt, number)
        process = self.host.take()
        name = f"{process} (epoch {self.plan.epoch}, task {task}.{number})"
        actor = self.world.begin(name, process, self._work(task), side)
        self.running.append(Attempt(task, number, actor, process))

    def _work(self, task: int) -> Callable[[], Any]:
        rows = rows_of_task(self.plan, task, self.tasks, self.shift)
        return lambda: pickle.loads(self.pickled).write(self._batches(rows))

    def _batches(self, rows: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Two of them, if there is enough for two."""
        middle = len(rows) // 2
        for part in (rows[:middle], rows[middle:]):
            if part:
                self.world.call(SOURCE, f"read rows {list(part)}", lambda: None)
                yield pa.record_batch({"value": [str(row) for row in part]})

    def _take(self, attempt: Attempt) -> None:
        """An attempt is over: it has won, or lost, or failed."""
        if attempt.actor.is_done:
            self.host.give_back(attempt.process)
        if attempt.task in self.messages:
            return
        if attempt.actor.is_done and attempt.actor.error is None:
            self.messages[attempt.task] = attempt.actor.result
            return
        self.world.say(f"task {attempt.task}.{attempt.number} fails: {attempt.actor.error!r}")
        failures = self.failures[attempt.task] = self.failures.get(attempt.task, 0) + 1
        if failures >= _MOST_FAILURES:
            self._let_go()
            messages = [self.messages.get(task) for task in range(self.tasks)]
            raise JobFailedError(attempt.actor.error, messages)
        if not any(other.task == attempt.task for other in self.running):
            self.begin(attempt.task)

    def _let_go(self) -> None:
        """Spark kills the attempts that nobody needs, but that may take a while."""
        for attempt in self.running:
            if self.stragglers:
                self.world.scheduler.neglect(attempt.actor)
            else:
                self.world.kill(attempt.process)
        self.running.clear()
