"""A driver that runs one exactly-once stream after the other, with every format in one of them.

    python exact_copies.py '{"folder": ..., "bootstrap": ...}'

Prints CODE with the module that it runs, ENDED with each query and its error, and DONE.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from available_now import run_to_end
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from stream_copy import session

import krishiv_spark

ROWS = 40


def make_streams(
    spark: SparkSession, folder: Path, bootstrap: str
) -> Iterator[tuple[str, DataFrame, dict[str, str]]]:
    """Yield the name of each query, its rows, and the options of its sink, `format` included."""
    kafka = {"kafka.bootstrap.servers": bootstrap}
    iceberg = {"warehouse": str(folder)}
    files = spark.readStream.format("krishiv-parquet").option("maxFilesPerTrigger", 120)
    rows = files.load(str(folder / "source"))
    topic = spark.readStream.format("krishiv-kafka").options(
        **kafka, subscribe="source", startingOffsets="earliest", maxOffsetsPerTrigger=ROWS
    )
    table = spark.readStream.format("krishiv-iceberg").options(
        **iceberg, startingOffsets="earliest", maxFilesPerTrigger=1
    )
    parquet = {"format": "krishiv-parquet", "partitionBy": "day"}
    values = topic.load().selectExpr("value")
    yield "parquet", rows, {**parquet, "path": str(folder / "target")}
    yield "kafka", values, {"format": "krishiv-kafka", **kafka, "topic": "target"}
    yield (
        "iceberg",
        table.load("db.t"),
        {"format": "krishiv-iceberg", **iceberg, "path": "db.target"},
    )
    routes = {
        "all": {**parquet, "path": str(folder / "routed")},
        "late": {"format": "krishiv-kafka", **kafka, "topic": "routed"},
    }
    routed = krishiv_spark.routed(rows, all="true", late=("day = 'b'", "CAST(id AS STRING) value"))
    options = {f"route.{r}.{k}": v for r, each in routes.items() for k, v in each.items()}
    yield "fanout", routed, {"format": "krishiv-fanout", **options}
    landed = {"format": "krishiv-iceberg", **iceberg, "path": "db.landed"}
    yield "landing", values, landed
    chain = spark.readStream.format("krishiv-chain").options(
        **{f"first.{key}": value for key, value in iceberg.items()},
        **{f"then.{key}": value for key, value in kafka.items()},
        **{"then.subscribe": "source", "maxRowsPerTrigger": ROWS},
    )
    target = {"format": "krishiv-parquet", "path": str(folder / "chained")}
    yield "chain", chain.load("db.landed"), target


def main() -> None:
    job = json.loads(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    print("CODE", krishiv_spark.__file__, flush=True)
    folder = Path(job["folder"])
    os.chdir(folder)  # Spark's workers (python -m) import first from where it was started
    for name, rows, options in make_streams(session(job), folder, job["bootstrap"]):
        checkpoint = str(folder / "checkpoints" / name)
        sink = dict(options)
        writer = rows.writeStream.format(sink.pop("format")).options(**sink)
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        error = ""
        try:
            run_to_end(writer.start, checkpoint)
        except StreamingQueryException as failed:
            error = " ".join(str(failed).split())
        print("ENDED", name, error, flush=True)
    print("DONE", flush=True)


if __name__ == "__main__":
    main()
