"""Compactions of Iceberg tables: the same rows in fewer files, whatever others commit meanwhile."""

import gc
import os
import pty
import random
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from command_line import Command
from hostile_tables import alter
from hypothesis import given
from hypothesis import strategies as st
from iceberg_life import TABLE, IcebergLife, at_next_commit, ids, numbered, table_of
from pyiceberg.exceptions import CommitFailedException, ForbiddenError
from pyiceberg.transforms import BucketTransform, IdentityTransform
from sqlalchemy import text

from krishiv_spark.errors import CommitRejected, CommitUnknown, OptionError, SinkError
from krishiv_spark.iceberg.catalogs import forget_catalog
from krishiv_spark.offsets.planned import PlannedOffsets
from krishiv_spark.runtime.caches import LruCache
from krishiv_spark.sinks.iceberg.epoch_snapshot import EpochSnapshot, EpochTransaction
from krishiv_spark.sinks.iceberg.epoch_updates import SnapshotChanges
from krishiv_spark.sinks.iceberg.maintenance import compaction
from krishiv_spark.sinks.iceberg.maintenance.compaction import (
    Compacted,
    Compaction,
    CompactionRequest,
    compact_in_steps,
    compact_next_group,
    read_loads,
)
from krishiv_spark.sinks.iceberg.maintenance.compaction_groups import (
    FileLoad,
    choose_groups,
    choose_next_group,
)
from krishiv_spark.sinks.iceberg.maintenance.rollback import Rollback
from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
from krishiv_spark.sinks.iceberg.table_copies import open_own_table
from krishiv_spark.sinks.iceberg.table_schema import get_manifest_schema
from krishiv_spark.sinks.iceberg.upserts import replaced_rows
from krishiv_spark.sinks.iceberg.upserts.key_index import CachedKeys
from krishiv_spark.sinks.participant import Replay


class Upserts:
    """A table with upserts, and the newest text of each id."""

    def __init__(self, folder, **given):
        self.warehouse = folder / "w"
        keys = {"mode": "upsert", "keyColumns": "id"}
        place = {"checkpointLocation": str(folder / "checkpoint")}
        self.life = IcebergLife(self.warehouse, **place, **keys, **given)
        self.expected, self._epoch, self._random = {}, 0, random.Random(3)
        texts = {"table": TABLE, "warehouse": str(self.warehouse), "commitTimeout": "60 s"}
        self.options = IcebergSinkOptions.parse(texts, "krishiv-iceberg")

    def run(self, epochs, rows=20):
        for _ in range(epochs):
            self.write(self._random.sample(range(300), rows))

    def write(self, ids, **more):
        text = f"{self._epoch}"
        rows = {"id": ids, "text": [text] * len(ids), **more}
        self.life.epoch(self._epoch, pa.table(rows))
        self.expected |= dict.fromkeys(ids, text)
        self._epoch += 1

    def open(self):
        return open_own_table(self.options)

    def groups(self, **request):
        return CompactionRequest(**request).find_groups(self.open(), self.options)

    def compact(self, groups=None):
        return Compaction(self.options).run(self.open(), groups or self.groups())

    def check(self):
        """PyIceberg finds the newest row of each id, and the summary its number of rows."""
        assert self.read() == self.expected
        totals = table_of(self.warehouse).current_snapshot().summary.additional_properties
        left = int(totals["total-records"]) - int(totals["total-position-deletes"])
        assert left == len(self.expected)

    def read(self):
        rows = table_of(self.warehouse).scan().to_arrow().to_pylist()
        assert len({row["id"] for row in rows}) == len(rows)
        return {row["id"]: row["text"] for row in rows}

    def unnamed(self):
        """Files of rows and deletes that are in no snapshot."""
        names = table_of(self.warehouse).inspect.all_files()["file_path"].to_pylist()
        written = {str(file) for file in self.warehouse.rglob("*.parquet")}
        return written - {name.removeprefix("file://") for name in names}


@pytest.fixture(
    params=[{}, {"partitionBy": "bucket(2, id)", "sortBy": "text"}], ids=["plain", "parts"]
)
def upserts(tmp_path, request):
    return Upserts(tmp_path, **request.param)


@pytest.mark.long
def test_rows_stay_the_same_in_few_files_without_deletes(upserts):
    upserts.run(epochs=20)
    done = upserts.compact()
    upserts.check()
    totals = table_of(upserts.warehouse).current_snapshot().summary
    assert totals.operation.value == "replace"
    assert (done.files[0], totals["total-data-files"]) == (20 * done.groups, str(done.groups))
    assert (totals["total-delete-files"], totals["total-position-deletes"]) == ("0", "0")
    assert totals["total-records"] == str(len(upserts.expected))
    assert (upserts.groups(), upserts.unnamed()) == ([], set())
    upserts.run(epochs=2)
    upserts.check()


@pytest.mark.long
@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_nothing_is_cached_of_files_that_a_commit_has_removed(tmp_path, monkeypatch, mode):
    """Otherwise the driver's memory grows with each epoch until the caches are full."""
    keys, deleted = CachedKeys(), LruCache(1000)
    monkeypatch.setattr(replaced_rows, "_KEYS", keys)
    monkeypatch.setattr(replaced_rows, "_DELETED", deleted)
    upserts = Upserts(tmp_path, upsertMode=mode, compact="auto")
    upserts.run(epochs=30)
    tasks = [load.task for load in read_loads(upserts.open())]
    live = {file.file_path for task in tasks for file in (task.file, *task.delete_files)}
    assert {*keys._files._values, *deleted._values} <= live
    assert bool(keys._files) == bool(deleted) == (mode == "merge-on-read")
    upserts.check()


def test_files_with_few_deleted_rows_stay(tmp_path):
    upserts = Upserts(tmp_path)
    upserts.write(range(300))
    upserts.compact(upserts.groups() or [tuple(read_loads(upserts.open()))])
    upserts.write(range(29))
    big = min(read_loads(upserts.open()), key=lambda load: -load.task.file.record_count)
    size = big.size  # as if a file of this size were large enough
    assert list(choose_groups([big], size, 0.1)) == []
    assert list(choose_groups([big], size, 0.09)) == [(big,)]


def test_a_row_that_is_deleted_meanwhile_stays_deleted(upserts, monkeypatch):
    """The compaction has read the row, and another commit deletes it before its own."""
    upserts.run(epochs=6)
    groups = upserts.groups()

    def be_slower(commit):
        upserts.run(epochs=1, rows=100)
        commit()

    at_next_commit(monkeypatch, be_slower)
    done = upserts.compact(groups)
    assert (done.groups, done.dropped) == (0, len(groups))
    upserts.check()
    assert upserts.unnamed() == set()


@pytest.mark.long
def test_an_append_meanwhile_costs_another_attempt_only(upserts, monkeypatch):
    upserts.run(epochs=6)
    groups = upserts.groups()

    def be_slower(commit):
        upserts.write([1000, 1001])
        commit()

    at_next_commit(monkeypatch, be_slower)
    done = upserts.compact(groups)
    assert (done.groups, done.dropped) == (len(groups), 0)
    upserts.check()
    assert upserts.unnamed() == set()


@pytest.mark.long
def test_deletes_that_were_merged_meanwhile_are_the_same_deletes(tmp_path, monkeypatch):
    """Seven delete files become one with the eighth; rows of the compacted files are the same."""
    upserts = Upserts(tmp_path)
    upserts.write(range(100))
    upserts.write(range(100, 200))
    for number in range(7):
        upserts.write([number])
    first, *_ = groups = [tuple(read_loads(upserts.open())[-1:])]
    assert first[0].task.file.record_count == 100

    def be_slower(commit):
        upserts.write([150])
        commit()

    at_next_commit(monkeypatch, be_slower)
    done = upserts.compact(groups)
    assert (done.groups, done.dropped) == (1, 0)
    upserts.check()


def test_delete_files_that_name_no_live_file_are_removed(tmp_path):
    """PyIceberg removes a data file and leaves its deletes, as other programs do."""
    upserts = Upserts(tmp_path)
    upserts.write(range(100))
    upserts.write([5])
    table_of(upserts.warehouse).delete("id < 200")
    upserts.expected.clear()
    assert table_of(upserts.warehouse).inspect.delete_files().num_rows == 1
    upserts.write([300])
    upserts.write([301])
    assert upserts.compact().deletes == 1
    assert table_of(upserts.warehouse).inspect.delete_files().num_rows == 0
    upserts.check()


def test_files_without_a_remaining_row_are_removed(tmp_path):
    upserts = Upserts(tmp_path, opColumn="op")
    rows = pa.table({"id": [1, 2], "op": ["u", "u"]})
    upserts.life.epoch(0, rows)
    upserts.life.epoch(1, pa.table({"id": [1], "op": ["d"]}))
    upserts.life.epoch(2, pa.table({"id": [2], "op": ["d"]}))
    assert upserts.groups() == []  # the sink itself removes such a file
    assert table_of(upserts.warehouse).scan().to_arrow().num_rows == 0


@pytest.mark.long
def test_a_file_with_other_rows_than_its_metadata_says_changes_nothing(upserts):
    upserts.run(epochs=4)
    head = table_of(upserts.warehouse).current_snapshot().snapshot_id
    (group, *_) = upserts.groups()
    wrong = tuple(replace(load, deleted=load.deleted + 1) for load in group)
    with pytest.raises(SinkError, match="rows that are not deleted, and their metadata says"):
        upserts.compact([wrong])
    assert table_of(upserts.warehouse).current_snapshot().snapshot_id == head
    assert upserts.unnamed() == set()


@pytest.mark.long
def test_a_lost_answer_is_looked_up(upserts, monkeypatch):
    upserts.run(epochs=4)

    def lose_the_answer(commit):
        commit()
        raise TimeoutError

    at_next_commit(monkeypatch, lose_the_answer)
    assert upserts.compact().groups > 0
    upserts.check()


@pytest.mark.long
def test_an_unknown_outcome_is_named_and_loses_nothing(upserts, monkeypatch):
    upserts.run(epochs=4)

    def fail(commit):
        del commit
        raise TimeoutError

    at_next_commit(monkeypatch, fail)
    with pytest.raises(CommitUnknown, match="unknown whether the compaction"):
        upserts.compact()
    upserts.check()
    assert upserts.unnamed() != set()  # the commit may still arrive: vacuum removes them later


@pytest.mark.long
def test_a_commit_that_was_sent_twice_is_looked_up(upserts, monkeypatch):
    """The second request conflicts with the first, which was accepted."""
    upserts.run(epochs=4)

    def send_twice(commit):
        commit()
        commit()

    at_next_commit(monkeypatch, send_twice)
    assert upserts.compact().groups > 0
    upserts.check()
    assert upserts.groups() == []


@pytest.mark.long  # dozens of epochs
def test_other_partitions_meanwhile_leave_the_files_as_they_are(tmp_path, monkeypatch):
    upserts = Upserts(tmp_path, partitionBy="bucket(4, id)")
    upserts.run(epochs=6)
    groups = upserts.groups()

    def change_partitions(commit):
        with table_of(upserts.warehouse).update_spec() as update:
            update.remove_field("id_bucket")
            update.add_field("id", BucketTransform(7), "bucket_7")
        table_of(upserts.warehouse).append(pa.table({"id": [1000], "text": ["new"]}))
        commit()

    at_next_commit(monkeypatch, change_partitions)
    done = upserts.compact(groups)
    upserts.expected[1000] = "new"
    assert (done.groups, done.dropped) == (0, len(groups))
    table = table_of(upserts.warehouse)
    for key in upserts.expected:
        assert table.scan(row_filter=f"id = {key}").to_arrow().num_rows == 1
    assert upserts.unnamed() == set()


@pytest.mark.long
def test_a_column_that_comes_back_meanwhile_keeps_its_values(tmp_path, monkeypatch):
    """It was dropped when the files were rewritten, and the drop is undone before the commit."""
    upserts = Upserts(tmp_path)
    upserts.run(epochs=4)
    before = table_of(upserts.warehouse).metadata.current_schema_id
    with table_of(upserts.warehouse).update_schema() as update:
        update.delete_column("text")
    groups = upserts.groups()

    def undo(commit):
        alter(upserts.warehouse, lambda found: found.update({"current-schema-id": before}))
        commit()

    at_next_commit(monkeypatch, undo)
    assert upserts.compact(groups).dropped == len(groups)
    upserts.check()


@pytest.mark.long
def test_new_files_that_a_vacuum_removed_are_not_committed(upserts, monkeypatch):
    upserts.run(epochs=4)
    real = compaction.check_version

    def vacuum(*given):
        for file in upserts.unnamed():
            Path(file).unlink()
        real(*given)

    groups = upserts.groups()
    monkeypatch.setattr(compaction, "check_version", vacuum)
    with pytest.raises(CommitRejected, match="the driver cannot find"):
        upserts.compact(groups)
    upserts.check()


@pytest.mark.long
def test_a_refusal_is_certain_and_ends_the_attempts_of_a_stream(upserts, monkeypatch):
    upserts.run(epochs=4)

    def refuse(*_):
        raise ForbiddenError("no")

    with monkeypatch.context() as patch:
        patch.setattr("pyiceberg.catalog.sql.SqlCatalog.commit_table", refuse)
        with pytest.raises(SinkError, match="the catalog refuses the compaction"):
            upserts.compact()
    upserts.check()
    assert upserts.unnamed() == set()
    assert compact_next_group(upserts.options) == Compacted()


def test_files_that_are_gone_cost_their_group_and_not_the_command(tmp_path):
    upserts = Upserts(tmp_path)
    upserts.run(epochs=4)
    groups = upserts.groups()
    upserts.compact(groups)
    assert [(done.groups, done.dropped) for done in compact_in_steps(upserts.options, groups)] == [
        (0, len(groups))
    ]


@pytest.mark.long
def test_an_interrupt_while_the_commit_is_sent_removes_no_file_of_the_table(upserts, monkeypatch):
    upserts.run(epochs=4)

    def commit_and_interrupt(commit):
        commit()
        raise KeyboardInterrupt

    at_next_commit(monkeypatch, commit_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        upserts.compact()
    upserts.check()
    assert upserts.groups() == []


def test_a_table_that_was_upgraded_meanwhile_is_left_as_it_is(tmp_path):
    upserts = Upserts(tmp_path)
    upserts.run(epochs=4)
    groups = upserts.groups()
    alter(upserts.warehouse, lambda found: found.update({"format-version": 3, "next-row-id": 0}))
    with pytest.raises(OptionError, match="has format version 3"):
        upserts.compact(groups)
    assert upserts.unnamed() == set()


@pytest.mark.long
def test_other_commits_that_are_always_faster_end_it(upserts, monkeypatch):
    upserts.run(epochs=4)
    groups = upserts.groups()
    upserts.options = upserts.options.model_copy(update={"commit_timeout": 2000})

    def lose(*_):
        raise CommitFailedException("another one")

    monkeypatch.setattr("pyiceberg.catalog.sql.SqlCatalog.commit_table", lose)
    with pytest.raises(SinkError, match=r"faster writers during \d+ lost races: none that"):
        upserts.compact(groups)
    monkeypatch.undo()
    upserts.check()
    assert upserts.unnamed() == set()


@pytest.mark.long  # dozens of epochs
def test_a_stream_with_compact_auto_keeps_few_files(tmp_path):
    upserts = Upserts(tmp_path, compact="auto")
    upserts.write(range(300))
    upserts.run(epochs=100)
    upserts.check()
    totals = table_of(upserts.warehouse).current_snapshot().summary
    assert int(totals["total-data-files"]) + int(totals["total-delete-files"]) <= 20
    assert upserts.unnamed() == set()


def test_a_compaction_that_fails_costs_no_epoch(tmp_path, monkeypatch, caplog):
    def fail(_):
        raise OSError("the disk is full")

    monkeypatch.setattr(
        "krishiv_spark.sinks.iceberg.maintenance.compaction.compact_next_group", fail
    )
    upserts = Upserts(tmp_path, compact="auto")
    upserts.run(epochs=5)
    upserts.check()
    assert "the table was not compacted; the query continues" in caplog.text


def test_a_limit_of_bytes_leaves_larger_files(tmp_path):
    upserts = Upserts(tmp_path)
    upserts.run(epochs=8)
    small = {"table": TABLE, "warehouse": str(upserts.warehouse), "maxCompactSize": "1000"}
    options = IcebergSinkOptions.parse(small, "krishiv-iceberg")
    assert compact_next_group(options) == Compacted()


def test_a_delete_file_that_names_other_live_rows_stays(tmp_path):
    """One delete file names rows of two data files, of which one is compacted."""
    upserts = Upserts(tmp_path)
    upserts.write(range(100))
    upserts.write(range(100, 200))
    upserts.write([5, 105])
    one = [load for load in read_loads(upserts.open()) if load.deleted][:1]
    assert upserts.compact([tuple(one)]).deletes == 0
    assert upserts.read() == upserts.expected  # totals count positions in files that are gone
    other = [load for load in read_loads(upserts.open()) if load.deleted]
    assert upserts.compact([tuple(other)]).deletes == 1
    upserts.check()


def test_a_replay_undoes_compactions_too(tmp_path):
    upserts = Upserts(tmp_path)
    upserts.run(epochs=3)
    upserts.compact()
    upserts.run(epochs=1)
    replay = Replay("c", upserts.life.query, "r", PlannedOffsets(epoch=1, begins="a", ends="b"))
    (said, *_) = Rollback(upserts.options).lines(replay)
    assert "3 snapshots, of epochs 2 to 3, are undone" in said


def test_a_catalog_that_is_closed_keeps_no_lock(tmp_path):
    """Not even by a connection in use, whose commit and rollback have failed."""
    upserts = Upserts(tmp_path)
    upserts.run(epochs=1)
    catalog = upserts.open().catalog
    connection = catalog.engine.connect()
    connection.execute(text("UPDATE iceberg_tables SET metadata_location = 'x'"))
    catalog.close()
    with closing(sqlite3.connect(upserts.warehouse / "catalog.db", timeout=0)) as other, other:
        other.execute("UPDATE iceberg_tables SET previous_metadata_location = NULL")
    upserts.check()
    del connection


@pytest.mark.long
def test_a_catalog_that_was_forgotten_and_used_again_keeps_no_lock(tmp_path):
    """A table that was loaded before a failure commits through the catalog of that time."""
    upserts = Upserts(tmp_path)
    upserts.run(epochs=1)
    older = upserts.open().catalog
    forget_catalog(upserts.options)
    assert upserts.open().catalog is not older
    connection = older.engine.connect()
    connection.execute(text("UPDATE iceberg_tables SET metadata_location = 'x'"))
    forget_catalog(upserts.options)
    with closing(sqlite3.connect(upserts.warehouse / "catalog.db", timeout=0)) as other, other:
        other.execute("UPDATE iceberg_tables SET previous_metadata_location = NULL")
    upserts.check()
    del connection


def test_a_statement_in_garbage_keeps_no_lock(tmp_path):
    """SQLite keeps the locks of a closed connection until its last statement has ended."""
    upserts = Upserts(tmp_path)
    upserts.run(epochs=1)
    connection = upserts.open().catalog.engine.connect()
    connection.execute(text("UPDATE iceberg_tables SET metadata_location = 'x'"))
    cycle = [connection.connection.cursor().execute("SELECT * FROM iceberg_tables")]
    cycle.append(cycle)
    gc.disable()
    try:
        del cycle
        forget_catalog(upserts.options)
    finally:
        gc.enable()
    with closing(sqlite3.connect(upserts.warehouse / "catalog.db", timeout=0)) as other, other:
        other.execute("UPDATE iceberg_tables SET previous_metadata_location = NULL")
    upserts.check()
    del connection


# --- partitions that changed


def drop_partition_column(life, column):
    del life.options["partitionBy"]
    warehouse = life.options["warehouse"]
    with table_of(warehouse).update_spec() as update:
        update.remove_field(table_of(warehouse).spec().fields[0].name)
    with table_of(warehouse).update_schema(allow_incompatible_changes=True) as update:
        update.delete_column(column)


@pytest.mark.long
@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("partition", ["text", "bucket(2, text)"])
def test_a_partition_whose_column_was_dropped_is_written_and_compacted(
    tmp_path, version, partition
):
    """PyIceberg knows no type of its values: manifests got a type that nobody could read."""
    life = IcebergLife(tmp_path, partitionBy=partition, **{"tableProperty.format-version": version})
    for epoch in range(3):
        life.epoch(epoch, numbered(epoch))
    drop_partition_column(life, "text")
    for epoch in range(3, 6):
        life.epoch(epoch, numbered(epoch).select(["id"]))
    options = IcebergSinkOptions.parse(
        {"table": TABLE, "warehouse": str(tmp_path)}, "krishiv-iceberg"
    )
    table = open_own_table(options)
    groups = CompactionRequest().find_groups(table, options)
    assert {group[0].task.file.spec_id for group in groups} >= {0}
    assert Compaction(options).run(table, groups).groups == len(groups)
    life.epoch(6, numbered(6).select(["id"]))
    assert ids(tmp_path) == list(range(70))
    # PyIceberg's `inspect` does not know the type either.
    kept = [task.file.file_path for task in table_of(tmp_path).scan().plan_files()]
    assert len(kept) == len({*kept})


def manifests(warehouse):
    table = table_of(warehouse)
    return table.current_snapshot().manifests(table.io)


def test_rows_of_a_partition_whose_column_was_dropped_are_replaced(tmp_path):
    """A delete file has the partition of its data file, which has no column any more."""
    upserts = Upserts(tmp_path, partitionBy="kind")
    for ids_ in ([1, 2], [3, 4], [5, 6]):
        upserts.write(ids_, kind=["a", None])
    drop_partition_column(upserts.life, "kind")
    for ids_ in ([1, 4], [2, 7], [5, 3]):
        upserts.write(ids_)
        upserts.check()
    assert {manifest.partition_spec_id for manifest in manifests(upserts.warehouse)} == {0, 1}
    upserts.compact(upserts.groups(deleted_share=0.01))
    upserts.check()


def test_a_dropped_column_that_no_schema_has_is_named(tmp_path):
    life = IcebergLife(tmp_path, partitionBy="text")
    life.epoch(0, numbered(0))
    drop_partition_column(life, "text")
    metadata = table_of(tmp_path).metadata
    pruned = metadata.model_copy(update={"schemas": [metadata.schema()]})
    with pytest.raises(CommitRejected, match=r"a column that was dropped \(field 2\)"):
        get_manifest_schema(pruned, pruned.specs()[0])


def test_a_file_is_listed_with_the_partition_spec_that_it_was_written_for(tmp_path):
    life = IcebergLife(tmp_path, partitionBy="id", query="q")
    life.epoch(0, numbered(0))
    old = life.stage(1, numbered(1, 2))
    del life.options["partitionBy"]
    with table_of(tmp_path).update_spec() as update:
        update.remove_field("id")
        update.add_field("text", IdentityTransform(), "letter")
    new = life.stage(2, numbered(2, 2))
    table = open_own_table(life.writer(numbered(0)).options)
    transaction = EpochTransaction(table)
    files = [file for item in (*old, *new) for file in item.files]
    EpochSnapshot(transaction, {}, SnapshotChanges(files, []), merge=True).commit()
    transaction.compare_and_set()
    added = transaction.producer.snapshot_id
    listed = [m for m in manifests(tmp_path) if m.added_snapshot_id == added]
    assert sorted(m.partition_spec_id for m in listed) == [0, 1]
    for number in (2, 4, 5):  # PyIceberg prunes by the partitions
        assert table_of(tmp_path).scan(f"id = {number}").to_arrow().num_rows >= 1
    assert table_of(tmp_path).scan("text = '1'").to_arrow().num_rows == 3


# --- the command


@pytest.mark.long
def test_the_command_compacts_and_says_what_it_did(upserts):
    upserts.run(epochs=6)
    command = Command("iceberg", "compact", TABLE, "--warehouse", upserts.warehouse)
    assert command.said("--dry-run").count("would rewrite 6 files") == len(upserts.groups())
    assert "delete files removed" in command.said()
    assert command.said() == "nothing to compact\n"
    upserts.check()


@pytest.mark.long
def test_a_terminal_shows_the_progress(upserts):
    upserts.run(epochs=6)
    words = ("iceberg", "compact", TABLE, "--warehouse", str(upserts.warehouse))
    master, terminal = pty.openpty()
    program = [sys.executable, "-m", "krishiv_spark", *words]
    done = subprocess.run(program, stdout=subprocess.PIPE, stderr=terminal, check=True, text=True)
    os.close(terminal)
    with suppress(OSError):  # the end of a terminal is an error on Linux
        shown = b""
        while more := os.read(master, 65_536):
            shown += more
    os.close(master)
    assert b"compacting" in shown
    assert b"100%" in shown
    assert "delete files removed" in done.stdout
    assert "compacting" not in done.stdout


def test_a_filter_limits_the_files(tmp_path):
    upserts = Upserts(tmp_path, partitionBy="truncate(100, id)")
    for _ in range(3):
        upserts.write([1, 101, 201])
    assert [len(group) for group in upserts.groups(deleted_share=1)] == []
    upserts.write([2, 102, 202])
    assert len(upserts.groups()) == 3
    (group,) = upserts.groups(where="id < 100")
    assert group[0].task.file.partition[0] == 0


@pytest.mark.parametrize("where", ["nothing = 1", "id <", ""])
def test_a_wrong_filter_is_refused_by_its_text(tmp_path, where):
    upserts = Upserts(tmp_path)
    upserts.run(epochs=1)
    with pytest.raises(OptionError, match=r"the filter .* is not one of columns of the table"):
        upserts.groups(where=where)


# --- the choice of files


@st.composite
def some_loads(draw):
    sizes = st.integers(1, 4 * 2**20)
    drawn = draw(st.lists(st.tuples(sizes, st.integers(0, 100), st.integers(0, 2)), max_size=60))
    return [make_load(n, *each) for n, each in enumerate(drawn)]


def make_load(number, size, deleted, partition=0):
    file = SimpleNamespace(
        file_path=str(number),
        file_size_in_bytes=size,
        record_count=100,
        spec_id=0,
        partition=(partition,),
    )
    return FileLoad(SimpleNamespace(file=file), deleted)


@given(some_loads(), st.sampled_from([2**16, 2**20, 2**24]))
def test_groups_share_no_file_and_a_second_compaction_finds_none(loads, target):
    groups = list(choose_groups(loads, target, 0.1))
    paths = [load.task.file.file_path for group in groups for load in group]
    assert len({*paths}) == len(paths)
    assert all(len({load.task.file.partition for load in group}) == 1 for group in groups)
    left = [load for load in loads if load.task.file.file_path not in {*paths}]
    assert list(choose_groups(left, target, 0.1)) == []


@given(some_loads(), st.integers(1, 2**24))
def test_a_stream_s_group_is_within_its_limit_and_useful(loads, limit):
    group = choose_next_group(loads, 2**29, limit)
    if group is not None:
        assert sum(load.size for load in group) <= limit
        assert len(group) > 1 or group[0].deleted_share >= 0.25


def test_a_table_that_grows_by_one_file_each_time_keeps_logarithmically_many():
    sizes, written = [], 0
    for _ in range(1000):
        sizes.append(2**16)
        written += 2**16
        loads = [make_load(n, size, 0) for n, size in enumerate(sizes)]
        group = choose_next_group(loads, 2**40, 2**40)
        if group is not None:
            taken = {int(load.task.file.file_path) for load in group}
            merged = sum(sizes[n] for n in taken)
            written += merged
            sizes = [*(size for n, size in enumerate(sizes) if n not in taken), merged]
    assert len(sizes) <= 3 * 5  # three of each size: 1, 4, 16, 64 and 256 units
    assert written <= 6 * 1000 * 2**16
