"""A driver that a test runs to its end: what is there, from one source to files, in epochs.

    python moved_query.py '{"format": ..., "options": {...}, "checkpoint": ..., "target": ..., ...}'

With `counts`, the rows of each value of `key` are counted instead, into `target` as JSON, each
epoch all of them. Prints FAILED with the error, or DONE.
"""

import json
import os
import sys

from stream_copy import session


def main() -> None:
    job = json.loads(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session(job)
    reader = spark.readStream.format(job["format"]).options(**job["options"])
    if "schema" in job:
        reader = reader.schema(job["schema"])
    rows = reader.load(**({"path": job["source"]} if "source" in job else {}))
    shown = rows.selectExpr(*job["columns"])
    if job.get("counts"):
        query = count_by_key(shown, job)
    else:
        query = (
            shown.writeStream.format("json")
            .option("checkpointLocation", job["checkpoint"])
            .trigger(processingTime="0 seconds")
            .start(job["target"])
        )
    try:
        query.processAllAvailable()
        query.stop()
        print("DONE", flush=True)
    except Exception as error:  # noqa: BLE001  whatever it is, the test looks at it
        print("FAILED", " ".join(str(error).split()), flush=True)


def count_by_key(shown, job):
    """The rows by key, as each epoch leaves them."""

    def write(batch, epoch):
        found = {row["key"]: row["count"] for row in batch.collect()}
        with open(f"{job['target']}/{epoch}.json", "w") as file:
            json.dump(found, file)

    return (
        shown.groupBy("key")
        .count()
        .writeStream.outputMode("complete")
        .foreachBatch(write)
        .option("checkpointLocation", job["checkpoint"])
        .trigger(processingTime="0 seconds")
        .start()
    )


if __name__ == "__main__":
    main()
