"""A program of its own: a Spark Connect client with a local server, as a test tells it.

    python connect_client.py FOLDER

Connect and a classic session cannot live in one process, so this is none of the tests' process.
Prints what the test compares as one line of JSON after the word RESULT.
"""

import json
import os
import sys
import urllib.request
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from patience import await_that
from pyspark.sql import SparkSession

import krishiv_spark
from krishiv_spark import metrics, queries
from krishiv_spark.errors import QueryFailed


def rows(frame) -> list[list]:
    return sorted(list(row) for row in frame.collect())


def stream(spark: SparkSession, source: str, table: str, checkpoint: str) -> None:
    query = (
        spark.readStream.format("krishiv-parquet")
        .load(source)
        .writeStream.format("krishiv-parquet")
        .option("checkpointLocation", checkpoint)
        .start(table)
    )
    query.processAllAvailable()
    query.stop()


def parquet(spark: SparkSession, folder: Path) -> dict[str, object]:
    source, copy, table = (str(folder / name) for name in ("source", "copy", "table"))
    frame = spark.range(10).selectExpr("id", "cast(id % 3 AS int) AS day")
    frame.write.format("krishiv-parquet").mode("append").option("partitionBy", "day").save(copy)
    os.makedirs(source)
    for number in range(2):
        pq.write_table(pa.table({"id": [number]}), f"{source}/{number}.parquet")
        stream(spark, source, table, str(folder / "checkpoint"))
    return {
        "batch": rows(spark.read.format("krishiv-parquet").load(copy).select("id", "day")),
        "stream": rows(spark.read.format("krishiv-parquet").load(table)),
    }


def find_refusals(spark: SparkSession, folder: Path) -> list[str]:
    """Return the errors of the check before the start, and the files that it has created."""
    read = spark.readStream.format("krishiv-parquet").load(str(folder / "source"))
    writer = read.writeStream.format("krishiv-parquet").option("path", str(folder / "new"))
    found = []
    for name in ("checkpointLocation", "partitonBy"):
        try:
            queries.check(writer.option(name, str(folder / "new-checkpoint")))
        except QueryFailed as error:
            found.append(f"{error.name}: {error}")
    return [*found, *(path.name for path in folder.glob("new*"))]


def memory(spark: SparkSession, folder: Path) -> list[list]:
    krishiv_spark.memory_source("pushed").add(pa.table({"n": [1, 2, 3]}))
    query = (
        spark.readStream.format("krishiv-memory")
        .load("pushed")
        .selectExpr("n * 10 AS n")
        .writeStream.format("krishiv-memory")
        .option("checkpointLocation", str(folder / "memory"))
        .queryName("seen")
        .option("name", "seen")
        .start()
    )
    query.processAllAvailable()
    query.stop()
    return sorted([value] for value in krishiv_spark.memory_table("seen").column("n").to_pylist())


def metrics_of(spark: SparkSession, folder: Path) -> dict[str, float]:
    """Return the metrics of a query that reads two files, served in the client."""
    with metrics.serve(spark, port=0) as served:
        stream(spark, *(str(folder / name) for name in ("source", "told", "told-checkpoint")))

        def found() -> dict[str, float]:
            with urllib.request.urlopen(served.address) as answer:
                lines = answer.read().decode().splitlines()
            told = (line.rpartition(" ") for line in lines if not line.startswith("#"))
            return {name: float(value) for name, _, value in told}

        await_that(lambda: any('state="stopped"' in k and n for k, n in found().items()), "its end")
        return {name.partition("{")[0]: value for name, value in found().items()}


def sql(spark: SparkSession, folder: Path) -> list[list]:
    spark.sql(
        f"CREATE TEMPORARY VIEW v USING `krishiv-parquet` OPTIONS (path '{folder / 'table'}')"
    ).collect()
    return rows(spark.sql("SELECT count(*) FROM v"))


def main() -> None:
    folder = Path(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_TESTING"] = "1"  # the server takes a port that is free, not 15002
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.driver.memory", "700m")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    result = {"client": type(spark).__module__, **parquet(spark, folder)}
    result |= {"memory": memory(spark, folder), "sql": sql(spark, folder)}
    result["refused"] = find_refusals(spark, folder)
    told = metrics_of(spark, folder)
    result["metrics"] = [
        told[f"krishiv_query_{name}_total"] for name in ("input_rows", "output_rows")
    ]
    krishiv_spark.register(spark)
    result["registered"] = rows(spark.read.format("krishiv-parquet").load(str(folder / "table")))
    print("RESULT", json.dumps(result), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
