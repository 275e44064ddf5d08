"""A catalog in SQLite that is replaced, moved or removed while a process uses it."""

import errno
import json
import os
import shutil
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest
from iceberg_life import TABLE, IcebergLife, at_next_commit, catalog_of, ids, numbered, table_of

from krishiv_spark.errors import CommitRejected
from krishiv_spark.iceberg.catalogs import open_table
from krishiv_spark.iceberg.embedded import CatalogFile, CatalogReplacedError
from krishiv_spark.iceberg.options import IcebergOptions
from krishiv_spark.iceberg.sql_catalog import CachingSqlCatalog

CATALOGS = {"embedded": {}, "named": {"catalog.uri": "sqlite:///{}/catalog.db"}}


@pytest.fixture(params=CATALOGS)
def place(request, tmp_path):
    """A warehouse with epochs 0 and 1, and a copy of it that has epoch 0 alone."""
    folder = tmp_path / "wh"
    given = {key: text.format(folder) for key, text in CATALOGS[request.param].items()}
    folder.mkdir()
    life = IcebergLife(folder, checkpointLocation=str(tmp_path / "ck"), **given)
    life.epoch(0, numbered(0))
    shutil.copytree(folder, tmp_path / "backup")
    life.epoch(1, numbered(1))
    return SimpleNamespace(folder=folder, life=life, root=tmp_path, given=given)


def delete(place):
    shutil.rmtree(place.folder)


def move(place):
    place.folder.rename(place.root / "old")


def restore(place, remove=delete):
    remove(place)
    shutil.copytree(place.root / "backup", place.folder)


@pytest.mark.long
@pytest.mark.parametrize("remove", [delete, move])
def test_an_epoch_that_only_the_replaced_catalog_has_is_written_again(place, remove):
    restore(place, remove)
    place.life.epoch(1, numbered(1))
    assert ids(place.folder) == list(range(20))
    place.life.epoch(2, numbered(2))
    assert ids(place.folder) == list(range(30))
    if remove is move:
        assert catalog_row(place.root / "old") == 20


def test_a_refused_transaction_is_rolled_back(place, monkeypatch):
    """The catalog's path cannot be read for a moment, right before SQLite's COMMIT.

    SQLAlchemy leaves the transaction open: a connection that reads its own changes would report an
    epoch as committed, and its rows would be lost.
    """
    catalog = CachingSqlCatalog("krishiv", uri=f"sqlite:///{place.folder}/catalog.db")
    table, check, made = catalog.load_table(TABLE), CatalogFile.check, []

    def fail_before_commit(file):
        made.append(file)
        if len(made) == 3:  # before, the table is read, and the transaction begins
            raise CatalogReplacedError("for a moment")
        check(file)

    monkeypatch.setattr(CatalogFile, "check", fail_before_commit)
    with pytest.raises(CatalogReplacedError, match="for a moment"):
        table.transaction().set_properties({"epoch": "2"}).commit_transaction()
    assert "epoch" not in catalog.load_table(TABLE).properties
    catalog.load_table(TABLE).transaction().set_properties({"epoch": "2"}).commit_transaction()
    assert catalog.load_table(TABLE).properties["epoch"] == "2"


def catalog_row(folder):
    """Return the number of rows of the table by the row of a catalog whose warehouse was moved."""
    with sqlite3.connect(folder / "catalog.db") as connection:
        (location,) = connection.execute("SELECT metadata_location FROM iceberg_tables").fetchone()
    moved = location.replace(str(folder.parent / "wh"), str(folder))
    metadata = json.loads(Path(moved).read_text())
    head = metadata["current-snapshot-id"]
    (snapshot,) = (one for one in metadata["snapshots"] if one["snapshot-id"] == head)
    return int(snapshot["summary"]["total-records"])


@pytest.mark.long
@pytest.mark.parametrize("look", [1, 2])  # at the start of the transaction, and at its end
def test_a_path_that_cannot_be_read_for_a_moment_is_not_replaced(place, monkeypatch, look):
    """The commit is rolled back and tried again: the query does not end."""
    real_stat, real_write, looks = os.stat, CachingSqlCatalog._write_metadata, [-10]

    def stat(path, *args, **named):
        if str(path).endswith("catalog.db"):
            looks.append(looks[-1] + 1)
            if looks[-1] == look:
                raise OSError(errno.EIO, "injected", str(path))
        return real_stat(path, *args, **named)

    def write_metadata(*args, **named):
        looks.append(0 if looks[-1] < 0 else 10)
        real_write(*args, **named)

    staged = place.life.stage(2, numbered(2))
    monkeypatch.setattr(CachingSqlCatalog, "_write_metadata", write_metadata)
    monkeypatch.setattr(os, "stat", stat)
    place.life.publish(2, staged, numbered(2))
    assert look in looks
    assert ids(place.folder) == list(range(30))


@pytest.mark.long
@pytest.mark.parametrize("remove", [delete, move])
def test_nothing_is_committed_to_a_catalog_that_is_replaced_during_the_commit(
    place, monkeypatch, remove
):
    staged = place.life.stage(2, numbered(2))

    def happens(commit):
        restore(place, remove)
        commit()

    at_next_commit(monkeypatch, happens)
    with pytest.raises(CommitRejected, match=r"wh/catalog\.db was removed, moved or replaced"):
        place.life.publish(2, staged, numbered(2))
    assert ids(place.folder) == list(range(10))
    if remove is move:
        assert catalog_row(place.root / "old") == 20
    for epoch in (1, 2):
        place.life.epoch(epoch, numbered(epoch))
    assert ids(place.folder) == list(range(30))


@pytest.mark.long
def test_the_path_is_compared_once_more_right_before_the_commit(place, monkeypatch):
    """The metadata file of the attempt is written between the two looks."""
    staged = place.life.stage(2, numbered(2))
    from krishiv_spark.iceberg.sql_catalog import CachingSqlCatalog

    real = CachingSqlCatalog._write_metadata

    def write_metadata(*args, **named):
        monkeypatch.setattr(CachingSqlCatalog, "_write_metadata", real)
        real(*args, **named)
        restore(place, move)

    monkeypatch.setattr(CachingSqlCatalog, "_write_metadata", write_metadata)
    with pytest.raises(CommitRejected, match="was removed, moved or replaced"):
        place.life.publish(2, staged, numbered(2))
    assert (ids(place.folder), catalog_row(place.root / "old")) == (list(range(10)), 20)


@pytest.mark.long
def test_a_second_attempt_is_not_made_in_another_catalog(place, monkeypatch):
    """Another writer is faster, and then the warehouse is replaced."""
    staged = place.life.stage(2, numbered(2))

    def happens(commit):
        table_of(place.folder).append(numbered(7))
        try:
            commit()
        finally:
            restore(place, move)

    at_next_commit(monkeypatch, happens)
    with pytest.raises(CommitRejected, match="was replaced meanwhile"):
        place.life.publish(2, staged, numbered(2))
    assert ids(place.folder) == list(range(10))


@pytest.mark.long
def test_a_warehouse_that_is_made_anew_works_at_the_first_start(place):
    options = IcebergOptions.parse(
        {"path": TABLE, "warehouse": str(place.folder), **place.given}, "krishiv-iceberg"
    )
    old = open_table(options).metadata.table_uuid
    delete(place)
    shutil.rmtree(place.root / "ck")
    place.folder.mkdir()
    life = IcebergLife(place.folder, **place.life.options)
    life.epoch(0, numbered(3))
    assert ids(place.folder) == list(range(30, 40))
    assert open_table(options).metadata.table_uuid != old
    assert list((place.root / "ck" / "krishiv" / "iceberg.catalogs").iterdir()), "recorded again"


def test_a_link_that_is_pointed_elsewhere_leads_to_the_other_catalog(tmp_path):
    for name, first in (("a", 0), ("b", 5)):
        IcebergLife(tmp_path / name).epoch(0, numbered(first))
    link = tmp_path / "wh"
    link.symlink_to(tmp_path / "a")
    options = IcebergOptions.parse({"path": TABLE, "warehouse": str(link)}, "krishiv-iceberg")
    assert open_table(options).scan().to_arrow()["id"].to_pylist() == list(range(10))
    link.unlink()
    link.symlink_to(tmp_path / "b")
    assert open_table(options).scan().to_arrow()["id"].to_pylist() == list(range(50, 60))


def test_a_database_that_is_restored_under_open_connections_decides(tmp_path):
    """As that of PostgreSQL or of a REST catalog: the file is the same, its row is an older one."""
    life = IcebergLife(tmp_path)
    life.epoch(0, numbered(0))
    row = "metadata_location, previous_metadata_location"
    with sqlite3.connect(tmp_path / "catalog.db") as connection:
        before = connection.execute(f"SELECT {row} FROM iceberg_tables").fetchone()
    life.epoch(1, numbered(1))
    with sqlite3.connect(tmp_path / "catalog.db") as connection:
        update = "UPDATE iceberg_tables SET metadata_location=?, previous_metadata_location=?"
        connection.execute(update, before)
    assert life.plan(numbered(1))[1] == 0
    life.epoch(1, numbered(1))
    assert ids(tmp_path) == list(range(20))


def test_a_metadata_file_whose_name_may_come_again_is_read_again(tmp_path):
    """As the files of Hadoop's tables, which are numbered: ``v2.metadata.json``."""
    life = IcebergLife(tmp_path)
    rows = {}
    for number in (0, 1):
        life.epoch(number, numbered(number))
        rows[number] = table_of(tmp_path).metadata_location
    file = tmp_path / "v2.metadata.json"
    catalog_of(tmp_path).register_table("db.numbered", str(shutil.copy(rows[0], file)))
    options = IcebergOptions.parse(
        {"path": "db.numbered", "warehouse": str(tmp_path)}, "krishiv-iceberg"
    )
    assert open_table(options).scan().to_arrow().num_rows == 10
    catalog_of(tmp_path).drop_table("db.numbered")
    catalog_of(tmp_path).register_table("db.numbered", str(shutil.copy(rows[1], file)))
    assert open_table(options).scan().to_arrow().num_rows == 20


def test_a_request_costs_a_few_looks_at_the_path(tmp_path, monkeypatch):
    life = IcebergLife(tmp_path)
    life.epoch(0, numbered(0))
    options = IcebergOptions.parse({"path": TABLE, "warehouse": str(tmp_path)}, "krishiv-iceberg")
    open_table(options)
    looks, real = [], os.stat

    def stat(path, *args, **named):
        if os.fspath(path) == str(tmp_path / "catalog.db"):
            looks.append(path)
        return real(path, *args, **named)

    monkeypatch.setattr(os, "stat", stat)
    open_table(options)
    assert len(looks) <= 3
