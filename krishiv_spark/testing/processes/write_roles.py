"""The roles of Spark's Python processes for a sink, one function each.

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
from pyspark.sql.types import StructType
from pyspark.sql.worker.write_into_data_source import (  # type: ignore[attr-defined]  # where each version has it
    ArrowTableToRowsConversion,  # pyright: ignore[reportPrivateImportUsage]  # likewise
)

from krishiv_spark.arrow.schemas import arrow_schema, spark_schema
from krishiv_spark.spark.checkpoint import SparkCheckpoint
from krishiv_spark.testing.processes.environment import give_back_memory, memory_now
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
    "in_foreach_batch",
    "locate_log",
    "locate_texts",
    "plan",
    "write",
]

Messages: TypeAlias = Sequence[bytes | None]
"""Pickled messages of all tasks; None for a task that sent none."""

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
    """The sink to write, as Spark knows it.

    Attributes:
        source: The class that Spark registers.
        options: The user's options.
        schema: Columns of the rows.
        row: The function from a number to its row.
        checkpoint: Location of the query's checkpoint; None for a batch job.
        query: Id of the streaming query; None for a batch job.
        overwrite: True if epochs replace one another.
    """

    source: type[spark.DataSource]
    options: Mapping[str, str]
    schema: pa.Schema
    row: Callable[[int], Row]
    checkpoint: str | None
    query: str | None
    overwrite: bool

    def reordered(self) -> Job:
        """Return the same job with the columns in the opposite order."""
        row = self.row
        return replace(self, schema=pa.schema([*self.schema][::-1]), row=lambda n: row(n)[::-1])


@dataclass(frozen=True)
class Attempt:
    """One attempt at a task.

    Attributes:
        epoch: Spark's batch id.
        task: Number of the task.
        id: Spark's id of the attempt, unique within the application.
        number: The number of earlier attempts of the task.
        midway: The fault after half of its rows.
    """

    epoch: int
    task: int
    id: int
    number: int
    midway: Literal["goes on", "fails", "dies", "sleeps"]


def plan(job: Job) -> bytes:
    """Plan an epoch: driver side (``pyspark.sql.worker.write_into_data_source``)."""
    return pickled(_writer(job), _OF_PLANS)


def write(job: Job, writer: bytes, numbers: Sequence[int], attempt: Attempt) -> bytes:
    """Run the function that ``write_into_data_source`` sends to the tasks: executor."""
    _set_context(job, attempt)
    batches = _feed(_batches(job, numbers), attempt)
    return _written(job, writer, batches)


def _written(job: Job, writer: bytes, batches: Iterator[pa.RecordBatch]) -> bytes:
    loaded = unpickled(writer)
    rows = batches if isinstance(loaded, _ARROW_WRITERS) else _rows(job, batches)
    message = loaded.write(rows)
    if not isinstance(message, spark.WriterCommitMessage):
        raise TypeError(f"write() returned {message!r}, which is no WriterCommitMessage")
    return pickled(message, _OF_MESSAGES)


def commit(job: Job, writer: bytes, messages: Messages, epoch: int) -> None:
    """Commit: driver (``python_streaming_sink_runner``; a batch: ``commit_data_source_write``)."""
    made, epochs = _driver_side(job, writer, epoch)
    made.commit(_load_writer(messages), *epochs)


def abort(job: Job, writer: bytes, messages: Messages, epoch: int) -> None:
    """Abort, in the same process as `commit`."""
    made, epochs = _driver_side(job, writer, epoch)
    made.abort(_load_writer(messages), *epochs)


def discard(job: Job, messages: Sequence[bytes], times: int) -> None:
    """Call `discard` of a committer of krishiv-spark's several times."""
    payloads = [unpickled(message).payload for message in messages]
    writer = _writer(job)._writer  # noqa: SLF001  the verb is the author's, Spark has none
    for _ in range(times):
        writer.committer().discard([payload for payload in payloads if payload is not None])


Location: TypeAlias = tuple[str, ...]
"""The keys on the path to texts of one meaning in staged values; equal for each item of a list."""


def locate_texts(job: Job, messages: Sequence[bytes]) -> list[Location]:
    """Return the locations of all texts in what the tasks of an epoch have staged."""
    del job
    found = {place: None for item in _read_staged(messages) for place, _ in _texts(item, ())}
    return list(found)


def forge(job: Job, messages: Sequence[bytes], location: Location, text: str) -> None:
    """Append an intent to the epoch log of a sink of krishiv-spark's, with some texts replaced.

    Args:
        job: The job.
        messages: The messages of the tasks of the newest epoch.
        location: The location of the texts to replace.
        text: The replacement.
    """
    committer = _writer(job)._writer.committer()  # noqa: SLF001  Spark has no verb for it
    epoch = unpickled(messages[0]).epoch
    log = committer.log(epoch.query)
    staged = [_with_text(item, location, text) for item in _read_staged(messages)]
    log.intend(log.state().owner, epoch.number, staged, epoch.offsets)


def locate_log(job: Job) -> str:
    """Return the location of the epoch log of a sink of krishiv-spark's."""
    committer = _writer(job)._writer.committer()  # noqa: SLF001  Spark has no verb for it
    return str(committer.log(job.query))


def has_target_record(job: Job) -> bool:
    """Return True if a target of a sink over an epoch log records its newest epoch."""
    committer = _writer(job)._writer.committer()  # noqa: SLF001  as above
    found = committer.participant.records(job.query)
    return any((record.mark, record.generation) != (None, None) for record in found)


def _read_staged(messages: Sequence[bytes]) -> list[Any]:
    """Return the values that tasks have staged, as an intent contains them."""
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
    """Stage a task of long rows, and drop the result: executor.

    Bounded buffers, and all that a connector sets up once, exist when half of the rows have
    come. Memory that it uses per row grows over the other half.

    Args:
        job: The job.
        writer: The planner's pickled writer.
        attempt: The attempt.
        half: The least number of bytes of half of the rows.

    Returns:
        The bytes of the rows in that half, and the bytes by which the process has grown over them.
    """
    here().disarm()  # the kit counts no calls here: a list of them would grow too
    give_back_memory()
    _set_context(job, attempt)
    meter = _Meter(half)
    _written(job, writer, meter.read(job))
    return meter.size - meter.half, max(memory_now(), meter.most) - meter.at_half


@dataclass
class _Meter:
    """Rows that are created on request, and the memory of the process meanwhile."""

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
    """Return the driver's writer: a stream's is created again, a batch job's is the planner's."""
    return (unpickled(writer), ()) if job.query is None else (_writer(job), (epoch,))


def _load_writer(messages: Messages) -> list[Any]:
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
    """Return two batches, so that a task can end between them; one for one row, none for none."""
    half = (len(numbers) + 1) // 2
    return [_batch(job, part) for part in (numbers[:half], numbers[half:]) if part]


def _batch(job: Job, numbers: Sequence[int]) -> pa.RecordBatch:
    """Return rows in the types in which Spark passes them."""
    schema = arrow_schema(spark_schema(job.schema))
    return pa.record_batch(columns(schema, [job.row(n) for n in numbers]), schema=schema)


def _feed(batches: Sequence[pa.RecordBatch], attempt: Attempt) -> Iterator[pa.RecordBatch]:
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
    """Return rows as Spark's worker creates them; times are in the local zone of the process."""
    for batch in batches:
        table = pa.Table.from_batches([batch])
        yield from ArrowTableToRowsConversion.convert(table, spark_schema(job.schema))


_StreamArrowWriter: Any = getattr(
    spark, "DataSourceStreamArrowWriter", spark.DataSourceStreamWriter
)


def in_foreach_batch(
    source: type[spark.DataSource], name: str | None = None, *, ahead: int = 0
) -> type[spark.DataSource]:
    """Return the class of a format whose streams write by numbered jobs, as `each_batch` does.

    Args:
        source: The class that Spark registers.
        name: The user's name for the query; None for its id.
        ahead: The difference between the numbers and those of the checkpoint, as after batches that
            went elsewhere.
    """

    class InForeachBatch(source):  # type: ignore[misc,valid-type]  # a class that the author gives
        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802  Spark's name
            given = _Given(name, ahead)
            return _NumberedBatches(source, self.options, schema, overwrite, given)

    return InForeachBatch


class _Given:
    """The name and the numbers of the jobs, if they are not the usual ones."""

    def __init__(self, name: str | None, ahead: int) -> None:
        self.name, self.ahead = name, ahead


class _NumberedBatches(_StreamArrowWriter, spark.DataSourceArrowWriter):  # type: ignore[misc]  # base chosen by version
    """The writer of a stream, as the kit knows it."""

    def __init__(
        self,
        source: type[spark.DataSource],
        options: Mapping[str, str],
        schema: StructType,
        overwrite: bool,
        given: _Given,
    ) -> None:
        self._source, self._options, self._given = source, dict(options), given
        self._schema, self._overwrite = schema, overwrite
        self._checkpoint = SparkCheckpoint(options["checkpointLocation"])
        self._planned: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Plan the job, with which this is pickled."""
        if self._planned is None:
            self._planned = self._job(self._checkpoint.planned_offsets().epoch)
        return self.__dict__

    def _job(self, epoch: int) -> Any:
        query = self._checkpoint.query_id()
        job = {
            "txnAppId": self._given.name or f"{query}-output",
            "txnVersion": str(epoch + self._given.ahead),
            "txnRepeats": "newest",
            "txnCheckpoint": self._checkpoint.location,
        }
        if self._given.name is not None:
            job["txnQueryId"] = query
        return self._source({**self._options, **job}).writer(self._schema, self._overwrite)

    @property
    def _writer(self) -> Any:
        """Return the author's writer, whose `discard` the kit calls."""
        return self._job(0)._writer  # noqa: SLF001

    def write(self, iterator: Iterator[Any]) -> Any:
        """Spark: executor."""
        return self._planned.write(iterator)

    def commit(  # type: ignore[override]  # streams name the batch, batches do not
        self, messages: list[Any], epoch: int
    ) -> None:
        """Spark: driver, in a process of its own."""
        self._job(epoch).commit(messages)

    def abort(  # type: ignore[override]  # as `commit`
        self, messages: list[Any], epoch: int
    ) -> None:
        """Spark: driver, in a process of its own."""
        self._job(epoch).abort(messages)
