"""A writer's life without Spark: a new writer for each role, as the lifecycle makes them."""

from __future__ import annotations

import itertools
import os
import pickle
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from krishiv_spark.offsets import EpochLog
from krishiv_spark.sinks.base import (
    Epoch,
    OutputMode,
    SupportsGenerations,
    SupportsRecall,
    Task,
    Writer,
)
from krishiv_spark.sinks.epoch_checks import is_already_committed
from krishiv_spark.sinks.kafka.writer import KafkaWriter
from krishiv_spark.sinks.logged import LogCommitter
from krishiv_spark.sinks.parquet.writer import ParquetWriter
from krishiv_spark.spark.checkpoint import SparkCheckpoint

__all__ = ["BATCH", "KEYED", "Life", "SeparateKafkaLogs", "SeparateLogs", "keyed", "numbered"]


def numbered(rows: int) -> pa.RecordBatch:
    """Rows with an id, which counts from 0, and a name."""
    ids, names = range(rows), [f"name {i}" for i in range(rows)]
    return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64()), "name": pa.array(names)})


def keyed(rows: int) -> pa.RecordBatch:
    """Return the same for sinks with keys and values; each value starts with its number."""
    keys = [f"{i:010}" for i in range(rows)]
    return pa.RecordBatch.from_pydict({"key": keys, "value": [f"{key}{'.' * 90}" for key in keys]})


BATCH, KEYED = numbered(100), keyed(100)


class Separate:
    """A writer that shares no memory of the log with the other roles.

    Planner and commit process each read what the other one wrote; a benchmark in one process
    must not save them that.
    """

    def __init__(self, *args: Any, logs: dict[str, EpochLog], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logs = logs

    def committer(self) -> LogCommitter[Any]:
        """With a log for each role."""
        made: LogCommitter[Any] = super().committer()  # type: ignore[misc]
        shared = made.log

        def own(query: str) -> EpochLog:
            if query not in self.logs:
                self.logs[query] = _unshared(shared(query))
            return self.logs[query]

        made.log = own
        return made


class SeparateLogs(Separate, ParquetWriter):
    """Of Parquet files."""


class SeparateKafkaLogs(Separate, KafkaWriter):
    """Of a topic."""


def _unshared(log: EpochLog) -> EpochLog:
    return EpochLog(log._journal)  # noqa: SLF001  the same place, another memory


_RETAINED = 100
"""Epochs that Spark's logs keep (``spark.sql.streaming.minBatchesToRetain``)."""


@dataclass
class Plan:
    """The values that reach the tasks: the planner's writer, unless it does not pickle."""

    writer: Writer[Any, Any] | None
    epoch: Epoch
    payload: Any
    exported_state: str | None


@dataclass
class Life:
    """Drives one query's epochs through planner, tasks and committer.

    Attributes:
        kind: The writer's class.
        options: As the user would give them.
        tasks: Tasks of each epoch.
        batch: What each of them writes.
        times: How often it does so in an epoch.
        query: Its id.
        epoch: The next epoch.
        roles: What each long-lived process remembers: its epoch logs.
        spent: Seconds of each epoch so far, by phase: plan, stage and publish.
        apart: Option that gets the name of the role, where writers with other options share no
            memory; None if they share none anyway.
    """

    kind: type[Writer[Any, Any]]
    options: Mapping[str, str]
    tasks: int = 1
    batch: pa.RecordBatch = field(default_factory=lambda: BATCH)
    times: int = 1
    query: str = field(default_factory=lambda: str(uuid.uuid4()))
    epoch: int = 0
    roles: dict[str, dict[str, EpochLog]] = field(default_factory=dict)
    spent: dict[str, list[float]] = field(default_factory=dict)
    apart: str | None = None

    def commit(self) -> None:
        """One epoch, from the planner's check to the committer's publish."""
        self._note_offsets()
        with self._timed("plan"):
            planned = pickle.dumps(self._plan())
        with self._timed("stage"):
            messages = [
                self._stage(partition, pickle.loads(planned)) for partition in range(self.tasks)
            ]
        with self._timed("publish"):
            plan = pickle.loads(planned)
            self._publish(plan, [pickle.loads(message) for message in messages])
        self._note("commits", '{"nextBatchWatermarkMs":0}')
        self.epoch += 1

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.spent.setdefault(phase, []).append(time.perf_counter() - begin)

    def commits(self, count: int) -> None:
        """Several epochs."""
        for _ in range(count):
            self.commit()

    def restart(self) -> float:
        """Seconds until new processes can plan, after an attempt that died before its intent."""
        self._note_offsets()
        plan = self._plan()
        for partition in range(self.tasks):
            self._stage(partition, plan)
        self.roles.clear()
        begin = time.perf_counter()
        self._plan()
        return time.perf_counter() - begin

    @property
    def rows(self) -> tuple[int, int]:
        """Number of rows and sum of ids that must be there by now."""
        batches = self.epoch * self.tasks * self.times
        return batches * self.batch.num_rows, batches * sum(range(self.batch.num_rows))

    def _plan(self) -> Plan:
        writer = self._writer("planner")
        writer.check()
        location = self.options.get("checkpointLocation")
        offsets = None if location is None else SparkCheckpoint(location).planned_offsets()
        epoch = Epoch(self.query, self.epoch, offsets=offsets)
        committer = writer.committer()
        owns = committer.begin(epoch) if isinstance(committer, SupportsGenerations) else None
        if owns is not None:
            epoch = replace(epoch, generation=owns.generation)
        payload = writer.plan(owns)
        self._check_new(epoch, committer)
        seen = committer.export_state(self.query) if isinstance(committer, SupportsRecall) else None
        return Plan(None if isinstance(writer, Separate) else writer, epoch, payload, seen)

    def _check_new(self, epoch: Epoch, committer: Any) -> None:
        if is_already_committed(epoch, committer.last_committed(self.query)):
            raise AssertionError(f"epoch {self.epoch} is held already")

    def _stage(self, partition: int, plan: Plan) -> bytes:
        task = Task(self.query, self.epoch, partition, partition, plan.epoch.generation)
        batches = itertools.repeat(self.batch, self.times)
        return pickle.dumps((task, self._executor(plan).stage(batches, task, plan.payload)))

    def _executor(self, plan: Plan) -> Writer[Any, Any]:
        return plan.writer or self._writer("executor")

    def _publish(self, plan: Plan, messages: list[tuple[Task, Any]]) -> None:
        committer = self._writer("committer").committer()
        if isinstance(committer, SupportsRecall) and plan.exported_state is not None:
            committer.import_state(self.query, plan.exported_state)
        self._check_new(plan.epoch, committer)
        committer.publish(plan.epoch, [payload for _, payload in messages if payload is not None])

    def _note_offsets(self) -> None:
        self._note("offsets", '{"batchWatermarkMs":0}', str(self.epoch))

    def _note(self, log: str, *lines: str) -> None:
        """Write an entry as Spark does around an epoch, if there is a checkpoint."""
        location = self.options.get("checkpointLocation")
        if location is None:
            return
        folder = f"{location}/{log}"
        if self.epoch == 0:
            os.makedirs(folder, exist_ok=True)
        # With the least that does it: the JVM's part is no cost of a sink.
        file = os.open(f"{folder}/{self.epoch}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(file, "\n".join(["v1", *lines]).encode())
        os.close(file)
        if self.epoch >= _RETAINED:
            os.unlink(f"{folder}/{self.epoch - _RETAINED}")

    def _writer(self, role: str) -> Writer[Any, Any]:
        build = partial(self.kind, schema=self.batch.schema, mode=OutputMode.APPEND)
        given = {**self.options, **({} if self.apart is None else {self.apart: role})}
        if issubclass(self.kind, Separate):
            build = partial(build, logs=self.roles.setdefault(role, {}))
        return build(self.kind.options_type.parse(given, "krishiv-bench"))
