"""A driver that a test starts, kills and starts again: JSON values from a topic, with dead letters.

    python letters_copy.py '{"bootstrap": ..., "format": ..., "options": {...}, ...}'

Good values go to the sink, others to its dead letters. `decoding` are options of the source, for
other values than JSON. Prints STARTED, EPOCH and DONE as `kafka_copy` does.
"""

import json
import os
import sys

from stream_copy import Progress, session

_JSON = {
    "valueFormat": "json",
    "valueSchema": "id BIGINT",
    "badRecords": "divert",
    "columns": "id, _raw, _error, _source",
}


def main() -> None:
    job = json.loads(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session(job)
    spark.streams.addListener(Progress())
    rows = (
        spark.readStream.format("krishiv-kafka")
        .option("kafka.bootstrap.servers", job["bootstrap"])
        .options(subscribe=job["source"], startingOffsets="earliest")
        .options(maxOffsetsPerTrigger=job["rows"], minPartitions=2)
        .options(**job.get("decoding", _JSON))
        .load()
    )
    query = (
        rows.selectExpr(*job.get("select", ["*"]))
        .writeStream.format(job["format"])
        .option("checkpointLocation", f"{job['folder']}/checkpoint")
        .options(**job["options"])
        .trigger(processingTime="0 seconds")
        .start()
    )
    print("STARTED", flush=True)
    query.processAllAvailable()
    print("DONE", flush=True)


if __name__ == "__main__":
    main()
