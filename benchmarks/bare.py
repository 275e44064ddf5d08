"""The cost of PySpark itself: a sink in Python that drops rows, and a source that repeats them.

No connector in Python can be faster: they spare their workers what ours are spared (`tune_worker`).
Their classes are local, so that they are pickled by value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from krishiv_spark.runtime.workers import tune_worker

__all__ = ["BARE_SINK", "BARE_SOURCE", "register_bare_sink", "register_bare_source"]

BARE_SINK, BARE_SOURCE = "bare-sink", "bare-source"


def register_bare_sink(spark: Any) -> None:
    """Make a format known that drops every row, of streams and of batches."""
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceStreamArrowWriter,
        WriterCommitMessage,
    )

    def drop(iterator: Iterator[Any]) -> WriterCommitMessage:
        tune_worker()
        for _ in iterator:
            pass
        return WriterCommitMessage()

    class StreamWriter(DataSourceStreamArrowWriter):
        def __init__(self) -> None:
            tune_worker()

        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            return drop(iterator)

    class BatchWriter(DataSourceArrowWriter):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            return drop(iterator)

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return BARE_SINK

        def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:  # noqa: N802  Spark's
            del schema, overwrite
            return StreamWriter()

        def writer(self, schema: Any, overwrite: bool) -> BatchWriter:
            del schema, overwrite
            return BatchWriter()

    spark.dataSource.register(Source)


def register_bare_source(spark: Any, batch: pa.RecordBatch, rows: int, partitions: int) -> int:
    """Make a format known that has about so many rows; its stream is one batch of Spark's.

    Args:
        spark: The session.
        batch: Yielded again and again, from memory.
        rows: About how many rows in all.
        partitions: How many tasks read them.

    Returns:
        How many rows exactly.
    """
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.pandas.types import from_arrow_schema

    # Each task gets it pickled, and a slice is pickled with all that it was cut from.
    batch = pa.ipc.read_record_batch(batch.serialize(), batch.schema)
    times = max(rows // partitions // len(batch), 1)
    names = from_arrow_schema(batch.schema)
    stream = _stream_reader(batch, times, partitions)
    whole = _batch_reader(batch, times, partitions)

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return BARE_SOURCE

        def schema(self) -> Any:
            return names

        def streamReader(self, schema: Any) -> Any:  # noqa: N802  Spark's name
            del schema
            return stream()

        def reader(self, schema: Any) -> Any:
            del schema
            return whole()

    spark.dataSource.register(Source)
    return times * len(batch) * partitions


def _stream_reader(batch: pa.RecordBatch, times: int, partitions: int) -> type[Any]:
    from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

    class Reader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802  Spark's name
            return {"batch": 0}

        def latestOffset(self) -> dict[str, int]:  # noqa: N802  Spark's name
            return {"batch": 1}

        def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
            del start, end
            return [InputPartition(number) for number in range(partitions)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            del partition
            tune_worker()
            for _ in range(times):
                yield batch

    return Reader


def _batch_reader(batch: pa.RecordBatch, times: int, partitions: int) -> type[Any]:
    from pyspark.sql.datasource import DataSourceReader, InputPartition

    class Reader(DataSourceReader):
        def partitions(self) -> Sequence[InputPartition]:
            return [InputPartition(number) for number in range(partitions)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            del partition
            tune_worker()
            for _ in range(times):
                yield batch

    return Reader
