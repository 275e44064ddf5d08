"""Writes rows in tasks with limited memory; prints the error, or the number of rows that are there.

Arguments: folder, ``spark.executor.pyspark.memory``, bytes of a row, rows of each of two tasks.
"""

import sys

from pyspark.sql import SparkSession

from krishiv_spark import register

folder, limit, size, rows = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.executor.pyspark.memory", limit)
    .config("spark.driver.memory", "4g")  # Spark 4.0 needs more than its default for such rows
    .getOrCreate()
)
register(spark)
frame = spark.range(0, 2 * rows, 1, 2).selectExpr("id", f"repeat(md5(string(id)), {size // 32}) t")
for kind, options in {
    "krishiv-parquet": {"path": f"{folder}/parquet"},
    "krishiv-iceberg": {"warehouse": f"{folder}/warehouse", "table": "db.t"},
}.items():
    try:
        frame.write.format(kind).options(**options).mode("append").save()
        print(kind, spark.read.format(kind).options(**options).load().count())
    except Exception as error:  # noqa: BLE001  the test reads its text
        print(kind, str(error).replace("\n", " "))
