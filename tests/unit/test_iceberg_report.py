"""The commands that show an Iceberg table to an operator."""

import json

import pyarrow as pa
import pytest
from command_line import Command
from iceberg_life import TABLE, IcebergLife, table_of
from pyiceberg.exceptions import NoSuchTableError

from krishiv_spark.sinks.iceberg.maintenance.table_report import TableReport


@pytest.fixture
def warehouse(tmp_path):
    """Ten epochs of upserts: nine rows were replaced once, and one row nine times."""
    life = IcebergLife(
        tmp_path / "w",
        mode="upsert",
        keyColumns="id",
        partitionBy="truncate(10, id)",
        checkpointLocation=str(tmp_path / "checkpoint"),
    )
    life.epoch(0, pa.table({"id": range(20)}))
    for epoch in range(1, 10):
        life.epoch(epoch, pa.table({"id": [0, epoch]}))
    return tmp_path / "w"


def command(word, warehouse):
    return Command("iceberg", word, TABLE, "--warehouse", warehouse)


@pytest.mark.long
def test_a_report_counts_what_other_readers_find(warehouse):
    found = json.loads(command("inspect", warehouse).said("--json"))
    table = table_of(warehouse)
    rows = table.scan().to_arrow().num_rows
    assert (found["rows"], found["partitions"], found["snapshots"]) == (rows, 2, 10)
    assert found["files"] == table.inspect.data_files().num_rows
    in_files = sum(table.inspect.data_files()["record_count"].to_pylist())
    assert found["deleted_rows"] == in_files - rows > 0
    assert found["size"] == sum(table.inspect.data_files()["file_size_in_bytes"].to_pylist())
    assert found["deletes"] == table.inspect.delete_files().num_rows


@pytest.mark.long
def test_its_advice_helps(warehouse):
    before = command("inspect", warehouse).said()
    assert f"'krishiv-spark iceberg compact {TABLE}' would rewrite" in before
    command("compact", warehouse).said()
    after = command("inspect", warehouse).said()
    assert "deletes: 0 rows by 0 delete files" in after
    assert after.endswith("nothing to do\n")


def test_many_snapshots_are_named():
    given = dict.fromkeys(TableReport.__dataclass_fields__, 0)
    made = TableReport(**{**given, "table": "db.t", "snapshots": 2001, "oldest_ms": None})
    assert ["keepSnapshots" in line for line in made.advice()] == [True]


@pytest.mark.long
def test_snapshots_name_their_query_and_epoch(warehouse):
    command("compact", warehouse).said()
    lines = command("snapshots", warehouse).said("--most", 3).splitlines()
    assert len(lines) == 3
    assert " replace: " in lines[0]
    assert " overwrite by query query-1 epoch 9: added-data-files 1" in lines[1]
    (newest, *_) = command("snapshots", warehouse).said("--json").splitlines()
    assert json.loads(newest)["id"] == table_of(warehouse).current_snapshot().snapshot_id


def test_a_table_without_snapshots_is_shown(tmp_path):
    life = IcebergLife(tmp_path / "w", checkpointLocation=str(tmp_path / "checkpoint"))
    life.plan(pa.table({"id": [1]}))
    assert command("snapshots", tmp_path / "w").said() == "the table has no snapshot\n"
    assert "0 rows in 0 data files of 0 partitions" in command("inspect", tmp_path / "w").said()


def test_a_table_that_is_missing_is_named(tmp_path):
    with pytest.raises(NoSuchTableError):
        table_of(tmp_path)
    assert f"no table {TABLE}" in command("inspect", tmp_path).refused()
