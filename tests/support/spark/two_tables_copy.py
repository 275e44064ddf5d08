"""A driver with two streams from Parquet to Iceberg: one appends, one upserts. See `stream_copy`.

python two_tables_copy.py '{"source": ..., "checkpoint": ..., "sinks": {TABLE: OPTIONS, ...}}'
"""

import json
import os
import sys

from stream_copy import Progress, run_out, session


def main() -> None:
    job = json.loads(sys.argv[1])
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = session(job)
    spark.streams.addListener(Progress())
    rows = spark.readStream.format("krishiv-parquet").option("maxFilesPerTrigger", job["files"])
    queries = [
        rows.load(job["source"])
        .repartition(2)
        .selectExpr(*job["select"])
        .writeStream.format("krishiv-iceberg")
        .option("checkpointLocation", f"{job['checkpoint']}/{table}")
        .options(**options)
        .trigger(processingTime=job["trigger"])
        .start(table)
        for table, options in job["sinks"].items()
    ]
    run_out(*queries)


if __name__ == "__main__":
    main()
