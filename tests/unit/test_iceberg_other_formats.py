"""Upserts of tables with data files that are not Parquet, as other engines write them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.orc
import pytest
from iceberg_life import IcebergLife, ids, numbered, table_of
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.types import LongType

from krishiv_spark.errors import CommitRejected
from krishiv_spark.iceberg.planning import UnreadableError
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.iceberg.upserts import replaced_rows

UPSERT = {"mode": "upsert", "keyColumns": "id", "orderColumn": "id"}


@pytest.fixture(autouse=True)
def _new_process():
    replaced_rows._CHECKED._values.clear()


def add_file(folder, kind, rows, *, bounds, partition=None):
    """Add a file of another format as its engine does: ORC has bounds of columns, Avro none."""
    table = table_of(folder)
    path = Path(table.location()) / "data" / f"other.{kind.value.lower()}"
    path.parent.mkdir(exist_ok=True)
    pyarrow.orc.write_table(rows, path)  # never opened: the entry in the manifest decides
    ends = rows["id"].to_pylist()
    low, high = ({1: to_bytes(LongType(), end)} for end in (min(ends), max(ends)))
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=str(path),
        file_format=kind,
        partition=partition or Record(),
        record_count=len(ends),
        file_size_in_bytes=path.stat().st_size,
        lower_bounds=low if bounds else None,
        upper_bounds=high if bounds else None,
        spec_id=table.metadata.default_spec_id,
    )
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as added:
        added.append_data_file(file)


def changes(folder):
    return [*Path(table_of(folder).location()).rglob("*.changes")]


def unnamed_files(folder):
    table = table_of(folder)
    named = {file["file_path"] for file in table.inspect.files().to_pylist()}
    found = Path(table.location(), "data").rglob("*.parquet")
    return [path for path in found if str(path) not in named]


def upsert(life, epoch, *keys):
    life.epoch(epoch, pa.table({"id": keys, "text": ["new"] * len(keys)}), tasks=2)


@pytest.mark.parametrize("operation", ["upsert", "delete"])
def test_a_key_within_the_bounds_of_an_orc_file_is_refused_by_name(tmp_path, operation):
    IcebergLife(tmp_path).epoch(0, numbered(0))
    add_file(tmp_path, FileFormat.ORC, numbered(2), bounds=True)
    given = {**UPSERT, "opColumn": "op"} if operation == "delete" else UPSERT
    life = IcebergLife(tmp_path, query="upserts", **given)
    upserts = {"id": [5, 25], "text": ["new", "new"]}
    if operation == "delete":
        upserts["op"] = ["d", "d"]
    for _ in range(2):
        with pytest.raises(CommitRejected) as caught:
            life.epoch(0, pa.table(upserts), tasks=2)
        text = str(caught.value)
        assert "other.orc is ORC, and by its bounds may have rows" in text
        assert "rewrite_data_files" in text
        assert "corrupted" not in text
        assert "FileFormat" not in text
        assert not changes(tmp_path)  # of no restart
        assert not unnamed_files(tmp_path)


def test_a_key_outside_of_its_bounds_is_upserted(tmp_path):
    IcebergLife(tmp_path).epoch(0, numbered(0))
    add_file(tmp_path, FileFormat.ORC, numbered(2), bounds=True)
    life = IcebergLife(tmp_path, query="upserts", **UPSERT)
    upsert(life, 0, 5, 100)
    assert not changes(tmp_path)
    files = table_of(tmp_path).inspect.data_files().to_pylist()
    assert sorted(file["file_format"] for file in files) == ["ORC", "PARQUET", "PARQUET"]


def test_an_avro_file_is_refused_before_the_rows_are_written(tmp_path):
    IcebergLife(tmp_path).epoch(0, numbered(0))
    add_file(tmp_path, FileFormat.AVRO, numbered(2), bounds=False)
    life = IcebergLife(tmp_path, query="upserts", **UPSERT)
    for _ in range(2):
        with pytest.raises(UnreadableError, match=r"other\.avro is AVRO, without bounds .*rewrite"):
            life.plan(numbered(0))
    with pytest.raises(UnreadableError, match="is AVRO"):
        life.writer(numbered(0)).check_start()
    assert not changes(tmp_path)


def test_one_that_comes_while_the_query_runs_is_refused_by_the_next_planner(tmp_path):
    life = IcebergLife(tmp_path, **UPSERT)
    upsert(life, 0, 1, 2)
    upsert(life, 1, 2, 3)
    add_file(tmp_path, FileFormat.AVRO, numbered(2), bounds=False)
    appends = IcebergLife(tmp_path, query="appends", allowMixedKeys="true")
    appends.epoch(0, numbered(7))  # the newest snapshot is ours
    with pytest.raises(UnreadableError, match="is AVRO"):
        life.plan(numbered(0))


def test_one_that_comes_between_stage_and_commit_is_refused_by_the_commit(tmp_path):
    life = IcebergLife(tmp_path, **UPSERT)
    upsert(life, 0, 1, 2)
    rows = pa.table({"id": [25], "text": ["new"]})
    staged = life.stage(1, rows)
    add_file(tmp_path, FileFormat.AVRO, numbered(2), bounds=False)
    with pytest.raises(CommitRejected, match="is AVRO, and by its bounds may"):
        life.publish(1, staged, rows)
    assert not changes(tmp_path)


def test_a_partition_may_leave_it_out(tmp_path):
    partitioned = IcebergLife(tmp_path, partitionBy="truncate(100, id)")
    partitioned.epoch(0, numbered(0))
    add_file(tmp_path, FileFormat.AVRO, numbered(50), bounds=False, partition=Record(500))
    life = IcebergLife(tmp_path, query="upserts", **UPSERT)
    upsert(life, 0, 5)
    assert not changes(tmp_path)


def test_appends_and_complete_mode_go_on(tmp_path):
    appends = IcebergLife(tmp_path)
    appends.epoch(0, numbered(0))
    add_file(tmp_path, FileFormat.AVRO, numbered(2), bounds=False)
    appends.epoch(1, numbered(1))
    IcebergLife(tmp_path, query="all", output=OutputMode.REPLACE).epoch(0, numbered(9))
    assert ids(tmp_path) == list(range(90, 100))


def test_manifests_are_read_only_after_another_programs_commit(tmp_path, monkeypatch):
    life = IcebergLife(tmp_path, **UPSERT)
    upsert(life, 0, 1)
    read = []
    real = replaced_rows._check_bounds
    monkeypatch.setattr(replaced_rows, "_check_bounds", lambda *given: read.append(real(*given)))
    for epoch in range(1, 4):
        upsert(life, epoch, epoch)
    assert len(read) == 1  # when this process first planned one
    table_of(tmp_path).append(pa.table({"id": [70], "text": ["theirs"]}))
    for epoch in range(4, 7):
        upsert(life, epoch, epoch)
    assert len(read) == 2


def test_a_damaged_file_leaves_no_staged_changes(tmp_path):
    IcebergLife(tmp_path).epoch(0, numbered(0))
    (file,) = table_of(tmp_path).inspect.files().to_pylist()
    Path(file["file_path"]).write_bytes(b"PAR1 no file PAR1")
    life = IcebergLife(tmp_path, query="upserts", **UPSERT)
    with pytest.raises(Exception, match="cannot be read as Parquet"):
        upsert(life, 0, 5, 25)
    assert not changes(tmp_path)
    assert not unnamed_files(tmp_path)
