"""Bounds of data that accumulates over months, with concurrent readers and dying drivers."""

import json
import logging
import multiprocessing
import os
import time
import warnings
from types import SimpleNamespace

import pyarrow as pa
import pytest
from iceberg_life import TABLE, IcebergLife, catalog_of, ids, numbered, table_of
from iceberg_reading import Stream
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.utils.concurrent import ExecutorFactory

from krishiv_spark.errors import DataLossError, OptionError
from krishiv_spark.iceberg.catalogs import CatalogFailedError, open_table
from krishiv_spark.iceberg.sql_catalog import CachingSqlCatalog
from krishiv_spark.sinks.iceberg import committer
from krishiv_spark.sinks.iceberg.maintenance import expiry
from krishiv_spark.sinks.iceberg.maintenance.expiry import Retention
from krishiv_spark.sinks.iceberg.maintenance.orphans import find_orphans, make_deleter
from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

MOST = "krishiv.history.expire.max-snapshots-to-keep"
LEAST = "history.expire.min-snapshots-to-keep"
AGE = "history.expire.max-snapshot-age-ms"
VERSIONS = "write.metadata.previous-versions-max"
CHANGES = {"mode": "upsert", "keyColumns": "id"}


def properties(**given):
    return {f"tableProperty.{name}": str(value) for name, value in given.items()}


FEW = properties(**{MOST: 6, LEAST: 3, VERSIONS: 2})


@pytest.fixture
def at_once(monkeypatch):
    """Snapshots go one by one, and their files with them, however young they are."""
    monkeypatch.setattr(expiry, "_LUMP", 1)
    monkeypatch.setattr(expiry, "_READING_MS", -60_000)


def written(folder, *kinds):
    return {str(path) for kind in kinds for path in folder.glob(f"db/rows/**/{kind}")}


def named(table):
    """The manifests, their lists and the data files of all snapshots that a table has."""
    lists, manifests, files = set(), set(), set()
    for snapshot in table.snapshots():
        lists.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            manifests.add(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(table.io)
            files |= {entry.data_file.file_path for entry in entries}
    return lists | manifests, files


# --- what a table that is made is told


def test_a_table_that_is_made_is_told_what_to_keep(tmp_path):
    IcebergLife(tmp_path, **properties(**{LEAST: 7})).epoch(0, numbered(0))
    told = table_of(tmp_path).properties
    assert told["write.metadata.delete-after-commit.enabled"] == "true"
    assert (told[VERSIONS], told[MOST], told[LEAST]) == ("20", "10000", "7")
    assert told[AGE] == str(5 * 86_400_000)


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        ({}, (24, 100)),
        ({"upsertMode": "copy-on-write"}, (2, 50)),
        (properties(**{"format-version": 1}), (2, 50)),
        ({"upsertMode": "copy-on-write", **properties(**{AGE: 7_200_000, LEAST: 9})}, (2, 9)),
    ],
)
def test_a_table_that_is_made_for_upserts_keeps_fewer_copies_of_itself(tmp_path, more, kept):
    IcebergLife(tmp_path, **CHANGES, **more).epoch(0, numbered(0))
    told, (hours, least) = table_of(tmp_path).properties, kept
    assert (int(told[AGE]), int(told[LEAST]), told[MOST]) == (hours * 3_600_000, least, "10000")


def test_a_table_that_is_made_may_be_told_to_keep_all(tmp_path, caplog):
    IcebergLife(tmp_path, keepSnapshots="all", keepMetadataFiles="all").epoch(0, numbered(0))
    told = table_of(tmp_path).properties
    kept = [key for key in told if key.startswith(("history.", "write.", MOST))]
    assert kept == ["write.merge.mode"]
    assert caplog.records == []


BAD = {
    "keepSnapshots": ("0", "write a number from 1 on, or 'all'"),
    "keepMetadataFiles": ("few", "write a number from 1 on, or 'all'"),
    "expireOlderThan": ("5 d", "'keepSnapshots' = 'all' contradicts 'expireOlderThan'"),
}


@pytest.mark.parametrize(("name", "text", "reason"), [(k, *v) for k, v in BAD.items()], ids=BAD)
def test_numbers_that_cannot_be_are_refused(name, text, reason):
    given = {"path": TABLE, "warehouse": "w", "keepSnapshots": "all", name: text}
    with pytest.raises(OptionError, match=reason):
        IcebergSinkOptions.parse(given, "krishiv-iceberg")


def test_a_property_that_is_no_number_is_refused_before_any_row(tmp_path):
    with pytest.raises(OptionError, match=f"'{MOST}' is 'many': it must be a number"):
        IcebergLife(tmp_path, **properties(**{MOST: "many"})).plan(numbered(0))


def foreign(folder):
    """A table that another program has made."""
    made = catalog_of(folder)
    made.create_namespace("db")
    return made.create_table(TABLE, numbered(0).schema)


def test_a_table_of_others_is_left_as_it_is_with_one_warning(tmp_path, caplog):
    foreign(tmp_path)
    life = IcebergLife(tmp_path)
    for epoch in range(3):
        life.epoch(epoch, numbered(epoch))
    table = table_of(tmp_path)
    assert set(table.properties) == {"krishiv.epoch.query-1"}
    assert len(table.snapshots()) == 3
    (warning,) = caplog.messages
    assert "table db.rows permanently keeps more of its snapshots: set 'keepSnapshots'" in warning
    assert "and of its metadata files: set 'keepMetadataFiles'" in warning


@pytest.mark.parametrize(
    "given",
    [
        {"keepSnapshots": "all", "keepMetadataFiles": "all"},
        {"expireOlderThan": "5 d", "keepMetadataFiles": "9"},
    ],
)
def test_whoever_has_decided_is_not_warned(tmp_path, caplog, given):
    foreign(tmp_path)
    IcebergLife(tmp_path, **given).epoch(0, numbered(0))
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


# --- what is left


@pytest.mark.long  # dozens of epochs
@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.usefixtures("at_once")
def test_metadata_of_appends_is_bounded(tmp_path, version):
    life = IcebergLife(tmp_path, **FEW, **properties(**{"format-version": version}))
    for epoch in range(25):
        life.epoch(epoch, numbered(epoch))
        assert len(table_of(tmp_path).snapshots()) == min(6, epoch + 1)
    assert len(written(tmp_path, "*.metadata.json")) == 3
    assert written(tmp_path, "*.avro") == named(table_of(tmp_path))[0]
    assert ids(tmp_path) == list(range(250))


@pytest.mark.long  # dozens of epochs
@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_data_files_of_upserts_are_bounded(tmp_path, mode):
    life = IcebergLife(tmp_path, **FEW, **CHANGES, upsertMode=mode)
    for epoch in range(25):
        life.epoch(epoch, pa.table({"id": [epoch % 5, 5], "text": ["a", "b"]}))
    metadata, files = named(table_of(tmp_path))
    assert written(tmp_path, "*.avro") == metadata
    # What the oldest snapshot took out is needed by whoever reads what it changed.
    assert files < written(tmp_path, "*.parquet") <= files | removed_by_oldest(tmp_path)
    assert ids(tmp_path) == list(range(6))


def removed_by_oldest(folder):
    table = table_of(folder)
    entries = (
        entry
        for manifest in table.snapshots()[0].manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    )
    return {entry.data_file.file_path for entry in entries}


@pytest.mark.usefixtures("at_once")
def test_old_snapshots_go_and_some_stay_however_old(tmp_path):
    life = IcebergLife(tmp_path, **properties(**{MOST: 50, LEAST: 4, AGE: 0}))
    for epoch in range(8):
        life.epoch(epoch, numbered(epoch))
        time.sleep(0.002)  # they have the time of their commit in milliseconds
    assert len(table_of(tmp_path).snapshots()) == 4


def test_files_of_young_snapshots_stay_for_who_is_about_to_read_them(tmp_path, monkeypatch):
    monkeypatch.setattr(expiry, "_LUMP", 1)
    life = IcebergLife(tmp_path, **FEW)
    for epoch in range(10):
        life.epoch(epoch, numbered(epoch))
    assert len(table_of(tmp_path).snapshots()) == 6
    assert len(list(tmp_path.glob("db/rows/metadata/snap-*"))) == 10


@pytest.mark.usefixtures("at_once")
def test_a_table_whose_files_others_have_too_is_not_expired(tmp_path):
    life = IcebergLife(tmp_path, **FEW, **properties(**{"gc.enabled": "false"}))
    for epoch in range(10):
        life.epoch(epoch, numbered(epoch))
    assert len(table_of(tmp_path).snapshots()) == 10
    with pytest.raises(OptionError, match="is 'false', because other"):
        find_orphans(life.writer(numbered(0)).options, 0)


@pytest.mark.long
@pytest.mark.parametrize("given", [FEW, {"keepSnapshots": "1"}], ids=["table", "option"])
@pytest.mark.usefixtures("at_once")
def test_the_history_of_other_branches_and_tags_stay(tmp_path, given):
    life = IcebergLife(tmp_path, **given)
    for epoch in range(3):
        life.epoch(epoch, numbered(epoch))
        if epoch == 0:
            tag_newest(tmp_path, "first")
    table = table_of(tmp_path)
    head = table.current_snapshot().snapshot_id
    table.manage_snapshots().create_branch(head, "audit").commit()
    before = {snapshot.snapshot_id for snapshot in history(table_of(tmp_path), "audit")}
    catalog_of(tmp_path).load_table(TABLE).append(numbered(90), branch="audit")
    for epoch in range(3, 15):
        life.epoch(epoch, numbered(epoch))
    table = table_of(tmp_path)
    assert {snapshot.snapshot_id for snapshot in history(table, "audit")} > before
    for snapshot in table.snapshots():
        assert table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows % 10 == 0
    assert table.scan(snapshot_id=table.refs()["first"].snapshot_id).to_arrow().num_rows == 10
    assert len(table.snapshots()) <= len(before) + 1 + 1 + 6


class OtherCatalog(SqlCatalog):
    """Knows nothing of ours, as catalogs of other kinds do."""


@pytest.mark.long
@pytest.mark.parametrize("other", [False, True], ids=["ours", "other"])
@pytest.mark.usefixtures("at_once")
def test_names_that_are_given_while_an_epoch_commits_stay(tmp_path, monkeypatch, other):
    given = {
        "catalog.py-catalog-impl": f"{__name__}.OtherCatalog",
        "catalog.uri": f"sqlite:///{tmp_path}/catalog.db",
    }
    life = IcebergLife(tmp_path, keepSnapshots="3", **CHANGES, **FEW, **(given if other else {}))
    for epoch in range(3):
        life.epoch(epoch, pa.table({"id": [1, 2], "text": [str(epoch)] * 2}))
    first, second, _ = table_of(tmp_path).snapshots()

    def named_before(*given):
        names = table_of(tmp_path).manage_snapshots()
        names.create_tag(first.snapshot_id, "month-end").commit()
        names = table_of(tmp_path).manage_snapshots()
        names.create_branch(second.snapshot_id, "audit").commit()
        monkeypatch.setattr(committer, "expire_with_commit", expiry.expire_with_commit)
        expiry.expire_with_commit(*given)

    monkeypatch.setattr(committer, "expire_with_commit", named_before)
    for epoch in range(3, 8):
        life.epoch(epoch, pa.table({"id": [1, 2], "text": [str(epoch)] * 2}))
    table = table_of(tmp_path)
    assert table.refs().keys() == {"main", "month-end", "audit"}
    assert len(table.snapshots()) == 2 + 3
    for snapshot, text in ((first, "0"), (second, "1")):
        rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
        assert rows["text"].to_pylist() == [text] * 2


def test_nothing_expires_while_a_catalog_does_not_tell_its_names(tmp_path, monkeypatch):
    life = IcebergLife(tmp_path, keepSnapshots="1")
    life.epoch(0, numbered(0))

    def open_table(_):
        raise CatalogFailedError("no answer")

    monkeypatch.setattr(expiry, "GuardedMetastoreCatalog", OtherCatalog)
    monkeypatch.setattr(expiry, "open_table", open_table)
    life.epoch(1, numbered(1))
    assert len(table_of(tmp_path).snapshots()) == 2


def tag_newest(folder, name):
    table = table_of(folder)
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, name).commit()


def history(table, branch):
    found = table.snapshot_by_id(table.refs()[branch].snapshot_id)
    while found is not None:
        yield found
        found = found.parent_snapshot_id and table.snapshot_by_id(found.parent_snapshot_id)


# --- readers


@pytest.mark.usefixtures("at_once")
def test_a_stream_may_stand_still_for_as_long_as_snapshots_stay(tmp_path):
    life = IcebergLife(tmp_path, **FEW)
    life.epoch(0, numbered(0))
    stream = Stream(tmp_path, table=TABLE)
    assert stream.drain() == [list(range(10))]
    for epoch in range(1, 7):
        life.epoch(epoch, numbered(epoch))
    assert sum(stream.drain(), []) == list(range(10, 70))  # noqa: RUF017
    for epoch in range(7, 15):
        life.epoch(epoch, numbered(epoch))
    with pytest.raises(DataLossError, match="keep snapshots for longer"):
        stream.drain()


@pytest.mark.usefixtures("at_once")
def test_changes_behind_the_oldest_snapshot_are_read(tmp_path):
    life = IcebergLife(tmp_path, **FEW, **CHANGES)
    life.epoch(0, pa.table({"id": [1], "text": ["a"]}))
    stream = Stream(tmp_path, table=TABLE, readChanges=True)
    stream.drain()
    for epoch in range(1, 7):  # the first one, at which the stream stands, expires
        life.epoch(epoch, pa.table({"id": [1], "text": [f"{epoch}"]}))
    assert len(table_of(tmp_path).snapshots()) == 6
    assert stream.drain() == [[1, 1]]


def test_a_metadata_file_that_goes_while_it_is_opened_is_looked_for_again(tmp_path, monkeypatch):
    IcebergLife(tmp_path).epoch(0, numbered(0))
    options = IcebergLife(tmp_path).writer(numbered(0)).options
    real = CachingSqlCatalog._load_file_io
    gone = [FileNotFoundError("removed by a commit")]

    def load(*arguments, **given):
        if gone:
            raise gone.pop()
        return real(*arguments, **given)

    monkeypatch.setattr(CachingSqlCatalog, "_load_file_io", load)
    assert open_table(options).current_snapshot() is not None


# --- where a driver dies


def dies_at_removal(folder, number, epoch, after, **given):
    """Return True if a driver that commits an epoch dies at its n-th removal of a file."""

    def work():
        expiry._READING_MS, expiry._LUMP = -60_000, 1
        real, count = PyArrowFileIO.delete, iter(range(1_000))

        def delete(io, place):
            if next(count) == number:
                if after:
                    real(io, place)
                os._exit(9)
            real(io, place)

        PyArrowFileIO.delete = delete
        ExecutorFactory.get_or_create = staticmethod(InTurn)
        IcebergLife(folder, **given).epoch(epoch, numbered(0))
        os._exit(0)

    child = multiprocessing.get_context("fork").Process(target=work)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, 3.12+
        child.start()
    child.join(60)
    assert child.exitcode in {0, 9}
    return child.exitcode == 9


class InTurn:
    """An executor without threads: they do not survive a fork."""

    @staticmethod
    def map(work, *items):
        return map(work, *items)


@pytest.mark.long
@pytest.mark.parametrize("after", [False, True])
def test_a_driver_that_dies_while_it_removes_files_leaves_the_rest_to_vacuum(tmp_path, after):
    rules = {"keepSnapshots": "2"} | CHANGES | properties(**{VERSIONS: 1, MOST: 2})
    for epoch in range(3):
        IcebergLife(tmp_path, **rules).epoch(epoch, numbered(0))
    number, epoch = 0, 3
    while dies_at_removal(tmp_path, number, epoch, after, **rules):
        assert ids(tmp_path) == list(range(10))
        assert IcebergLife(tmp_path, **CHANGES).plan(numbered(0))[1] == epoch  # it is true
        number, epoch = number + 1, epoch + 1
    assert number >= 5  # changes, a metadata file, a list, manifests and a data file
    options = IcebergLife(tmp_path).writer(numbered(0)).options
    for orphan in find_orphans(options, 0).files:
        make_deleter(options)(orphan)
    table = table_of(tmp_path)
    assert (written(tmp_path, "*.avro"), written(tmp_path, "*.parquet")) == named(table)
    assert len(written(tmp_path, "*.metadata.json")) == 2
    for snapshot in table.snapshots():
        assert table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows


@pytest.mark.usefixtures("at_once")
def test_a_file_that_cannot_be_removed_does_not_fail_the_epoch(tmp_path, monkeypatch):
    life = IcebergLife(tmp_path, **FEW)
    for epoch in range(6):
        life.epoch(epoch, numbered(epoch))

    def delete(*_):
        raise PermissionError("not yours")

    with monkeypatch.context() as patch:
        patch.setattr(PyArrowFileIO, "delete", delete)
        life.epoch(6, numbered(6))
    assert ids(tmp_path) == list(range(70))


# --- offsets


def with_offsets(folder, epoch, text):
    """A checkpoint whose sources are at some offset before an epoch."""
    (folder / "offsets").mkdir(parents=True, exist_ok=True)
    lines = ["v1", '{"batchWatermarkMs":0}', json.dumps({"at": text})]
    (folder / "offsets" / str(epoch)).write_text("\n".join(lines))
    return str(folder)


def test_offsets_of_the_newest_epoch_alone_are_kept(tmp_path):
    for epoch in range(3):
        place = with_offsets(tmp_path / "checkpoint", epoch, f"place {epoch}")
        IcebergLife(tmp_path, checkpointLocation=place).epoch(epoch, numbered(epoch))
    table = table_of(tmp_path)
    said = json.loads(table.properties["krishiv.offsets.query-1"])
    assert said == {"epoch": 2, "offsets": [{"at": "place 2"}]}
    assert "place" not in table.metadata.model_dump_json(include={"snapshots"})


def test_offsets_that_are_too_long_leave_none_that_are_old(tmp_path):
    for epoch, text in enumerate(["short", "x" * 20_000]):
        place = with_offsets(tmp_path / "checkpoint", epoch, text)
        IcebergLife(tmp_path, checkpointLocation=place).epoch(epoch, numbered(epoch))
    assert "krishiv.offsets.query-1" not in table_of(tmp_path).properties


def test_offsets_of_a_query_that_is_over_go_with_its_snapshots(tmp_path):
    place = with_offsets(tmp_path / "old", 0, "old")
    with_offsets(tmp_path / "old", 1, "old")
    old = IcebergLife(tmp_path, query="query-0", checkpointLocation=place, keepSnapshots="2")
    new = IcebergLife(tmp_path, checkpointLocation=place, keepSnapshots="2")
    old.epoch(0, numbered(0))
    new.epoch(0, numbered(1))
    assert {"krishiv.offsets.query-0", "krishiv.offsets.query-1"} <= set(
        table_of(tmp_path).properties
    )
    new.epoch(1, numbered(2))
    new.epoch(2, numbered(3))
    left = table_of(tmp_path).properties
    assert "krishiv.offsets.query-0" not in left
    assert left["krishiv.epoch.query-0"] == "0"  # the mark stays for ever


# --- what failed tasks leave


@pytest.mark.long
def test_only_snapshots_behind_the_plan_are_looked_at_for_staged_files(tmp_path, monkeypatch):
    life, other = IcebergLife(tmp_path), IcebergLife(tmp_path, query="query-2")
    for epoch in range(20):
        life.epoch(epoch, numbered(epoch))
    staged = life.stage(20, numbered(20))
    kept = life.stage(20, numbered(20))
    for epoch in range(9):  # manifests are merged with older ones
        other.epoch(epoch, numbered(30 + epoch))
    life.publish(20, kept, numbered(20))
    read, real = [], ManifestFile.fetch_manifest_entry
    monkeypatch.setattr(
        ManifestFile,
        "fetch_manifest_entry",
        lambda self, *more, **named: read.append(self) or real(self, *more, **named),
    )
    committer = life.writer(numbered(0)).committer()
    committer.discard([*staged, *kept])
    assert len(read) <= 10 + 2
    assert ids(tmp_path) == [*range(210), *range(300, 390)]
    assert not [path for item in staged for path in item.paths if os.path.exists(path)]


# --- times that are not in the order of the commits


@pytest.mark.parametrize(
    ("limit", "expired"), [(500, 0), (1500, 0), (2000, 2), (2500, 2), (3000, 3), (9000, 3)]
)
@pytest.mark.parametrize("version", [1, 2])
def test_a_snapshot_expires_by_age_after_all_that_were_committed_before_it(limit, expired, version):
    snapshots = [
        Snapshot(
            snapshot_id=number,
            sequence_number=None if version == 1 else number,
            timestamp_ms=ms,
            manifest_list="m",
        )
        for number, ms in ((1, 2000), (2, 1000), (3, 3000))
    ]
    metadata = SimpleNamespace(snapshots=snapshots, refs={})
    found = Retention(least=1, most=None, age_ms=0).find_expired(metadata, limit)
    assert found == [1, 2, 3][:expired]
