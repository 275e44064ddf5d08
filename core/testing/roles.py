"""What Spark's Python processes do with a sink, one function each.

They run in processes of the kit (`krishiv_spark.testing.processes`) and call nothing but Spark's
own methods, so they drive any ``DataSource``. Each names the module of PySpark that it plays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource as spark
from pyspark.sql.types import Row as SparkRow

from krishiv_spark.arrow import spark_schema
from krishiv_spark.testing.outside import die
from krishiv_spark.testing.pickling import pickled, unpickled
from krishiv_spark.testing.processes import rest
from krishiv_spark.testing.subjects import Row

__all__ = ["Attempt", "Job", "abort", "commit", "discard", "plan", "write"]

_ARROW_WRITERS = tuple(
    kind
    for name in ("DataSourceArrowWriter", "DataSourceStreamArrowWriter")
    if (kind := getattr(spark, name, None)) is not None  # the second one is of 4.1
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


@dataclass(frozen=True)
class Attempt:
    """One attempt at a task.

    Attributes:
        epoch: Spark's batch id.
        task: Number of the task.
        number: Id of the attempt, unique.
        midway: What happens after half of its rows.
    """

    epoch: int
    task: int
    number: int
    midway: Literal["goes on", "fails", "dies", "sleeps"]


def plan(job: Job) -> bytes:
    """``pyspark.sql.worker.write_into_data_source``: driver side, once per epoch."""
    return pickled(_writer(job))


def write(job: Job, writer: bytes, numbers: Sequence[int], attempt: Attempt) -> bytes:
    """The function that ``write_into_data_source`` sends to the tasks: executor."""
    _set_context(job, attempt)
    batches = _fed(_batches(job, numbers), attempt)
    loaded = unpickled(writer)
    rows = batches if isinstance(loaded, _ARROW_WRITERS) else _rows(batches)
    message = loaded.write(rows)
    if not isinstance(message, spark.WriterCommitMessage):
        raise TypeError(f"write() returned {message!r}, which is no WriterCommitMessage")
    return pickled(message)


def commit(job: Job, writer: bytes, messages: Sequence[bytes], epoch: int) -> None:
    """``python_streaming_sink_runner``, or ``commit_data_source_write`` for a batch: driver side.

    A stream's writer is made anew; a batch job's is the planner's, unpickled.
    """
    loaded = [unpickled(message) for message in messages]
    if job.query is None:
        unpickled(writer).commit(loaded)
    else:
        _writer(job).commit(loaded, epoch)


def abort(job: Job, writer: bytes, messages: Sequence[bytes | None], epoch: int) -> None:
    """As `commit`, with None for tasks that sent no message."""
    loaded = [None if message is None else unpickled(message) for message in messages]
    if job.query is None:
        unpickled(writer).abort(loaded)
    else:
        _writer(job).abort(loaded, epoch)


def discard(job: Job, messages: Sequence[bytes], times: int) -> None:
    """Call the verb `discard` of one of our writers, some times over."""
    payloads = [unpickled(message).payload for message in messages]
    writer = _writer(job)._writer  # noqa: SLF001  the verb is the author's, Spark has none
    for _ in range(times):
        writer.discard([payload for payload in payloads if payload is not None])


def _writer(job: Job) -> Any:
    given = dict(job.options)
    if job.checkpoint is not None:
        given["checkpointLocation"] = job.checkpoint
    lowered = {key.lower(): value for key, value in given.items()}
    source = job.source(options=spark.CaseInsensitiveDict(lowered))
    make = source.writer if job.query is None else source.streamWriter
    return make(schema=spark_schema(job.schema), overwrite=job.overwrite)


def _set_context(job: Job, attempt: Attempt) -> None:
    context = TaskContext()  # a singleton, filled as pyspark.worker fills it
    context._partitionId = attempt.task  # noqa: SLF001  as Spark's worker does
    context._taskAttemptId = attempt.number  # noqa: SLF001
    of_stream = {
        "sql.streaming.queryId": job.query,
        "streaming.sql.batchId": str(attempt.epoch),
    }
    context._localProperties = of_stream if job.query is not None else {}  # type: ignore[assignment]  # noqa: SLF001


def _batches(job: Job, numbers: Sequence[int]) -> list[pa.RecordBatch]:
    """Two batches, so that a task can end between them; one for one row, none for none."""
    half = (len(numbers) + 1) // 2
    parts = [[job.row(number) for number in part] for part in (numbers[:half], numbers[half:])]
    return [_batch(job.schema, rows) for rows in parts if rows]


def _batch(schema: pa.Schema, rows: Sequence[Row]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
    return pa.record_batch(arrays, schema=schema)


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


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[SparkRow]:
    for batch in batches:
        yield from (SparkRow(**values) for values in batch.to_pylist())
