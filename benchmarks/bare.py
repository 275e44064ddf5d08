"""What PySpark takes for itself: a sink in Python that drops rows, and a source that repeats them.

No connector in Python can be faster: they spare their workers what ours are spared (`tune_worker`).
Their classes are local, so that they are pickled by value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from krishiv_spark.workers import tune_worker

__all__ = ["BARE_SINK", "BARE_SOURCE", "register_bare_sink", "register_bare_source"]

BARE_SINK, BARE_SOURCE = "bare-sink", "bare-source"


def register_bare_sink(spark: Any) -> None:
    """Make a format known that drops every row."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

    class Writer(DataSourceStreamArrowWriter):
        def __init__(self) -> None:
            tune_worker()

        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            tune_worker()
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return BARE_SINK

        def streamWriter(self, schema: Any, overwrite: bool) -> Writer:  # noqa: N802  Spark's name
            del schema, overwrite
            return Writer()

    spark.dataSource.register(Source)


def register_bare_source(spark: Any, batch: pa.RecordBatch, rows: int, partitions: int) -> int:
    """Make a format known whose stream is one batch of Spark's with about so many rows.

    Args:
        spark: The session.
        batch: Yielded again and again, from memory.
        rows: About how many rows in all.
        partitions: How many tasks read them.

    Returns:
        How many rows exactly.
    """
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.pandas.types import from_arrow_schema

    times = max(rows // partitions // len(batch), 1)
    names = from_arrow_schema(batch.schema)

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

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return BARE_SOURCE

        def schema(self) -> Any:
            return names

        def streamReader(self, schema: Any) -> Reader:  # noqa: N802  Spark's name
            del schema
            return Reader()

    spark.dataSource.register(Source)
    return times * len(batch) * partitions
