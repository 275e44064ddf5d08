"""A driver that a test starts, kills and starts again: one stream from Kafka to three sinks.

    python each_batch_copy.py '{"bootstrap": ..., "source": ..., "target": ..., "folder": ..., ...}'

All numbers go to a Parquet table, even ones to a topic, odd ones to an Iceberg table, by
``foreachBatch``. Prints STARTED, EPOCH and DONE as `kafka_copy` does.
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

    def write_numbers(batch, write):
        write(batch, "all").format("krishiv-parquet").save(f"{folder}/table")
        even = batch.where("id % 2 = 0").selectExpr("cast(id as string) as value")
        write(even, "even").format("krishiv-kafka").options(**kafka, topic=job["target"]).save()
        odd = write(batch.where("id % 2 = 1"), "odd").format("krishiv-iceberg")
        odd.option("warehouse", f"{folder}/warehouse").save("db.rows")

    rows = (
        spark.readStream.format("krishiv-kafka")
        .options(**kafka, subscribe=job["source"], startingOffsets="earliest")
        .options(maxOffsetsPerTrigger=job["rows"], minPartitions=2)
        .load()
    )
    query = (
        rows.selectExpr("cast(cast(value as string) as long) AS id")
        .writeStream.foreachBatch(krishiv_spark.each_batch(write_numbers))
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(processingTime="0 seconds")
        .start()
    )
    print("STARTED", flush=True)
    query.processAllAvailable()
    print("DONE", flush=True)


if __name__ == "__main__":
    main()
