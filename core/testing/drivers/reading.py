"""Plays Spark's part of a streaming query from a source, without a JVM."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from krishiv_spark.testing.drivers.base import Driver, words
from krishiv_spark.testing.drivers.lives import Workers
from krishiv_spark.testing.processes import read_roles
from krishiv_spark.testing.processes.elsewhere import run_elsewhere
from krishiv_spark.testing.processes.outside import Call
from krishiv_spark.testing.processes.pool import Pool
from krishiv_spark.testing.rules import Rule, Violation
from krishiv_spark.testing.steps import Add, Step, Trap, Trigger
from krishiv_spark.testing.subjects import Row, SourceUnderTest, numbers_of, ranges

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
    """

    def __init__(
        self,
        source: SourceUnderTest,
        *,
        options: Mapping[str, str] | None = None,
        promise: str = "",
        pool: Pool | None = None,
    ) -> None:
        super().__init__(source.outside, promise, pool)
        self.source = source
        self.how = {"options": dict(options)} if options else {}
        self.calls: dict[str, tuple[Call, ...]] = {}
        self.added = 0
        self.batches: list[Counter[int | Row]] = []
        self.ends: list[str] = []
        self._load = read_roles.Load(
            source.source, {**source.options, **(options or {})}, source.schema
        )
        self._workers = Workers(self._pool)
        self._committed = -1
        self._initial: str | None = None
        self._known: list[int] = []
        self._is_open = self._is_told = self._can_end = False

    def close(self) -> None:
        """End what is running."""
        self._workers.close()
        super().close()

    # --- for whoever runs sequences

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
        self.judged(lambda: self._all_read(skipped))

    def restart(self) -> None:
        """Kill the driver; the next trigger starts a new one."""
        self._workers.kill()
        self._is_open = False

    def call(self, role: str, function: Any, *args: Any, trap: Trap | None = None) -> Any:
        """Call a function of a role; an error is a violation unless there is a trap."""
        answer = self._workers.call(role, function, *args, trap=trap)
        self.calls[function.__name__] = answer.calls
        if answer.outcome == "returned":
            return answer.value
        if trap is None:
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
            self._plan(self.ends[-1], self.ends[-1])

    def _ask_initial(self) -> None:
        initial = self.call("source", read_roles.initial)
        if self._initial not in {None, initial}:
            raise Violation(Rule.CONSTANT_START, f"first {self._initial}, now {initial}")
        self._initial = initial

    def freeze(self) -> bool:
        """Start again with availableNow; False if the reader cannot be told."""
        self.restart()
        self.start(available_now=True)
        return self._can_end

    def peak(self) -> tuple[int, int]:
        """Bytes of what is new, and the growth of a process that read the last batch before it."""
        self.start()
        first, start = (self._initial or "", *self.ends)[-2:]
        few, _ = self._plan(first, start)
        end = self.call("source", read_roles.choose, start, self._is_told)
        many, _ = self._plan(start, end)
        pickled = self.call("planner", read_roles.task_reader, self._load)
        try:
            answer = run_elsewhere(read_roles.growth, self._load, pickled, few, many, seed=0)
        except RuntimeError as error:
            raise Violation(Rule.WORKS, f"growth: {error}") from error
        size, grown = json.loads(answer)
        return size, grown

    def all_in_batch(self, trap: Trap | None = None) -> Counter[int | Row] | None:
        """The rows of a batch read, by number; None if it failed at the trap."""
        try:
            pickled, parts = self.call("planner", read_roles.batch_partitions, self._load)
            return self._numbers(pickled, parts, trap)
        except _Failed:
            return None

    def inferred(self) -> pa.Schema | None:
        """The schema that the source infers, if it does."""
        schema: pa.Schema | None = self.call("planner", read_roles.inferred, self._load)
        return schema

    # --- steps

    def _do(self, step: Step) -> str:
        if isinstance(step, Add):
            return self._add(step.rows)
        if isinstance(step, Trigger):
            return self._trigger(step)
        self.restart()
        return "the driver is killed"

    def _add(self, rows: int) -> str:
        numbers = range(self.added, self.added + rows)
        self.added += rows
        self.source.add([self.source.row(number) for number in numbers])
        return f"rows {numbers.start} to {numbers.stop - 1} are added"

    def _trigger(self, step: Trigger) -> str:
        try:
            self.start()
            return self._batch(step)
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
        self._compare(epoch, found)
        if step.ends == "unlogged":
            self.restart()
            return f"{word} is read, then the driver is killed"
        self._committed = epoch
        return f"{word}: {sum(found.values())} rows"

    def _next(self, trap: Trap | None) -> bool:
        """Choose an end and log it; False if there is nothing new."""
        start = self._position()
        end = self.call("source", read_roles.choose, start, self._is_told, trap=trap)
        self._check_watermark(start, end)
        if end == start:
            return False
        if self.ends:  # behind the new offset's log entry (MicroBatchExecution.constructNextBatch)
            self.call("source", read_roles.committed, self.ends[-1])
        self.ends.append(end)
        self._known.append(self.added)
        return True

    def _rows(self, step: Trigger, epoch: int) -> Counter[int | Row]:
        span = self.ends[epoch - 1] if epoch else self._initial or "", self.ends[epoch]
        self._add_meanwhile(step.unplanned)
        parts, cached = self._plan(*span, trap=self._trap(step, "plan"))
        self._add_meanwhile(step.unread)
        if cached is not None:
            return self._counted(cached)
        pickled = self.call("planner", read_roles.task_reader, self._load)
        return self._numbers(pickled, parts, self._trap(step, "read"))

    def _plan(self, start: str, end: str, trap: Trap | None = None) -> read_roles.Plan:
        plan: read_roles.Plan = self.call(
            "source", read_roles.partitions, self._load, start, end, trap=trap
        )
        return plan

    def _numbers(
        self, pickled: bytes, parts: list[bytes], trap: Trap | None = None
    ) -> Counter[int | Row]:
        read: list[Row] = []
        for part in parts:
            found = self._task(pickled, part, trap)
            if part is parts[0] and trap is None and self._task(pickled, part) != found:
                raise Violation(Rule.SAME_REPLAY, "a task that was tried again read other rows")
            read += found
        return self._counted(read)

    def _counted(self, rows: list[Row]) -> Counter[int | Row]:
        return numbers_of(rows, self.source.schema, self.source.row, self.added)

    def _task(self, pickled: bytes, part: bytes, trap: Trap | None = None) -> list[Row]:
        rows: list[Row] = self.call(
            "executor", read_roles.rows, self._load, pickled, part, trap=trap
        )
        return rows

    def _add_meanwhile(self, rows: int) -> None:
        if rows:
            self.tell(f"meanwhile {self._add(rows)}")

    def _position(self) -> str:
        return self.ends[-1] if self.ends else self._initial or ""

    @staticmethod
    def _trap(step: Trigger, at: str) -> Trap | None:
        return step.trap if step.at == at else None

    # --- rules

    def _compare(self, epoch: int, found: Counter[int | Row]) -> None:
        strange = [row for row in found if not isinstance(row, int)]
        self._refuse(Rule.NOTHING_INVENTED, epoch, strange)
        newer = [row for row in found if isinstance(row, int) and row >= self._known[epoch]]
        self._refuse(Rule.NOTHING_NEWER, epoch, newer)
        self._check_ahead(epoch, found)
        if epoch < len(self.batches):
            changed = (found - self.batches[epoch]) + (self.batches[epoch] - found)
            self._refuse(Rule.SAME_REPLAY, epoch, list(changed))
        else:
            self.batches.append(found)

    @staticmethod
    def _refuse(rule: Rule, epoch: int, rows: list[Any]) -> None:
        if rows:
            raise Violation(rule, f"batch {epoch}, rows {ranges(rows)}")

    def _check_watermark(self, start: str, end: str) -> None:
        before, after = _watermark_ms(start), _watermark_ms(end)
        if before is not None and (after is None or after < before):
            raise Violation(Rule.WATERMARK, f"it moved from {before} to {after} ms")

    def _check_ahead(self, epoch: int, found: Counter[int | Row]) -> None:
        reached = _watermark_ms(self.ends[epoch])
        if self.source.event_time is None or reached is None:
            return
        column = self.source.schema.names.index(self.source.event_time)
        read = {row for batch in [*self.batches, found] for row in batch if isinstance(row, int)}
        newest = max((self.source.row(n)[column].timestamp() * 1000 for n in read), default=None)
        if newest is None or reached > newest:
            raise Violation(Rule.WATERMARK, f"{reached} ms; newest time that was read: {newest} ms")

    def _drain(self) -> None:
        for _ in range(_MOST_TRIGGERS + self.added):
            text = self._trigger(Trigger())
            self.tell(text)
            if text == "nothing new":
                return
        raise Violation(Rule.STANDS_STILL, f"the last offsets: {self.ends[-3:]}")

    def _all_read(self, skipped: int) -> None:
        total: Counter[int | Row] = Counter()
        for batch in self.batches:
            total += batch
        wanted: Counter[int | Row] = Counter(range(skipped, self.added))
        if total != wanted:
            lost, more = ranges(wanted - total) or "none", ranges(total - wanted) or "none"
            raise Violation(Rule.EVERY_ROW_ONCE, f"never read: {lost}; read too often: {more}")


def _watermark_ms(text: str) -> int | None:
    offset = json.loads(text)
    found = offset.get("watermark") if isinstance(offset, dict) else None
    return found.get("ms") if isinstance(found, dict) else None
