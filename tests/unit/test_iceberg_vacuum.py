"""`iceberg vacuum` removes what is certainly the table's own, and says what it leaves."""

import shutil
import uuid
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from iceberg_life import STREAM, TABLE, IcebergLife, ids, numbered, table_of
from pyiceberg.catalog.sql import SqlCatalog
from wrong_clocks import DAY_S, shifted_clock

from krishiv_spark.cli import main
from krishiv_spark.iceberg.own_files import (
    add_table_id,
    create_metadata_uuid,
    find_table_id,
    get_table_id,
)
from krishiv_spark.sinks.iceberg.maintenance import orphans

OTHER = "db.other"


def vacuum(folder, *more, table=TABLE):
    """Exit code and output."""
    arguments = ["iceberg", "vacuum", table, "--warehouse", str(folder), "--older-than", "0 s"]
    done = CliRunner().invoke(main, [*arguments, *more])
    assert not isinstance(done.exception, Exception) or isinstance(done.exception, SystemExit)
    return done.exit_code, done.output


def files(folder):
    return {path for path in folder.rglob("*") if path.is_file()}


def live_file(folder, table=TABLE):
    (task,) = table_of(folder, table).scan().plan_files()
    return Path(task.file.file_path)


def live_folder(folder):
    paths = [Path(task.file.file_path) for task in table_of(folder).scan().plan_files()]
    return next(path.parent for path in paths if path.parent.name == "data")


def two_tables_in_one_place(folder):
    place = {"tableProperty.write.data.path": f"{folder}/all"}
    IcebergLife(folder, **place).epoch(0, numbered(0))
    IcebergLife(folder, **{**place, "path": OTHER}).epoch(0, numbered(1))


def test_data_outside_of_the_table_s_place_is_refused(tmp_path):
    two_tables_in_one_place(tmp_path)
    code, said = vacuum(tmp_path)
    assert code == 1
    assert f"{tmp_path}/all is outside the table's location {tmp_path}/db/rows" in said
    assert "--foreign-names" in said
    assert ids(tmp_path, OTHER) == list(range(10, 20))


def test_files_of_another_table_stay_where_foreign_names_may_go(tmp_path):
    two_tables_in_one_place(tmp_path)
    IcebergLife(tmp_path, query=STREAM).stage(1, numbered(2))
    (tmp_path / "all" / "left.parquet").touch()
    code, said = vacuum(tmp_path, "--foreign-names")
    assert code == 0
    assert said.splitlines()[-2].startswith("2 files")
    assert said.splitlines()[-1].startswith("1 files kept")
    assert files(tmp_path / "all") == {live_file(tmp_path), live_file(tmp_path, OTHER)}


def test_files_without_the_table_s_id_stay_unless_they_may_go(tmp_path):
    life = IcebergLife(tmp_path, query=STREAM)
    life.epoch(0, numbered(0))
    life.epoch(1, numbered(1))
    before = files(tmp_path / "db")
    metadata = Path(table_of(tmp_path).current_snapshot().manifest_list).parent
    foreign = {
        metadata.parent / "data" / "00000-7-query-1-0-0123456789ab-00000.parquet",  # as it once was
        metadata.parent / "data" / "part-0.parquet",
        metadata / f"{uuid.uuid4()}-m0.avro",
        metadata / f"snap-1-0-{uuid.uuid4()}.avro",
        metadata / "version-hint.text",
    }
    for path in foreign:
        path.touch()
    life.stage(2, numbered(2))
    assert "5 files kept whose names do not contain this table's id" in vacuum(tmp_path)[1]
    assert files(tmp_path / "db") == before | foreign
    assert "5 files, " in vacuum(tmp_path, "--foreign-names")[1]
    assert files(tmp_path / "db") == before


def test_every_file_that_the_sink_writes_has_the_table_s_id(tmp_path):
    life = IcebergLife(tmp_path, mode="upsert", keyColumns="id", partitionBy="bucket(2, id)")
    life.epoch(0, numbered(0))
    life.epoch(1, numbered(0))
    life.stage(2, numbered(0))
    own = get_table_id(table_of(tmp_path).metadata.table_uuid)
    strange = {path.name for path in files(tmp_path / "db") if find_table_id(str(path)) != own}
    assert [name for name in strange if not name.startswith("00000-")] == []  # its first metadata


def test_a_metadata_file_that_was_not_written_to_its_end_goes(tmp_path):
    IcebergLife(tmp_path).epoch(0, numbered(0))
    newest = Path(table_of(tmp_path).metadata_location)
    shutil.copy(newest, newest.with_name(newest.name.replace("00002-", "00003-")))
    newest.with_name(newest.name.replace("00002-", "00004-")).write_bytes(b"{")
    assert "2 files, " in vacuum(tmp_path)[1]


@given(st.uuids(), st.text("abc019-_", max_size=9), st.integers(0, 10**6))
def test_ids_are_found_in_names(table, query, number):
    own, stem = get_table_id(table), add_table_id(f"00000-1-{query}-0-0123456789ab", table)
    names = [f"{stem}-{number:05d}.parquet", f"{stem}.changes"]
    commit = create_metadata_uuid(table)
    names += [f"{commit}-m{number}.avro", f"snap-{number}-0-{commit}.avro"]
    names += [f"{number:05d}-{commit}.metadata.json", f"{number:05d}-{commit}.gz.metadata.json"]
    assert {find_table_id(f"s3://bucket/{own}/{name}") for name in names} == {own}
    assert find_table_id(f"{own}/{query}{number}.parquet") is None


SPELLINGS = {
    "plain": "{}/wh",
    "up": "{}/x/../wh",
    "two slashes": "{}//wh",
    "slash at the end": "{}/wh/",
    "file:": "file:{}/wh",
    "file://": "file://{}/wh",
    "file:// up": "file://{}/x/../wh",
    "file:// two slashes": "file://{}//wh",
    "a link": "{}/link",
    "file:// a link": "file://{}/link",
    "up behind a link": "file://{}/link/../x/../wh",
}


@pytest.fixture(params=SPELLINGS.values(), ids=SPELLINGS)
def spelled(request, tmp_path):
    """A warehouse as users write it, and the options of its catalog."""
    for name in ("x", "wh"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "wh")
    return request.param.format(tmp_path), {"catalog.uri": f"sqlite:///{tmp_path}/catalog.db"}


def vacuum_spelled(warehouse, options, *more):
    pairs = [word for key, text in options.items() for word in ("-o", f"{key}={text}")]
    return vacuum(warehouse, *pairs, *more)


def spelled_table(folder, **given):
    return SqlCatalog("krishiv", uri=f"sqlite:///{folder}/catalog.db", **given).load_table(TABLE)


@pytest.mark.long
@pytest.mark.parametrize("given", [{}, {"tableProperty.write.object-storage.enabled": "true"}])
def test_what_is_staged_goes_and_what_is_live_stays_however_a_warehouse_is_spelled(
    tmp_path, spelled, given
):
    warehouse, options = spelled
    life = IcebergLife(warehouse, **options, **given)
    for epoch in range(3):
        life.epoch(epoch, numbered(epoch))
    before = files(tmp_path)
    life.stage(3, numbered(3), tasks=2)
    assert len(files(tmp_path) - before) == 2
    for more in ((), ("--foreign-names",)):
        code, said = vacuum_spelled(warehouse, options, *more)
        assert (code, f"{0 if more else 2} files, " in said) == (0, True), said
        assert files(tmp_path) == before
    rows = spelled_table(tmp_path).scan().to_arrow()
    assert sorted(rows["id"].to_pylist()) == list(range(30))


@pytest.mark.long
@pytest.mark.parametrize("place", ["{}//odd/../odd//t/", "{}/odd/t//", "file://{}/odd/../odd//t"])
def test_files_that_others_spell_otherwise_stay(tmp_path, place):
    (tmp_path / "odd").mkdir()
    made = SqlCatalog("krishiv", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=str(tmp_path))
    made.create_namespace("db")
    made.create_table(TABLE, numbered(0).schema, location=place.format(tmp_path))
    life = IcebergLife(tmp_path)
    life.epoch(0, numbered(0))
    folder = tmp_path / "odd" / "t" / "data"
    pq.write_table(numbered(1), folder / "theirs.parquet")
    made.load_table(TABLE).add_files([f"{tmp_path}/odd//t/data/../data/theirs.parquet"])
    life.epoch(1, numbered(2))
    before = files(tmp_path)
    life.stage(2, numbered(3))
    code, said = vacuum(tmp_path, "--foreign-names")
    assert (code, "1 files, " in said) == (0, True), said
    assert files(tmp_path) == before
    assert ids(tmp_path) == list(range(30))


def test_a_live_file_that_is_a_link_to_one_beside_it_stays(tmp_path):
    life = IcebergLife(tmp_path, query=STREAM)
    life.epoch(0, numbered(0))
    live = live_file(tmp_path)
    moved = live.rename(live.with_name("moved.parquet"))
    live.symlink_to(moved.name)
    life.stage(1, numbered(1))
    code, said = vacuum(tmp_path, "--foreign-names")
    assert (code, "1 files, " in said) == (0, True), said
    assert ids(tmp_path) == list(range(10))


def test_a_live_file_that_the_table_names_by_another_path_stays(tmp_path):
    """As where a folder is mounted twice, which ordinary users cannot do in a test."""
    IcebergLife(tmp_path, query=STREAM).epoch(0, numbered(0))
    (tmp_path / "twice").mkdir()
    pq.write_table(numbered(1), tmp_path / "twice" / "theirs.parquet")
    table_of(tmp_path).add_files([f"{tmp_path}/twice/theirs.parquet"])
    inside = live_folder(tmp_path) / "theirs.parquet"
    inside.hardlink_to(tmp_path / "twice" / "theirs.parquet")
    IcebergLife(tmp_path, query=STREAM).stage(1, numbered(2))
    code, said = vacuum(tmp_path, "--foreign-names")
    assert (code, "1 files, " in said) == (0, True), said
    assert inside.exists()


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("abfss://c@a.dfs.core.windows.net/t/x", "wasbs://c@a.blob.core.windows.net/t/x", True),
        ("abfs://c@A.dfs.core.windows.net/t/x", "abfss://c@a.dfs.core.windows.net/t/x", True),
        ("abfss://c@a.dfs.core.windows.net/t/x", "abfss://d@a.dfs.core.windows.net/t/x", False),
        ("s3://b/t//x", "s3a://b/t//x", True),
        ("s3://b/t//x", "s3://b/t/x", False),
        ("gs://b/t/x%20y", "gs://b/t/x y", False),
    ],
)
def test_schemes_of_one_store_name_the_same_file(one, other, is_same):
    assert (orphans._identity(one) == orphans._identity(other)) is is_same


def test_a_clock_that_is_a_month_ahead_makes_no_file_of_a_live_epoch_an_orphan(
    tmp_path, monkeypatch
):
    life = IcebergLife(tmp_path)
    life.epoch(0, numbered(0))
    staged = life.stage(1, numbered(1))
    shifted_clock(monkeypatch)(30 * DAY_S)
    before = files(tmp_path)
    done = CliRunner().invoke(main, ["iceberg", "vacuum", TABLE, "--warehouse", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert files(tmp_path) == before
    life.publish(1, staged, numbered(1))
    assert ids(tmp_path) == list(range(20))
