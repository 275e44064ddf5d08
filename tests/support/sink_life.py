"""A sink's life without a JVM, faithful to the order of Spark's calls and to its processes."""

import os
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from krishiv_spark.lifecycle.writing import BatchWrite, Staged, StreamWrite
from krishiv_spark.sinks.base import OutputMode, Task

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
        if plan.held is not None and epoch <= plan.held:
            return Staged(task, None)
        return Staged(task, self._planned._writer.stage(iter([batch]), task))

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


CALLS = ("link", "rename", "replace", "unlink", "mkdir", "rmdir", "fsync", "open")


def dies_at(step: int, work: Callable[[], Any], *, after: bool) -> bool:
    """Run work in a child process that dies at its n-th call to the file system.

    Args:
        step: Which call, from 0.
        work: What the child does.
        after: Whether that call still happens.

    Returns:
        Whether the child died there; False when it had fewer calls and finished.
    """
    child = os.fork()
    if child == 0:
        _Dying(step, after=after).install()
        try:
            work()
        except BaseException:  # noqa: BLE001  whatever it is, the parent must see that it failed
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 77), f"the child failed with {status} instead of dying at step {step}"
    return status == 77


class _Dying:
    def __init__(self, step: int, *, after: bool) -> None:
        self._left = step
        self._after = after

    def install(self) -> None:
        for name in CALLS:
            setattr(os, name, self._wrapped(getattr(os, name)))

    def _wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left >= 0:
                return call(*args, **kwargs)
            if self._after:
                call(*args, **kwargs)
            os._exit(77)

        return counted
