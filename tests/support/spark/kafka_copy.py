"""A driver that a test starts, kills and starts again: a stream from Kafka to Kafka or elsewhere.

    python kafka_copy.py '{"bootstrap": ..., "source": ..., "target": ..., "checkpoint": ..., ...}'

Without a `target`, which is a topic, `format` and `sink` say where it goes.

Prints STARTED when the query runs, EPOCH with each one that ends, and DONE when everything that
was there has been copied.
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
    kafka = {"kafka.bootstrap.servers": job["bootstrap"], **job.get("kafka", {})}
    rows = (
        spark.readStream.format("krishiv-kafka")
        .options(**kafka, subscribe=job["source"], startingOffsets="earliest")
        .options(maxOffsetsPerTrigger=job.get("rows", 400), minPartitions=job.get("tasks", 8))
        .load()
    )
    query = (
        rows.selectExpr("key", "cast(cast(value as string) as long) + 1 AS value")
        .selectExpr("key", "cast(value as string) AS value")
        .writeStream.format(job.get("format", "krishiv-kafka"))
        .options(**({**kafka, "topic": job["target"]} if "target" in job else {}))
        .options(**job.get("sink", {}), checkpointLocation=job["checkpoint"])
        .trigger(processingTime="0 seconds")
        .start()
    )
    run_out(query)


if __name__ == "__main__":
    main()
