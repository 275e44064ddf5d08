"""Commits of writers whose clocks are wrong: times in a table never go back."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from iceberg_life import IcebergLife, at_next_commit, ids, numbered, table_of
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.update import SetSnapshotRefUpdate, update_table_metadata
from wrong_clocks import DAY_S, shifted_clock

from krishiv_spark.iceberg import guarded_catalog
from krishiv_spark.iceberg.catalogs import open_table
from krishiv_spark.iceberg.commit_rules import repair_times
from krishiv_spark.sinks.iceberg.epoch_snapshot import EpochTransaction

MINUTE_MS = 60_000
LOGGER = "krishiv_spark.iceberg.commit_rules"


@pytest.fixture
def shift(monkeypatch):
    return shifted_clock(monkeypatch)


def metadata_file(folder):
    return json.loads(Path(table_of(folder).metadata_location.removeprefix("file://")).read_text())


def assert_in_order(folder):
    """Check what Iceberg-Java's TableMetadata checks, without its tolerance."""
    found = metadata_file(folder)
    for log in ("snapshot-log", "metadata-log"):
        times = [entry["timestamp-ms"] for entry in found[log]] + [found["last-updated-ms"]]
        assert times == sorted(times), log
    assert found["snapshot-log"][-1]["snapshot-id"] == found["current-snapshot-id"]
    times = [one["timestamp-ms"] for one in found["snapshots"]]
    assert times == sorted(times)


def test_the_times_of_commits_do_not_go_back_after_one_by_a_clock_that_is_ahead(
    tmp_path, shift, caplog
):
    life = IcebergLife(tmp_path)
    for epoch, seconds in enumerate([0, DAY_S, 0, 0]):
        shift(seconds)
        life.epoch(epoch, numbered(epoch))
        assert_in_order(tmp_path)
    assert ids(tmp_path) == list(range(40))
    warnings = [one.getMessage() for one in caplog.records if one.name == LOGGER]
    assert len(warnings) == 1
    assert "8639" in warnings[0] or "86400" in warnings[0]
    assert "NTP" in warnings[0]


def test_clocks_that_differ_by_less_than_a_minute_are_no_warning(tmp_path, shift, caplog):
    life = IcebergLife(tmp_path)
    for epoch, seconds in enumerate([0, 50, 0]):
        shift(seconds)
        life.epoch(epoch, numbered(epoch))
    assert_in_order(tmp_path)
    assert [one for one in caplog.records if one.name == LOGGER] == []


def test_a_commit_that_is_tried_again_follows_the_one_that_was_faster(tmp_path, shift, monkeypatch):
    """The other writer's clock is ahead: the first attempt has the time of the right clock."""
    life, other = IcebergLife(tmp_path), IcebergLife(tmp_path, query="query-2")
    life.epoch(0, numbered(0))
    staged, rows = life.stage(1, numbered(1)), numbered(1)
    other.epoch(0, numbered(2))

    def lose(commit):
        shift(DAY_S)
        other.epoch(1, numbered(3))
        shift(0)
        return commit()

    at_next_commit(monkeypatch, lose)
    life.publish(1, staged, rows)
    assert ids(tmp_path) == list(range(40))
    assert_in_order(tmp_path)


def test_a_property_that_comes_in_between_does_not_let_times_go_back(tmp_path, shift, monkeypatch):
    """The property changes no branch, so the first attempt succeeds on newer metadata."""
    life = IcebergLife(tmp_path)
    life.epoch(0, numbered(0))

    def after_property(commit):
        shift(DAY_S)
        with open_table(life.writer(numbered(0)).options).transaction() as transaction:
            transaction.set_properties({"owner": "somebody"})
        shift(0)
        return commit()

    at_next_commit(monkeypatch, after_property)
    life.epoch(1, numbered(1))
    assert metadata_file(tmp_path)["properties"]["owner"] == "somebody"
    assert_in_order(tmp_path)


def test_the_commits_that_add_no_snapshot_are_dated_and_in_order(tmp_path, shift):
    """The enrolment of a query, and a change of columns."""
    IcebergLife(tmp_path).epoch(0, numbered(0))
    before = metadata_file(tmp_path)["last-updated-ms"]
    shift(DAY_S)
    wide = numbered(0).append_column("more", [numbered(0)["text"]])
    life = IcebergLife(tmp_path, query="query-2", schemaEvolution="add")
    life.plan(wide)
    ahead = metadata_file(tmp_path)["last-updated-ms"]
    assert ahead - before >= DAY_S * 1000
    shift(0)
    IcebergLife(tmp_path, query="query-3").plan(numbered(0))
    assert metadata_file(tmp_path)["last-updated-ms"] == ahead
    assert_in_order(tmp_path)


def test_a_rollback_is_in_order(tmp_path, shift):
    """Its snapshot is an old one; the log gets the time of the rollback."""
    life = IcebergLife(tmp_path)
    for epoch, seconds in enumerate([0, DAY_S]):
        shift(seconds)
        life.epoch(epoch, numbered(epoch))
    shift(0)
    table = open_table(life.writer(numbered(0)).options)
    oldest = min(table.metadata.snapshots, key=lambda one: one.sequence_number).snapshot_id
    transaction = EpochTransaction(table)
    main = {"ref-name": "main", "type": "branch", "snapshot-id": oldest}
    transaction.stage(SetSnapshotRefUpdate.model_validate(main))
    transaction.compare_and_set()
    found = metadata_file(tmp_path)
    assert found["current-snapshot-id"] == oldest
    log = [entry["timestamp-ms"] for entry in found["snapshot-log"]]
    assert log == sorted(log)
    assert found["last-updated-ms"] >= log[-1]


def test_a_catalog_that_writes_the_metadata_itself_is_sent_a_time_in_order(
    tmp_path, shift, monkeypatch
):
    """A REST catalog gives the snapshot the time of the request."""
    life, sent = IcebergLife(tmp_path), []
    for epoch, seconds in enumerate([0, DAY_S]):
        shift(seconds)
        life.epoch(epoch, numbered(epoch))
    shift(0)
    ahead, real = metadata_file(tmp_path)["last-updated-ms"], SqlCatalog.commit_table

    def commit_table(catalog, table, requirements, updates):
        sent.extend(updates)
        return real(catalog, table, requirements, updates)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    life.epoch(2, numbered(2))
    (snapshot,) = (one.snapshot for one in sent if one.action == "add-snapshot")
    assert snapshot.timestamp_ms == ahead


# --- tables of earlier versions


@pytest.fixture
def unruled(monkeypatch):
    """Make commits as an earlier version did."""

    def update(table, updates):
        return update_table_metadata(
            table.metadata, updates, metadata_location=table.metadata_location
        )

    with monkeypatch.context() as patched:
        patched.setattr(guarded_catalog, "apply_updates", update)
        patched.setattr("krishiv_spark.iceberg._pyiceberg.raise_times", lambda _, updates: updates)
        yield patched.undo


def java_loads(folder) -> bool:
    """Return the result of Iceberg-Java's own comparison."""
    found = metadata_file(folder)
    for log in ("snapshot-log", "metadata-log"):
        times = [entry["timestamp-ms"] for entry in found[log]] + [found["last-updated-ms"]]
        if any(later - earlier < -MINUTE_MS for earlier, later in pairwise(times)):
            return False
    return True


@pytest.mark.long
@pytest.mark.parametrize(
    "clocks", [(0, DAY_S, 0, 0), (0, 0, -DAY_S, 0), (0, DAY_S, DAY_S, 0)], ids=str
)
def test_the_next_commit_repairs_a_table_that_java_cannot_load(tmp_path, shift, unruled, clocks):
    life = IcebergLife(tmp_path)
    for epoch, seconds in enumerate(clocks):
        shift(seconds)
        life.epoch(epoch, numbered(epoch))
    assert not java_loads(tmp_path)
    before = metadata_file(tmp_path)
    unruled()
    life.epoch(4, numbered(4))
    assert java_loads(tmp_path)
    assert_log_of(tmp_path, before)
    assert ids(tmp_path) == list(range(50))


def assert_log_of(folder, before):
    """Check that every entry of the logs exists, and that snapshots are unchanged."""
    after = metadata_file(folder)
    name = "snapshot-id"
    assert [one[name] for one in after["snapshot-log"]][:-1] == [
        one[name] for one in before["snapshot-log"]
    ]
    files = [one["metadata-file"] for one in before["metadata-log"]]
    assert [one["metadata-file"] for one in after["metadata-log"]][: len(files)] == files
    assert after["snapshots"][:-1] == before["snapshots"]


def test_a_table_in_order_is_left_as_it_is(tmp_path, shift):
    life = IcebergLife(tmp_path)
    for epoch, seconds in enumerate([30, 0]):
        shift(seconds)
        life.epoch(epoch, numbered(epoch))
    metadata = table_of(tmp_path).metadata
    assert repair_times("db.rows", metadata) is metadata


# --- ages


def test_a_clock_that_is_ahead_for_one_commit_expires_no_snapshot(tmp_path, shift):
    life = IcebergLife(tmp_path, expireOlderThan="1h")
    for epoch, seconds in enumerate([0, 0, DAY_S, 0]):
        shift(seconds)
        life.epoch(epoch, numbered(epoch))
    assert len(table_of(tmp_path).metadata.snapshots) == 4


def test_snapshots_expire_by_age_with_the_second_commit_after_a_pause(tmp_path, shift):
    life = IcebergLife(tmp_path, expireOlderThan="1h")
    for epoch, seconds in enumerate([0, DAY_S, DAY_S]):
        shift(seconds)
        life.epoch(epoch, numbered(epoch))
    assert len(table_of(tmp_path).metadata.snapshots) == 2
    assert ids(tmp_path) == list(range(30))
