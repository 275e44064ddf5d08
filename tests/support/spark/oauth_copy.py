"""A driver that copies a topic with a login by tokens until a file appears beside its checkpoint.

    python oauth_copy.py '{"options": {...}, "source": ..., "slow": {...}, "sink": {...}}'

A task waits for some seconds after it has passed on a batch with the slow value.

Prints STARTED, EPOCH with each one that ends, and at the end DONE, or FAILED with the error.
"""

import json
import os
import sys
import time
from pathlib import Path

from stream_copy import Progress, session


def wait_at(value: str, seconds: float):
    """A function of batches that waits after one with this value has been passed on."""

    def pass_on(batches):
        for batch in batches:
            yield batch
            if value in batch.column(0).to_pylist():
                time.sleep(seconds)

    return pass_on


def main() -> None:
    job = json.loads(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session(job)
    # The sink gets the first rows of a batch, and opens its transaction, while others are awaited.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    spark.streams.addListener(Progress())
    query = (
        spark.readStream.format("krishiv-kafka")
        .options(**job["options"], subscribe=job["source"], startingOffsets="earliest")
        .load()
        .selectExpr("cast(value AS string) AS value")
        .mapInArrow(wait_at(**job["slow"]), "value STRING")
        .writeStream.format("krishiv-kafka")
        .options(**job["options"], **job["sink"])
        .trigger(processingTime="0 seconds")
        .start()
    )
    print("STARTED", flush=True)
    try:
        while not Path(job["sink"]["checkpointLocation"], "end").exists():
            query.awaitTermination(1)
        query.processAllAvailable()
        query.stop()
        print("DONE", flush=True)
    except Exception as error:  # noqa: BLE001  whatever it is, the test looks at it
        print("FAILED", " ".join(str(error).split()), flush=True)
        time.sleep(1)


if __name__ == "__main__":
    main()
