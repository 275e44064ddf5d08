"""Plays Spark's part of a streaming query from a source, without a JVM."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from krishiv_spark.testing.drivers.base import Driver, unheard, words
from krishiv_spark.testing.drivers.lives import Workers
from krishiv_spark.testing.drivers.readings import Readings, check_watermark
from krishiv_spark.testing.processes import read_roles
from krishiv_spark.testing.processes.elsewhere import run_elsewhere
from krishiv_spark.testing.processes.outside import Call
from krishiv_spark.testing.processes.pool import Pool
from krishiv_spark.testing.processes.serving import Answer
from krishiv_spark.testing.rows import Row
from krishiv_spark.testing.rules import Rule, Violation
from krishiv_spark.testing.steps import Add, Expire, Step, Trap, TrapAt, Trigger
from krishiv_spark.testing.subjects import SourceUnderTest

__all__ = ["SourceDriver"]

_MOST_TRIGGERS = 50


class _Failed(Exception):  # noqa: N818  the query has failed as it was meant to
    """A call went wrong; the query is over."""


class SourceDriver(Driver):
    """Drives a source through any sequence of steps; what it delivers goes to a perfect sink.

    What Spark does is played faithfully: the offset log holds the ends of batches as text, a
    batch whose end equals the one before is none, the initial offset is asked for at each start
    until a batch is committed, a batch that was not committed is repeated after a restart, tasks
    read with an instance made elsewhere, `commit` comes one batch late and never for the last one.

    Args:
        source: The source.
        options: Options beside those of the source.
        promise: What the caller is after, for the message of a failure.
        pool: Processes to use; None makes new ones.
        zone: The time zone of the machines, as ``TZ`` has it; None for that of this process.

    Attributes:
        added: How many rows were added.
        batches: How often each row was read, a batch after the other.
        ends: The offsets at which they end, as text.
        calls: Those to the outside, by the role's function that made them last.
        seconds: How long that took.
        survived: Whether a call has failed, and what asked for it went on as if nothing had.
        most_tasks: Over how many tasks the batch with most of them was split.
        is_carried: Whether the rows of the last batch were there before its tasks: its partitions
            are about as large, or Spark had them already.
    """

    def __init__(
        self,
        source: SourceUnderTest,
        *,
        options: Mapping[str, str] | None = None,
        promise: str = "",
        pool: Pool | None = None,
        zone: str | None = None,
    ) -> None:
        super().__init__(source.outside, promise, pool)
        self.source = source
        self.how = {"options": dict(options)} if options else {}
        self.calls: dict[str, tuple[Call, ...]] = {}
        self.seconds: dict[str, float] = {}
        self.added = self.most_tasks = 0
        self.is_carried = False
        self.survived = False
        self._readings = Readings(source)
        self.batches, self.ends = self._readings.batches, self._readings.ends
        self._load = read_roles.Load(
            source.source, {**source.options, **(options or {})}, source.schema
        )
        self._workers = Workers(self._pool, zone)
        self._committed = -1
        self._initial: str | None = None
        self._unheard = ""
        self._is_open = self._is_told = self._can_end = self._has_expired = False

    def close(self) -> None:
        """End what is running."""
        self._workers.close()
        super().close()

    # --- for whoever runs sequences

    def allows(self, step: Step) -> bool:
        """Whether a step is possible now."""
        return self.source.expire is not None or not isinstance(step, Expire)

    def drain(self, *, skipped: int = 0) -> None:
        """Trigger until nothing is new; then every row must have been read once.

        Args:
            skipped: So many rows, the first ones, must not have been read at all.

        Raises:
            Broken: If a rule is broken.
        """
        if skipped:
            self.how["skipped"] = skipped
        self.tell("from here on nothing goes wrong")
        self.judged(self._drain)
        self.judged(lambda: self._readings.check_all(self.added, skipped))

    def restart(self) -> None:
        """Kill the driver; the next trigger starts a new one."""
        self._workers.kill()
        self._is_open = False

    def call(self, role: str, function: Any, *args: Any, trap: Trap | None = None) -> Any:
        """Call a function of a role; an error is a violation unless there is a reason for one."""
        answer = self._heard(function, self._workers.call(role, function, *args, trap=trap))
        if answer.outcome == "returned":
            return answer.value
        if trap is None and not self._has_expired:
            raise Violation(Rule.WORKS, f"{function.__name__}: {words(answer)}\n{answer.trace}")
        raise _Failed(f"{function.__name__}: {words(answer)}")

    def start(self, *, available_now: bool = False) -> None:
        """Open the reader, as a query that starts; with availableNow it is told that it ends."""
        if self._is_open:
            return
        self._is_told = self.call("source", read_roles.open_reader, self._load)
        self._can_end = available_now and self.call("source", read_roles.freeze)
        if self._committed < 0:  # later it is not asked for, a query knows where it stands
            self._ask_initial()
        self._is_open = True
        if self.ends and self._committed == len(self.ends) - 1 and not self._is_told:
            # Spark asks a reader this that is told nothing: so it learns where the query stands.
            self._plan(self.ends[-1], self.ends[-1])

    def freeze(self) -> bool:
        """Start again with availableNow; False if the reader cannot be told."""
        self.restart()
        self.start(available_now=True)
        return self._can_end

    def parts_of_batch(self) -> list[bytes]:
        """The pickled partitions of a batch read.

        Raises:
            Broken: If it cannot be planned.
        """
        planned: list[list[bytes]] = []
        self.judged(lambda: planned.append(self._plan_batch()[1]))
        return planned[0]

    def peak(self, few: Sequence[bytes] | None = None) -> tuple[int, int]:
        """Bytes of the largest task of what is new, and by how much a process grew over all.

        Args:
            few: Partitions that it reads before, of a batch read; None is a stream, whose process
                has read the last batch before.
        """
        if few is None:
            few, many = self._newest_parts()
            pickled = self.call("planner", read_roles.task_reader, self._load)
        else:
            pickled, many = self._plan_batch()
        try:
            answer = run_elsewhere(read_roles.growth, self._load, pickled, few, many)
        except RuntimeError as error:
            raise Violation(Rule.WORKS, f"growth: {error}") from error
        size, grown = json.loads(answer)
        return size, grown

    def all_in_batch(
        self, trap: Trap | None = None, at: TrapAt = "all"
    ) -> Counter[int | Row] | None:
        """The rows of a batch read, by number; None if it failed at the trap."""
        step = Trigger(at=at, trap=trap)  # type: ignore[arg-type]  # nothing sleeps here
        try:
            pickled, parts = self._plan_batch(self._trap(step, "plan"))
            return self._numbers(pickled, parts, self._trap(step, "read"))
        except _Failed:
            return None

    def inferred(self) -> pa.Schema | str | None:
        """The schema that the source infers, if it does; text is in Spark's language."""
        schema: pa.Schema | str | None = self.call("planner", read_roles.inferred, self._load)
        return schema

    # --- steps

    def _do(self, step: Step) -> str:
        if isinstance(step, Add):
            return self._add(step.rows)
        if isinstance(step, Trigger):
            return self._trigger(step)
        if isinstance(step, Expire):
            return self._expire()
        self.restart()
        return "the driver is killed"

    def _expire(self) -> str:
        if self.source.expire is not None:
            self.source.expire()
        self._has_expired = True
        return "the external system throws away what is there"

    def _add(self, rows: int) -> str:
        numbers = range(self.added, self.added + rows)
        self.added += rows
        self.source.add([self.source.row(number) for number in numbers])
        return f"rows {numbers.start} to {numbers.stop - 1} are added"

    def _trigger(self, step: Trigger) -> str:
        self._unheard = ""
        try:
            self.start()
            return f"{self._batch(step)}{self._unheard}"
        except _Failed as failed:
            self.restart()
            return f"{failed}; the query fails"

    def _batch(self, step: Trigger) -> str:
        repeated = self._committed < len(self.ends) - 1
        if not repeated and not self._next(self._trap(step, "latest")):
            return "nothing new"
        epoch = len(self.ends) - 1
        word = f"{'repeats ' if repeated else ''}batch {epoch} to {self.ends[epoch]}"
        if step.ends == "unread":
            self._add_meanwhile(step.unplanned)
            self.restart()
            return f"{word} is logged, then the driver is killed"
        found = self._rows(step, epoch)
        self._readings.compare(epoch, found, self.added)
        if not found:
            self._check_forward(epoch)
        if step.ends == "unlogged":
            self.restart()
            return f"{word} is read, then the driver is killed"
        self._committed = epoch
        return f"{word}: {sum(found.values())} rows"

    def _next(self, trap: Trap | None) -> bool:
        """Choose an end and log it; False if there is nothing new."""
        start = self._position()
        end = self.call("source", read_roles.choose, start, self._is_told, trap=trap)
        check_watermark(start, end)
        if end == start:
            return False
        if self.ends:  # after the new offset's log entry (MicroBatchExecution.constructNextBatch)
            self.call("source", read_roles.committed, self.ends[-1])
        self.ends.append(end)
        self._readings.known.append(self.added)
        return True

    def _rows(self, step: Trigger, epoch: int) -> Counter[int | Row]:
        self._add_meanwhile(step.unplanned)
        parts, cached = self._plan(*self._span(epoch), trap=self._trap(step, "plan"))
        self._add_meanwhile(step.unread)
        if cached is not None:
            self.is_carried = True
            return self._readings.counted(cached, self.added)
        pickled = self.call("planner", read_roles.task_reader, self._load)
        return self._numbers(pickled, parts, self._trap(step, "read"))

    def _plan(self, start: str, end: str, trap: Trap | None = None) -> read_roles.Plan:
        plan: read_roles.Plan = self.call(
            "source", read_roles.partitions, self._load, start, end, trap=trap
        )
        return plan

    def _plan_batch(self, trap: Trap | None = None) -> tuple[bytes, list[bytes]]:
        plan: tuple[bytes, list[bytes]] = self.call(
            "planner", read_roles.batch_partitions, self._load, trap=trap
        )
        return plan

    def _newest_parts(self) -> tuple[list[bytes], list[bytes]]:
        """The partitions of the last batch, and of what is new."""
        self.start()
        first, start = (self._initial or "", *self.ends)[-2:]
        few, _ = self._plan(first, start)
        end = self.call("source", read_roles.choose, start, self._is_told)
        return few, self._plan(start, end)[0]

    def _numbers(
        self, pickled: bytes, parts: list[bytes], trap: Trap | None = None
    ) -> Counter[int | Row]:
        tasks: list[Counter[int | Row]] = []
        size = 0
        for part in parts:
            found = self._task(pickled, part, trap)
            size += len(pickle.dumps(found))
            if part is parts[0] and trap is None and self._task(pickled, part) != found:
                raise Violation(Rule.SAME_REPLAY, "a task that was tried again read other rows")
            tasks.append(self._readings.counted(found, self.added))
        self._readings.check_tasks(tasks)
        self.most_tasks = max(self.most_tasks, len(tasks))
        self.is_carried = sum(map(len, parts)) > size // 2
        return sum(tasks, Counter())

    def _task(self, pickled: bytes, part: bytes, trap: Trap | None = None) -> list[Row]:
        rows: list[Row] = self.call(
            "executor", read_roles.rows, self._load, pickled, part, trap=trap
        )
        return rows

    def _add_meanwhile(self, rows: int) -> None:
        if rows:
            self.tell(f"meanwhile {self._add(rows)}")

    def _ask_initial(self) -> None:
        initial = self.call("source", read_roles.initial)
        if self._initial not in {None, initial}:
            raise Violation(Rule.CONSTANT_START, f"first {self._initial}, now {initial}")
        self._initial = initial

    def _check_forward(self, epoch: int) -> None:
        """A batch without rows: either nothing lies between its offsets, or it leads back."""
        start, end = self._span(epoch)
        rows = self.call("planner", read_roles.rows_between, self._load, end, start)
        if rows:
            seen = f"from {start} to {end}: between the second and the first, {rows} rows are found"
            raise Violation(Rule.NEVER_BACK, seen)

    def _span(self, epoch: int) -> tuple[str, str]:
        return self.ends[epoch - 1] if epoch else self._initial or "", self.ends[epoch]

    def _position(self) -> str:
        return self.ends[-1] if self.ends else self._initial or ""

    def _heard(self, function: Any, answer: Answer) -> Answer:
        self.calls[function.__name__] = answer.calls
        self.seconds[function.__name__] = answer.seconds
        self._unheard += unheard(answer) if answer.survived else ""
        self.survived = self.survived or answer.survived
        return answer

    @staticmethod
    def _trap(step: Trigger, at: str) -> Trap | None:
        return step.trap if step.at in {at, "all"} else None

    def _drain(self) -> None:
        # With a limit each row may take a trigger of its own.
        for _ in range(_MOST_TRIGGERS + self.added):
            text = self._trigger(Trigger())
            self.tell(text)
            if text == "nothing new":
                return
        raise Violation(Rule.STANDS_STILL, f"the last offsets: {self.ends[-3:]}")
