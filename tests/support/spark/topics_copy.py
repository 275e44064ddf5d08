"""A driver that a test starts, kills and starts again: topics of a pattern, each into a table.

    python topics_copy.py '{"bootstrap": ..., "pattern": ..., "sink": {...}, "checkpoint": ...}'

Prints STARTED when the query runs, EPOCH with each one that ends, and DONE when everything that was
there has been copied.
"""

import json
import os
import sys

from stream_copy import Progress, run_out, session


def main() -> None:
    job = json.loads(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session({**job, "conf": {"spark.master": "local[2,8]", **job.get("conf", {})}})
    spark.streams.addListener(Progress())
    changes = (
        spark.readStream.format("krishiv-kafka")
        .option("kafka.bootstrap.servers", job["bootstrap"])
        .options(subscribePattern=job["pattern"], startingOffsets="earliest")
        .options(maxOffsetsPerTrigger=job["rows"])
        .load()
    )
    query = (
        changes.writeStream.format("krishiv-iceberg")
        .options(**job["sink"], checkpointLocation=job["checkpoint"])
        .trigger(processingTime="0 seconds")
        .start()
    )
    run_out(query)


if __name__ == "__main__":
    main()
