"""What Spark's Python processes do with a source, one function each.

Like `write_roles`, they call nothing but Spark's own methods. The reader that chooses offsets and
plans lives as long as its process; tasks read with another instance, made in a planner and pickled
(``PythonMicroBatchStream`` and ``plan_data_source_read``).
"""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyspark
from pyspark.sql import datasource as spark
from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

from krishiv_spark.arrow.schemas import arrow_schema, spark_schema
from krishiv_spark.errors import KrishivError
from krishiv_spark.testing.processes.memory import memory_peak
from krishiv_spark.testing.processes.pickling import as_spark_gives, of_class, pickled, unpickled
from krishiv_spark.testing.rows import Row

__all__ = [
    "Load",
    "Plan",
    "batch_partitions",
    "choose",
    "committed",
    "freeze",
    "growth",
    "inferred",
    "initial",
    "open_reader",
    "partitions",
    "rows",
    "rows_between",
    "task_reader",
]

_BATCH_ROWS = 10_000  # spark.sql.execution.arrow.maxRecordsPerBatch
_OF_READERS = (
    "Tasks read with copies of the reader, in other processes: create it in the method that uses "
    "it, and keep it in a local variable; what only the driver needs, leave out of __getstate__()"
)
_OF_PARTITIONS = "Partitions travel to tasks: create it in read(), from values in the partition"

_NO_PARTITION: Any = (
    spark.InputPartition(None)
    if tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)
    else None
)
"""What Spark turns an empty plan of a batch into."""

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # before 4.2 no reader is told
    _ENDING: tuple[type, ...] = ()
else:
    _ENDING = (SupportsTriggerAvailableNow,)


@dataclass(frozen=True)
class Load:
    """What is read, as Spark knows it.

    Attributes:
        source: The class that Spark registers.
        options: What the user gave.
        schema: Columns that Spark expects.
    """

    source: type[spark.DataSource]
    options: Mapping[str, str]
    schema: pa.Schema

    def make(self) -> spark.DataSource:
        """An instance, as Spark makes it."""
        return self.source(options=as_spark_gives(self.options))


Plan: TypeAlias = tuple[list[bytes], list[Row] | None]
"""Pickled partitions; and what a simple reader has read when it chose the end, otherwise None.

Spark takes such rows, and runs no task.
"""

_open: Any = None


def open_reader(load: Load) -> bool:
    """``python_streaming_source_runner``: driver side, once per start of the query.

    Returns:
        Whether the reader is told where the query stands.
    """
    global _open  # noqa: PLW0603  the reader of this process, as in Spark's runner
    _open = _stream_reader(load)
    return bool(inspect.signature(_open.latestOffset).parameters)


def initial() -> str:
    """The initial offset, as text."""
    return json.dumps(_open.initialOffset())


def choose(start: str, is_told: bool) -> str:
    """The end of the next batch, as text; 4.2 and later ask for the backlog too."""
    if not is_told:
        return json.dumps(_open.latestOffset())
    end = json.dumps(_open.latestOffset(json.loads(start), _default_limit()))
    # Spark wants it as JSON: what cannot be written fails the query there.
    json.dumps(_open.reportLatestOffset())
    return end


def _default_limit() -> Any:
    """It goes to the JVM and back, as the name of its class and its fields."""
    from pyspark.sql.datasource_internal import ReadLimitRegistry

    limit = _open.getDefaultReadLimit()
    return ReadLimitRegistry().get({**asdict(limit), "_type": type(limit).__name__})


def partitions(load: Load, start: str, end: str) -> Plan:
    """``partitions_func`` of the same runner: what a batch consists of."""
    span = json.loads(start), json.loads(end)
    found = _open.partitions(*span)
    len(found)  # Spark sends it first
    parts = [pickled(partition, _OF_PARTITIONS) for partition in _checked(found)]
    # Only the wrapper that Spark puts around a simple reader has it.
    cached = getattr(_open, "getCache", lambda *_: None)(*span)
    return parts, None if cached is None else _as_rows(_arrow(load, cached))


def committed(end: str) -> None:
    """The hint that a batch is done."""
    _open.commit(json.loads(end))


def freeze() -> bool:
    """Tell the reader that the query shall end; False if it cannot."""
    reader: Any = getattr(_open, "simple_reader", _open)
    # Spark goes by the class, not by the method.
    is_told = isinstance(reader, _ENDING)
    if is_told:
        reader.prepareForTriggerAvailableNow()
    return is_told


def inferred(load: Load) -> pa.Schema | str | None:
    """``create_data_source``: the schema that the source infers, None if it wants one.

    Text in Spark's language for schemas is read by the JVM: it is returned as it is.
    """
    try:
        found: Any = load.make().schema()
    except (KrishivError, NotImplementedError):
        return None
    return found if isinstance(found, str) else arrow_schema(found)


def rows_between(load: Load, start: str, end: str) -> int:
    """How many rows a reader made anew finds between two positions; 0 if it refuses them."""
    reader = _stream_reader(load)
    with contextlib.suppress(Exception):
        found = [reader.read(part) for part in reader.partitions(*map(json.loads, (start, end)))]
        return sum(len(_as_rows(_arrow(load, each))) for each in found)
    return 0


def task_reader(load: Load) -> bytes:
    """``plan_data_source_read`` of a stream: the reader for the tasks, pickled."""
    return pickled(of_class(_stream_reader(load), (spark.DataSourceStreamReader,)), _OF_READERS)


def batch_partitions(load: Load) -> tuple[bytes, list[bytes]]:
    """``plan_data_source_read`` of a batch: reader and partitions."""
    made = load.make().reader(schema=spark_schema(load.schema))
    of_class(made, (spark.DataSourceReader,))
    found: Any = made.partitions()
    if not isinstance(found, list):
        raise TypeError(f"partitions() returned a {type(found).__name__}; Spark wants a list")
    parts = [pickled(part, _OF_PARTITIONS) for part in _checked(found) or [_NO_PARTITION]]
    return pickled(made, _OF_READERS), parts


def _checked(found: Sequence[Any]) -> Sequence[Any]:
    """Partitions of the class that Spark wants (``data_source_read_func``)."""
    for part in found:
        if not isinstance(part, spark.InputPartition):
            raise TypeError(f"partitions() holds {part!r}, which is no InputPartition")
    return found


def rows(load: Load, reader: bytes, partition: bytes) -> list[Row]:
    """The rows of one partition: executor."""
    return _as_rows(_read(load, reader, partition))


def growth(load: Load, reader: bytes, few: Sequence[bytes], many: Sequence[bytes]) -> str:
    """Read some partitions, then many, and forget the rows. In a new process.

    A process that was forked holds memory that was freed before, and would fill that first.

    Returns:
        As JSON: bytes of the rows of the largest task among the many, and bytes by which the
        process has grown over all of them, beyond what Spark holds: a task's partition.
    """
    for part in few:  # what is imported on the way is no part of what is held
        _size(load, reader, part)
    before = memory_peak()
    size = max(_size(load, reader, part) for part in many)
    return json.dumps([size, memory_peak() - before - max(map(len, many))])


def _size(load: Load, reader: bytes, part: bytes) -> int:
    # Few rows a batch: PySpark itself gathers so many of a reader that yields tuples.
    return sum(batch.nbytes for batch in _read(load, reader, part, most=500))


def _read(
    load: Load, reader: bytes, partition: bytes, most: int = _BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    return _arrow(load, unpickled(reader).read(unpickled(partition)), most)


def _arrow(load: Load, found: Any, most: int = _BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    schema = spark_schema(load.schema)
    for batch in records_to_arrow_batches(found, most, schema, load.make()):
        yield batch.select(load.schema.names)


def _as_rows(batches: Iterator[pa.RecordBatch]) -> list[Row]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def _stream_reader(load: Load) -> Any:
    source, schema = load.make(), spark_schema(load.schema)
    try:
        return source.streamReader(schema=schema)
    except NotImplementedError:
        # It has a simple reader, which Spark wraps by this function.
        from pyspark.sql.datasource_internal import _streamReader

        return _streamReader(source, schema)
