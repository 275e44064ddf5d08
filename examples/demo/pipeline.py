"""The stream of the demo, in a process of its own, so that it can be killed.

Events as files -> krishiv-parquet with a watermark -> names of the carriers -> krishiv-parquet,
delays by the hour -> krishiv-memory, and each flight as it is known last -> krishiv-iceberg; a
preview now and then -> krishiv-console. With a topic: files -> krishiv-parquet with a watermark ->
krishiv-kafka, and krishiv-kafka -> the other sinks.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from examples.demo import flights
from examples.demo.topics import Topic

FIELDS = {
    "flight_id": "BIGINT",
    "correction": "BOOLEAN",
    "delay": "BIGINT",
    "carrier": "STRING",
    "origin": "STRING",
    "dest": "STRING",
    "distance": "BIGINT",
    "_late": "BOOLEAN",
}
"""The fields of a record's JSON value; the scheduled departure is the record's timestamp."""


ICEBERG_TABLE = "db.flights"


def session() -> SparkSession:
    """Start a small local session."""
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("krishiv-demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def arrivals(spark: SparkSession, folder: Path) -> DataFrame:
    """Flights as they arrive, each flagged when it is later than the watermark."""
    return (
        spark.readStream.format("krishiv-parquet")
        .option("maxFilesPerTrigger", 6)
        .option("eventTime", "scheduled")
        .option("watermarkDelay", "30 minutes")
        .option("lateRows", "flag")
        .load(str(folder / "arriving"))
    )


def to_topic(events: DataFrame, folder: Path, topic: Topic) -> StreamingQuery:
    """Flights as records, exactly once."""
    value = f.to_json(f.struct(*FIELDS)).alias("value")
    return (
        events.select(f.col("dest").alias("key"), value, f.col("scheduled").alias("timestamp"))
        .writeStream.format("krishiv-kafka")
        .option("kafka.bootstrap.servers", topic.bootstrap)
        .option("checkpointLocation", str(folder / "checkpoints/topic"))
        .option("topic", topic.name)
        .start()
    )


def from_topic(spark: SparkSession, topic: Topic) -> DataFrame:
    """Flights again, from the records of committed transactions."""
    records = (
        spark.readStream.format("krishiv-kafka")
        .option("kafka.bootstrap.servers", topic.bootstrap)
        .option("subscribe", topic.name)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 40_000)
        .option("valueFormat", "json")
        .option("valueSchema", ", ".join(f"{name} {kind}" for name, kind in FIELDS.items()))
        .option("columns", ", ".join(("timestamp", *FIELDS)))
        .load()
    )
    return records.withColumnRenamed("timestamp", "scheduled")


def named(spark: SparkSession, events: DataFrame) -> DataFrame:
    """Flights with the name of their carrier and their month."""
    names = spark.createDataFrame(flights.airlines().to_pandas())
    return events.join(f.broadcast(names), "carrier", "left").withColumn(
        "month", f.month("scheduled")
    )


def by_hour(events: DataFrame) -> DataFrame:
    """Flights and minutes of delay at departure for each hour of the year."""
    hour = f.window("scheduled", "1 hour").getField("start").alias("hour")
    return (
        events.where("NOT correction")
        .groupBy(hour)
        .agg(f.count("*").alias("flights"), f.sum(f.coalesce("delay", f.lit(0))).alias("delay"))
    )


def to_table(spark: SparkSession, folder: Path, events: DataFrame) -> StreamingQuery:
    """Every event with names, as Parquet, a folder for each month."""
    return (
        named(spark, events)
        .writeStream.format("krishiv-parquet")
        .option("checkpointLocation", str(folder / "checkpoints/table"))
        .option("partitionBy", "month")
        .start(str(folder / "table"))
    )


def to_iceberg(folder: Path, events: DataFrame) -> StreamingQuery:
    """One row for each flight: a correction takes the place of what was known before."""
    return (
        events.drop("_late")
        .writeStream.format("krishiv-iceberg")
        .option("warehouse", str(folder / "warehouse"))
        .option("mode", "upsert")
        .option("keyColumns", "flight_id")
        .option("checkpointLocation", str(folder / "checkpoints/iceberg"))
        .start(ICEBERG_TABLE)
    )


def to_memory(folder: Path, events: DataFrame) -> StreamingQuery:
    """Delays by the hour, as Arrow."""
    return (
        by_hour(events)
        .writeStream.format("krishiv-memory")
        .outputMode("complete")
        .option("checkpointLocation", str(folder / "checkpoints/memory"))
        .start("delays by hour")
    )


def to_console(folder: Path, events: DataFrame) -> StreamingQuery:
    """Start a preview of some epochs."""
    return (
        events.select("scheduled", "origin", "dest", "carrier", "delay", "correction", "_late")
        .writeStream.format("krishiv-console")
        .option("checkpointLocation", str(folder / "checkpoints/console"))
        .option("numRows", 3)
        .trigger(processingTime="5 seconds")
        .start()
    )


def starts(
    spark: SparkSession, folder: Path, topic: Topic | None
) -> Iterator[Callable[[], StreamingQuery]]:
    """Yield the functions that start each query; those that others wait for come first."""
    events = arrivals(spark, folder)
    if topic is not None:
        yield partial(to_topic, events, folder, topic)
        events = from_topic(spark, topic)
    yield partial(to_table, spark, folder, events)
    yield partial(to_iceberg, folder, events)
    yield partial(to_memory, folder, events)
    yield partial(to_console, folder, events)


def started(spark: SparkSession, start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query, and again while the machine is busy: Spark gives a source's process 10 s."""
    while True:
        query = start()
        while query.status["message"].startswith("Initializing"):
            time.sleep(0.1)
        if "failed to connect back" not in str(query.exception()):
            return query
        spark.streams.resetTerminated()


def main(folder: Path, topic: Topic | None) -> None:
    """Run until the folder says that no more files come, and everything is through."""
    spark = session()
    queries = [started(spark, start) for start in starts(spark, folder, topic)]
    print("STARTED", flush=True)
    while not (folder / "all-arrived").exists():
        spark.streams.awaitAnyTermination(1)
    for query in queries:
        query.processAllAvailable()
        query.stop()
    print("DONE", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Topic(*sys.argv[2:]) if sys.argv[2:] else None)
