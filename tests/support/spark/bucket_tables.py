"""A driver of two streams, all of whose tables and checkpoints are in one bucket.

    python bucket_tables.py '{"source": ..., "url": ..., "options": {...}, "conf": {...}}'

Parquet files are appended to ``rows``; what is appended there is counted by remainder and upserted
into ``counts``. Prints DONE when both have copied everything that was there.
"""

import json
import os
import sys

from stream_copy import session

import krishiv_spark


def main() -> None:
    job = json.loads(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark, url, options = session(job), job["url"], job["options"]

    def run(writer, name):
        query = writer.option("checkpointLocation", f"{url}/checkpoints/{name}").start()
        query.processAllAvailable()
        query.stop()

    files = spark.readStream.format("krishiv-parquet").option("maxFilesPerTrigger", 1)
    appended = files.load(job["source"]).writeStream.format("krishiv-iceberg")
    run(appended.options(path=options["appended"], warehouse=url, **options["reached"]), "append")

    reader = spark.readStream.format("krishiv-iceberg").options(**options["reached"])
    rows = reader.option("warehouse", url).load(options["appended"])
    counted = rows.groupBy((rows.id % 3).alias("rest")).count()
    upsert = krishiv_spark.upsert(options["upserted"], "rest", warehouse=url, **options["reached"])
    run(counted.writeStream.outputMode("update").foreachBatch(upsert), "upsert")
    print("DONE", flush=True)


if __name__ == "__main__":
    main()
