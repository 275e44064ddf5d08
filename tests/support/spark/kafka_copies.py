"""A driver that a test starts, kills and starts again: streams from one topic, each to a sink.

    python kafka_copies.py '{"bootstrap": ..., "source": ..., "sinks": {"name": {...}, ...}, ...}'

A sink is given by its format and its options.

Prints EPOCH with each one that ends; FAILED with the name and the error of a stream that fails;
DONE when each of them has failed or copied everything that was there.
"""

import json
import os
import sys

from stream_copy import Progress, session


def main() -> None:
    job = json.loads(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session({**job, "conf": {"spark.master": "local[2,8]", **job["conf"]}})
    spark.streams.addListener(Progress())
    rows = (
        spark.readStream.format("krishiv-kafka")
        .option("kafka.bootstrap.servers", job["bootstrap"])
        .options(subscribe=job["source"], startingOffsets="earliest")
        .options(maxOffsetsPerTrigger=job["rows"])
        .load()
        .selectExpr("cast(value as string) AS value")
    )
    begun = {
        name: rows.writeStream.trigger(processingTime="0 seconds").start(**sink)
        for name, sink in job["sinks"].items()
    }
    for name, query in begun.items():
        try:
            query.processAllAvailable()
        except Exception as error:  # noqa: BLE001  whatever it is, the test looks at it
            print("FAILED", name, " ".join(str(error).split()), flush=True)
    print("DONE", flush=True)


if __name__ == "__main__":
    main()
