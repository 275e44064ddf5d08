"""Iceberg-Java at work on tables of an embedded catalog: it rewrites and expires them in a loop.

    python java_maintenance.py '{"warehouse": ..., "tables": [...], "jars": [...], "pause_s": ...}'

Prints READY, then ROUND after each round, with JSON: how often each procedure was done and refused.
It runs until it is killed. Needs a PySpark that Iceberg's runtime exists for.
"""

import collections
import json
import sys
import time

from pyspark.sql import SparkSession

OPTIONS = {
    # Every round rewrites all files: as many conflicts as possible.
    "rewrite_data_files": ", options => map('rewrite-all', 'true')",
    "rewrite_manifests": "",
    "rewrite_position_delete_files": ", options => map('rewrite-all', 'true')",
    "expire_snapshots": ", older_than => current_timestamp(), retain_last => 1",
}


def open_session(job):
    catalog = "spark.sql.catalog.krishiv"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "700m",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraClassPath": ":".join(job["jars"]),
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        f"{catalog}.uri": f"jdbc:sqlite:{job['warehouse']}/catalog.db?busy_timeout=20000",
        f"{catalog}.warehouse": job["warehouse"],
        f"{catalog}.cache-enabled": "false",
    }
    builder = SparkSession.builder.master("local[1]")
    for name, text in settings.items():
        builder = builder.config(name, text)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def get_reason(error: Exception) -> str:
    """Return the kind of a Java exception, without numbers and paths that differ each time."""
    lines = [line for line in str(error).splitlines() if line.startswith(("org.", ":", "Caused"))]
    return (lines or [type(error).__name__])[-1].removeprefix(": ").partition(":")[0][:120]


def main() -> None:
    job = json.loads(sys.argv[1])
    spark = open_session(job)
    done, refused = collections.Counter(), collections.Counter()
    print("READY", flush=True)
    while True:
        time.sleep(job["pause_s"])
        for table in job["tables"]:
            for name, options in OPTIONS.items():
                try:
                    spark.sql(f"CALL krishiv.system.{name}(table => '{table}'{options})").collect()
                    done[name] += 1
                except Exception as error:  # noqa: BLE001  conflicts, and tables not there yet
                    refused[f"{name}: {get_reason(error)}"] += 1
        print("ROUND", json.dumps({"done": done, "refused": refused}), flush=True)


if __name__ == "__main__":
    main()
