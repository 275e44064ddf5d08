"""The command `iceberg relocate`: warehouses that are moved and copied."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import iceberg_tables
import pyarrow as pa
import pytest
from click.testing import CliRunner
from iceberg_life import TABLE, IcebergLife, catalog_of, ids, numbered, table_of
from patience import PATIENCE

from krishiv_spark.cli import main
from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.catalogs import open_table
from krishiv_spark.iceberg.options import IcebergOptions
from krishiv_spark.iceberg.relocation.table_rewriter import read_avro

STEPS = ("table", "database", "switch", "switched", "noted", "retired", "deleted")

KILLED = """
import os, signal, sys
from krishiv_spark.iceberg.relocation import warehouse
def reached(step):
    if step == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)
warehouse._mark_step = reached
old, new, copy = sys.argv[2], sys.argv[3], sys.argv[4:] == ["--copy"]
warehouse.relocate(old, new, copy=copy, dry_run=False, say=print)
"""


def relocate(old, new, *more):
    done = CliRunner().invoke(main, ["iceberg", "relocate", str(old), str(new), *more])
    assert not isinstance(done.exception, Exception) or isinstance(done.exception, SystemExit)
    return done.exit_code, done.output


def vacuum(folder, *more):
    arguments = ["iceberg", "vacuum", TABLE, "--warehouse", str(folder), "--older-than", "0 s"]
    done = CliRunner().invoke(main, [*arguments, *more])
    return done.exit_code, done.output


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def wh(tmp_path):
    """Return a warehouse with two epochs, in partitions; the second replaces a row of the first."""
    folder = tmp_path / "wh"
    life = life_in(folder)
    life.epoch(0, numbered(0))
    life.epoch(1, pa.table({"id": [9, *range(10, 19)], "text": ["new"] * 10}))
    return folder


def life_in(folder, **more):
    given = {"mode": "upsert", "keyColumns": "id", "partitionBy": "bucket(2, id)", **more}
    checkpoint = str(folder.parent / "ck")
    return IcebergLife(folder, checkpointLocation=checkpoint, **given)


def texts_of(folder):
    """Return every text in which metadata could name a folder."""
    for path in folder.rglob("metadata/*.metadata.json"):
        yield path.read_text()
    for path in folder.rglob("metadata/*.avro"):
        yield json.dumps(read_avro(path.read_bytes()).records, default=repr)
    with sqlite3.connect(folder / "catalog.db") as connection:
        yield "\n".join(connection.iterdump())


def history(folder):
    table = table_of(folder)
    scans = (table.scan(snapshot_id=one.snapshot_id) for one in table.metadata.snapshots)
    return [sorted(scan.to_arrow()["id"].to_pylist()) for scan in scans]


def data_inodes(folder):
    """Delete files name the paths of data files, so they are written again."""
    files = (path for path in folder.rglob("*.parquet") if "-deletes" not in path.name)
    return {path.stat().st_ino for path in files}


def assert_whole(new, old, expected):
    assert history(new) == expected
    assert not [text for text in texts_of(new) if f"{old}/" in text]


def test_a_warehouse_is_moved_with_its_history_and_its_query_goes_on(wh):
    before, uuid = history(wh), table_of(wh).metadata.table_uuid
    inodes = data_inodes(wh)
    new = wh.parent / "other" / "new"
    assert relocate(wh, new, "--dry-run")[0] == 0
    assert not new.exists()
    code, said = relocate(wh, new)
    assert (code, "the warehouse is" in said) == (0, True), said
    assert_whole(new, wh, before)
    assert table_of(new).metadata.table_uuid == uuid
    assert data_inodes(new) == inodes, "no byte of a data file was copied"
    assert [path.name for path in files(wh)] == ["catalog.db.relocated"]
    life = life_in(new)
    assert life.plan(numbered(1))[1] == 1
    life.epoch(2, numbered(2))
    assert ids(new) == [*range(19), *range(20, 30)]
    assert vacuum(new)[0] == 0
    assert (ids(new), history(new)[: len(before)]) == ([*range(19), *range(20, 30)], before)
    for ask in (life_in(wh).plan, lambda rows: life_in(wh).writer(rows).check_start()):
        with pytest.raises(OptionError, match=f"{wh} was relocated to {new}: set"):
            ask(numbered(2))


def test_a_copy_is_another_table_beside_the_original(wh):
    before = history(wh)
    new = wh.parent / "new"
    assert relocate(wh, new, "--copy")[0] == 0
    assert_whole(new, wh, before)
    assert table_of(new).metadata.table_uuid != table_of(wh).metadata.table_uuid
    life_in(wh).epoch(2, numbered(2))
    life_in(new).epoch(2, numbered(3))
    for folder in (wh, new):
        code, said = vacuum(folder)
        assert code == 0, said
    assert ids(wh) == [*range(19), *range(20, 30)]
    assert ids(new) == [*range(19), *range(30, 40)]
    assert history(wh)[: len(before)] == history(new)[: len(before)] == before


def test_a_warehouse_that_was_moved_by_hand_is_put_right(wh):
    before, uuid = history(wh), table_of(wh).metadata.table_uuid
    new = wh.rename(wh.parent / "new")
    assert relocate(wh, new)[0] == 0
    assert_whole(new, wh, before)
    assert table_of(new).metadata.table_uuid == uuid
    life_in(new).epoch(2, numbered(2))
    assert ids(new) == [*range(19), *range(20, 30)]
    assert relocate(wh, new)[0] == 1  # nothing names the old folder any more


@pytest.mark.long
def test_a_copy_that_was_made_by_hand_and_written_becomes_independent(wh):
    copy = Path(shutil.copytree(wh, wh.parent / "test"))
    IcebergLife(copy, query="other", allowMixedKeys="true", copiedWarehouse="allow").epoch(
        0, numbered(5)
    )
    life_in(wh).epoch(2, numbered(2))
    expected = history(copy)
    code, said = relocate(wh, copy)
    assert (code, "give --copy" in said) == (1, True), said
    assert relocate(wh, copy, "--copy")[0] == 0
    assert_whole(copy, wh, expected)
    IcebergLife(copy, query="other", allowMixedKeys="true").epoch(1, numbered(6))
    code, said = vacuum(copy)
    assert code == 0, said
    code, said = vacuum(wh, "--other-lines")
    assert code == 0, said
    assert ids(wh) == [*range(19), *range(20, 30)]
    assert ids(copy) == [*range(19), *range(50, 70)]


# --- crashes


@pytest.mark.long  # 14 processes that are killed
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("how", [[], ["--copy"]], ids=["move", "copy"])
def test_a_relocation_that_is_killed_leaves_one_whole_warehouse_and_is_completed(wh, step, how):
    before, new = history(wh), wh.parent / "new"
    arguments = [sys.executable, "-c", KILLED, step, str(wh), str(new), *how]
    run = subprocess.run(arguments, timeout=PATIENCE, check=False, capture_output=True)
    if how and step in {"noted", "retired"}:
        assert run.returncode == 0  # a copy has no such steps
        return
    assert run.returncode == -signal.SIGKILL, run.stderr.decode()
    there = [folder for folder in (wh, new) if (folder / "catalog.db").exists()]
    assert there
    for folder in there:
        assert history(folder) == before
    code, said = relocate(wh, new, *how)
    assert code == 0, said
    assert_whole(new, wh, before)
    if how:
        assert history(wh) == before
    else:
        assert [path.name for path in files(wh)] == ["catalog.db.relocated"]
    assert not [path for path in files(new) if "relocating" in path.name or ".new" in path.name]
    life_in(new).epoch(2, numbered(2))
    assert ids(new) == [*range(19), *range(20, 30)]


@pytest.mark.parametrize("step", ["table", "database", "switch", "switched"])
@pytest.mark.parametrize(
    "how",
    [pytest.param([], id="move"), pytest.param(["--copy"], marks=pytest.mark.long, id="copy")],
)
def test_a_change_in_place_that_is_killed_is_completed(wh, step, how):
    before, new = history(wh), wh.parent / "new"
    shutil.copytree(wh, new)
    if not how:
        shutil.rmtree(wh)
    arguments = [sys.executable, "-c", KILLED, step, str(wh), str(new), *how]
    run = subprocess.run(arguments, timeout=PATIENCE, check=False, capture_output=True)
    assert run.returncode == -signal.SIGKILL, run.stderr.decode()
    code, said = relocate(wh, new, *how)
    assert code == 0, said
    assert_whole(new, wh, before)
    if how:
        assert history(wh) == before
        assert table_of(new).metadata.table_uuid != table_of(wh).metadata.table_uuid


@pytest.mark.long
def test_an_old_warehouse_that_is_written_after_the_switch_is_relocated_again(wh):
    new = wh.parent / "new"
    arguments = [sys.executable, "-c", KILLED, "switched", str(wh), str(new)]
    subprocess.run(arguments, timeout=PATIENCE, check=False, capture_output=True)
    life_in(wh).epoch(2, numbered(2))
    expected = history(wh)
    assert relocate(wh, new)[0] == 0
    assert_whole(new, wh, expected)


@pytest.mark.long
def test_two_warehouses_that_were_both_written_are_refused(wh):
    new = wh.parent / "new"
    arguments = [sys.executable, "-c", KILLED, "switched", str(wh), str(new)]
    subprocess.run(arguments, timeout=PATIENCE, check=False, capture_output=True)
    for folder in (wh, new):
        life_in(folder).epoch(2, numbered(2))
    code, said = relocate(wh, new)
    assert (code, "have been written to since" in said) == (1, True), said


# --- what tables have


def test_position_deletes_name_the_new_files(tmp_path):
    wh, new = tmp_path / "wh", tmp_path / "new"
    iceberg_tables.make_with_deletes(wh, numbered(0), numbered(1))
    expected = ids(wh, iceberg_tables.NAME)
    assert len(expected) == 17
    assert relocate(wh, new)[0] == 0
    assert ids(new, iceberg_tables.NAME) == expected
    assert not [text for text in texts_of(new) if f"{wh}/" in text]
    for path in new.rglob("*.parquet"):
        assert str(wh).encode() + b"/" not in path.read_bytes()


def test_deletion_vectors_are_of_the_new_files(tmp_path):
    wh, new = tmp_path / "wh", tmp_path / "new"
    wh.mkdir()
    iceberg_tables.make_table(wh, numbered(0).schema)
    iceberg_tables.append(wh, numbered(0))
    (path,) = iceberg_tables.paths(wh)
    iceberg_tables.delete_by_vector(wh, path, [1, 2])
    expected = ids(wh, iceberg_tables.NAME)
    assert len(expected) == 8
    assert relocate(wh, new)[0] == 0
    assert ids(new, iceberg_tables.NAME) == expected


def test_equality_deletes_come_along(tmp_path):
    wh, new = tmp_path / "wh", tmp_path / "new"
    wh.mkdir()
    iceberg_tables.make_table(wh, numbered(0).schema)
    iceberg_tables.append(wh, numbered(0))
    iceberg_tables.delete_equal(wh, numbered(0).select(["id"]).slice(0, 1), [1])
    count = len(list(wh.rglob("*.parquet")))
    assert relocate(wh, new)[0] == 0
    assert len(list(new.rglob("*.parquet"))) == count
    assert not [text for text in texts_of(new) if f"{wh}/" in text]


def test_files_that_are_elsewhere_stay_there(tmp_path):
    wh, new = tmp_path / "wh", tmp_path / "new"
    IcebergLife(wh).epoch(0, numbered(0))
    IcebergLife(wh, path="db.far", location=f"{tmp_path}/far").epoch(0, numbered(1))
    IcebergLife(wh, path="db.split", **{"tableProperty.write.data.path": f"{wh}/all"}).epoch(
        0, numbered(2)
    )
    code, said = relocate(wh, new)
    assert (code, "db.far has its metadata at" in said, "and stays there" in said) == (
        0,
        True,
        True,
    )
    tables = {name: ids(new, name) for name in (TABLE, "db.far", "db.split")}
    assert tables == {
        TABLE: list(range(10)),
        "db.far": list(range(10, 20)),
        "db.split": list(range(20, 30)),
    }
    assert table_of(new, "db.split").properties["write.data.path"] == f"{new}/all"
    for name in tables:
        IcebergLife(new, path=name, query="again").epoch(0, numbered(3))


def test_a_table_elsewhere_is_in_no_copy(tmp_path):
    wh, new = tmp_path / "wh", tmp_path / "new"
    IcebergLife(wh).epoch(0, numbered(0))
    IcebergLife(wh, path="db.far", location=f"{tmp_path}/far").epoch(0, numbered(1))
    code, said = relocate(wh, new, "--copy")
    assert (code, "is not in the copy's catalog" in said) == (0, True)
    assert catalog_of(new).list_tables("db") == [("db", "rows")]


def test_old_metadata_files_and_packed_ones_are_changed_too(tmp_path):
    wh, new = tmp_path / "wh", tmp_path / "new"
    given = {"tableProperty.write.metadata.compression-codec": "gzip"}
    for epoch in range(3):
        IcebergLife(wh, **given).epoch(epoch, numbered(epoch))
    assert relocate(wh, new)[0] == 0
    log = [entry.metadata_file for entry in table_of(new).metadata.metadata_log]
    assert all(path.startswith(f"{new}/") and os.path.isfile(path) for path in log)
    catalog_of(new).register_table("db.before", log[-2])
    assert len(ids(new, "db.before")) in {10, 20, 30}


def test_a_live_process_opens_the_new_catalog(wh):
    new = wh.rename(wh.parent / "new")
    options = IcebergOptions.parse({"path": TABLE, "warehouse": str(new)}, "krishiv-iceberg")
    with pytest.raises(Exception, match="was moved to"):
        open_table(options)
    assert relocate(wh, new)[0] == 0
    assert open_table(options).location() == f"{new}/db/rows"


# --- refused


def test_what_cannot_be_relocated_is_named_and_the_old_warehouse_stays(wh):
    before, new = history(wh), wh.parent / "new"
    missing = next(wh.rglob("*.parquet"))
    aside = missing.rename(wh.parent / "aside")
    for more in ((), ("--copy",)):
        code, said = relocate(wh, new, *more)
        assert (code, str(missing) in said, "Nothing was switched" in said) == (1, True, True), said
        shutil.rmtree(new)
    aside.rename(missing)
    assert history(wh) == before
    assert relocate(wh, wh / "inside")[0] == 1
    assert relocate(wh.parent / "none", new)[0] == 1
    with sqlite3.connect(wh / "catalog.db") as connection:
        connection.execute("UPDATE iceberg_tables SET iceberg_type = 'VIEW'")
    code, said = relocate(wh, new)
    assert (code, "is a view of another engine" in said) == (1, True)


@pytest.mark.long
def test_another_relocation_into_the_folder_is_completed_first(wh):
    new = wh.parent / "new"
    arguments = [sys.executable, "-c", KILLED, "switch", str(wh), str(new)]
    subprocess.run(arguments, timeout=PATIENCE, check=False, capture_output=True)
    code, said = relocate(wh, new, "--copy")
    assert (code, f"'relocate {wh} {new}' was started" in said) == (1, True), said


# --- what the two folders share, and what is not the relocation's


def test_a_copy_whose_table_is_a_link_to_that_of_the_original_is_refused(wh):
    far = (wh / "db" / "rows").rename(wh.parent / "disk2")
    (wh / "db" / "rows").symlink_to(far)
    uuid, new = table_of(wh).metadata.table_uuid, wh.parent / "new"
    shutil.copytree(wh, new, symlinks=True)
    before = {path: path.read_bytes() for path in files(far)}
    code, said = relocate(wh, new, "--copy")
    assert (code, "are one folder" in said) == (1, True), said
    assert {path: path.read_bytes() for path in files(far)} == before
    assert table_of(wh).metadata.table_uuid == uuid


def test_files_of_other_programs_stay_in_the_old_folder(wh):
    new = wh.parent / "new"
    for folder, text in ((wh, "mine"), (new, "theirs")):
        (folder / "ck").mkdir(parents=True)
        (folder / "ck" / "0").write_text(text)
    assert relocate(wh, new)[0] == 0
    assert [(wh / "ck" / "0").read_text(), (new / "ck" / "0").read_text()] == ["mine", "theirs"]
    assert {path.name for path in files(wh)} == {"0", "catalog.db.relocated"}


def test_a_table_that_is_made_during_a_copy_is_not_in_it(wh, monkeypatch):
    def reached(step):
        if step == "database":
            IcebergLife(wh, path="db.late").epoch(0, numbered(1))

    monkeypatch.setattr("krishiv_spark.iceberg.relocation.warehouse._mark_step", reached)
    new = wh.parent / "new"
    assert relocate(wh, new, "--copy")[0] == 0
    assert catalog_of(new).list_tables("db") == [("db", "rows")]


def test_a_warehouse_that_comes_back_names_no_other_one(wh):
    before, new = history(wh), wh.parent / "new"
    assert relocate(wh, new)[0] == relocate(new, wh)[0] == 0
    assert history(wh) == before
    assert not (wh / "catalog.db.relocated").exists()
