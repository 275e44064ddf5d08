"""The driver program of `SparkDriver`: a user's program, in an interpreter of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext, cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource

from krishiv_spark.arrow.schemas import spark_schema
from krishiv_spark.testing.processes.interpreters import loaded_by_file

__all__ = ["SparkJob", "run"]

_CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "700m",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    # A driver that is killed while Spark plans the first epoch leaves a file that it refuses later.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
}


@dataclass(frozen=True)
class SparkJob:
    """One run of a connector on Spark.

    Attributes:
        kind: The name of the function that runs it.
        source: The class to register.
        options: The user's options.
        schema: Columns of the rows.
        folder: The folder of inputs, checkpoint and results.
        mode: Output mode of a stream, save mode of a batch.
    """

    kind: str
    source: type[DataSource]
    options: Mapping[str, str]
    schema: pa.Schema
    folder: str
    mode: str = "append"

    def of(self, *, mode: str) -> SparkJob:
        """Return the same job in another mode."""
        return replace(self, mode=mode)


def run(job: SparkJob) -> str:
    """Run a job; print STARTED when the query runs, and return DONE."""
    _let_workers_find(job.source.__module__)
    builder = SparkSession.builder.master("local[2,4]")  # a task may fail three times
    for key, value in _CONF.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    spark.dataSource.register(job.source)
    _KINDS[job.kind](spark, job)
    return "DONE\n"


def _say_started() -> None:
    sys.stdout.write("STARTED\n")
    sys.stdout.flush()


def _let_workers_find(module: str) -> None:
    # Modules loaded by file have no name that a worker could import: they travel by value.
    if module in loaded_by_file:
        cloudpickle.register_pickle_by_value(sys.modules[module])  # type: ignore[no-untyped-call]


def _stream_to(spark: SparkSession, job: SparkJob) -> None:
    rows = _flaky(_input(spark.readStream.option("maxFilesPerTrigger", 1), job), job)
    if job.mode == "complete":
        rows = rows.groupBy(*job.schema.names).count().select(*job.schema.names)
    writer = rows.writeStream.format(job.source.name()).options(**job.options)
    _finish(writer.outputMode(job.mode).option("checkpointLocation", f"{job.folder}/checkpoint"))


def _batch_to(spark: SparkSession, job: SparkJob) -> None:
    rows = _flaky(_input(spark.read, job), job)
    _say_started()
    rows.write.format(job.source.name()).options(**job.options).mode(job.mode).save()


def _stream_from(spark: SparkSession, job: SparkJob) -> None:
    rows = spark.readStream.format(job.source.name()).options(**job.options)
    loaded = rows.schema(spark_schema(job.schema)).load()
    out = f"{job.folder}/out"  # Spark's own sink: exactly once for Spark's own readers
    writer = loaded.writeStream.format("parquet").option("path", out)
    _finish(writer.option("checkpointLocation", f"{job.folder}/checkpoint"))
    _save(spark.read.schema(spark_schema(job.schema)).parquet(out), job)


def _batch_from(spark: SparkSession, job: SparkJob) -> None:
    _say_started()
    rows = spark.read.format(job.source.name()).options(**job.options)
    _save(rows.schema(spark_schema(job.schema)).load(), job)


def _input(reader: Any, job: SparkJob) -> DataFrame:
    rows: DataFrame = reader.schema(spark_schema(job.schema)).parquet(f"{job.folder}/input")
    return rows.repartition(2)


def _flaky(rows: DataFrame, job: SparkJob) -> DataFrame:
    """Let task 1 fail after its first batch, the first time."""
    return rows.mapInArrow(_fail_once, spark_schema(job.schema))


def _fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    context = TaskContext.get()
    if context is not None and context.partitionId() == 1 and context.attemptNumber() == 0:
        raise RuntimeError("injected: the first attempt at this task fails")


def _finish(writer: Any) -> None:
    query = writer.start()
    _say_started()
    query.processAllAvailable()
    query.stop()


def _save(rows: DataFrame, job: SparkJob) -> None:
    pq.write_table(rows.toArrow(), f"{job.folder}/result.parquet")


_KINDS = {
    "batch_from": _batch_from,
    "batch_to": _batch_to,
    "stream_from": _stream_from,
    "stream_to": _stream_to,
}
