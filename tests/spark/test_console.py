"""``krishiv-console`` under Spark: what reaches the terminal, and that it looks like ``show``."""

import json
import os
import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from patience import PATIENCE
from pyspark.sql import SparkSession

from krishiv_spark.sinks.base import Task
from krishiv_spark.sinks.console import ConsoleOptions, ConsoleWriter, drawn

PROGRAM = """
import json, sys
from datetime import datetime, timedelta, timezone
import pyarrow as pa
import krishiv_spark
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)
options = json.loads(sys.argv[1])
source = krishiv_spark.memory_source("rows")
begin = datetime(2024, 1, 1, tzinfo=timezone.utc)
for minute in (0, 1):
    times = [begin + timedelta(minutes=minute)] * 3
    source.add(pa.table({"at": pa.array(times, pa.timestamp("us", "UTC")), "value": [1, 2, 3]}))
rows = spark.readStream.format("krishiv-memory").option("eventTime", "at")
rows = rows.option("maxFilesPerTrigger", 1).load("rows").withWatermark("at", "0 seconds")
query = rows.writeStream.format("krishiv-console").options(**options).start()
query.processAllAvailable()
query.stop()
spark.range(1).write.format("krishiv-console").mode("append").save()
spark.stop()
"""

EVERY_TYPE: list[tuple[str, pa.DataType, list[object]]] = [
    ("id", pa.int64(), [1, 2]),
    ("text", pa.string(), ["tab\there and far too long", None]),
    ("wide", pa.string(), ["日本", None]),
    ("flag", pa.bool_(), [True, None]),
    ("double", pa.float64(), [1.5, 1e10]),
    ("small", pa.float64(), [1e-5, None]),
    ("float", pa.float32(), [0.1, None]),
    ("decimal", pa.decimal128(10, 2), [Decimal("12.30"), None]),
    ("day", pa.date32(), [date(2024, 1, 2), None]),
    ("bytes", pa.binary(), [b"AB", None]),
    ("list", pa.list_(pa.int64()), [[1, None], None]),
    ("map", pa.map_(pa.string(), pa.int64()), [[("k", 2), ("l", None)], None]),
    ("struct", pa.struct([("x", pa.int64()), ("y", pa.string())]), [{"x": 1, "y": None}, None]),
]


def printed(tmp_path: Path, **options: str) -> str:
    given = {"checkpointLocation": str(tmp_path / "checkpoint"), **options}
    command = [sys.executable, "-X", "utf8", "-c", PROGRAM, json.dumps(given)]
    environment = os.environ | {"KRISHIV_MEMORY_DIR": str(tmp_path / "store")}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
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
        "|                 at|value|",
        "+-------------------+-----+",
        "|2024-01-01 00:00:00|    1|",
        "|2024-01-01 00:00:00|    2|",
        "+-------------------+-----+",
        "only showing top 2 rows",
        "3 rows; watermark of the source 2024-01-01T00:00:00.000Z",
    ]
    second = (
        "3 rows; watermark 2024-01-01T00:00:00.000Z; "
        "watermark of the source 2024-01-01T00:01:00.000Z"
    )
    batch = "+---+\n| id|\n+---+\n|  0|\n+---+\n1 row\n"
    for text in ("\n".join(first), f"{rule}\nBatch: 1\n{rule}", second, batch):
        assert text in output, output


@pytest.mark.parametrize("truncate", [20, 0, 3])
@pytest.mark.parametrize("vertical", [False, True])
def test_tables_look_like_those_of_show(
    spark: SparkSession, *, truncate: int, vertical: bool
) -> None:
    columns = [pa.array(values, kind) for _, kind, values in EVERY_TYPE]
    rows = pa.Table.from_arrays(columns, [name for name, *_ in EVERY_TYPE])
    frame = spark.createDataFrame(rows)
    options = ConsoleOptions(num_rows=2, truncate=truncate, vertical=vertical)
    sink = ConsoleWriter(options, rows.schema, mode=None)
    head = sink.stage(iter(rows.to_batches()), Task("q", 0, 0, 0), None)
    expected = frame._jdf.showString(2, truncate, vertical)
    assert drawn(rows.schema.names, [head], options) == expected
