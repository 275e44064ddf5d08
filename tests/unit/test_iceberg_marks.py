"""The mark of a query in a table, before its first epoch, and when it is older than the rows."""

import logging
import os
from pathlib import Path

import pyarrow as pa
import pytest
from iceberg_life import IcebergLife, at_next_commit, ids, numbered, table_of
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, RESTError, UnauthorizedError
from requests import HTTPError

from krishiv_spark.errors import CommitRejected, CommitUnknown, OptionError, SinkError
from krishiv_spark.operate.inspection.query_status import inspect_table
from krishiv_spark.sinks.base import Epoch
from krishiv_spark.sinks.iceberg import committer as committer_module
from krishiv_spark.sinks.iceberg import writer as writer_module
from krishiv_spark.sinks.iceberg.epoch_properties import is_refusal, read_committed_epoch
from krishiv_spark.sources.iceberg.landing import find_landing_query
from krishiv_spark.sources.iceberg.options import IcebergSourceOptions

KEY = "krishiv.epoch.query-1"
CHANGES = {"mode": "upsert", "keyColumns": "id", "orderColumn": "id"}


def set_property(folder, text):
    with table_of(folder).transaction() as transaction:
        transaction.set_properties({KEY: text})


def test_a_mark_without_an_epoch_is_none_to_everybody(tmp_path):
    IcebergLife(tmp_path).plan(numbered(0))
    metadata = table_of(tmp_path).metadata
    assert metadata.properties[KEY] == "none"
    assert read_committed_epoch(metadata, "query-1") is None
    shown = inspect_table({"table": "db.rows", "warehouse": str(tmp_path)}, "query-1")
    assert (shown.is_there, shown.held, shown.unknown) == (True, None, None)
    source = IcebergSourceOptions.parse({"path": "db.rows", "warehouse": str(tmp_path)}, "test")
    for query in (None, "query-1"):
        with pytest.raises(OptionError, match=r"has written no epoch|does not record") as caught:
            find_landing_query(source, metadata.properties, query)
        assert "epochs of" not in str(caught.value)


def test_a_second_query_that_has_no_epoch_yet_hides_no_landing_query(tmp_path):
    properties = {KEY: "0", "krishiv.epoch.new": "none"}
    properties["krishiv.offsets.query-1"] = '{"epoch":0,"offsets":[{"x":1}]}'
    source = IcebergSourceOptions.parse({"path": "db.rows", "warehouse": str(tmp_path)}, "test")
    assert find_landing_query(source, properties, None).query == "query-1"


def test_a_driver_that_is_killed_right_after_its_mark_was_asked_for(tmp_path):
    child = os.fork()
    if not child:
        IcebergLife(tmp_path).plan(numbered(0))
        os._exit(9)
    os.waitpid(child, 0)
    assert table_of(tmp_path).properties[KEY] == "none"
    life = IcebergLife(tmp_path)
    for epoch in (0, 0, 1, 1):
        life.epoch(epoch, numbered(epoch))
    assert ids(tmp_path) == list(range(20))


def test_a_mark_that_was_removed_is_still_found_in_the_summaries(tmp_path):
    life = IcebergLife(tmp_path)
    life.epoch(0, numbered(0))
    with table_of(tmp_path).transaction() as transaction:
        transaction.remove_properties(KEY)
    for epoch in (0, 1):
        life.epoch(epoch, numbered(epoch))
    assert ids(tmp_path) == list(range(20))


def drop_properties(monkeypatch):
    """Have the catalog take commits without the properties that they set."""
    real = SqlCatalog.commit_table

    def commit_table(catalog, table, requirements, updates):
        kept = tuple(one for one in updates if one.action != "set-properties")
        return real(catalog, table, requirements, kept)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)


def test_a_query_with_epochs_goes_on_in_a_catalog_that_drops_properties(
    tmp_path, monkeypatch, caplog
):
    """As versions before the probe left it: only the summaries have its newest epoch."""
    life = IcebergLife(tmp_path)
    life.epoch(0, numbered(0))
    with table_of(tmp_path).transaction() as transaction:
        transaction.remove_properties(KEY)
    drop_properties(monkeypatch)
    for epoch in (0, 1, 1, 2):
        life.epoch(epoch, numbered(epoch))
    assert ids(tmp_path) == list(range(30))
    (text,) = [one for one in caplog.messages if "continues with the summaries" in one]
    assert f"epoch 0 of query query-1, but not its property '{KEY}'" in text
    assert table_of(tmp_path).refs()[KEY].snapshot_ref_type == "tag"
    new = IcebergLife(tmp_path, query="new")
    for epoch in (3, 3):
        new.epoch(epoch, numbered(epoch))
    assert ids(tmp_path) == list(range(40))
    upserting = IcebergLife(tmp_path, query="upserts", **CHANGES, allowMixedKeys="true")
    for epoch in (0, 0, 1):
        upserting.epoch(epoch, numbered(3 + epoch))
    assert ids(tmp_path) == list(range(50))
    refs = table_of(tmp_path).refs()
    summary = table_of(tmp_path).snapshot_by_id(refs["krishiv.epoch.upserts"].snapshot_id).summary
    assert summary["krishiv.upsert.key"] == "1"


class _Answer:
    def __init__(self, status):
        self.status_code = status


@pytest.mark.parametrize(
    ("status", "refused"), [(422, True), (405, True), (408, False), (425, False)]
)
def test_codes_that_a_gateway_sends_on_its_own_are_no_refusal(status, refused):
    error = RESTError("x")
    error.__cause__ = HTTPError(response=_Answer(status))
    assert is_refusal(error) is refused


def test_an_earlier_attempt_that_an_answer_hid_keeps_its_manifests(tmp_path, monkeypatch):
    """A catalog that says "somebody was faster" of a commit that happened, and lags by one look."""
    life = IcebergLife(tmp_path)
    life.epoch(0, numbered(0))
    staged = life.stage(1, numbered(1))
    committer = life.writer(numbered(1)).committer()
    committer.last_committed("query-1")
    before, real_open = committer.table(), committer_module.open_table

    def look(_):
        monkeypatch.setattr(committer_module, "open_table", real_open)
        return before

    def hide(commit):
        commit()
        monkeypatch.setattr(committer_module, "open_table", look)
        raise CommitFailedException("somebody was faster")

    at_next_commit(monkeypatch, hide)
    committer.publish(Epoch("query-1", 1), staged)
    assert ids(tmp_path) == list(range(20))


@pytest.mark.long
def test_a_change_that_fails_after_an_attempt_without_an_answer_is_not_rejected(
    tmp_path, monkeypatch
):
    life = IcebergLife(tmp_path, **CHANGES)
    life.epoch(0, numbered(0))
    staged = life.stage(1, numbered(1))
    late = []

    def lose(commit):
        late.append(commit)
        monkeypatch.setattr(
            "krishiv_spark.sinks.iceberg.upserts.upsert_updates.UpsertUpdate._add", no_memory
        )
        raise ConnectionResetError("no answer")

    def no_memory(*_):
        raise MemoryError

    committer = life.writer(numbered(1)).committer()
    committer.last_committed("query-1")
    at_next_commit(monkeypatch, lose)
    with pytest.raises(CommitUnknown, match=r"one attempt got no response, and another one failed"):
        committer.publish(Epoch("query-1", 1), staged)
    late[0]()  # the request arrives after all
    assert ids(tmp_path) == list(range(20))


@pytest.mark.long
def test_an_answer_about_the_login_is_none_about_expiry(tmp_path, monkeypatch, caplog):
    keeps = {
        "tableProperty.krishiv.history.expire.max-snapshots-to-keep": "2",
        "tableProperty.history.expire.min-snapshots-to-keep": "1",
    }
    life = IcebergLife(tmp_path, **keeps)
    for epoch in range(21):
        life.epoch(epoch, numbered(epoch, 1))

    def refuse(_):
        raise UnauthorizedError("the token has expired")

    with monkeypatch.context() as patch:
        staged = life.stage(21, numbered(21, 1))
        at_next_commit(patch, refuse)
        with pytest.raises(CommitRejected, match="the token has expired"):
            life.publish(21, staged, numbered(21, 1))
    life.epoch(21, numbered(21, 1))
    assert len(table_of(tmp_path).snapshots()) < 21
    assert ids(tmp_path) == list(range(22))
    assert not [one for one in caplog.messages if "expires snapshots" in one]


def test_an_answer_that_is_lost_is_looked_up(tmp_path, monkeypatch):
    IcebergLife(tmp_path, query="other").epoch(0, numbered(9))

    def lose(commit):
        commit()
        raise ConnectionResetError("no answer")

    at_next_commit(monkeypatch, lose)
    life = IcebergLife(tmp_path, commitTimeout="1 ms")
    _, held = life.plan(numbered(0))
    assert held is None
    assert table_of(tmp_path).properties[KEY] == "none"


def test_other_commits_that_are_always_faster_are_an_error_before_the_first_row(
    tmp_path, monkeypatch
):
    IcebergLife(tmp_path, query="other").epoch(0, numbered(9))

    def refuse(_):
        at_next_commit(monkeypatch, refuse)
        raise CommitFailedException("somebody else was faster")

    at_next_commit(monkeypatch, refuse)
    with pytest.raises(Exception, match=r"the first commit of a query .*No row was written"):
        IcebergLife(tmp_path, commitTimeout="200 ms").plan(numbered(0))


@pytest.mark.parametrize("text", ["0", "1"])
def test_a_mark_that_is_older_than_the_rows_is_refused(tmp_path, text):
    life = IcebergLife(tmp_path)
    for epoch in range(3):
        life.epoch(epoch, numbered(epoch))
    set_property(tmp_path, text)
    with pytest.raises(SinkError, match=r"has the rows of epoch 2 .*Set it to 2, and"):
        life.plan(numbered(3))
    set_property(tmp_path, "2")
    life.epoch(3, numbered(3))
    assert ids(tmp_path) == list(range(40))


def test_a_table_that_was_rolled_back_with_its_mark_goes_on(tmp_path):
    life = IcebergLife(tmp_path)
    for epoch in range(3):
        life.epoch(epoch, numbered(epoch))
    table = table_of(tmp_path)
    first = min(table.snapshots(), key=lambda one: one.sequence_number)
    table.manage_snapshots().set_current_snapshot(first.snapshot_id).commit()
    set_property(tmp_path, "0")
    life.epoch(1, numbered(7))
    assert ids(tmp_path) == [*range(10), *range(70, 80)]


# --- what tasks report


@pytest.mark.parametrize("given", [{}, CHANGES], ids=["append", "upsert"])
def test_a_path_that_is_reported_twice_is_refused(tmp_path, given):
    life = IcebergLife(tmp_path, **given)
    life.epoch(0, numbered(0))
    (one,) = life.stage(1, numbered(1))
    with pytest.raises(CommitRejected, match="was reported twice as a task's output"):
        life.publish(1, [one, one], numbered(1))
    assert ids(tmp_path) == list(range(10))
    life.epoch(1, numbered(1))
    assert ids(tmp_path) == list(range(20))


def staged_files(folder):
    return [*Path(folder).rglob("*.changes")]


@pytest.mark.parametrize("error", [OSError("store"), MemoryError(), ValueError("x")], ids=repr)
def test_what_is_staged_goes_whatever_the_class_of_the_error(tmp_path, monkeypatch, error):
    life = IcebergLife(tmp_path, **CHANGES)
    life.epoch(0, numbered(0))
    staged = life.stage(1, numbered(1), tasks=2)
    assert len(staged_files(tmp_path)) == 2

    def fail(*_):
        raise error

    monkeypatch.setattr(
        "krishiv_spark.sinks.iceberg.upserts.upsert_updates.EpochChanges.read_upserts", fail
    )
    with pytest.raises(Exception, match=r"."):
        life.publish(1, staged, numbered(1))
    assert staged_files(tmp_path) == []


def test_what_is_staged_stays_where_the_outcome_is_not_known(tmp_path, monkeypatch):
    life = IcebergLife(tmp_path, **{**CHANGES, "commitTimeout": "1 ms"})
    life.epoch(0, numbered(0))
    staged = life.stage(1, numbered(1), tasks=2)
    committer = life.writer(numbered(1)).committer()
    assert committer.last_committed("query-1").epoch == 0

    def lose(_):
        monkeypatch.setattr("krishiv_spark.sinks.iceberg.committer.open_table", away)
        raise ConnectionResetError("no answer")

    def away(_):
        from krishiv_spark.iceberg.catalogs import CatalogFailedError

        raise CatalogFailedError("it is away")

    at_next_commit(monkeypatch, lose)
    with pytest.raises(CommitUnknown):
        committer.publish(Epoch("query-1", 1), staged)
    assert len(staged_files(tmp_path)) == 2


# --- the order of rows


@pytest.fixture
def warnings(caplog, monkeypatch):
    monkeypatch.setattr("krishiv_spark.runtime.once._given", set())
    with caplog.at_level(logging.WARNING, writer_module.__name__):
        yield lambda: [r.getMessage() for r in caplog.records if r.name == writer_module.__name__]


@pytest.mark.parametrize("streaming", [True, False])
def test_an_upsert_without_an_order_is_warned_of_once(tmp_path, warnings, streaming):
    given = {"mode": "upsert", "keyColumns": "id"}
    life = IcebergLife(tmp_path, streaming=streaming, query="batch-1", **given)
    for epoch in range(3):
        life.plan(numbered(epoch))
    (text,) = warnings()
    assert "without 'orderColumn'" in text
    assert "Spark's order" in text
    assert "db.rows" in text


@pytest.mark.parametrize(
    "given",
    [{}, CHANGES, {**CHANGES, "orderColumn": None, "txnAppId": "v", "txnVersion": "0",
                   "txnRows": "1:00f3a9d1c27b6e54"}],
    ids=["append", "ordered", "totals"],
)  # fmt: skip
def test_others_are_not_warned_of(tmp_path, warnings, given):
    given = {key: text for key, text in given.items() if text is not None}
    IcebergLife(tmp_path, **given).plan(numbered(0))
    assert warnings() == []


def test_the_last_row_in_spark_s_order_wins_and_with_an_order_the_newest(tmp_path):
    rows = pa.table({"id": [1, 1], "text": ["newer", "older"], "n": [2, 1]})
    for query, order in (("a", {}), ("b", {"orderColumn": "n"})):
        folder = tmp_path / query
        folder.mkdir()
        life = IcebergLife(folder, mode="upsert", keyColumns="id", **order)
        life.epoch(0, rows)
        (row,) = table_of(folder).scan().to_arrow().to_pylist()
        assert row["text"] == ("newer" if order else "older")
