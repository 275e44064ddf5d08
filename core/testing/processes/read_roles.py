"""What Spark's Python processes do with a source, one function each.

Like `write_roles`, they call nothing but Spark's own methods. The reader that chooses offsets and
plans lives as long as its process; tasks read with another instance, made in a planner and pickled
(``PythonMicroBatchStream`` and ``plan_data_source_read``).
"""

from __future__ import annotations

import inspect
import json
import re
import resource
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import datasource as spark
from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

from krishiv_spark.arrow import arrow_schema, spark_schema
from krishiv_spark.errors import KrishivError
from krishiv_spark.testing.processes.pickling import as_spark_gives, pickled, unpickled
from krishiv_spark.testing.subjects import Row

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
    "task_reader",
]

_BATCH_ROWS = 10_000  # spark.sql.execution.arrow.maxRecordsPerBatch
_KIB = 1024


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
    end = json.dumps(_open.latestOffset(json.loads(start), _open.getDefaultReadLimit()))
    json.dumps(_open.reportLatestOffset())
    return end


def partitions(load: Load, start: str, end: str) -> Plan:
    """``partitions_func`` of the same runner: what a batch consists of."""
    span = json.loads(start), json.loads(end)
    parts = [pickled(partition) for partition in _open.partitions(*span)]
    cached = getattr(_open, "getCache", lambda *_: None)(*span)
    return parts, None if cached is None else _as_rows(_arrow(load, cached))


def committed(end: str) -> None:
    """The hint that a batch is done."""
    _open.commit(json.loads(end))


def freeze() -> bool:
    """Tell the reader that the query shall end; False if it cannot."""
    prepare = getattr(_open, "prepareForTriggerAvailableNow", None)
    if prepare is not None:
        prepare()
    return prepare is not None


def inferred(load: Load) -> pa.Schema | None:
    """``create_data_source``: the schema that the source infers, None if it wants one."""
    try:
        found: Any = load.make().schema()
        return arrow_schema(found)
    except (KrishivError, NotImplementedError):
        return None


def task_reader(load: Load) -> bytes:
    """``plan_data_source_read`` of a stream: the reader for the tasks, pickled."""
    return pickled(_stream_reader(load))


def batch_partitions(load: Load) -> tuple[bytes, list[bytes]]:
    """``plan_data_source_read`` of a batch: reader and partitions."""
    made = load.make().reader(schema=spark_schema(load.schema))
    # Spark turns an empty plan into one partition of None.
    found = list(made.partitions()) or [None]  # type: ignore[list-item]
    return pickled(made), [pickled(part) for part in found]


def rows(load: Load, reader: bytes, partition: bytes) -> list[Row]:
    """The rows of one partition: executor."""
    return _as_rows(_read(load, reader, partition))


def growth(load: Load, reader: bytes, few: Sequence[bytes], many: Sequence[bytes]) -> str:
    """Read some partitions, then many, and forget the rows. In a new process.

    A process that was forked holds memory that was freed before, and would fill that first.

    Returns:
        As JSON: bytes of the many's rows, and bytes by which the process has grown over them.
    """
    _size(load, reader, few)  # what is imported on the way is no part of what is held
    before = _peak()
    return json.dumps([_size(load, reader, many), _peak() - before])


def _size(load: Load, reader: bytes, parts: Sequence[bytes]) -> int:
    # Few rows a batch: PySpark itself gathers so many of a reader that yields tuples.
    batches = (_read(load, reader, partition, most=500) for partition in parts)
    return sum(batch.nbytes for batch in chain.from_iterable(batches))


def _peak() -> int:
    """Bytes of this process at its largest."""
    status = Path("/proc/self/status")
    if status.exists():  # on Linux, ru_maxrss is no less than that of the process that called exec
        found = re.search(r"VmHWM:\s*(\d+) kB", status.read_text())
        return int(found[1]) * _KIB if found else 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in bytes on macOS


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
        from pyspark.sql.datasource_internal import _streamReader

        return _streamReader(source, schema)
