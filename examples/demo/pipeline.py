"""The stream of the demo, in a process of its own, so that it can be killed.

Flights as files -> krishiv-parquet with a watermark -> names of the carriers -> krishiv-parquet,
and delays by the hour -> krishiv-memory; a preview now and then -> krishiv-console.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from examples.demo import flights


def session() -> SparkSession:
    """A small local session."""
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


def named(spark: SparkSession, events: DataFrame) -> DataFrame:
    """Flights with the name of their carrier and their month."""
    names = spark.createDataFrame(flights.airlines().to_pandas())
    return events.join(f.broadcast(names), "carrier", "left").withColumn(
        "month", f.month("scheduled")
    )


def by_hour(events: DataFrame) -> DataFrame:
    """Flights and minutes of delay for each hour of the year."""
    hour = f.window("scheduled", "1 hour").getField("start").alias("hour")
    return events.groupBy(hour).agg(
        f.count("*").alias("flights"), f.sum(f.coalesce("delay", f.lit(0))).alias("delay")
    )


def start(spark: SparkSession, folder: Path) -> list[StreamingQuery]:
    """The three queries, each from its own checkpoint."""
    events = arrivals(spark, folder)
    to_table = (
        named(spark, events)
        .writeStream.format("krishiv-parquet")
        .option("checkpointLocation", str(folder / "checkpoints/table"))
        .option("partitionBy", "month")
        .start(str(folder / "table"))
    )
    to_memory = (
        by_hour(events)
        .writeStream.format("krishiv-memory")
        .outputMode("complete")
        .option("checkpointLocation", str(folder / "checkpoints/memory"))
        .start("delays by hour")
    )
    preview = (
        events.select("scheduled", "origin", "dest", "carrier", "delay", "_late")
        .writeStream.format("krishiv-console")
        .option("checkpointLocation", str(folder / "checkpoints/console"))
        .option("numRows", 3)
        .trigger(processingTime="5 seconds")
        .start()
    )
    return [to_table, to_memory, preview]


def main(folder: Path) -> None:
    """Run until the folder says that no more files come, and everything is through."""
    queries = start(session(), folder)
    print("STARTED", flush=True)
    while not (folder / "all-arrived").exists():
        queries[0].awaitTermination(1)
    for query in queries:
        query.processAllAvailable()
        query.stop()
    print("DONE", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
