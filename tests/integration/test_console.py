"""``krishiv-console`` under Spark: what reaches the terminal, and that it looks like ``show``."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from krishiv_spark.sinks.base import Task
from krishiv_spark.sinks.console import ConsoleOptions, ConsoleWriter, drawn

PROGRAM = """
import json, sys
import krishiv_spark
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)
krishiv_spark.register(spark)
options = json.loads(sys.argv[1])
rows = spark.readStream.format("rate-micro-batch").options(
    rowsPerBatch=3, startTimestamp=1704067200000, advanceMillisPerBatch=60000
).load()
sink = rows.withWatermark("timestamp", "0 seconds").writeStream.format("krishiv-console")
query = sink.options(**options).start()
while len(query.recentProgress) < 2:
    query.exception() and sys.exit(str(query.exception()))
    query.awaitTermination(1)
query.stop()
spark.range(1).write.format("krishiv-console").mode("append").save()
spark.stop()
"""

EVERY_TYPE = """
SELECT * FROM VALUES
  (1, 'a', true, 1.5D, 1E10D, 1E-5D, CAST(0.1 AS FLOAT), 12.30BD, DATE'2024-01-02',
   TIMESTAMP_NTZ'2024-01-02 03:04:05.06', X'4142', array(1, NULL), map('k', 2),
   named_struct('x', CAST(1 AS INT), 'y', CAST(NULL AS STRING)), '日本', 'tab\\there and far too long'),
  (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
   named_struct('x', CAST(NULL AS INT), 'y', 'b'), NULL, NULL)
AS t(id, s, b, d, big, small, f, dec, day, ntz, bin, arr, m, st, wide, long)
"""


def printed(tmp_path: Path, **options: str) -> str:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    given = {"checkpointLocation": str(tmp_path / "checkpoint"), **options}
    command = [sys.executable, "-X", "utf8", str(script), json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_epochs_reach_the_terminal(tmp_path: Path) -> None:
    output = printed(tmp_path, numRows="2")
    rule = "-" * 43
    first = [
        rule,
        "Batch: 0",
        rule,
        "+-------------------+-----+",
        "|          timestamp|value|",
        "+-------------------+-----+",
        "|2024-01-01 00:00:00|    0|",
        "|2024-01-01 00:00:00|    1|",
        "+-------------------+-----+",
        "only showing top 2 rows",
        "3 rows",
    ]
    assert "\n".join(first) in output
    assert f"{rule}\nBatch: 1\n{rule}" in output
    assert "3 rows; watermark 2024-01-01T00:00:00.000Z" in output
    assert "+---+\n| id|\n+---+\n|  0|\n+---+\n1 row\n" in output


@pytest.mark.parametrize("truncate", [20, 0, 3])
@pytest.mark.parametrize("vertical", [False, True])
def test_tables_look_like_those_of_show(
    spark: SparkSession, *, truncate: int, vertical: bool
) -> None:
    frame = spark.sql(EVERY_TYPE)
    rows: pa.Table = frame.toArrow()
    options = ConsoleOptions(num_rows=2, truncate=truncate, vertical=vertical)
    sink = ConsoleWriter(options, rows.schema, mode=None)
    head = sink.stage(iter(rows.to_batches()), Task("q", 0, 0, 0))
    expected = frame._jdf.showString(2, truncate, vertical)
    assert drawn(rows.schema.names, [head], options) == expected
