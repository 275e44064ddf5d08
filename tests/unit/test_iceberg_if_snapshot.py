"""Rows that were computed from a snapshot go into the table if that is still the newest."""

import pytest
from iceberg_life import IcebergLife, at_next_commit, ids, numbered, table_of

from krishiv_spark.errors import CommitRejected, OptionError

JOB = {"txnAppId": "load", "txnVersion": "0"}


def newest(folder):
    return str(table_of(folder).metadata.current_snapshot_id)


def job(folder, snapshot, query="load"):
    return IcebergLife(folder, query=query, ifSnapshot=snapshot, **JOB)


def test_a_job_upon_the_newest_snapshot_is_written(tmp_path):
    job(tmp_path, "none").epoch(0, numbered(0))
    job(tmp_path, newest(tmp_path)).epoch(1, numbered(1))
    assert ids(tmp_path) == list(range(20))


@pytest.mark.parametrize("first", ["none", "another"])
def test_a_job_upon_an_older_snapshot_is_refused_and_leaves_no_file(tmp_path, first):
    IcebergLife(tmp_path).epoch(0, numbered(0))
    seen = "none" if first == "none" else newest(tmp_path)
    late = job(tmp_path, seen)
    staged = late.stage(0, numbered(2))
    IcebergLife(tmp_path).epoch(1, numbered(1))
    with pytest.raises(CommitRejected, match=f"computed from snapshot {seen} .*compute them from"):
        late.publish(0, staged, numbered(2))
    assert ids(tmp_path) == list(range(20))
    assert len(list(tmp_path.rglob("*.parquet"))) == 2


def test_a_commit_between_the_look_and_the_catalog_is_seen(tmp_path, monkeypatch):
    IcebergLife(tmp_path).epoch(0, numbered(0))
    late = job(tmp_path, newest(tmp_path))

    def come_second(commit):
        IcebergLife(tmp_path).epoch(1, numbered(1))
        return commit()

    staged = late.stage(0, numbered(2))
    at_next_commit(monkeypatch, come_second)
    with pytest.raises(CommitRejected, match="computed from snapshot"):
        late.publish(0, staged, numbered(2))
    assert ids(tmp_path) == list(range(20))


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({"ifSnapshot": "newest", **JOB}, "write the id of a snapshot, or 'none'"),
        ({"ifSnapshot": "none"}, "'ifSnapshot' is for batches"),
    ],
)
def test_what_is_no_snapshot_or_no_batch_is_refused(tmp_path, given, advice):
    with pytest.raises(OptionError, match=advice):
        IcebergLife(tmp_path, **given).plan(numbered(0))
