"""Drivers that play Spark's part of streaming queries and batch jobs into a sink, without a JVM."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatchmethod
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

from krishiv_spark.testing import steps
from krishiv_spark.testing.drivers.base import Driver, unheard, words
from krishiv_spark.testing.drivers.keyed_ledger import KeyedLedger
from krishiv_spark.testing.drivers.ledger import Ledger, ResultLedger, Unit
from krishiv_spark.testing.drivers.queries import (
    Checkpoint,
    Life,
    PlayedQuery,
    RestoreCopy,
    Workers,
)
from krishiv_spark.testing.processes import write_roles
from krishiv_spark.testing.processes.environment import Clock
from krishiv_spark.testing.processes.outside import Call
from krishiv_spark.testing.processes.pool import Pool
from krishiv_spark.testing.processes.serving import Answer
from krishiv_spark.testing.rules import Rule, Violation
from krishiv_spark.testing.steps import Begin, Commit, Stage, Step
from krishiv_spark.testing.subjects import SinkUnderTest, Writing

__all__ = ["EpochDriver", "WritingDriver"]


class WritingDriver(Driver):
    """The processes and answers with which `EpochDriver` does its steps.

    Attributes:
        sink: The sink.
        calls: The calls to the outside in the last step.
        seconds: The duration of the last step.
        survived: True if a call has failed and its step still succeeded.
    """

    def __init__(  # noqa: PLR0913, PLR0917  those of `EpochDriver`
        self,
        sink: SinkUnderTest,
        folder: Path,
        writing: Writing,
        promise: str,
        pool: Pool | None,
        zone: str | None,
    ) -> None:
        super().__init__(sink.outside, promise, pool)
        self.sink = sink
        self.calls: tuple[Call, ...] = ()
        self.seconds = 0.0
        self.survived = False
        self._folder, self._writing, self._zone = folder, writing, zone
        self._clock = Clock()
        self._replaces = writing in {"complete", "batch overwrite"}
        self._ledger = _choose_ledger(sink)(sink, complete=self._replaces)
        self._drivers, self._jobs = count(1), count(1)
        self._last = Answer("returned")
        self._copy: RestoreCopy | None = None
        self._newest: RestoreCopy | None = None
        """Restores the newest target, while an older copy is in its place."""
        self._queries = [self._new_query(1)]

    def close(self) -> None:
        """End all running processes."""
        for query in self._queries:
            for life in query.lives:
                life.workers.close()
        super().close()

    @property
    def _query(self) -> PlayedQuery:
        return self._queries[0]

    def _new_query(self, number: int) -> PlayedQuery:
        folder = self._folder / f"checkpoint-{number}"
        checkpoint = None if self._writing.startswith("batch") else Checkpoint(folder)
        life = self._new_life(self._job(checkpoint), checkpoint, self._new_workers())
        return PlayedQuery(number, checkpoint, life)

    def _new_workers(self) -> Workers:
        return Workers(self._pool, self._zone, self._clock)

    def _new_life(
        self, job: write_roles.Job, checkpoint: Checkpoint | None, workers: Workers
    ) -> Life:
        start = 0 if checkpoint is None else checkpoint.committed + 1
        return Life(f"driver {next(self._drivers)}", job, workers, start)

    def _job(self, checkpoint: Checkpoint | None, *, overwrite: bool = False) -> write_roles.Job:
        return write_roles.Job(
            self.sink.source,
            self.sink.options,
            self.sink.schema,
            self.sink.row,
            None if checkpoint is None else str(checkpoint.folder),
            None if checkpoint is None else checkpoint.query,
            overwrite or self._replaces,
        )

    def _next_life(self, query: PlayedQuery, workers: Workers) -> Life:
        """Replace the driver of a query by a new one."""
        job = self._job(query.checkpoint)
        if query.is_reordered:
            job = job.reordered()
        return self._new_life(job, query.checkpoint, workers)

    def _restart(self, *, crashed: bool) -> str:
        life = self._query.awake
        if crashed:
            life.workers.kill()
        elif life.asleep is not None:  # it goes on for some time, but its answer is not used
            life.workers.set_aside(life.asleep)
        self._query.awake = self._next_life(self._query, life.workers)
        return f"{self._query.awake.name} starts"

    def _kill_sleepers(self, query: PlayedQuery) -> None:
        if query.sleeper is not None:
            query.sleeper.workers.close()
        query.sleeper = None
        query.awake.workers.kill_sleepers()
        if query.checkpoint is not None:
            query.checkpoint.put_back()
        query.awake = self._next_life(query, query.awake.workers)

    def _unit(self, query: PlayedQuery, life: Life, rows: int) -> Unit:
        if query.checkpoint is None:
            return self._ledger.new("jobs", f"job {next(self._jobs)}", rows)
        if life.next == len(query.checkpoint.units):
            again = query.checkpoint.forgotten()
            name = f"query {query.number}"
            unit = self._ledger.new(name, f"{name} epoch {life.next}", rows, again)
            query.checkpoint.plan(unit)
        return query.checkpoint.units[life.next]

    @staticmethod
    def _open(life: Life) -> Unit:
        if life.unit is None:
            raise RuntimeError("no epoch was begun")
        return life.unit

    # --- the outcome of a step

    def _heard(self, answer: Answer, role: str | None) -> Life:
        self._last, self.calls, self.seconds = answer, answer.calls, answer.seconds
        self.survived = self.survived or answer.survived
        life = self._query.awake
        if answer.outcome == "asleep":
            life.asleep = role
        return life

    def _over(self, answer: Answer) -> str:
        """End this life, unless it only sleeps: it has not committed the epoch."""
        if answer.outcome == "asleep":
            return f": {words(answer)}"
        return f": {words(answer)}; {self._restart(crashed=answer.outcome == 'died')}"

    @property
    def _can_look(self) -> bool:
        lives = (life for query in self._queries for life in query.lives)
        return self.sink.readable_while_writing or not any(
            life.workers.are_asleep() for life in lives
        )

    def _look(self) -> None:
        # While an older copy replaces the target, its rows may be missing. They may not be missing
        # any more once a driver has continued with that copy.
        if self._can_look and self._newest is None:
            self._ledger.look()

    @staticmethod
    def _must(rule: Rule, answer: Answer) -> None:
        if answer.outcome != "returned":
            raise Violation(rule, f"{words(answer)}\n{answer.trace}")


def _choose_ledger(sink: SinkUnderTest) -> type[Ledger]:
    if sink.result is not None:
        return ResultLedger
    return Ledger if sink.key is None else KeyedLedger


_HALF_A_TASK = 24 * 2**20


class EpochDriver(WritingDriver):
    """A driver that runs any sequence of steps on a sink and compares with the oracle after each.

    What Spark does is played faithfully: a planner's writer is pickled to the tasks, commits and
    aborts use a writer created again in another process (a batch job's is the planner's), messages
    travel pickled, the last epoch is replayed after a restart with the same rows and other
    messages, ``abort`` gets None for failed tasks but every message after a failed commit, and a
    stopped query calls nothing. A driver that was replaced goes on when it wakes.

    Args:
        sink: The sink.
        folder: An empty folder for the checkpoints.
        writing: A streaming query, or batch jobs: then each `Begin` is a new job.
        promise: The promise that the caller checks, for the message of a failure.
        pool: Processes to use; None makes new ones.
        zone: The time zone of the machines, as ``TZ`` has it; None for that of this process.
    """

    def __init__(  # noqa: PLR0913  each but the first two has a default
        self,
        sink: SinkUnderTest,
        folder: Path,
        *,
        writing: Writing = "append",
        promise: str = "",
        pool: Pool | None = None,
        zone: str | None = None,
    ) -> None:
        super().__init__(sink, folder, writing, promise, pool, zone)
        self.how = {} if writing == "append" else {"writing": writing}

    # --- for code that runs sequences

    def settle(self, epochs: int = 1) -> None:
        """Kill sleeping processes; let new drivers without faults commit open epochs and new ones.

        Raises:
            Broken: If a driver fails, or if a rule is broken afterwards.
        """
        self.tell("no faults from here on")
        if self._newest is not None:
            self._newest()
            self._newest = None
        for query in self._queries:  # all first: a sleeping process may hold a lock of the target
            self._kill_sleepers(query)
        for _ in self._queries:
            for _ in range(self._query.left + epochs):
                self.judged(self._good_epoch)
            self._queries.reverse()

    def expect_well(self, *wanted: Step) -> None:
        """Do some steps, each of which must succeed.

        Raises:
            Broken: If one fails, or if a rule is broken.
        """
        for step in wanted:
            if self.done and not self.allows(step):  # the previous one failed: see its answer
                self.judged(lambda: self._must(Rule.WORKS, self._last))
            self.do(step)
            self.judged(lambda: self._must(Rule.WORKS, self._last))

    def try_steps(self, *wanted: Step) -> Answer:
        """Do some steps until one of them fails; return the answer of the last one."""
        for step in wanted:
            self.do(step)
            if self._last.outcome != "returned":
                break
        return self._last

    def discard_again(self, times: int) -> None:
        """Call the author's `discard` several times for everything that the tasks have staged."""
        life = self._query.awake
        messages = list(life.messages.values())
        answer = life.workers.call("committer", write_roles.discard, life.job, messages, times)
        self.tell(f"discard, {times} times: {words(answer)}")
        self.judged(lambda: self._must(Rule.WORKS, answer))

    def locate_texts(self) -> list[write_roles.Location]:
        """Return the locations of all texts in what the tasks of the epoch have staged."""
        life = self._query.awake
        messages = list(life.messages.values())
        answer = life.workers.call("committer", write_roles.locate_texts, life.job, messages)
        self.judged(lambda: self._must(Rule.WORKS, answer))
        found: list[write_roles.Location] = answer.value
        return found

    def forge(self, location: write_roles.Location, text: str) -> None:
        """Log an intent, as another user could, that names something the tasks have not staged.

        Args:
            location: One of `locate_texts`.
            text: The text to put there.
        """
        life = self._query.awake
        messages = list(life.messages.values())
        answer = life.workers.call(
            "committer", write_roles.forge, life.job, messages, location, text
        )
        where = ".".join(location) or "the staged value"
        self.tell(f"another user logs an intent of the epoch in which {where} is {text!r}")
        self.judged(lambda: self._must(Rule.WORKS, answer))

    def run_forged_epoch(self) -> Answer:
        """Run the epoch with a forged intent by a new driver; return the answer of its last call.

        Readers are not checked: their rows after a forged intent that names nothing outside of the
        target are undefined.
        """
        unit = self._open(self._query.awake)
        self.tell(self._restart(crashed=True))
        return self._run_unread(unit)

    def run_unread_epoch(self, why: str) -> Answer:
        """Run the next or the open epoch by a new driver; return the answer of its last call.

        Readers are not checked.

        Args:
            why: The reason, for the story.
        """
        self.tell(f"{why}; {self._restart(crashed=True)}")
        query = self._query
        return self._run_unread(self._unit(query, query.awake, rows=4))

    def _run_unread(self, unit: Unit) -> Answer:
        answer = Answer("returned")
        for answer in self._query.awake.whole(unit):
            if answer.outcome != "returned":
                break
        self.tell(f"it runs the epoch: {words(answer)}")
        return answer

    def growth_of_a_task(self) -> tuple[int, int]:
        """Return the bytes of half of a long task of the open epoch, and the growth over it."""
        half = max(_HALF_A_TASK, self.sink.most_held * 3 // 2)
        answer = self._query.awake.stage_much(half)
        self.judged(lambda: self._must(Rule.WORKS, answer))
        size, grown = answer.value
        self.tell(f"a task of {2 * size >> 20} MB is staged")
        return size, grown

    def shows_rows(self) -> bool:
        """Return True if readers see any row.

        Raises:
            Broken: If a reader fails.
        """
        seen: list[bool] = []
        self.judged(lambda: seen.append(self._ledger.is_anything_visible()))
        return seen[0]

    def has_target_record(self) -> bool:
        """Return True if a target of a sink over an epoch log records its newest epoch."""
        answer = self._ask(write_roles.has_target_record)
        return bool(answer.value)

    def _ask(self, question: Callable[[write_roles.Job], object]) -> Answer:
        life = self._query.awake
        answer = life.workers.call("planner", question, life.job)
        self.judged(lambda: self._must(Rule.WORKS, answer))
        return answer

    @property
    def message_size(self) -> int:
        """Return the bytes of all messages of the tasks of the epoch."""
        return sum(map(len, self._query.awake.messages.values()))

    def next_step(self, *, rows: int = 4, tasks: int = 2) -> Step:
        """Return Spark's next step if no fault occurs; a new epoch has this many rows and tasks."""
        return self._query.next_step(rows=rows, tasks=tasks)

    def allows(self, step: Step) -> bool:
        """Return True if a step is possible now."""
        several = self.sink.several_queries and self._writing == "append"
        if isinstance(step, steps.Expire):
            return self.sink.expire is not None
        if isinstance(step, steps.OtherQuery):
            return several
        if isinstance(step, steps.BackUp | steps.PutBack) and step.what == "target":
            return self.sink.backup is not None
        if isinstance(step, steps.Overwrite):
            return several and self.sink.has_batch and self.sink.overwrite
        return self._query.allows(step)

    # --- steps

    def _good_epoch(self) -> None:
        for step in (Begin(tasks=3), Stage(0), Stage(1), Stage(2), Commit()):
            self._told(step)
            self._must(Rule.GOES_ON, self._last)
        self._look()

    def _do(self, step: Step) -> str:
        return self._step(step)

    @singledispatchmethod
    def _step(self, step: Step) -> str:
        raise TypeError(step)

    @_step.register
    def _begin(self, step: Begin) -> str:
        query, life = self._query, self._query.awake
        unit = self._unit(query, life, step.rows)
        answer = life.begin(unit, step.tasks, step.trap)
        return f"{life.name} plans {unit.name}{self._after_begin(answer)}"

    def _after_begin(self, answer: Answer) -> str:
        life = self._heard(answer, "planner")
        if answer.outcome == "returned":
            life.writer = answer.value
            return unheard(answer)
        return self._over(answer)

    @_step.register
    def _stage(self, step: Stage) -> str:
        life = self._query.awake
        attempt = life.workers.new_attempt()
        answer = life.stage(step, attempt)
        self._heard(answer, None)
        if answer.outcome == "asleep":
            life.workers.set_aside("executor")
        elif answer.outcome == "returned" and step.ends == "well":
            life.messages[step.task] = answer.value
        lost = "; its message is lost" if step.ends == "lost" else ""
        return f"task {step.task} attempt {attempt}: {words(answer)}{lost}"

    @_step.register
    def _commit(self, step: Commit) -> str:
        life = self._query.awake
        # Before the call: it may take effect although it never returns.
        self._open(life).open()
        answer = life.commit(step.trap)
        return f"{life.name} commits {self._open(life).name}{self._after_commit(answer)}"

    def _after_commit(self, answer: Answer) -> str:
        life = self._heard(answer, "committer")
        if answer.outcome == "returned":
            self._newest = None
            return unheard(answer) + self._record_commit(self._query, life)
        if "CommitRejected" in answer.kinds and self._can_look:
            self._ledger.check_refusal(self._open(life))
        if answer.outcome == "raised":
            aborted = life.abort()
            self._must(Rule.WORKS, aborted)
            return f"{self._over(answer)}; abort with every message {words(aborted)}"
        return self._over(answer)

    def _record_commit(self, query: PlayedQuery, life: Life) -> str:
        self._open(life).settle()
        life.unit, epoch, life.next = None, life.next, life.next + 1
        if query.checkpoint is None or query.checkpoint.commit(epoch):
            return ""
        return f": another driver has logged the commit; {self._restart(crashed=False)}"

    @_step.register
    def _abort(self, step: steps.Abort) -> str:
        life = self._query.awake
        name = self._open(life).name
        answer = life.abort(step.trap)
        if step.trap is None:
            self._must(Rule.WORKS, answer)
        self._heard(answer, "aborter")
        return f"{life.name} aborts {name}{self._over(answer)}"

    @_step.register
    def _stop(self, step: steps.Stop) -> str:
        del step
        return f"the query is stopped; {self._restart(crashed=False)}"

    @_step.register
    def _reorder(self, step: steps.Reorder) -> str:
        del step
        self._query.is_reordered = not self._query.is_reordered
        return f"the query is stopped, its columns change places; {self._restart(crashed=False)}"

    @_step.register
    def _crash(self, step: steps.Crash) -> str:
        del step
        return f"{self._query.awake.name} and its tasks are killed; {self._restart(crashed=True)}"

    @_step.register
    def _roll_back(self, step: steps.RollBack) -> str:
        checkpoint = self._query.checkpoint
        if checkpoint is not None:
            checkpoint.roll_back(step.epochs)
        return f"the checkpoint is that of {step.epochs} epochs ago; {self._restart(crashed=True)}"

    @_step.register
    def _back_up(self, step: steps.BackUp) -> str:
        checkpoint = self._query.checkpoint
        if step.what == "target" and self.sink.backup is not None:
            self._copy = self.sink.backup()
        elif checkpoint is not None:
            checkpoint.back_up(self._log())
        return f"an operator copies the {step.what}"

    @_step.register
    def _put_back(self, step: steps.PutBack) -> str:
        checkpoint = self._query.checkpoint
        if step.what == "target" and self.sink.backup is not None and self._copy is not None:
            self._newest = self._newest or self.sink.backup()
            self._copy()
        elif checkpoint is not None:
            checkpoint.restore(self._log())
        return f"an operator puts the copy of the {step.what} back; {self._restart(crashed=True)}"

    def _log(self) -> Path:
        location: str = self._ask(write_roles.locate_log).value
        return Path(urlsplit(location).path)

    @_step.register
    def _take_over(self, step: steps.TakeOver) -> str:
        del step
        query = self._query
        query.sleeper = query.awake
        query.awake = self._next_life(query, self._new_workers())
        return f"{query.sleeper.name} sleeps; {query.awake.name} starts"

    @_step.register
    def _switch(self, step: steps.Switch) -> str:
        del step
        query = self._query
        if query.sleeper is not None:
            query.awake, query.sleeper = query.sleeper, query.awake
        return f"{query.awake.name} wakes"

    @_step.register
    def _resume(self, step: steps.Resume) -> str:
        del step
        life = self._query.awake
        role, life.asleep = life.asleep or "", None
        answer = life.workers.resume(role)
        return f"{life.name} goes on{self._finish_role(role)(answer)}"

    def _finish_role(self, role: str) -> Callable[[Answer], str]:
        return {"planner": self._after_begin, "committer": self._after_commit}.get(role, self._over)

    @_step.register
    def _straggler(self, step: steps.Straggler) -> str:
        del step
        return f"a straggler goes on: {words(self._query.awake.workers.finish_straggler())}"

    @_step.register
    def _expire(self, step: steps.Expire) -> str:
        del step
        if self.sink.expire is not None:
            self.sink.expire()
        return "the external system throws away what is staged"

    @_step.register
    def _set_clock(self, step: steps.SetClock) -> str:
        self._clock.ahead_s = step.ahead_s
        return f"the clocks are {step.ahead_s} s ahead" if step.ahead_s else "the clocks are right"

    @_step.register
    def _other_query(self, step: steps.OtherQuery) -> str:
        del step
        if len(self._queries) == 1:
            self._queries.append(self._new_query(2))
        self._queries.reverse()
        return "the other query"

    @_step.register
    def _overwrite(self, step: steps.Overwrite) -> str:
        unit = self._ledger.new("jobs", f"job {next(self._jobs)}", step.rows)
        life = self._new_life(self._job(None, overwrite=True), None, self._new_workers())
        for answer in life.whole(unit):
            self._must(Rule.WORKS, answer)
        life.workers.close()
        self._ledger.overwritten(unit)
        return f"{life.name} runs {unit.name}, which overwrites all rows"
