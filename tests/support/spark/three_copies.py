"""A driver that runs three streams, from each exactly-once format to itself.

    python three_copies.py '{"folder": ..., "bootstrap": ...}'

Says CODE with the module that it runs, ENDED with each query and what it failed with, and DONE.
"""

import json
import os
import sys
from pathlib import Path

from available_now import run_to_end
from pyspark.errors import StreamingQueryException
from stream_copy import session

import krishiv_spark


def make_streams(spark, folder: Path, bootstrap: str):
    """The rows of each, its sink, and the options of that."""
    kafka = {"kafka.bootstrap.servers": bootstrap}
    iceberg = {"warehouse": str(folder)}
    files = spark.readStream.format("krishiv-parquet").option("maxFilesPerTrigger", 120)
    topic = spark.readStream.format("krishiv-kafka").options(
        **kafka, subscribe="source", startingOffsets="earliest", maxOffsetsPerTrigger=40
    )
    table = spark.readStream.format("krishiv-iceberg").options(
        **iceberg, startingOffsets="earliest", maxFilesPerTrigger=1
    )
    target = {"path": str(folder / "target"), "partitionBy": "day"}
    yield files.load(str(folder / "source")), "krishiv-parquet", target
    yield topic.load().selectExpr("value"), "krishiv-kafka", {**kafka, "topic": "target"}
    yield table.load("db.t"), "krishiv-iceberg", {**iceberg, "path": "db.target"}


def main() -> None:
    job = json.loads(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    print("CODE", krishiv_spark.__file__, flush=True)
    folder = Path(job["folder"])
    os.chdir(folder)  # Spark's workers (python -m) import first from where it was started
    for rows, sink, options in make_streams(session(job), folder, job["bootstrap"]):
        checkpoint = str(folder / "checkpoints" / sink)
        writer = rows.writeStream.format(sink).options(**options, checkpointLocation=checkpoint)
        error = ""
        try:
            run_to_end(writer.trigger(availableNow=True).start, checkpoint)
        except StreamingQueryException as failed:
            error = " ".join(str(failed).split())
        print("ENDED", sink, error, flush=True)
    print("DONE", flush=True)


if __name__ == "__main__":
    main()
