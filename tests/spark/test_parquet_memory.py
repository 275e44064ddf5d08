"""A batch of ten million rows goes through the Parquet sink in bounded memory."""

from contextlib import suppress
from pathlib import Path

import duckdb
import psutil
import pytest

ROWS = 10_000_000
LIMIT_MB = 1_024


def peak_of_workers_mb() -> float:
    """The highest resident set that any Python worker of this session has had, in MB."""
    statuses = []
    for worker in psutil.Process().children(recursive=True):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            statuses.append(Path(f"/proc/{worker.pid}/status").read_text())
    python = [text for text in statuses if text.startswith("Name:\tpython") and "VmHWM" in text]
    return max(int(text.split("VmHWM:")[1].split()[0]) / 1024 for text in python)


@pytest.mark.long  # the kit measures a task
def test_ten_million_rows_stay_under_a_gigabyte_in_each_worker(spark, tmp_path):
    rows = spark.range(0, ROWS, numPartitions=1).selectExpr(
        "id", "id * 7 as amount", "concat('customer-', id % 1000) as customer", "id % 24 as hour"
    )
    table = tmp_path / "out"
    writer = rows.write.format("krishiv-parquet").mode("append")
    writer.option("partitionBy", "hour").save(str(table))
    peak = peak_of_workers_mb()
    assert 50 < peak < LIMIT_MB
    found = duckdb.sql(f"select count(*), sum(id)::bigint from '{table}/**/*.parquet'").fetchall()
    assert found == [(ROWS, ROWS * (ROWS - 1) // 2)]
