"""Positions of Iceberg's own source, as those of ``krishiv-iceberg``."""

import json

import pyarrow as pa
import pytest
from click.testing import CliRunner
from iceberg_tables import MergesOne, append, append_files, make_table, paths, rewrite
from spark_starts import make_checkpoint, offsets_in

from krishiv_spark.cli import main
from krishiv_spark.sources.base import UNLIMITED
from krishiv_spark.sources.iceberg.offset import IcebergOffset
from krishiv_spark.sources.iceberg.reader import IcebergReader

SCHEMA = pa.schema([("id", pa.int64())])


def rows(*ids):
    return pa.table({"id": pa.array(ids, pa.int64())}, SCHEMA)


@pytest.fixture
def snapshots(tmp_path):
    """Return a table of three snapshots, the second one of three files."""
    (tmp_path / "w").mkdir()
    make_table(tmp_path / "w", SCHEMA)
    return [
        append(tmp_path / "w", rows(1)),
        append_files(tmp_path / "w", rows(2), rows(3), rows(4)),
        append(tmp_path / "w", rows(5)),
    ]


def taken_over(tmp_path, snapshot, position, *, scan=False):
    found = {
        "version": 1,
        "snapshot_id": snapshot,
        "position": position,
        "scan_all_files": scan,
    }
    make_checkpoint(tmp_path / "old", 0, text=lambda _: json.dumps(found))
    words = ["checkpoint", "import", "--from", "iceberg", f"{tmp_path}/old"]
    words += ["--to", f"{tmp_path}/new", "-o", "table=db.t", "-o", f"warehouse={tmp_path}/w"]
    return CliRunner().invoke(main, words)


def waiting(tmp_path):
    options = {"table": "db.t", "warehouse": f"{tmp_path}/w"}
    parsed = IcebergReader.options_type.parse(options, "krishiv-iceberg")
    reader = IcebergReader(parsed, None, streaming=True)
    reader.schema = reader.infer_schema()
    begin = IcebergOffset.from_json(offsets_in(tmp_path / "new/offsets/0")["0"])
    end = reader.latest(begin, UNLIMITED)
    parts = reader.plan(begin, end)
    return [n for part in parts for batch in reader.read(part) for n in batch["id"].to_pylist()]


@pytest.mark.long
@pytest.mark.parametrize(
    ("snapshot", "position", "scan", "left"),
    [
        (0, 0, False, [1, 2, 3, 4, 5]),
        (0, 1, False, [2, 3, 4, 5]),
        (1, 0, False, [2, 3, 4, 5]),
        (1, 1, False, [3, 4, 5]),
        (1, 3, False, [5]),
        (2, 1, False, []),
        (0, 0, True, [1, 2, 3, 4, 5]),
        (0, 1, True, [2, 3, 4, 5]),
    ],
)
def test_what_was_not_read_is_read_next(snapshots, tmp_path, snapshot, position, scan, left):
    done = taken_over(tmp_path, snapshots[snapshot], position, scan=scan)
    assert done.exit_code == 0, done.output
    assert sorted(waiting(tmp_path)) == left


@pytest.mark.long
@pytest.mark.parametrize(
    ("position", "left"),
    [(0, [2, 3, 4, 5, 6]), (1, [3, 4, 5, 6]), (4, [3, 4, 5, 6]), (6, [5, 6]), (7, [6])],
)
def test_files_of_earlier_snapshots_are_counted_where_iceberg_counts_them(tmp_path, position, left):
    """Its manifest has one added file and three earlier ones: the next one is the fourth."""
    (tmp_path / "w").mkdir()
    make_table(tmp_path / "w", SCHEMA)
    append_files(tmp_path / "w", rows(1), rows(10), rows(11))
    merged = append_files(tmp_path / "w", rows(2), rows(3), rows(4), rows(5), kind=MergesOne)
    append(tmp_path / "w", rows(6))
    done = taken_over(tmp_path, merged, position)
    assert done.exit_code == 0, done.output
    assert sorted(waiting(tmp_path)) == left


@pytest.mark.parametrize(("position", "left"), [(1, None), (9, [5])])
def test_a_scan_in_the_middle_of_removed_files_is_left_to_the_old_query(tmp_path, position, left):
    (tmp_path / "w").mkdir()
    make_table(tmp_path / "w", SCHEMA)
    append_files(tmp_path / "w", rows(1), rows(2), rows(3))
    scanned = rewrite(tmp_path / "w", paths(tmp_path / "w")[:1], rows(4))
    append(tmp_path / "w", rows(5))
    done = taken_over(tmp_path, scanned, position, scan=True)
    assert ("let it read on to the next snapshot first" in done.output) == (left is None)
    assert (tmp_path / "new").exists() == (left is not None)
    assert left is None or waiting(tmp_path) == left


@pytest.mark.parametrize(
    ("snapshot", "words"),
    [(-1, "has read nothing yet"), (7, "snapshot 7, up to which the old query has read, is not")],
)
@pytest.mark.usefixtures("snapshots")
def test_what_is_no_place_in_the_table_is_said(tmp_path, snapshot, words):
    assert words in taken_over(tmp_path, snapshot, -1).output
    assert not (tmp_path / "new").exists()
