"""Streams from Parquet to Delta whose drivers and Python workers are killed."""

import json
import os
from collections import Counter
from pathlib import Path

import duckdb
import pytest
from delta_reader import LogReader
from deltalake import DeltaTable
from killers import Killer, assert_each_once
from store_tables import make_onlooker
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


@pytest.mark.crash
@pytest.mark.long  # a minute; what dies without Spark is in tests/kit
@pytest.mark.timeout(2400)
def test_kills_of_a_fanout_with_delta_leave_each_epoch_in_all_targets_or_in_none(job, tmp_path):
    targets = {
        "odd": {"format": "krishiv-delta", "path": str(tmp_path / "odd"), "partitionBy": "day"},
        "all": {"format": "krishiv-delta", "path": str(tmp_path / "all")},
        "even": {"format": "krishiv-parquet", "path": str(tmp_path / "even")},
    }
    job["format"], job["table"] = "krishiv-fanout", None
    job["sink_options"] = {
        f"route.{name}.{key}": text for name, own in targets.items() for key, text in own.items()
    }
    row = "struct(id, day)"
    job["select"] = [f"IF(id % 2 = {n}, {row}, NULL) AS {name}" for n, name in enumerate(EVEN_ODD)]
    job["select"] += [f"{row} AS all"]
    make_input(Path(job["source"]), 2 * FILES, ROWS)
    killer = Killer("stream_copy.py", job, sign="STARTED", pauses=(0.0, 5.0))
    killer.run(2 * KILLS)
    assert killer.kills["driver"], "everything was copied before anything was killed"
    total = 2 * FILES * ROWS
    for name, numbers in {"all": range(total), "odd": range(1, total, 2)}.items():
        rows = LogReader(tmp_path / name).rows()
        assert_each_once(Counter(rows["id"].to_pylist()), numbers, name)
        assert_marks_grow(tmp_path / name)
    even = duckdb.sql(f"SELECT id FROM read_parquet('{tmp_path}/even/*.parquet')").fetchall()
    assert_each_once(Counter(n for (n,) in even), range(0, total, 2), "Parquet")
    lists = [*tmp_path.glob("*/_krishiv/*-*.json")]
    assert len(lists) <= 2, lists  # one for each table, if its driver died after the version


EVEN_ODD = ("even", "odd")


@pytest.mark.crash
@pytest.mark.long  # the same epochs as on a disk, by conditional requests
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("store", ["s3", "versity"], indirect=True)
def test_kills_lose_and_repeat_nothing_of_a_table_in_a_bucket(job, store, tmp_path):
    job["table"] = f"{store.url}/table"
    job["sink_options"] |= store.options
    more = {} if store.restart is None else {"store": store.restart}
    make_input(Path(job["source"]), 4 * FILES, ROWS)
    killer = Killer("stream_copy.py", job, sign="STARTED", pauses=(0.0, 5.0), more=more)
    killer.run(2 * KILLS * (2 + len(more)))
    assert killer.kills["driver"], "everything was copied before anything was killed"
    files = make_onlooker(job["table"], store.options)
    for key in files.iter_files():
        copied = tmp_path / "copy" / key
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_bytes(files.read(key))
    assert_exact(tmp_path / "copy", 4 * FILES)


def copy_with_kills(job, files: int, kills: int) -> None:
    make_input(Path(job["source"]), files, ROWS)
    Killer("stream_copy.py", job, sign="STARTED", pauses=(0.0, 5.0)).run(kills)
    assert_exact(Path(job["table"]), files)


def assert_exact(table: Path, files: int) -> None:
    """Two readers of the table find every row of the files once."""
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
