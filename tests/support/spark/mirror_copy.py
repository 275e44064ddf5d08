"""A driver that a test starts, kills and starts again: Debezium's topics, each into a table.

    python mirror_copy.py '{"bootstrap": ..., "warehouse": ..., "checkpoints": ..., ...}'

`mirrors` are dicts of `topic`, `table` and `options`. Prints STARTED when the queries run, EPOCH
with each one that ends, and DONE when the file `drained` exists and everything has been copied.
"""

import json
import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from stream_copy import Progress, run_out, session

_LOOK_S = 0.2


def main() -> None:
    job = json.loads(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session({**job, "conf": {"spark.master": "local[2,8]", **job.get("conf", {})}})
    spark.streams.addListener(Progress())
    queries = [start_mirror(spark, job, mirror) for mirror in job["mirrors"]]
    print("STARTED", flush=True)
    while not Path(job["drained"]).exists() and all(query.isActive for query in queries):
        time.sleep(_LOOK_S)
    run_out(*queries)


def start_mirror(spark: SparkSession, job: dict, mirror: dict) -> StreamingQuery:
    """Start the query of one table."""
    changes = (
        spark.readStream.format("krishiv-kafka")
        .option("kafka.bootstrap.servers", job["bootstrap"])
        .options(subscribe=mirror["topic"], startingOffsets="earliest")
        .load()
    )
    return (
        changes.writeStream.format("krishiv-iceberg")
        .options(warehouse=job["warehouse"], **mirror["options"])
        .option("checkpointLocation", f"{job['checkpoints']}/{mirror['table']}")
        .trigger(processingTime="2 seconds")
        .start(mirror["table"])
    )


if __name__ == "__main__":
    main()
