"""Overwrites of a table that overlap: the rows of one of them are there, never those of both."""

import pytest
from sink_life import Job, Life, rows
from tables import look

from krishiv_spark.errors import CommitRejected, Fenced
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.parquet.disk_table import DiskParticipant, DiskTable
from krishiv_spark.sinks.parquet.participant import TableParticipant
from krishiv_spark.sinks.parquet.writer import ParquetWriter


@pytest.fixture
def overwrite(tmp_path):
    """Returns a job that overwrites the table with ten rows from a number on, and its messages."""

    def stage(first, mode=OutputMode.REPLACE):
        job = Job(ParquetWriter, {"path": str(tmp_path)}, mode)
        job.plan()
        return job, [job.task(0, 0, rows(first, 10))]

    return stage


def during(monkeypatch, owner, name, work, *, after):
    """Do work once, at the end or the start of a method."""
    method = getattr(owner, name)

    def patched(*args, **named):
        monkeypatch.undo()
        if not after:
            work()
        found = method(*args, **named)
        found = found if found is None or isinstance(found, (list, tuple)) else list(found)
        if after:
            work()
        return found

    monkeypatch.setattr(owner, name, patched)


def ids(table):
    count, distinct, total = look(table)
    assert count == distinct
    return count, total


FIRST, SECOND = (10, sum(range(10))), (10, sum(range(100, 110)))


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [
        (DiskParticipant, "prepare", True),
        (TableParticipant, "find_replaced", True),
        (DiskTable, "visible", True),
        (DiskTable, "visible", False),
        (DiskTable, "logs", True),
        (DiskTable, "logs", False),
        (DiskParticipant, "prepare", False),
    ],
)
def test_an_overwrite_that_ends_within_another_one_leaves_the_rows_of_one(
    tmp_path, overwrite, monkeypatch, owner, name, after
):
    Job(ParquetWriter, {"path": str(tmp_path)}).epoch(0, rows(1000, 5))
    (early, early_rows), (late, late_rows) = overwrite(0), overwrite(100)
    failed = []

    def end_early():
        try:
            early.commit(0, early_rows)
        except (CommitRejected, Fenced) as error:
            failed.append(error)

    during(monkeypatch, owner, name, end_early, after=after)
    try:
        late.commit(0, late_rows)
    except (CommitRejected, Fenced) as error:
        failed.append(error)
        assert ids(tmp_path) == FIRST
    else:
        assert ids(tmp_path) == SECOND
    assert len(failed) <= 1
    third, third_rows = overwrite(100)
    third.commit(0, third_rows)
    assert ids(tmp_path) == SECOND


def test_an_overwrite_that_dies_behind_its_intent_within_another_one(
    tmp_path, overwrite, monkeypatch
):
    (early, early_rows), (late, late_rows) = overwrite(0), overwrite(100)

    def die(*_):
        raise KeyboardInterrupt

    def die_early():
        with pytest.MonkeyPatch.context() as dying:
            dying.setattr(DiskParticipant, "finish", die)
            with pytest.raises(KeyboardInterrupt):
                early.commit(0, early_rows)

    during(monkeypatch, DiskParticipant, "prepare", die_early, after=False)
    with pytest.raises(CommitRejected, match=r"overwrites .* at the same time"):
        late.commit(0, late_rows)
    again, again_rows = overwrite(100)
    again.commit(0, again_rows)
    assert ids(tmp_path) == SECOND
    Job(ParquetWriter, {"path": str(tmp_path)}, OutputMode.APPEND).epoch(0, rows(0, 0))
    assert ids(tmp_path) == SECOND


def test_one_that_dies_before_its_intent_does_not_block_later_ones(
    tmp_path, overwrite, monkeypatch
):
    early, early_rows = overwrite(0)

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(DiskTable, "visible", die)
        with pytest.raises(KeyboardInterrupt):
            early.commit(0, early_rows)
    late, late_rows = overwrite(100)
    late.commit(0, late_rows)
    with pytest.raises(Fenced):  # it slept only
        early.commit(0, early_rows)
    assert ids(tmp_path) == SECOND


def test_appends_and_streams_are_left_alone(tmp_path, overwrite):
    """An append that ends after the listing is one that follows the overwrite."""
    append, append_rows = overwrite(0, OutputMode.APPEND)
    stream = Life(ParquetWriter, {"path": str(tmp_path)}, "q", OutputMode.REPLACE)
    stream.plan()
    staged = [stream.task(0, 0, rows(10, 10))]
    late, late_rows = overwrite(100)
    late.commit(0, late_rows)
    append.commit(0, append_rows)
    stream.commit(0, staged)
    assert ids(tmp_path) == (30, sum(range(20)) + SECOND[1])


def test_numbered_overwrites_go_on_beside_others(tmp_path, overwrite):
    given = {"path": str(tmp_path), "txnAppId": "orders", "txnVersion": "1"}
    numbered = Life(ParquetWriter, given, "orders", OutputMode.REPLACE)
    numbered.epoch(1, rows(0, 10))
    assert ids(tmp_path) == FIRST
    late, late_rows = overwrite(100)
    late.commit(0, late_rows)
    numbered = Life(ParquetWriter, {**given, "txnVersion": "2"}, "orders", OutputMode.REPLACE)
    numbered.plan()
    staged = [numbered.task(2, 0, rows(0, 10))]
    late, late_rows = overwrite(100)
    late.commit(0, late_rows)  # the other one has no mark yet
    numbered.commit(2, staged)
    assert ids(tmp_path) == FIRST
