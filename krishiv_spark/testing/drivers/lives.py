"""A driver's life as Spark leads it: its logs in the checkpoint, and its processes."""

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from krishiv_spark.testing.drivers.copies import PutBack, back_up_folder
from krishiv_spark.testing.drivers.ledger import Unit
from krishiv_spark.testing.processes import write_roles
from krishiv_spark.testing.processes.clocks import Clock, at_clock
from krishiv_spark.testing.processes.pool import Pool, Process
from krishiv_spark.testing.processes.serving import Answer
from krishiv_spark.testing.processes.zones import in_zone
from krishiv_spark.testing.steps import Stage, Trap

__all__ = ["Checkpoint", "Life", "Workers"]


class Checkpoint:
    """A query's checkpoint: Spark's id, offset log and commit log (``HDFSMetadataLog``).

    Args:
        folder: A new folder; its logs are written as Spark writes them, for sinks that look.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.query = str(uuid.uuid4())
        self._newest: tuple[list[Unit], int] | None = None
        self._copy: tuple[int, PutBack] | None = None
        self._newest_log: PutBack | None = None
        self._make_folders()

    def _make_folders(self) -> None:
        self.units: list[Unit] = []
        self.committed = -1
        for name in ("offsets", "commits"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "metadata").write_text(json.dumps({"id": self.query}))

    def plan(self, unit: Unit) -> None:
        """Add an epoch to the offset log."""
        self._log("offsets", len(self.units), [{"batchWatermarkMs": 0}, {"end": unit.rows.stop}])
        self.units.append(unit)

    def roll_back(self, epochs: int) -> None:
        """An operator puts an older copy in its place."""
        self._newest = self._newest or (list(self.units), self.committed)
        for _ in range(epochs):
            self.units.pop()
            for name in ("offsets", "commits"):
                (self.folder / name / str(len(self.units))).unlink(missing_ok=True)
        self.committed = min(self.committed, len(self.units) - 1)

    def back_up(self, log: Path) -> None:
        """An operator copies it, with the epoch log of the query."""
        self._copy = len(self.units), back_up_folder(log)

    def restore(self, log: Path) -> None:
        """An operator puts that copy back."""
        if self._copy is None:
            raise RuntimeError("nothing was copied")
        known, put_log_back = self._copy
        self._newest_log = self._newest_log or back_up_folder(log)
        self.roll_back(len(self.units) - known)
        put_log_back()

    def put_back(self) -> None:
        """The operator puts the newest copy back, if there is an older one in its place."""
        if self._newest_log is not None:
            self._newest_log()
            self._newest_log = None
        if self._newest is not None:
            (units, committed), self._newest = self._newest, None
            for name in ("offsets", "commits"):
                shutil.rmtree(self.folder / name)
            self._make_folders()
            for unit in units:
                self.plan(unit)
            for epoch in range(committed + 1):
                self.commit(epoch)

    def forgotten(self) -> range:
        """The rows of the epochs that an older copy does not know; none where it is the newest."""
        units = [] if self._newest is None else self._newest[0][len(self.units) :]
        return range(units[0].rows.start, units[-1].rows.stop) if units else range(0)

    def commit(self, epoch: int) -> bool:
        """Add an epoch to the commit log; False if another driver has done it."""
        if epoch <= self.committed:
            return False
        self._log("commits", epoch, [{"nextBatchWatermarkMs": 0}])
        self.committed = epoch
        self._newest = self._newest_log = None  # nobody would take back what was committed since
        return True

    def _log(self, name: str, epoch: int, lines: Sequence[Any]) -> None:
        text = "\n".join(["v1", *map(json.dumps, lines)])
        (self.folder / name / str(epoch)).write_text(text)


class Workers:
    """The Python processes of one Spark application; made when first needed.

    Args:
        pool: Where they come from.
        zone: The time zone of the machines, as ``TZ`` has it; None for that of this process.
        clock: The wall clock of the machines; None for one that is right.
    """

    def __init__(self, pool: Pool, zone: str | None = None, clock: Clock | None = None) -> None:
        self._pool = pool
        self._zone = zone
        self._clock = clock or Clock()
        self._live: dict[str, Process] = {}
        self._asleep: set[str] = set()
        self._stragglers: list[Process] = []
        self._attempts = count()

    def new_attempt(self) -> int:
        """Spark's id of an attempt: unique within the application, from 0 again in the next."""
        return next(self._attempts)

    def call(self, role: str, function: Any, *args: Any, trap: Trap | None = None) -> Answer:
        """Run a function in the process of a role; a process that dies is replaced."""
        if role not in self._live:
            self._live[role] = self._pool.take()
        if self._clock.ahead_s:
            function, args = at_clock, (self._clock.ahead_s, function, *args)
        if self._zone is not None:
            function, args = in_zone, (self._zone, function, *args)
        return self._heard(role, self._live[role].call(function, *args, trap=trap))

    def resume(self, role: str) -> Answer:
        """Wake the process of a role."""
        self._asleep.discard(role)
        return self._heard(role, self._live[role].resume())

    def set_aside(self, role: str) -> None:
        """The process of a role has fallen asleep: another one takes its place."""
        self._asleep.discard(role)
        self._stragglers.append(self._live.pop(role))

    def has_straggler(self) -> bool:
        """Whether a process was set aside."""
        return bool(self._stragglers)

    def are_asleep(self) -> bool:
        """Whether one of them sleeps in the middle of what it does."""
        return bool(self._asleep or self._stragglers)

    def finish_straggler(self) -> Answer:
        """Wake the oldest straggler and let it end."""
        process = self._stragglers.pop(0)
        answer = process.resume()
        process.kill()
        return answer

    def kill(self) -> None:
        """``kill -9`` of all of them."""
        for process in self._live.values():
            process.kill()
        self._live.clear()
        self.kill_sleepers()
        self._attempts = count()

    def kill_sleepers(self) -> None:
        """``kill -9`` of those that sleep."""
        asleep = [self._live.pop(role) for role in self._asleep if role in self._live]
        for process in [*asleep, *self._stragglers]:
            process.kill()
        self._asleep.clear()
        self._stragglers.clear()

    def close(self) -> None:
        """Give back those that are awake; kill the others."""
        self.kill_sleepers()
        for process in self._live.values():
            self._pool.give(process)
        self._live.clear()

    def _heard(self, role: str, answer: Answer) -> Answer:
        if answer.outcome == "died":
            self._live.pop(role).kill()
        elif answer.outcome == "asleep":
            self._asleep.add(role)
        return answer


@dataclass
class Life:
    """One run of a query by one driver.

    Attributes:
        name: For the story.
        job: What is written.
        workers: Processes; a query that is restarted without a crash has those of its last life.
        next: The epoch that it begins next.
        unit: The epoch that it is at, None between epochs.
        tasks: How many tasks that has.
        writer: The planner's pickled writer.
        messages: What the tasks have sent.
        attempts: How often each task was tried.
        asleep: Role of the process in which a step has fallen asleep.
    """

    name: str
    job: write_roles.Job
    workers: Workers
    next: int = 0
    unit: Unit | None = None
    tasks: int = 0
    writer: bytes = b""
    messages: dict[int, bytes] = field(default_factory=dict)
    attempts: Counter[int] = field(default_factory=Counter)
    asleep: str | None = None

    def begin(self, unit: Unit, tasks: int, trap: Trap | None) -> Answer:
        """The planner of an epoch."""
        self.unit, self.tasks, self.messages = unit, tasks, {}
        self.attempts.clear()
        return self.workers.call("planner", write_roles.plan, self.job, trap=trap)

    def stage(self, step: Stage, attempt: int) -> Answer:
        """One attempt at a task."""
        # One that is lost ends well: only its message is.
        ends = {"fails": "fails", "dies": "dies", "straggles": "sleeps"}.get(step.ends, "goes on")
        tried = self.attempts[step.task]
        given = write_roles.Attempt(self.next, step.task, attempt, tried, ends)  # type: ignore[arg-type]  # a literal
        self.attempts[step.task] += 1
        numbers = self._numbers(step.task)
        return self.workers.call(
            "executor", write_roles.write, self.job, self.writer, numbers, given, trap=step.trap
        )

    def stage_much(self, half: int) -> Answer:
        """A task whose rows are many and long: twice so many bytes."""
        given = write_roles.Attempt(self.next, 0, self.workers.new_attempt(), 0, "goes on")
        return self.workers.call("executor", write_roles.growth, self.job, self.writer, given, half)

    def commit(self, trap: Trap | None) -> Answer:
        """The commit of an epoch, with the messages of all tasks."""
        return self._end("committer", write_roles.commit, trap)

    def abort(self, trap: Trap | None = None) -> Answer:
        """The abort of an epoch, with the messages that there are."""
        return self._end("aborter", write_roles.abort, trap)

    def whole(self, unit: Unit) -> Iterator[Answer]:
        """All calls of an epoch of one task, for whoever sees to it that each of them returns."""
        planned = self.begin(unit, 1, None)
        yield planned
        self.writer = planned.value
        staged = self.stage(Stage(), self.workers.new_attempt())
        yield staged
        self.messages[0] = staged.value
        unit.open()
        yield self.commit(None)

    def is_open(self) -> bool:
        """Whether an epoch has begun, and no step of it sleeps."""
        return self.unit is not None and self.asleep is None

    def needs(self, step: Stage) -> bool:
        """Whether there is such a task, and its message would be the first."""
        is_first = step.ends != "well" or step.task not in self.messages
        return is_first and step.task < self.tasks

    def is_staged(self) -> bool:
        """Whether every task has sent its message."""
        return len(self.messages) == self.tasks

    def _end(self, role: str, function: Any, trap: Trap | None) -> Answer:
        messages = [self.messages.get(task) for task in range(self.tasks)]
        return self.workers.call(
            role, function, self.job, self.writer, messages, self.next, trap=trap
        )

    def _numbers(self, task: int) -> Sequence[int]:
        rows = self.unit.rows if self.unit else range(0)
        return rows[task * len(rows) // self.tasks : (task + 1) * len(rows) // self.tasks]
