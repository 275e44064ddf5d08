"""A driver that a test starts, kills and starts again: a topic is landed, and read after its table.

    python chain_copy.py '{"bootstrap": ..., "source": ..., "warehouse": ..., "target": ..., ...}'

Two queries run in it. One lands the topic in an Iceberg table; when that has an epoch, another one
copies the table, and then the topic, to the folder `target`.

Prints STARTED when both run, EPOCH with each epoch that ends, and DONE when all is copied.
"""

import json
import os
import sys
from pathlib import Path

from patience import await_that
from stream_copy import Progress, run_out, session


def has_landed(job: dict[str, str]) -> bool:
    """Return True if the table has three epochs."""
    commits = Path(job["landing"], "commits")
    return commits.is_dir() and sum(path.name.isdigit() for path in commits.iterdir()) >= 3


def main() -> None:
    job = json.loads(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session({**job, "conf": {"spark.master": "local[2,8]", **job.get("conf", {})}})
    spark.streams.addListener(Progress())
    landing = (
        spark.readStream.format("krishiv-kafka")
        .option("kafka.bootstrap.servers", job["bootstrap"])
        .options(subscribe=job["source"], startingOffsets="earliest")
        .options(maxOffsetsPerTrigger=job["rows"])
        .load()
        .writeStream.format("krishiv-iceberg")
        .options(warehouse=job["warehouse"], checkpointLocation=job["landing"])
        .trigger(processingTime="0 seconds")
        .start("db.landed")
    )
    await_that(lambda: has_landed(job) or not landing.isActive, "nothing is landed")
    chain = (
        spark.readStream.format("krishiv-chain")
        .options(**{"first.warehouse": job["warehouse"], "then.subscribe": job["source"]})
        .option("then.kafka.bootstrap.servers", job["bootstrap"])
        .option("maxRowsPerTrigger", job["rows"])
        .load("db.landed")
        .selectExpr("cast(cast(value AS string) AS long) AS number", "partition", "offset")
        .writeStream.format("krishiv-parquet")
        .option("checkpointLocation", job["checkpoint"])
        .trigger(processingTime="0 seconds")
        .start(job["target"])
    )
    run_out(landing, chain)


if __name__ == "__main__":
    main()
