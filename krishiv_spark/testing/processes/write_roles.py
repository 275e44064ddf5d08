"""What Spark's Python processes do with a sink, one function each.

They call nothing but Spark's own methods, so they drive any ``DataSource``. Each names the module
of PySpark that it plays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal, TypeAlias

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource as spark
from pyspark.sql.types import Row as SparkRow
from pyspark.sql.worker.write_into_data_source import (  # type: ignore[attr-defined]  # where each version has it
    ArrowTableToRowsConversion,  # pyright: ignore[reportPrivateImportUsage]  # likewise
)

from krishiv_spark.arrow.schemas import arrow_schema, spark_schema
from krishiv_spark.testing.processes.memory import give_back_memory, memory_now
from krishiv_spark.testing.processes.pickling import as_spark_gives, of_class, pickled, unpickled
from krishiv_spark.testing.processes.seam import die
from krishiv_spark.testing.processes.serving import here, rest
from krishiv_spark.testing.rows import Row, columns

__all__ = [
    "Attempt",
    "Job",
    "Location",
    "abort",
    "commit",
    "discard",
    "forge",
    "growth",
    "has_target_record",
    "locate_log",
    "locate_texts",
    "plan",
    "write",
]

Messages: TypeAlias = Sequence[bytes | None]
"""Pickled messages of all tasks; None for those that sent none."""

_LONG_ROWS = 500

_OF_PLANS = (
    "What plan() and last_committed() return travels to the tasks: create it in stage(), from "
    "values in the plan"
)
_OF_MESSAGES = (
    "What stage() returns travels to the committer: create it in publish(), from values in there"
)

_ARROW_WRITERS = tuple(
    kind
    for name in ("DataSourceArrowWriter", "DataSourceStreamArrowWriter")
    if (kind := getattr(spark, name, None)) is not None  # the second one is of 4.1
)


_BATCH_WRITERS = (spark.DataSourceWriter,)
_STREAM_WRITERS = (
    spark.DataSourceStreamWriter,
    *(kind for kind in _ARROW_WRITERS if kind is not spark.DataSourceArrowWriter),
)


@dataclass(frozen=True)
class Job:
    """What is written, as Spark knows it.

    Attributes:
        source: The class that Spark registers.
        options: What the user gave.
        schema: Columns of the rows.
        row: The row of a number.
        checkpoint: Location of the query's checkpoint; None for a batch job.
        query: Id of the streaming query; None for a batch job.
        overwrite: Whether epochs replace one another.
    """

    source: type[spark.DataSource]
    options: Mapping[str, str]
    schema: pa.Schema
    row: Callable[[int], Row]
    checkpoint: str | None
    query: str | None
    overwrite: bool

    def reordered(self) -> Job:
        """The same with the columns in the opposite order."""
        row = self.row
        return replace(self, schema=pa.schema([*self.schema][::-1]), row=lambda n: row(n)[::-1])


@dataclass(frozen=True)
class Attempt:
    """One attempt at a task.

    Attributes:
        epoch: Spark's batch id.
        task: Number of the task.
        id: Of the attempt, unique within the application.
        number: How often the task was tried before.
        midway: What happens after half of its rows.
    """

    epoch: int
    task: int
    id: int
    number: int
    midway: Literal["goes on", "fails", "dies", "sleeps"]


def plan(job: Job) -> bytes:
    """``pyspark.sql.worker.write_into_data_source``: driver side, once per epoch."""
    return pickled(_writer(job), _OF_PLANS)


def write(job: Job, writer: bytes, numbers: Sequence[int], attempt: Attempt) -> bytes:
    """The function that ``write_into_data_source`` sends to the tasks: executor."""
    _set_context(job, attempt)
    batches = _fed(_batches(job, numbers), attempt)
    return _written(job, writer, batches)


def _written(job: Job, writer: bytes, batches: Iterator[pa.RecordBatch]) -> bytes:
    loaded = unpickled(writer)
    rows = batches if isinstance(loaded, _ARROW_WRITERS) else _rows(job, batches)
    message = loaded.write(rows)
    if not isinstance(message, spark.WriterCommitMessage):
        raise TypeError(f"write() returned {message!r}, which is no WriterCommitMessage")
    return pickled(message, _OF_MESSAGES)


def commit(job: Job, writer: bytes, messages: Messages, epoch: int) -> None:
    """``python_streaming_sink_runner``, or ``commit_data_source_write`` of a batch: driver."""
    made, epochs = _driver_side(job, writer, epoch)
    made.commit(_loaded(messages), *epochs)


def abort(job: Job, writer: bytes, messages: Messages, epoch: int) -> None:
    """As `commit`."""
    made, epochs = _driver_side(job, writer, epoch)
    made.abort(_loaded(messages), *epochs)


def discard(job: Job, messages: Sequence[bytes], times: int) -> None:
    """Call the verb `discard` of a committer of ours, some times over."""
    payloads = [unpickled(message).payload for message in messages]
    writer = _writer(job)._writer  # noqa: SLF001  the verb is the author's, Spark has none
    for _ in range(times):
        writer.committer().discard([payload for payload in payloads if payload is not None])


Location: TypeAlias = tuple[str, ...]
"""Keys on the way to texts of one meaning in what tasks stage; the same for each item of a list."""


def locate_texts(job: Job, messages: Sequence[bytes]) -> list[Location]:
    """Return the locations of all texts in what the tasks of an epoch have staged."""
    del job
    found = {place: None for item in _staged(messages) for place, _ in _texts(item, ())}
    return list(found)


def forge(job: Job, messages: Sequence[bytes], location: Location, text: str) -> None:
    """Append an intent to the epoch log of a sink of ours: what is staged, but for some texts.

    Args:
        job: What is written.
        messages: Of the tasks of the epoch that was begun last.
        location: Of the texts that are others.
        text: What they are.
    """
    committer = _writer(job)._writer.committer()  # noqa: SLF001  Spark has no verb for it
    epoch = unpickled(messages[0]).epoch
    log = committer.log(epoch.query)
    staged = [_with_text(item, location, text) for item in _staged(messages)]
    log.intend(log.state().owner, epoch.number, staged, epoch.offsets)


def locate_log(job: Job) -> str:
    """Return the location of the epoch log of a sink of ours."""
    committer = _writer(job)._writer.committer()  # noqa: SLF001  Spark has no verb for it
    return str(committer.log(job.query))


def has_target_record(job: Job) -> bool:
    """Return True if a target of a sink over an epoch log records its newest epoch."""
    committer = _writer(job)._writer.committer()  # noqa: SLF001  as above
    found = committer.participant.records(job.query)
    return any((record.mark, record.generation) != (None, None) for record in found)


def _staged(messages: Sequence[bytes]) -> list[Any]:
    """What tasks have staged, as an intent holds it."""
    payloads = (unpickled(message).payload for message in messages)
    return [payload.model_dump(mode="json") for payload in payloads if payload is not None]


def _texts(value: Any, above: Location) -> Iterator[tuple[Location, str]]:
    if isinstance(value, str):
        yield above, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, (*above, key))
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, above)


def _with_text(value: Any, location: Location, text: str) -> Any:
    if isinstance(value, str):
        return value if location else text
    if isinstance(value, list):
        return [_with_text(inner, location, text) for inner in value]
    if isinstance(value, Mapping) and location:
        own, *rest = location
        return {
            key: _with_text(inner, tuple(rest), text) if key == own else inner
            for key, inner in value.items()
        }
    return value


def growth(job: Job, writer: bytes, attempt: Attempt, half: int) -> tuple[int, int]:
    """Stage a task of long rows, and forget what came of it: executor.

    What a connector sets up, and buffers that are bounded, are there when half of the rows have
    come. What it holds of each row grows over the other half.

    Args:
        job: What is written.
        writer: The planner's, pickled.
        attempt: Which attempt this is.
        half: Bytes, at least, of half of the rows.

    Returns:
        Bytes of the rows in that half, and bytes by which the process has grown over them.
    """
    here().disarm()  # the kit counts no calls here: a list of them would grow too
    give_back_memory()
    _set_context(job, attempt)
    meter = _Meter(half)
    _written(job, writer, meter.read(job))
    return meter.size - meter.half, max(memory_now(), meter.most) - meter.at_half


@dataclass
class _Meter:
    """Rows that are made as they are asked for, and what the process held meanwhile."""

    half: int
    size: int = 0
    at_half: int = 0
    most: int = 0

    def read(self, job: Job) -> Iterator[pa.RecordBatch]:
        for first in count(0, _LONG_ROWS):
            self.most = max(self.most, memory_now())
            if self.size >= self.half and not self.at_half:
                self.at_half, self.most = self.most, 0
            if self.size >= 2 * self.half:
                return
            batch = _batch(job, range(first, first + _LONG_ROWS))
            self.size += batch.nbytes
            yield batch


def _driver_side(job: Job, writer: bytes, epoch: int) -> tuple[Any, tuple[int, ...]]:
    """A stream's writer is made anew and told the epoch; a batch job's is the planner's."""
    return (unpickled(writer), ()) if job.query is None else (_writer(job), (epoch,))


def _loaded(messages: Messages) -> list[Any]:
    return [None if message is None else unpickled(message) for message in messages]


def _writer(job: Job) -> Any:
    given = dict(job.options)
    if job.checkpoint is not None:
        given["checkpointLocation"] = job.checkpoint
    source = job.source(options=as_spark_gives(given))
    is_batch = job.query is None
    make = source.writer if is_batch else source.streamWriter
    made = make(schema=spark_schema(job.schema), overwrite=job.overwrite)
    return of_class(made, _BATCH_WRITERS if is_batch else _STREAM_WRITERS)


def _set_context(job: Job, attempt: Attempt) -> None:
    context = TaskContext()  # a singleton, filled as pyspark.worker fills it
    context._partitionId = attempt.task  # noqa: SLF001  as Spark's worker does
    context._stageId = attempt.epoch  # noqa: SLF001
    context._taskAttemptId = attempt.id  # noqa: SLF001
    context._attemptNumber = attempt.number  # noqa: SLF001
    of_stream = {
        "sql.streaming.queryId": job.query,
        "streaming.sql.batchId": str(attempt.epoch),
    }
    # The ignored type is that of `query`, which is text in every stream.
    context._localProperties = of_stream if job.query is not None else {}  # type: ignore[assignment]  # noqa: SLF001


def _batches(job: Job, numbers: Sequence[int]) -> list[pa.RecordBatch]:
    """Two batches, so that a task can end between them; one for one row, none for none."""
    half = (len(numbers) + 1) // 2
    return [_batch(job, part) for part in (numbers[:half], numbers[half:]) if part]


def _batch(job: Job, numbers: Sequence[int]) -> pa.RecordBatch:
    """Rows in the types in which Spark hands them over."""
    schema = arrow_schema(spark_schema(job.schema))
    return pa.record_batch(columns(schema, [job.row(n) for n in numbers]), schema=schema)


def _fed(batches: Sequence[pa.RecordBatch], attempt: Attempt) -> Iterator[pa.RecordBatch]:
    half = (len(batches) + 1) // 2
    yield from batches[:half]
    if attempt.midway == "fails":
        raise RuntimeError("injected: the task fails after half of its rows")
    if attempt.midway == "dies":
        die()
    if attempt.midway == "sleeps":
        rest("half of the rows")
    yield from batches[half:]


def _rows(job: Job, batches: Iterator[pa.RecordBatch]) -> Iterator[SparkRow]:
    """As Spark's worker makes them; times are in the local zone of the process."""
    for batch in batches:
        table = pa.Table.from_batches([batch])
        yield from ArrowTableToRowsConversion.convert(table, spark_schema(job.schema))
