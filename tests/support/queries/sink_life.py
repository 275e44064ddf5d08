"""A sink's life without a JVM, faithful to the order of Spark's calls and to its processes."""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa

from krishiv_spark.lifecycle.epoch_write import BatchWrite, StreamWrite
from krishiv_spark.lifecycle.plans import Staged
from krishiv_spark.sinks.base import OutputMode, Task
from krishiv_spark.sinks.epoch_checks import is_already_committed
from krishiv_spark.testing import FILES, Fault
from krishiv_spark.testing.processes.pool import Pool

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


def rows(first: int, count: int) -> pa.RecordBatch:
    ids = range(first, first + count)
    return pa.record_batch([list(ids), [f"d{i % 3}" for i in ids]], schema=SCHEMA)


class Life:
    """One driver of one query: plans an epoch, runs its tasks, commits or aborts it."""

    def __init__(
        self, writer_type: type, options: dict[str, str], query: str, mode: OutputMode
    ) -> None:
        self._make = lambda: writer_type(
            writer_type.options_type.parse(options, "test"), SCHEMA, mode
        )
        self._query = query
        self._planned: StreamWrite | None = None

    def plan(self) -> None:
        self._planned = pickle.loads(pickle.dumps(StreamWrite(self._make(), self._query)))

    def task(self, epoch: int, partition: int, batch: pa.RecordBatch, attempt: int = 0) -> Staged:
        plan = self._planned._plan
        task = Task(self._query, epoch, partition, attempt, plan.generation)
        staged = Staged(task, None, plan.offsets, exported_state=plan.exported_state)
        if is_already_committed(staged.epoch, plan.committed):
            return staged
        return replace(
            staged, payload=self._planned._writer.stage(iter([batch]), task, plan.payload)
        )

    def commit(self, epoch: int, messages: Sequence[Staged | None]) -> None:
        StreamWrite(self._make(), self._query).commit(list(messages), epoch)

    def abort(self, epoch: int, messages: Sequence[Staged | None]) -> None:
        StreamWrite(self._make(), self._query).abort(list(messages), epoch)

    def epoch(self, number: int, *batches: pa.RecordBatch) -> None:
        self.plan()
        self.commit(number, [self.task(number, i, batch) for i, batch in enumerate(batches)])


class Job(Life):
    """A batch job: one epoch under an id of its own; the committer gets the planner's copy."""

    def __init__(
        self, writer_type: type, options: dict[str, str], mode: OutputMode = OutputMode.APPEND
    ) -> None:
        parsed = writer_type.options_type.parse(options, "test")
        self._writer = writer_type(parsed, SCHEMA, mode, streaming=False)

    def plan(self) -> None:
        self._planned = pickle.loads(pickle.dumps(BatchWrite(self._writer)))
        self._query = self._planned._plan.query

    def commit(self, epoch: int, messages: Sequence[Staged | None]) -> None:
        assert epoch == 0
        self._planned.commit(list(messages))

    def abort(self, epoch: int, messages: Sequence[Staged | None]) -> None:
        assert epoch == 0
        self._planned.abort(list(messages))


# What only looks is left out: dying there is dying after the call before.
CHANGES = {
    f"os:{name}": FILES[f"os:{name}"]
    for name in ("link", "rename", "replace", "unlink", "mkdir", "rmdir", "fsync", "open")
}


def dies_at(step: int, work: Callable[[], Any], *, after: bool) -> bool:
    """Run work in a process that dies at its n-th call to the file system.

    Args:
        step: Which call, from 0.
        work: What the process does.
        after: Whether that call still happens.

    Returns:
        Whether the process died there; False when it had fewer calls and finished.
    """
    process = _pool().take()
    answer = process.call(work, trap=Fault(step, happened=after, reported=False))
    process.kill()
    assert answer.outcome in {"returned", "died"}, answer.trace
    return answer.outcome == "died"


@cache
def _pool() -> Pool:
    return Pool(CHANGES)


def close_pool() -> None:
    """End the processes that `dies_at` has forked, which hold open what was open then."""
    if _pool.cache_info().currsize:
        _pool().close()
        _pool.cache_clear()
