"""Drivers that play Spark's part of a streaming query from a source, without a JVM."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from krishiv_spark.testing.drivers.base import Driver, unheard, words
from krishiv_spark.testing.drivers.queries import Workers
from krishiv_spark.testing.processes import read_roles
from krishiv_spark.testing.processes.interpreters import run_elsewhere
from krishiv_spark.testing.processes.outside import Call
from krishiv_spark.testing.processes.pool import Pool
from krishiv_spark.testing.processes.serving import Answer
from krishiv_spark.testing.rows import Row, numbers_of, ranges, refuse_strange
from krishiv_spark.testing.rules import Rule, Violation
from krishiv_spark.testing.steps import Add, Expire, Step, Trap, TrapAt, Trigger
from krishiv_spark.testing.subjects import SourceUnderTest

__all__ = ["Readings", "SourceDriver", "check_watermark"]


class Readings:
    """The batches of one query.

    Args:
        source: The source, which maps numbers to rows.

    Attributes:
        batches: For each batch, the number of times that each row was read.
        ends: The end offsets of the batches, as text; one more while a batch is being read.
        known: The number of rows added when each end was chosen.
    """

    def __init__(self, source: SourceUnderTest) -> None:
        self._source = source
        self.batches: list[Counter[int | Row]] = []
        self.ends: list[str] = []
        self.known: list[int] = []

    def counted(self, rows: Sequence[Row], added: int) -> Counter[int | Row]:
        """Count rows by their number, when this many were added."""
        return numbers_of(rows, self._source.schema, self._source.row, added)

    def check_tasks(self, tasks: Sequence[Counter[int | Row]]) -> None:
        """Check that no row is read by two tasks.

        Raises:
            Violation: If one is.
        """
        readers: dict[int, int] = {}
        for place, task in enumerate(tasks):
            numbers = [row for row in task if isinstance(row, int)]
            shared = [number for number in numbers if number in readers]
            if shared:
                seen = f"tasks {readers[shared[0]]} and {place} read rows {ranges(shared)}"
                raise Violation(Rule.TASKS_APART, seen)
            readers.update(dict.fromkeys(numbers, place))

    def compare(self, epoch: int, found: Counter[int | Row], added: int) -> None:
        """Record a batch that was read, for the first time or again.

        Raises:
            Violation: If its rows are not the expected ones.
        """
        where = f"batch {epoch}: "
        refuse_strange(found, self._source.schema, self._source.row, added, where)
        newer = [row for row in found if isinstance(row, int) and row >= self.known[epoch]]
        self._refuse(Rule.NOTHING_NEWER, where, newer)
        self._check_ahead(epoch, found)
        if epoch < len(self.batches):
            changed = (found - self.batches[epoch]) + (self.batches[epoch] - found)
            self._refuse(Rule.SAME_REPLAY, where, list(changed))
        else:
            self.batches.append(found)

    def check_all(self, added: int, skipped: int) -> None:
        """Check that each row was read once, except for some first ones.

        Raises:
            Violation: If one was not.
        """
        total: Counter[int | Row] = Counter()
        for batch in self.batches:
            total += batch
        wanted: Counter[int | Row] = Counter(range(skipped, added))
        if total != wanted:
            lost, more = ranges(wanted - total) or "none", ranges(total - wanted) or "none"
            raise Violation(Rule.EVERY_ROW_ONCE, f"never read: {lost}; read too often: {more}")

    @staticmethod
    def _refuse(rule: Rule, where: str, rows: list[Any]) -> None:
        if rows:
            raise Violation(rule, f"{where}rows {ranges(rows)}")

    def _check_ahead(self, epoch: int, found: Counter[int | Row]) -> None:
        reached = _watermark_ms(self.ends[epoch])
        if self._source.event_time is None or reached is None:
            return
        column = self._source.schema.names.index(self._source.event_time)
        read = {row for batch in [*self.batches, found] for row in batch if isinstance(row, int)}
        times = (self._source.row(number)[column].timestamp() * 1000 for number in read)
        newest = max(times, default=None)
        if newest is None or reached > newest:
            raise Violation(Rule.WATERMARK, f"{reached} ms; newest time that was read: {newest} ms")


def check_watermark(start: str, end: str) -> None:
    """Check that the watermark does not move back from one offset to the next.

    Raises:
        Violation: If it does.
    """
    before, after = _watermark_ms(start), _watermark_ms(end)
    if before is not None and (after is None or after < before):
        raise Violation(Rule.WATERMARK, f"it moved from {before} to {after} ms")


def _watermark_ms(text: str) -> int | None:
    offset = json.loads(text)
    found = offset.get("watermark") if isinstance(offset, Mapping) else None
    return found.get("ms") if isinstance(found, Mapping) else None


_MOST_TRIGGERS = 50


class _Failed(Exception):  # noqa: N818  the query has failed as it was meant to
    """An error of a call, after which the query ends."""


class SourceDriver(Driver):
    """A driver that runs any sequence of steps on a source and delivers its rows to a perfect sink.

    What Spark does is played faithfully: the offset log holds the ends of batches as text, a
    batch whose end equals the previous one is none, the initial offset is requested at each start
    until a batch is committed, a batch that was not committed is repeated after a restart, tasks
    read with an instance made elsewhere, `commit` comes one batch late and never for the last one.

    Args:
        source: The source.
        options: Options beside those of the source.
        promise: The promise that the caller checks, for the message of a failure.
        pool: Processes to use; None makes new ones.
        zone: The time zone of the machines, as ``TZ`` has it; None for that of this process.

    Attributes:
        added: The number of rows added so far.
        batches: For each batch, the number of times that each row was read.
        ends: The end offsets of the batches, as text.
        calls: The calls to the outside, by the role's function that made them last.
        seconds: The duration of that function.
        survived: True if a call has failed and the function that made it still succeeded.
        most_tasks: The largest number of tasks of a batch.
        is_carried: True if the rows of the last batch were read before its tasks: its partitions
            are about as large as the rows, or Spark had them already.
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
        """End all running processes."""
        self._workers.close()
        super().close()

    # --- for code that runs sequences

    def allows(self, step: Step) -> bool:
        """Return True if a step is possible now."""
        return self.source.expire is not None or not isinstance(step, Expire)

    def drain(self, *, skipped: int = 0) -> None:
        """Trigger until no row is new; then check that every row was read once.

        Args:
            skipped: The number of first rows that must not have been read at all.

        Raises:
            Broken: If a rule is broken.
        """
        if skipped:
            self.how["skipped"] = skipped
        self.tell("no faults from here on")
        self.judged(self._drain)
        self.judged(lambda: self._readings.check_all(self.added, skipped))

    def restart(self) -> None:
        """Kill the driver; the next trigger starts a new one."""
        self._workers.kill()
        self._is_open = False

    def call(self, role: str, function: Any, *args: Any, trap: Trap | None = None) -> Any:
        """Call a function of a role; an error is a violation unless a fault explains it."""
        answer = self._heard(function, self._workers.call(role, function, *args, trap=trap))
        if answer.outcome == "returned":
            return answer.value
        if trap is None and not self._has_expired:
            raise Violation(Rule.WORKS, f"{function.__name__}: {words(answer)}\n{answer.trace}")
        raise _Failed(f"{function.__name__}: {words(answer)}")

    def start(self, *, available_now: bool = False) -> None:
        """Open the reader, as at the start of a query; with availableNow, tell it of the end."""
        if self._is_open:
            return
        self._is_told = self.call("source", read_roles.open_reader, self._load)
        self._can_end = available_now and self.call("source", read_roles.freeze)
        # Spark does not request it later: a query has its position in the offset log.
        if self._committed < 0:
            self._ask_initial()
        self._is_open = True
        if self.ends and self._committed == len(self.ends) - 1 and not self._is_told:
            # Spark asks this question of a reader that has no position yet, which learns it that
            # way.
            self._plan(self.ends[-1], self.ends[-1])

    def freeze(self) -> bool:
        """Start again with availableNow; return False if the reader has no such method."""
        self.restart()
        self.start(available_now=True)
        return self._can_end

    def parts_of_batch(self) -> list[bytes]:
        """Return the pickled partitions of a batch read.

        Raises:
            Broken: If it cannot be planned.
        """
        planned: list[list[bytes]] = []
        self.judged(lambda: planned.append(self._plan_batch()[1]))
        return planned[0]

    def peak(self, few: Sequence[bytes] | None = None) -> tuple[int, int]:
        """Return the bytes of the largest new task, and the growth of a process over all of them.

        Args:
            few: Partitions of a batch read, which the process reads first; None for a stream, whose
                process has read the previous batch first.
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
        """Return the rows of a batch read, by number; None if it failed at the trap."""
        step = Trigger(at=at, trap=trap)  # type: ignore[arg-type]  # nothing sleeps here
        try:
            pickled, parts = self._plan_batch(self._trap(step, "plan"))
            return self._numbers(pickled, parts, self._trap(step, "read"))
        except _Failed:
            return None

    def inferred(self) -> pa.Schema | str | None:
        """Return the inferred schema, None if there is none; text is in Spark's language."""
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
        """Choose an end and log it; return False if there is no new row."""
        start = self._position()
        end = self.call("source", read_roles.choose, start, self._is_told, trap=trap)
        check_watermark(start, end)
        if end == start:
            return False
        # After the new offset's entry in the log (MicroBatchExecution.constructNextBatch).
        if self.ends:
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
        """Return the partitions of the last batch, and those of the new rows."""
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
        """Check a batch without rows: its offsets contain no row between them, or it leads back."""
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
        # With a limit each row may need a trigger of its own.
        for _ in range(_MOST_TRIGGERS + self.added):
            text = self._trigger(Trigger())
            self.tell(text)
            if text == "nothing new":
                return
        raise Violation(Rule.STANDS_STILL, f"the last offsets: {self.ends[-3:]}")
