"""A driver that a test starts, kills and starts again: a stream from Parquet to any sink.

    python stream_copy.py '{"source": ..., "table": ..., "checkpoint": ..., ...}'

The sink is `format` with `sink_options`; without them, Parquet.

Prints STARTED when the query runs, EPOCH with each one that ends, and DONE when everything that
was there has been copied.
"""

import importlib
import json
import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.streaming import StreamingQuery, StreamingQueryListener


class Progress(StreamingQueryListener):
    """Says EPOCH with the number of each epoch that ends, and its rows."""

    def onQueryStarted(self, event):
        pass

    def onQueryProgress(self, event):
        print("EPOCH", event.progress.batchId, event.progress.numInputRows, flush=True)

    def onQueryIdle(self, event):
        pass

    def onQueryTerminated(self, event):
        pass


def session(job: dict[str, object]) -> SparkSession:
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "700m")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.worker.faulthandler.enabled", "false")
        # Killed while Spark plans the first epoch: docs/recovery.md.
        .config("spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart", "false")
    )
    for key, value in job.get("conf", {}).items():
        builder = builder.config(key, value)
    if job.get("fast_start"):
        from krishiv_spark import fast_start  # not in the release that test_upgrade.py begins with

        builder = fast_start(builder)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(job.get("log", "OFF"))
    return spark


def by_module(name: str):
    """A function in Python that a module has, which is found where the function runs."""
    return udf(lambda value: importlib.import_module(name).apply(value), "long")


def run_out(*queries: StreamingQuery) -> None:
    """Say STARTED, copy everything that is there, and say DONE, or FAILED and why."""
    print("STARTED", flush=True)
    try:
        for query in queries:
            query.processAllAvailable()
        print("DONE", flush=True)
    except Exception as error:  # noqa: BLE001  whatever it is, the test looks at it
        print("FAILED", " ".join(str(error).split()), flush=True)


def main() -> None:
    job = json.loads(sys.argv[1])
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = session(job)
    for path in job.get("py_files", []):
        spark.sparkContext.addPyFile(path)
    spark.streams.addListener(Progress())
    rows = (
        spark.readStream.format("krishiv-parquet")
        .option("maxFilesPerTrigger", job.get("files", 3))
        .options(**job.get("source_options", {}))
        .load(job["source"])
        .repartition(job.get("tasks", 3))
    )
    if "select" in job:
        rows = rows.selectExpr(*job["select"])
    for module, column in job.get("udfs", {}).items():
        rows = rows.withColumn(column, by_module(module)(column))
    query = (
        rows.writeStream.format(job.get("format", "krishiv-parquet"))
        .option("checkpointLocation", job["checkpoint"])
        .options(**job.get("sink_options", {"partitionBy": "day"}))
        .trigger(processingTime="0 seconds")
        .start(job["table"])
    )
    print("STARTED", flush=True)
    query.processAllAvailable()
    query.stop()
    print("DONE", flush=True)


if __name__ == "__main__":
    main()
