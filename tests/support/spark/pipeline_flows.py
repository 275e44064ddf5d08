"""A pipeline in the form that `spark-pipelines` reads: a flow from one folder to each sink.

`sinks.json` is in the folder of the pipeline's specification.
"""

import json
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

job = json.loads(Path("sinks.json").read_text())


def define(name, sink):
    dp.create_sink(name, sink["format"], sink["options"])

    @dp.append_flow(target=name, name=f"to_{name}")
    def flow():
        rows = SparkSession.active().readStream.format("krishiv-parquet").load(job["source"])
        return rows.selectExpr("id", "cast(id AS string) AS value").select(sink["column"])


for name, sink in job["sinks"].items():
    define(name, sink)
