"""The roles of Spark's Python processes for a source, one function each.

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
from krishiv_spark.testing.processes.environment import memory_peak
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
"""The partition list into which Spark turns the empty plan of a batch."""

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # before 4.2 no reader is told
    _ENDING: tuple[type, ...] = ()
else:
    _ENDING = (SupportsTriggerAvailableNow,)


@dataclass(frozen=True)
class Load:
    """The source to read, as Spark knows it.

    Attributes:
        source: The class that Spark registers.
        options: The user's options.
        schema: Columns that Spark expects.
    """

    source: type[spark.DataSource]
    options: Mapping[str, str]
    schema: pa.Schema

    def make(self) -> spark.DataSource:
        """Create an instance, as Spark creates it."""
        return self.source(options=as_spark_gives(self.options))


Plan: TypeAlias = tuple[list[bytes], list[Row] | None]
"""Pickled partitions, and the rows that a simple reader has read when it chose the end, if any.

Spark uses such rows and runs no task.
"""

_open: Any = None


def open_reader(load: Load) -> bool:
    """``python_streaming_source_runner``: driver side, once per start of the query.

    Returns:
        True if the reader receives the position of the query.
    """
    global _open  # noqa: PLW0603  the reader of this process, as in Spark's runner
    _open = _stream_reader(load)
    return bool(inspect.signature(_open.latestOffset).parameters)


def initial() -> str:
    """Return the initial offset, as text."""
    return json.dumps(_open.initialOffset())


def choose(start: str, is_told: bool) -> str:
    """Return the end of the next batch, as text; Spark 4.2 and later request the backlog too."""
    if not is_told:
        return json.dumps(_open.latestOffset())
    end = json.dumps(_open.latestOffset(json.loads(start), _default_limit()))
    # Spark wants it as JSON: an offset that cannot be written fails the query there.
    json.dumps(_open.reportLatestOffset())
    return end


def _default_limit() -> Any:
    """Return the default limit as the JVM returns it: the name of its class and its fields."""
    from pyspark.sql.datasource_internal import ReadLimitRegistry

    limit = _open.getDefaultReadLimit()
    return ReadLimitRegistry().get({**asdict(limit), "_type": type(limit).__name__})


def partitions(load: Load, start: str, end: str) -> Plan:
    """Return the partitions of a batch (``partitions_func`` of the same runner)."""
    span = json.loads(start), json.loads(end)
    found = _open.partitions(*span)
    len(found)  # Spark sends it first
    parts = [pickled(partition, _OF_PARTITIONS) for partition in _check_partitions(found)]
    # Only the wrapper that Spark puts around a simple reader has it.
    cached = getattr(_open, "getCache", lambda *_: None)(*span)
    return parts, None if cached is None else _as_rows(_arrow(load, cached))


def committed(end: str) -> None:
    """Send the hint that a batch is committed."""
    _open.commit(json.loads(end))


def freeze() -> bool:
    """Tell the reader that the query shall end; return False if it has no such method."""
    reader: Any = getattr(_open, "simple_reader", _open)
    # Spark checks the class, not the method.
    is_told = isinstance(reader, _ENDING)
    if is_told:
        reader.prepareForTriggerAvailableNow()
    return is_told


def inferred(load: Load) -> pa.Schema | str | None:
    """Return the inferred schema, None if the source needs one (``create_data_source``).

    Text in Spark's schema language is parsed by the JVM, so it is returned unchanged.
    """
    try:
        found: Any = load.make().schema()
    except (KrishivError, NotImplementedError):
        return None
    return found if isinstance(found, str) else arrow_schema(found)


def rows_between(load: Load, start: str, end: str) -> int:
    """Return the number of rows a new reader finds between two positions; 0 if it refuses them."""
    reader = _stream_reader(load)
    with contextlib.suppress(Exception):
        found = [reader.read(part) for part in reader.partitions(*map(json.loads, (start, end)))]
        return sum(len(_as_rows(_arrow(load, each))) for each in found)
    return 0


def task_reader(load: Load) -> bytes:
    """Return the reader for the tasks of a stream, pickled (``plan_data_source_read``)."""
    return pickled(of_class(_stream_reader(load), (spark.DataSourceStreamReader,)), _OF_READERS)


def batch_partitions(load: Load) -> tuple[bytes, list[bytes]]:
    """Return the reader and the partitions of a batch (``plan_data_source_read``)."""
    made = load.make().reader(schema=spark_schema(load.schema))
    of_class(made, (spark.DataSourceReader,))
    found: Any = made.partitions()
    if not isinstance(found, list):
        raise TypeError(f"partitions() returned a {type(found).__name__}; Spark wants a list")
    parts = [pickled(part, _OF_PARTITIONS) for part in _check_partitions(found) or [_NO_PARTITION]]
    return pickled(made, _OF_READERS), parts


def _check_partitions(found: Sequence[Any]) -> Sequence[Any]:
    """Return the partitions if they have the class that Spark wants (``data_source_read_func``)."""
    for part in found:
        if not isinstance(part, spark.InputPartition):
            raise TypeError(f"partitions() holds {part!r}, which is no InputPartition")
    return found


def rows(load: Load, reader: bytes, partition: bytes) -> list[Row]:
    """Return the rows of one partition; runs in an executor."""
    return _as_rows(_read(load, reader, partition))


def growth(load: Load, reader: bytes, few: Sequence[bytes], many: Sequence[bytes]) -> str:
    """Read some partitions, then many, and drop the rows. Runs in a new process.

    A forked process holds memory that was freed before, and would fill that first.

    Returns:
        JSON: the bytes of the rows of the largest task among the many, and the bytes by which the
        process has grown over all of them, without the partition that Spark itself holds.
    """
    for part in few:  # imports on the way do not count
        _size(load, reader, part)
    before = memory_peak()
    size = max(_size(load, reader, part) for part in many)
    return json.dumps([size, memory_peak() - before - max(map(len, many))])


def _size(load: Load, reader: bytes, part: bytes) -> int:
    # Small batches: PySpark itself gathers this many rows of a reader that yields tuples.
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
        # Spark wraps its simple reader by this function.
        from pyspark.sql.datasource_internal import _streamReader

        return _streamReader(source, schema)
