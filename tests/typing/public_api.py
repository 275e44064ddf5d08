"""The public API as users call it: checked by the type checkers, never run."""

from pyspark.sql import SparkSession

import krishiv_spark
from krishiv_spark import register


def uses(spark: SparkSession) -> None:
    register(spark)
    krishiv_spark.register(spark)
    krishiv_spark.memory_table  # noqa: B018
    keep = krishiv_spark.aggregate("db.t", "g", {"n": "count(*)"}, warehouse="/data")
    spark.readStream.load().writeStream.foreachBatch(keep)
    krishiv_spark.registre(spark)  # type: ignore[operator]  # pyright: ignore[reportCallIssue]
