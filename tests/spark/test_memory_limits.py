"""Tasks within the memory that docs/deploy.md gives them, and beyond it.

The limit is RLIMIT_AS, which Spark sets by ``spark.executor.pyspark.memory``: a test may not create
control groups on every machine.
"""

import re
import subprocess
import sys

import pytest
from drivers import SUPPORT
from wheels import ROOT

MEBIBYTES = int(
    re.search(
        r"`spark.executor.pyspark.memory` to (\d+) MB", (ROOT / "docs/deploy.md").read_text()
    )[1]
)


def write(folder, limit, size, rows):
    command = [sys.executable, SUPPORT / "limited_memory.py", folder, f"{limit}m", size, rows]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if line)


@pytest.mark.long  # two sessions of their own
def test_a_task_fits_into_the_memory_of_the_page_and_names_the_setting_beyond(tmp_path):
    found = write(tmp_path / "in", MEBIBYTES, 64, 1_000_000)
    assert found == {"krishiv-parquet": "2000000", "krishiv-iceberg": "2000000"}
    found = write(tmp_path / "out", MEBIBYTES, 128 * 2**20, 4)
    for kind, text in found.items():
        assert "krishiv_spark.errors.OutOfMemory: this Python process of Spark" in text, kind
        assert "raise spark.executor.pyspark.memory, which Spark divides by" in text, kind
