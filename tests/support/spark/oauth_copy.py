"""A driver that copies a topic with a login by tokens until a file appears beside its checkpoint.

    python oauth_copy.py '{"options": {...}, "source": ..., "sink": {...}}'

Prints STARTED, EPOCH with each one that ends, and at the end DONE, or FAILED with the error.
"""

import json
import os
import sys
import time
from pathlib import Path

from stream_copy import Progress, session


def main() -> None:
    job = json.loads(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session(job)
    spark.streams.addListener(Progress())
    query = (
        spark.readStream.format("krishiv-kafka")
        .options(**job["options"], subscribe=job["source"], startingOffsets="earliest")
        .load()
        .selectExpr("cast(value AS string) AS value")
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
