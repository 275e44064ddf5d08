"""The log lines of Spark's Python processes: they reach the driver's standard error."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drivers import SUPPORT
from patience import PATIENCE

pytestmark = pytest.mark.once


def copied(folder: Path, level: str) -> str:
    """Return the standard error of a driver that copies a folder and ends."""
    (folder / "in").mkdir()
    pq.write_table(pa.table({"id": [1, 2, 3]}), folder / "in" / "0.parquet")
    job = {
        "source": str(folder / "in"),
        "table": str(folder / "out"),
        "checkpoint": str(folder / "checkpoint"),
        "tasks": 1,
        "source_options": {"logLevel": level},
        "sink_options": {"logLevel": level},
    }
    done = subprocess.run(
        [sys.executable, SUPPORT / "stream_copy.py", json.dumps(job)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_each_line_says_of_which_query_epoch_and_task(tmp_path):
    said = copied(tmp_path, "info")
    query = json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"]
    about = rf"\[query {query}, epoch 0"
    for text in ("planned, as generation 1", "published the staged data of 1 tasks"):
        assert re.search(rf"(?m)^20\S+ \S+ INFO krishiv_spark\S+: {text} {about}\]$", said), said
    assert re.search(rf"(?m)INFO krishiv_spark\S+: staged {about}, task 0, attempt 0\]$", said), (
        said
    )


@pytest.mark.long  # the formats of lines are tried without Spark
def test_nothing_of_the_kind_is_said_where_nobody_asks(tmp_path):
    assert "krishiv_spark" not in copied(tmp_path, "warning")
