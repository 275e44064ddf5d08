"""A query as the kit plays it: its checkpoint, its driver processes, and Spark's next step."""

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeAlias

from krishiv_spark.testing import steps
from krishiv_spark.testing.drivers.ledger import Unit
from krishiv_spark.testing.processes import write_roles
from krishiv_spark.testing.processes.environment import Clock, at_clock, in_zone
from krishiv_spark.testing.processes.pool import Pool, Process
from krishiv_spark.testing.processes.serving import Answer
from krishiv_spark.testing.steps import Begin, Commit, Stage, Step, Trap

__all__ = ["Checkpoint", "Life", "PlayedQuery", "RestoreCopy", "Workers", "back_up_folder"]

RestoreCopy: TypeAlias = Callable[[], None]
"""A function that restores a copy, replacing the current contents. It may be called repeatedly."""


def back_up_folder(folder: Path) -> RestoreCopy:
    """Copy a folder; return a function that restores the copy.

    For `SinkUnderTest.backup`, if the target is a folder: ``partial(back_up_folder, folder)``.
    """
    copy = Path(mkdtemp(prefix="copy-", dir=_beside(folder))) / "copy"
    if folder.exists():
        shutil.copytree(folder, copy, symlinks=True)
    return partial(_put_back, copy, folder)


def _beside(folder: Path) -> Path:
    """Return a new folder beside the target's, so that copies are deleted with the kit's files."""
    return next(above for above in folder.parents if above.exists())


def _put_back(copy: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if copy.exists():
        shutil.copytree(copy, folder, symlinks=True)


class Checkpoint:
    """A query's checkpoint: Spark's id, offset log and commit log (``HDFSMetadataLog``).

    Args:
        folder: A new folder; its logs are written as Spark writes them, for sinks that read them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.query = str(uuid.uuid4())
        self._newest: tuple[list[Unit], int] | None = None
        self._copy: tuple[int, RestoreCopy] | None = None
        self._newest_log: RestoreCopy | None = None
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
        """Replace the checkpoint by an older copy, as an operator does."""
        self._newest = self._newest or (list(self.units), self.committed)
        for _ in range(epochs):
            self.units.pop()
            for name in ("offsets", "commits"):
                (self.folder / name / str(len(self.units))).unlink(missing_ok=True)
        self.committed = min(self.committed, len(self.units) - 1)

    def back_up(self, log: Path) -> None:
        """Copy the checkpoint and the query's epoch log, as an operator does."""
        self._copy = len(self.units), back_up_folder(log)

    def restore(self, log: Path) -> None:
        """Restore that copy."""
        if self._copy is None:
            raise RuntimeError("nothing was copied")
        known, put_log_back = self._copy
        self._newest_log = self._newest_log or back_up_folder(log)
        self.roll_back(len(self.units) - known)
        put_log_back()

    def put_back(self) -> None:
        """Restore the newest copy, if an older one is in its place."""
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
        """Return the rows of the epochs missing in an older copy; none if it is the newest."""
        units = [] if self._newest is None else self._newest[0][len(self.units) :]
        return range(units[0].rows.start, units[-1].rows.stop) if units else range(0)

    def commit(self, epoch: int) -> bool:
        """Add an epoch to the commit log; return False if another driver has added it."""
        if epoch <= self.committed:
            return False
        self._log("commits", epoch, [{"nextBatchWatermarkMs": 0}])
        self.committed = epoch
        # No operator restores a copy older than a later commit.
        self._newest = self._newest_log = None
        return True

    def _log(self, name: str, epoch: int, lines: Sequence[Any]) -> None:
        text = "\n".join(["v1", *map(json.dumps, lines)])
        (self.folder / name / str(epoch)).write_text(text)


class Workers:
    """The Python processes of one Spark application, created when first needed.

    Args:
        pool: The pool that provides them.
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
        """Return Spark's id of an attempt: unique in the application, from 0 again in the next."""
        return next(self._attempts)

    def call(self, role: str, function: Any, *args: Any, trap: Trap | None = None) -> Answer:
        """Run a function in the process of a role; replace a process that has died."""
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
        """Replace the sleeping process of a role by another one, and keep it as a straggler."""
        self._asleep.discard(role)
        self._stragglers.append(self._live.pop(role))

    def has_straggler(self) -> bool:
        """Return True if there is a straggler."""
        return bool(self._stragglers)

    def are_asleep(self) -> bool:
        """Return True if a process sleeps in the middle of a call."""
        return bool(self._asleep or self._stragglers)

    def finish_straggler(self) -> Answer:
        """Wake the oldest straggler and let it finish."""
        process = self._stragglers.pop(0)
        answer = process.resume()
        process.kill()
        return answer

    def kill(self) -> None:
        """Kill all processes with ``kill -9``."""
        for process in self._live.values():
            process.kill()
        self._live.clear()
        self.kill_sleepers()
        self._attempts = count()

    def kill_sleepers(self) -> None:
        """Kill the sleeping processes with ``kill -9``."""
        asleep = [self._live.pop(role) for role in self._asleep if role in self._live]
        for process in [*asleep, *self._stragglers]:
            process.kill()
        self._asleep.clear()
        self._stragglers.clear()

    def close(self) -> None:
        """Return the processes that are awake to the pool; kill the others."""
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
        name: Its name in the story.
        job: The sink, its options and rows.
        workers: Its processes; a query that is restarted without a crash keeps them.
        next: The epoch that it begins next.
        unit: The current epoch; None between epochs.
        tasks: The number of tasks of the current epoch.
        writer: The planner's pickled writer.
        messages: The messages of the tasks.
        attempts: The number of attempts of each task.
        asleep: The role whose process sleeps in the middle of a step.
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
        """Run the planner of an epoch."""
        self.unit, self.tasks, self.messages = unit, tasks, {}
        self.attempts.clear()
        return self.workers.call("planner", write_roles.plan, self.job, trap=trap)

    def stage(self, step: Stage, attempt: int) -> Answer:
        """Run one attempt at a task."""
        # A lost attempt ends well: only its message is lost.
        ends = {"fails": "fails", "dies": "dies", "straggles": "sleeps"}.get(step.ends, "goes on")
        tried = self.attempts[step.task]
        given = write_roles.Attempt(self.next, step.task, attempt, tried, ends)  # type: ignore[arg-type]  # a literal
        self.attempts[step.task] += 1
        numbers = self._numbers(step.task)
        return self.workers.call(
            "executor", write_roles.write, self.job, self.writer, numbers, given, trap=step.trap
        )

    def stage_much(self, half: int) -> Answer:
        """Run a task with many long rows: twice this many bytes."""
        given = write_roles.Attempt(self.next, 0, self.workers.new_attempt(), 0, "goes on")
        return self.workers.call("executor", write_roles.growth, self.job, self.writer, given, half)

    def commit(self, trap: Trap | None) -> Answer:
        """Run the commit of an epoch, with the messages of all tasks."""
        return self._end("committer", write_roles.commit, trap)

    def abort(self, trap: Trap | None = None) -> Answer:
        """Run the abort of an epoch, with the messages that exist."""
        return self._end("aborter", write_roles.abort, trap)

    def whole(self, unit: Unit) -> Iterator[Answer]:
        """Yield the answer of each call of an epoch of one task; the caller checks them."""
        planned = self.begin(unit, 1, None)
        yield planned
        self.writer = planned.value
        staged = self.stage(Stage(), self.workers.new_attempt())
        yield staged
        self.messages[0] = staged.value
        unit.open()
        yield self.commit(None)

    def is_open(self) -> bool:
        """Return True if an epoch has begun and no step of it sleeps."""
        return self.unit is not None and self.asleep is None

    def needs(self, step: Stage) -> bool:
        """Return True if the task exists and has not sent a message."""
        is_first = step.ends != "well" or step.task not in self.messages
        return is_first and step.task < self.tasks

    def is_staged(self) -> bool:
        """Return True if every task has sent its message."""
        return len(self.messages) == self.tasks

    def _end(self, role: str, function: Any, trap: Trap | None) -> Answer:
        messages = [self.messages.get(task) for task in range(self.tasks)]
        return self.workers.call(
            role, function, self.job, self.writer, messages, self.next, trap=trap
        )

    def _numbers(self, task: int) -> Sequence[int]:
        rows = self.unit.rows if self.unit else range(0)
        return rows[task * len(rows) // self.tasks : (task + 1) * len(rows) // self.tasks]


class PlayedQuery:
    """A query, or consecutive batch jobs, with one driver awake and at most one asleep.

    Args:
        number: Its number in the story.
        checkpoint: Its checkpoint; None for batch jobs.
        awake: The driver that is awake.

    Attributes:
        is_reordered: True if its columns are in the opposite order now.
    """

    def __init__(self, number: int, checkpoint: Checkpoint | None, awake: Life) -> None:
        self.number = number
        self.checkpoint = checkpoint
        self.awake = awake
        self.sleeper: Life | None = None
        self.is_reordered = False

    @property
    def lives(self) -> Iterable[Life]:
        """Return both drivers, if there are two."""
        return filter(None, (self.awake, self.sleeper))

    @property
    def left(self) -> int:
        """Return the number of epochs begun and not committed, as a new driver finds them."""
        known = self.checkpoint
        return 0 if known is None else len(known.units) - known.committed - 1

    def allows(self, step: Step) -> bool:
        """Return True if a step is possible now."""
        condition = _POSSIBLE.get(type(step))
        return condition is None or condition(self, step)

    def knows(self, epochs: int) -> bool:
        """Return True if its checkpoint contains this many epochs."""
        return self.checkpoint is not None and len(self.checkpoint.units) >= epochs

    def next_step(self, *, rows: int, tasks: int) -> Step:
        """Return Spark's next step if no fault occurs; a new epoch has this many rows and tasks."""
        life = self.awake
        if life.asleep is not None:
            return steps.Resume()
        if life.unit is None:
            return Begin(rows, tasks)
        left = [task for task in range(life.tasks) if task not in life.messages]
        return Stage(left[0]) if left else Commit()


_POSSIBLE: dict[type[Step], Callable[[PlayedQuery, Any], bool]] = {
    Begin: lambda query, _: query.awake.asleep is None and query.awake.unit is None,
    Stage: lambda query, step: query.awake.is_open() and query.awake.needs(step),
    Commit: lambda query, _: query.awake.is_open() and query.awake.is_staged(),
    steps.Abort: lambda query, _: query.awake.is_open() and not query.awake.is_staged(),
    steps.RollBack: lambda query, step: query.knows(step.epochs),
    steps.TakeOver: lambda query, _: query.sleeper is None and query.checkpoint is not None,
    steps.Switch: lambda query, _: query.sleeper is not None,
    steps.Resume: lambda query, _: query.awake.asleep is not None,
    steps.Straggler: lambda query, _: query.awake.workers.has_straggler(),
}
