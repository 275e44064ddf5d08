"""Streams from Parquet to Delta whose drivers and Python workers are killed."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from delta_reader import LogReader
from deltalake import DeltaTable
from killers import Killer, assert_each_once
from tables import make_input

KILLS = int(os.environ.get("KRISHIV_KILLS", "2"))  # of the driver, and of a worker
FILES, ROWS = 6 * KILLS, 50


@pytest.fixture
def job(tmp_path: Path) -> dict[str, object]:
    return {
        "format": "krishiv-delta",
        "checkpoint": str(tmp_path / "checkpoint"),
        "conf": {"spark.master": "local[2,8]"},  # a task whose worker was killed is tried again
        "source": str(tmp_path / "in"),
        "table": str(tmp_path / "table"),
        "sink_options": {"partitionBy": "day"},
    }


@pytest.mark.core
@pytest.mark.crash
@pytest.mark.timeout(2400)
def test_kills_between_parquet_and_delta_lose_and_repeat_nothing(job):
    copy_with_kills(job, FILES, KILLS)


@pytest.mark.soak
def test_sixty_kills_between_parquet_and_delta(job):
    copy_with_kills(job, 20 * FILES, 60)


def copy_with_kills(job, files: int, kills: int) -> None:
    make_input(Path(job["source"]), files, ROWS)
    Killer("stream_copy.py", job, sign="STARTED", pauses=(0.0, 5.0)).run(kills)
    table = Path(job["table"])
    readers = {
        "deltalake": DeltaTable(str(table)).to_pyarrow_table(),
        "the log alone": LogReader(table).rows(),
    }
    for name, rows in readers.items():
        assert_each_once(Counter(rows["id"].to_pylist()), range(files * ROWS), name)
    assert_marks_grow(table)


def assert_marks_grow(table: Path) -> None:
    """Each version has one epoch, and no epoch has two."""
    marks = []
    for commit in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        marks += [
            a["txn"]["version"] for a in actions if "txn" in a and "/" not in a["txn"]["appId"]
        ]
    assert marks == sorted({*marks})
