"""A driver whose tasks fail, stall or are run twice, as a test asks for.

    python faulty_stream.py '{"source": ..., "format": ..., "options": ..., "fault": ...}'

The fault hits partition 0: "fail" raises in its first attempt, after half of its rows; "stall"
keeps the first attempt busy until the file `release` exists; "none" does nothing.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from stream_copy import run_out, session


def await_release(release: Path) -> None:
    while not release.exists():
        time.sleep(0.05)


def make_faulty_step(fault: str, release: str):
    def apply(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        hit = context.partitionId() == 0 and context.attemptNumber() == 0
        if context.partitionId() == 0 and context.attemptNumber() == 1:
            Path(f"{release}.twin").touch()
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if hit and fault == "fail":
                raise RuntimeError("this attempt was told to fail")
            if hit and fault == "stall":
                Path(f"{release}.stalled").touch()
                await_release(Path(release))
            yield batch.slice(half)

    return apply


def main() -> None:
    job = json.loads(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session(job)
    source = spark.readStream.schema("id long, amount long, day string").format("parquet")
    rows = source.option("maxFilesPerTrigger", 4).load(job["source"]).repartition(3)
    query = (
        rows.mapInArrow(make_faulty_step(job["fault"], job.get("release", "")), rows.schema)
        .selectExpr(*job.get("columns", ["*"]))
        .writeStream.format(job["format"])
        .option("checkpointLocation", job["checkpoint"])
        .options(**job["options"])
        .start()
    )
    run_out(query)
    if job.get("stop"):
        query.stop()


if __name__ == "__main__":
    main()
