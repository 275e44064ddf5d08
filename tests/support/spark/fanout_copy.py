"""A driver that a test starts, kills and starts again: one stream from Kafka to three targets.

    python fanout_copy.py '{"bootstrap": ..., "source": ..., "target": ..., "folder": ..., ...}'

All numbers go to a Parquet table, even ones to a topic, odd ones to an Iceberg table, by one
``krishiv-fanout``. Prints STARTED, EPOCH and DONE as `kafka_copy` does.
"""

import json
import os
import sys

from stream_copy import Progress, session

import krishiv_spark


def main() -> None:
    job = json.loads(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session(job)
    spark.streams.addListener(Progress())
    folder, kafka = job["folder"], {"kafka.bootstrap.servers": job["bootstrap"]}
    rows = (
        spark.readStream.format("krishiv-kafka")
        .options(**kafka, subscribe=job["source"], startingOffsets="earliest")
        .options(maxOffsetsPerTrigger=job["rows"], minPartitions=2)
        .load()
        .selectExpr("cast(cast(value as string) as long) AS id")
    )
    routed = krishiv_spark.routed(
        rows,
        all="true",
        even=("id % 2 = 0", "cast(id as string) AS value"),
        odd="id % 2 = 1",
    )
    query = (
        routed.writeStream.format("krishiv-fanout")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .option("route.all.format", "krishiv-parquet")
        .option("route.all.path", f"{folder}/table")
        .option("route.even.format", "krishiv-kafka")
        .option("route.even.topic", job["target"])
        .options(**{f"route.even.{key}": value for key, value in kafka.items()})
        .option("route.odd.format", "krishiv-iceberg")
        .option("route.odd.path", "db.rows")
        .option("route.odd.warehouse", f"{folder}/warehouse")
        .trigger(processingTime="0 seconds")
        .start()
    )
    print("STARTED", flush=True)
    query.processAllAvailable()
    print("DONE", flush=True)


if __name__ == "__main__":
    main()
