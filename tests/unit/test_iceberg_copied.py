"""Warehouses that were copied or moved with their catalog, and tables that two catalogs have."""

import os
import shutil
import sqlite3
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from iceberg_life import STREAM, TABLE, IcebergLife, catalog_of, ids, numbered, table_of

from krishiv_spark.cli import main
from krishiv_spark.errors import OptionError
from krishiv_spark.iceberg.catalogs import CatalogFailedError, forget_catalog, open_table
from krishiv_spark.iceberg.options import IcebergOptions

COPIED = r"db\.rows is in a copy of a warehouse: .*'krishiv-spark iceberg relocate {} {} --copy'"


def vacuum(folder, *more):
    arguments = ["iceberg", "vacuum", TABLE, "--warehouse", str(folder), "--older-than", "0 s"]
    done = CliRunner().invoke(main, [*arguments, *more])
    return done.exit_code, done.output


def files(folder):
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def wh(tmp_path):
    """A warehouse with epoch 0."""
    folder = tmp_path / "wh"
    IcebergLife(folder).epoch(0, numbered(0))
    return folder


def copy_of(folder, name="test"):
    return Path(shutil.copytree(folder, folder.parent / name))


def in_both(folder, copy, **more):
    """Options by which a copy is opened; each of them leads to its catalog."""
    named = {"catalog.uri": f"sqlite:///{copy}/catalog.db"}
    (folder.parent / "link").symlink_to(copy)
    return {
        "embedded": IcebergLife(copy, query="other", **more),
        "named": IcebergLife(copy, query="other", **named, **more),
        "named, without its warehouse": IcebergLife(folder, query="other", **named, **more),
        "link": IcebergLife(folder.parent / "link", query="other", **more),
    }


def test_a_copy_of_a_warehouse_is_not_written(wh):
    copy = copy_of(wh)
    before = files(wh), files(copy)
    for name, life in in_both(wh, copy).items():
        for ask in (life.plan, lambda rows, life=life: life.writer(rows).check_start()):
            with pytest.raises(OptionError, match=COPIED.format(wh, ".*")) as caught:
                ask(numbered(1))
            assert f"{copy}/db/rows" in str(caught.value).replace("/link/", "/test/"), name
    with pytest.raises(OptionError, match=COPIED.format(wh, copy)):
        IcebergLife(copy).writer(numbered(1)).committer().table()
    code, said = vacuum(copy)
    assert (code, "is in a copy of a warehouse" in said) == (1, True)
    assert (files(wh), files(copy)) == before
    IcebergLife(wh).epoch(1, numbered(1))
    assert ids(wh) == list(range(20))


def test_a_copy_may_be_written_if_the_option_allows_it(wh):
    copy = copy_of(wh)
    IcebergLife(copy, query="other", copiedWarehouse="allow").epoch(0, numbered(1))
    assert ids(copy) == list(range(20))
    assert ids(wh) == list(range(10))


def test_a_copy_that_a_former_version_has_written_to_is_known_too(wh):
    copy = copy_of(wh)
    for epoch in range(30):  # longer than the metadata remembers
        IcebergLife(copy, query="other", copiedWarehouse="allow").epoch(epoch, numbered(1 + epoch))
    with pytest.raises(OptionError, match=COPIED.format(wh, copy)):
        IcebergLife(copy, query="other").plan(numbered(9))


def test_a_copy_whose_own_metadata_file_was_registered_is_known_too(wh):
    copy = copy_of(wh)
    name = Path(table_of(wh).metadata_location).name
    catalog_of(copy).drop_table(TABLE)
    catalog_of(copy).register_table(TABLE, f"{copy}/db/rows/metadata/{name}")
    with pytest.raises(OptionError, match=COPIED.format(wh, copy)):
        IcebergLife(copy, query="other").plan(numbered(1))


# --- tables that are elsewhere on purpose


def elsewhere(tmp_path, wh):
    """Lives whose table is not below the warehouse of its catalog, or not by that path."""
    (tmp_path / "to-wh").symlink_to(wh)
    disk = tmp_path / "disk"
    file = f"sqlite:///{disk}/catalog.db"
    (disk / "db").mkdir(parents=True)
    yield IcebergLife(tmp_path / "w1", location=f"{disk}/db/rows")
    yield IcebergLife(tmp_path / "w2", **{"tableProperty.write.data.path": f"{tmp_path}/w2/all"})
    yield IcebergLife(tmp_path / "w3", **{"catalog.uri": file})
    yield IcebergLife(tmp_path / "to-wh")
    yield IcebergLife(f"file://{wh}")
    yield IcebergLife(f"{tmp_path}/disk/../wh")
    yield IcebergLife(
        tmp_path / "w4",
        location=f"{disk}/w4/db/rows",
        **{"tableProperty.write.metadata.path": f"{tmp_path}/w4/db/rows/metadata"},
    )


def test_tables_that_are_elsewhere_on_purpose_go_on(tmp_path, wh):
    for number, life in enumerate(elsewhere(tmp_path, wh)):
        life.query = f"query-{number}"
        for epoch in range(2):
            life.epoch(epoch, numbered(epoch))


def test_a_table_that_was_registered_goes_on(tmp_path, wh):
    own = tmp_path / "own"
    (own / "db").mkdir(parents=True)
    catalog_of(own).create_namespace("db")
    catalog_of(own).register_table(TABLE, table_of(wh).metadata_location)
    IcebergLife(own, query="other").epoch(0, numbered(1))
    assert ids(own) == list(range(20))


def test_a_table_whose_location_was_changed_goes_on(tmp_path, wh):
    """As by ``ALTER TABLE … SET LOCATION``: what came before stays where it is."""
    from pyiceberg.table.update import SetLocationUpdate

    table = table_of(wh)
    new = f"{tmp_path}/disk/db/rows"
    os.makedirs(f"{new}/metadata")
    table._do_commit((SetLocationUpdate(location=new),), ())
    for epoch in (1, 2):
        IcebergLife(wh).epoch(epoch, numbered(epoch))
    assert ids(wh) == list(range(30))


def test_a_copy_of_a_table_s_folder_beside_it_changes_nothing(wh):
    shutil.copytree(wh / "db" / "rows", wh / "rows")
    shutil.copytree(wh / "db" / "rows", wh / "backup" / "db" / "rows")
    IcebergLife(wh).epoch(1, numbered(1))
    assert vacuum(wh)[0] == 0


def test_a_table_that_was_renamed_goes_on(wh):
    catalog_of(wh).rename_table(TABLE, "db.others")
    life = IcebergLife(wh, path="db.others")
    life.epoch(1, numbered(1))
    assert ids(wh, "db.others") == list(range(20))


# --- other lines of a table


def fork(wh, epochs):
    """A copy whose query has written so many epochs, as before copies were refused."""
    copy = copy_of(wh)
    for epoch in range(epochs):
        life = IcebergLife(copy, query="other", copiedWarehouse="allow")
        life.epoch(epoch, numbered(5 + epoch))
    return copy


def test_vacuum_of_either_line_removes_nothing(wh):
    copy = fork(wh, 1)
    IcebergLife(wh).epoch(1, numbered(1))
    before = files(wh)
    for folder, more in ((wh, ()), (copy, ("-o", "copiedWarehouse=allow"))):
        code, said = vacuum(folder, *more)
        assert (code, "not in the history of its catalog" in said) == (1, True), said
        assert str(table_of(folder).metadata_location) in said
    assert files(wh) == before
    assert (ids(wh), ids(copy)) == (list(range(20)), [*range(10), *range(50, 60)])
    assert vacuum(wh, "--other-lines")[0] == 0
    assert ids(wh) == list(range(20))


def test_vacuum_knows_a_catalog_whose_row_was_set_back(wh):
    """The database of a catalog was restored beside the tables."""
    with sqlite3.connect(wh / "catalog.db") as connection:
        (before,) = connection.execute("SELECT metadata_location FROM iceberg_tables").fetchone()
    for epoch in (1, 2):
        IcebergLife(wh, query=STREAM).epoch(epoch, numbered(epoch))
    with sqlite3.connect(wh / "catalog.db") as connection:
        connection.execute("UPDATE iceberg_tables SET metadata_location = ?", (before,))
    assert vacuum(wh)[0] == 1
    IcebergLife(wh, query=STREAM).epoch(1, numbered(7))
    assert vacuum(wh)[0] == 1
    assert vacuum(wh, "--other-lines")[0] == 0
    assert ids(wh) == [*range(10), *range(70, 80)]
    assert vacuum(wh)[0] == 0


@pytest.mark.long
@pytest.mark.parametrize("kept", ["all", "2"])
def test_what_refused_commits_leave_is_no_other_line(wh, kept):
    life = IcebergLife(wh, keepMetadataFiles=kept)
    left = []
    for epoch in range(1, 6):
        # As an attempt does that writes its metadata file and then is refused.
        before = Path(table_of(wh).metadata_location)
        with table_of(wh).transaction() as transaction:
            transaction.set_properties(attempt=str(epoch))
        lost = Path(table_of(wh).metadata_location)
        with sqlite3.connect(wh / "catalog.db") as connection:
            update = "UPDATE iceberg_tables SET metadata_location = ?"
            connection.execute(update, (str(before),))
        left.append(lost)
        life.epoch(epoch, numbered(epoch))
    code, said = vacuum(wh)
    assert code == 0, said
    assert all(str(path) in said for path in left)
    assert ids(wh) == list(range(60))


@pytest.mark.long
@pytest.mark.parametrize("how", ["vacuum", "keepMetadataFiles"])
def test_former_versions_without_their_neighbours_are_no_other_line(tmp_path, how):
    """A vacuum ended early, or a table began to delete old metadata files."""
    wh = tmp_path / "wh"
    prefix = "tableProperty.write.metadata"
    given = {
        f"{prefix}.previous-versions-max": "2",
        f"{prefix}.delete-after-commit.enabled": "false",
    }
    for epoch in range(9 if how == "vacuum" else 5):
        IcebergLife(wh, **given).epoch(epoch, numbered(epoch))
    if how == "vacuum":
        for path in sorted(wh.rglob("*.metadata.json"))[3:7]:
            path.unlink()
    else:
        for epoch in range(5, 12):
            IcebergLife(wh, keepMetadataFiles="2").epoch(epoch, numbered(epoch))
    expected = ids(wh)
    code, said = vacuum(wh)
    assert (code, "00001-" in said) == (0, True), said
    assert ids(wh) == expected


def test_a_copy_that_no_version_connects_any_more_is_another_line(wh):
    """The version that it was made from was deleted; its snapshots say what it is."""
    copy = fork(wh, 2)
    for epoch in range(1, 9):
        IcebergLife(wh, keepMetadataFiles="2").epoch(epoch, numbered(epoch))
    code, said = vacuum(wh)
    assert (code, "not in the history of its catalog" in said) == (1, True), said
    assert ids(copy) == [*range(10), *range(50, 70)]


def refused_attempt(wh, query, epoch):
    """An epoch whose commit is refused after its metadata file was written."""
    before = table_of(wh).metadata_location
    IcebergLife(wh, query=query).epoch(epoch, numbered(epoch))
    with sqlite3.connect(wh / "catalog.db") as connection:
        connection.execute("UPDATE iceberg_tables SET metadata_location = ?", (before,))


def test_a_refused_attempt_by_a_clock_that_is_ahead_is_no_other_line(wh, monkeypatch):
    IcebergLife(wh, query="ahead").epoch(0, numbered(0))
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda now=time.time_ns: now() + 7_200 * 10**9)
        patch.setattr(time, "time", lambda now=time.time: now() + 7_200)
        refused_attempt(wh, "ahead", 1)
    IcebergLife(wh).epoch(1, numbered(1))
    IcebergLife(wh, query="ahead").epoch(1, numbered(1))
    code, said = vacuum(wh)
    assert (code, ".metadata.json" in said) == (0, True), said


def test_a_refused_attempt_of_a_query_whose_mark_was_removed_is_no_other_line(wh):
    refused_attempt(wh, "query-1", 1)
    IcebergLife(wh).epoch(1, numbered(1))
    with table_of(wh).transaction() as transaction:
        transaction.remove_properties("krishiv.epoch.query-1")
    code, said = vacuum(wh)
    assert (code, ".metadata.json" in said) == (0, True), said


def test_expiry_in_one_line_deletes_nothing_that_the_other_may_need(wh, monkeypatch, caplog):
    from krishiv_spark.sinks.iceberg import table_copies
    from krishiv_spark.sinks.iceberg.maintenance import expiry

    monkeypatch.setattr(expiry, "_READING_MS", -1000)
    copy = fork(wh, 2)
    table_copies._VERDICTS = type(table_copies._VERDICTS)(4)
    life = IcebergLife(wh, keepSnapshots="1", mode="upsert", keyColumns="id")
    for epoch in range(1, 5):
        life.epoch(epoch, numbered(0))
    assert ids(copy) == [*range(10), *range(50, 70)]
    assert sum("are not deleted" in text for text in caplog.messages) == 1


# --- messages


def read(folder):
    options = IcebergOptions.parse({"path": TABLE, "warehouse": str(folder)}, "krishiv-iceberg")
    return open_table(options)


def test_a_warehouse_that_was_moved_names_the_way_on(wh):
    new = wh.rename(wh.parent / "new")
    says = (
        rf"{wh} was moved to {new}: move it back, or .*'krishiv-spark iceberg relocate {wh} {new}'"
    )
    with pytest.raises(CatalogFailedError, match=says):
        read(new)


@pytest.mark.long
def test_a_metadata_file_that_was_removed_is_named(wh):
    missing = Path(table_of(wh).metadata_location)
    missing.unlink()
    forget_catalog(IcebergLife(wh).writer(numbered(0)).options)  # which knows the file's content
    with pytest.raises(
        CatalogFailedError, match=rf"{missing.name}.*it does not exist.*restore them"
    ):
        read(wh)
