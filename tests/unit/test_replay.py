"""``krishiv-spark replay``: every row since an epoch is there once, whatever kills it and when."""

import re
import shutil
from datetime import datetime, timezone

import pytest
from click.testing import CliRunner
from replays import (
    PLANNED_MS,
    Stream,
    count_range,
    forget,
    kill_everywhere,
    make_replay_work,
    refused,
    said,
    table_rows,
)
from spark_starts import copy_afresh, dies_before, files, make_checkpoint, start

from krishiv_spark.cli import main
from krishiv_spark.errors import StorageError
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.operate.moving.replaying import find_first
from krishiv_spark.sinks.parquet.writer import ParquetWriter
from krishiv_spark.spark.checkpoint import SparkCheckpoint
from krishiv_spark.storage import ENVIRONMENT
from krishiv_spark.storage.disk import DiskFolder


@pytest.fixture
def checkpoint(tmp_path):
    return make_checkpoint(tmp_path / "c", -1)


@pytest.fixture
def table(tmp_path):
    return tmp_path / "t"


@pytest.fixture
def query(checkpoint, table):
    """Epochs 0 to 4, in a Parquet table."""
    stream = Stream(ParquetWriter, checkpoint, path=str(table))
    for epoch in range(5):
        stream.run(epoch)
    return stream


# --- a Parquet table


def test_rows_since_an_epoch_are_there_once_after_a_replay(query, checkpoint, table):
    shown = said(checkpoint, "--from", 2, "--table", table)
    assert "epochs 2 to 4 are processed again" in shown
    assert "done: start the query; its next epoch is 2" in shown
    assert table_rows(table) == count_range(20)
    assert start(checkpoint)[:2] == ("next", 2)
    query.run(2, 45)
    query.run(3)
    assert table_rows(table) == count_range(55)


def test_files_that_went_are_kept_where_no_reader_and_no_glob_finds_them(query, table, checkpoint):
    before = {path.name: path.read_bytes() for path in table.glob("*.parquet")}
    said(checkpoint, "--from", 3, "--table", table)
    after = {path.name: path.read_bytes() for path in table.rglob("*.parquet")}
    kept = {p.name[: -len(".replayed")]: p.read_bytes() for p in table.rglob("*.replayed")}
    assert {**after, **kept} == before
    assert len(kept) == 2
    assert all("_krishiv" in path.parts for path in table.rglob("*.replayed"))
    query.run(3)
    done = CliRunner().invoke(
        main, ["parquet", "vacuum", str(table), "--older-than", "0s", "--source-state", "2h"]
    )
    assert done.exit_code == 0, done.output
    assert len(list(table.rglob("*.replayed"))) == 2


def test_files_in_folders_of_partitions_go_too(tmp_path, checkpoint):
    where = {"path": f"{tmp_path}/t", "partitionBy": "day"}
    stream = Stream(ParquetWriter, checkpoint, **where)
    for epoch in range(3):
        stream.run(epoch)
    said(checkpoint, "--from", 1, "-o", f"path={tmp_path}/t")
    assert table_rows(tmp_path / "t") == count_range(10)
    stream.run(1, 30)
    assert table_rows(tmp_path / "t") == count_range(30)


def test_a_later_file_behind_a_link_to_a_folder_is_missed_before_anything_changes(
    tmp_path, checkpoint, table
):
    stream = Stream(ParquetWriter, checkpoint, path=str(table), partitionBy="day")
    for epoch in range(3):
        stream.run(epoch)
    (table / "day=d0").rename(tmp_path / "old")
    (table / "day=d0").symlink_to(tmp_path / "old")
    before = files(tmp_path)
    text = refused(checkpoint, "--from", 2, "--table", table)
    assert "day=d0 is a link to a folder, in which part-0000000002" in text
    assert files(tmp_path) == before
    for path in (tmp_path / "old").glob("part-0000000002-*"):
        path.unlink()
    said(checkpoint, "--from", 2, "--table", table)


@pytest.mark.usefixtures("query")
def test_files_of_other_programs_are_in_the_plan(checkpoint, table):
    (only,) = table.glob("part-0000000003-*")
    only.rename(table / "compacted.parquet")
    shown = said(checkpoint, "--from", 2, "--table", table, "--dry-run")
    assert f"1 files in {table} were written by other programs, and remain" in shown
    assert "these rows will be there TWICE" in shown


def test_files_of_an_epoch_that_were_removed_are_counted_in_the_plan(checkpoint, table):
    stream = Stream(ParquetWriter, checkpoint, path=str(table), partitionBy="day")
    for epoch in range(3):
        stream.run(epoch)
    shown = said(checkpoint, "--from", 1, "--table", table, "--dry-run")
    assert "any more" not in shown
    assert "other programs" not in shown
    next((table / "day=d0").glob("part-0000000002-*")).unlink()
    shown = said(checkpoint, "--from", 1, "--table", table, "--dry-run")
    assert f"1 files of these epochs are no longer in {table}" in shown


@pytest.mark.usefixtures("query")
def test_a_dry_run_shows_the_plan_and_changes_nothing(checkpoint, table, tmp_path):
    before = files(tmp_path)
    shown = said(checkpoint, "--from", 2, "--table", table, "--dry-run")
    assert "3 files of epochs 2 to 4 move to" in shown
    assert "is rewound to the end of epoch 1" in shown
    assert "nothing was changed" in shown
    assert files(tmp_path) == before


@pytest.mark.usefixtures("query")
def test_a_time_means_the_first_epoch_that_was_planned_then_or_later(checkpoint, table):
    planned = datetime.fromtimestamp((PLANNED_MS + 90_000) / 1000, timezone.utc)
    for text in (planned.isoformat(), planned.strftime("%Y-%m-%dT%H:%M:%SZ"), PLANNED_MS + 90_000):
        shown = said(checkpoint, "--from", text, "--table", table, "--dry-run")
        assert (
            "epochs 2 to 4 are processed again, the first one planned at 2013-01-01T05:02" in shown
        )


@pytest.mark.usefixtures("query")
@pytest.mark.parametrize(
    ("text", "first"),
    [("05:01:59.999999", 2), ("05:02:00", 2), ("05:02:00.000001", 3), ("05:02:00.001", 3)],
)
def test_an_epoch_that_was_planned_before_the_time_stays(checkpoint, table, text, first):
    shown = said(checkpoint, "--from", f"2013-01-01T{text}Z", "--table", table, "--dry-run")
    assert f"epochs {first} to 4 are processed again" in shown


@pytest.mark.usefixtures("query")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("yesterday", "neither the number of an epoch nor a time"),
        ("2013-01-01T05:02:00", "has no time zone: write 2013-01-01T05:02:00Z"),
        ("2013-01-01", "has no time zone: write 2013-01-01T00:00:00Z for UTC"),
        (
            "2030-01-01T00:00:00Z",
            "no epoch of .* was planned at 2030-01-01T00:00:00.000.* or later",
        ),
        ("0", "there is no epoch before epoch 0"),
        ("2001-01-01T00:00:00Z", "there is no epoch before epoch 0"),
        ("17", r"commits/16 is not in .*: epochs 0 to 4 are over there"),
    ],
)
def test_a_start_that_cannot_be_is_refused_with_the_reason(checkpoint, table, text, why):
    before = files(checkpoint)
    assert re.search(why, refused(checkpoint, "--from", text, "--table", table))
    assert files(checkpoint) == before


@pytest.mark.usefixtures("query")
def test_a_time_before_the_oldest_epoch_that_spark_keeps_is_refused(checkpoint, table):
    for name in ("offsets/0", "commits/0"):
        (checkpoint / name).unlink()
    text = refused(checkpoint, "--from", "2001-01-01T00:00:00Z", "--table", table)
    assert "no longer records which epochs were planned since 2001" in text
    assert "spark.sql.streaming.minBatchesToRetain" in text


@pytest.mark.usefixtures("query")
def test_a_time_is_refused_while_an_entry_cannot_be_read(checkpoint, table, monkeypatch):
    """The epoch after it would be chosen, and its own wrong rows would stay."""
    moment = PLANNED_MS + 60_000 * 2
    words = (checkpoint, "--from", moment, "--table", table)
    original, failed = DiskFolder.read, []

    def read(folder, name, *limits):
        if name == "2" and not failed:
            failed.append(name)
            raise StorageError("the store is away")
        return original(folder, name, *limits)

    before = files(checkpoint)
    with monkeypatch.context() as patch:
        patch.setattr(DiskFolder, "read", read)
        assert "the store is away" in refused(*words)
    for text in ("v1\n{", "", "v1\n{}\n30"):
        kept = (checkpoint / "offsets/2").read_text()
        (checkpoint / "offsets/2").write_text(text)
        assert "offsets/2" in refused(*words)
        (checkpoint / "offsets/2").write_text(kept)
    assert files(checkpoint) == before
    assert "epochs 2 to 4 are processed again" in said(*words)


def test_an_epoch_that_was_planned_before_a_time_is_not_replayed_by_it(query, checkpoint):
    """A follower on a machine whose clock is behind plans an epoch a second before the query."""
    del query
    found = SparkCheckpoint(str(checkpoint))
    moment = PLANNED_MS + 60_000 * 3
    assert find_first(found, str(moment)) == 3
    assert find_first(found, str(moment + 1_000)) == 4
    assert find_first(found, str(moment - 1_000)) == 3


def test_an_epoch_that_is_not_over_may_be_of_a_query_that_runs(query, checkpoint, table):
    query.run_to_commit(5)
    before = files(checkpoint)
    text = refused(checkpoint, "--from", 3, "--table", table)
    assert "epoch 5 was planned and is not completed: either the query runs" in text
    assert files(checkpoint) == before
    said(checkpoint, "--from", 3, "--table", table, "--stopped")
    assert table_rows(table) == count_range(30)
    query.run(3, 60)
    assert table_rows(table) == count_range(60)


def test_an_epoch_that_is_true_and_not_visible_is_finished_first(query, checkpoint, table):
    """Its files would appear after the replay, beside those of its rows that are read again."""
    for step in range(1000):
        shutil.rmtree(checkpoint.parent / "kept", ignore_errors=True)
        shutil.copytree(table, checkpoint.parent / "kept/t")
        died = dies_before(step, lambda: query.run_to_commit(5))
        staged = list(table.rglob("*.staged"))
        logs = [p for p in table.rglob("log/*.json") if b'"kind":"intent"' in p.read_bytes()]
        if died and staged and any(b'"epoch":5' in log.read_bytes() for log in logs):
            break
        copy_afresh(checkpoint.parent / "kept/t", table)
        (checkpoint / "offsets/5").unlink(missing_ok=True)
    assert died
    said(checkpoint, "--from", 4, "--table", table, "--stopped")
    query.run(4, 60)
    assert table_rows(table) == count_range(60)
    assert not list(table.rglob("*.staged"))


def test_a_driver_in_the_middle_of_an_epoch_is_fenced(query, checkpoint, table):
    """The user has said --stopped, and that is wrong."""
    (checkpoint / "offsets/5").write_text("v1\n{}\n60")
    query.plan()
    message = query.task(5, 0, query.rows(50, 60))
    said(checkpoint, "--from", 3, "--table", table, "--stopped")
    with pytest.raises(Exception, match=r"no longer owns the epoch log|is gone|was removed"):
        query.commit(5, [message])
    assert table_rows(table) == count_range(30)
    query.run(3, 60)
    assert table_rows(table) == count_range(60)


def test_a_query_that_plans_meanwhile_is_refused(query, checkpoint, table, monkeypatch):
    from krishiv_spark.operate.moving.replaying import QueryReplay

    original = QueryReplay._stop_starts

    def late(self):
        query.run_to_commit(5)
        original(self)

    monkeypatch.setattr(QueryReplay, "_stop_starts", late)
    text = refused(checkpoint, "--from", 3, "--table", table)
    assert "the query runs: it has just planned epoch 5" in text
    assert table_rows(table) == count_range(60)


@pytest.mark.usefixtures("query")
def test_another_table_than_that_of_the_query_is_refused(checkpoint, tmp_path):
    before = files(tmp_path)
    for words in (("--dry-run",), ()):
        assert "there is no epoch log of query" in refused(
            checkpoint, "--from", 3, "--table", tmp_path / "other", *words
        )
    assert files(tmp_path) == before
    assert not (tmp_path / "other").exists()
    assert "name the target of the query" in refused(checkpoint, "--from", 3)


def test_another_table_than_that_of_the_log_is_refused_and_not_created(checkpoint, tmp_path):
    log = ("--epoch-log", tmp_path / "log")
    stream = Stream(
        ParquetWriter, checkpoint, path=str(tmp_path / "t"), epochLog=str(tmp_path / "log")
    )
    for epoch in range(3):
        stream.run(epoch)
    before = files(tmp_path)
    for words in (("--dry-run",), ()):
        text = refused(checkpoint, "--from", 2, "--table", tmp_path / "other", *log, *words)
        assert "the options name a target without an id" in text
    assert files(tmp_path) == before
    assert not (tmp_path / "other").exists()
    said(checkpoint, "--from", 2, "--table", tmp_path / "t", *log, "--dry-run")
    assert files(tmp_path) == before


def test_a_replay_of_a_table_in_a_store_changes_nothing_before_its_time(checkpoint, s3):
    given = {"path": f"{s3}/t", "epochLog": f"{s3}/log"}
    stream = Stream(ParquetWriter, checkpoint, **given)
    for epoch in range(3):
        stream.run(epoch)
    there = ENVIRONMENT.folder(s3)
    before = set(there.iter_files())
    log = (checkpoint, "--from", 2, "--epoch-log", given["epochLog"])
    for more in (("--dry-run",), ()):
        assert "without an id" in refused(*log, "--table", f"{s3}/other", *more)
    said(*log, "--table", given["path"], "--dry-run")
    assert set(there.iter_files()) == before
    said(*log, "--table", given["path"])
    stream.run(2)


def test_a_table_of_a_version_without_ids_gets_its_id_by_the_replay_alone(
    query, checkpoint, table, tmp_path
):
    (table / "_krishiv/table-id").unlink()
    for entry in table.rglob("log/*.json"):
        entry.write_text(re.sub(r',?"target":"[^"]*"', "", entry.read_text()))
    forget()
    before = files(tmp_path)
    said(checkpoint, "--from", 2, "--table", table, "--dry-run")
    assert files(tmp_path) == before
    for step in range(200):
        if not dies_before(step, make_replay_work(checkpoint, "--from", 2, "--table", table)):
            pytest.fail("it was never half done")
        if start(checkpoint)[0] == "refused":
            break
    forget()
    said(checkpoint, "--table", table)
    query.run(2, 50)
    assert table_rows(table) == count_range(50)


def test_a_marker_whose_answer_was_lost_is_the_own_one(query, checkpoint, table, monkeypatch):
    """The store's client has repeated the request, and found the name taken."""
    original, lost = DiskFolder.create, []

    def create(folder, name, data):
        done = original(folder, name, data)
        if data.startswith(b"unfinished: "):
            lost.append(name)
            return False
        return done

    with monkeypatch.context() as patch:
        patch.setattr(DiskFolder, "create", create)
        said(checkpoint, "--from", 2, "--table", table)
    assert lost == ["5"]
    query.run(2, 50)
    assert table_rows(table) == count_range(50)


# --- kills


@pytest.mark.usefixtures("query")
@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.long)])
def test_a_replay_can_be_killed_before_each_change_of_the_disk(checkpoint, tmp_path, stride):
    table = tmp_path / "t"

    def check():
        assert table_rows(table) == count_range(20)
        again = Stream(ParquetWriter, checkpoint, path=str(table))
        again.run(2, 35)
        again.run(3, 50)
        assert table_rows(table) == count_range(50)
        assert len(list(table.rglob("*.replayed"))) == 3
        kept = (checkpoint / "krishiv-replays").rglob("offsets/[0-9]*")
        assert {path.name for path in kept} == {"2", "3", "4"}

    words = (checkpoint, "--from", 2, "--table", table)
    assert kill_everywhere(tmp_path, words, check, stride) > 20


def test_while_a_replay_is_half_done_nothing_else_goes_on(query, checkpoint, table):
    for step in range(200):
        if not dies_before(step, make_replay_work(checkpoint, "--from", 2, "--table", table)):
            pytest.fail("it was never half done")
        if start(checkpoint)[0] == "refused":
            break
    text = start(checkpoint)[1].splitlines()[0]
    assert text.endswith(f"krishiv-spark replay {checkpoint} --from 2 --table {table}")
    for words in (
        ["checkpoint", "rewind", checkpoint, "--to", 1],
        ["checkpoint", "rewind", checkpoint, "--to", 0],
        ["status", checkpoint],
        ["log", "adopt", "--format", "parquet", "--checkpoint", checkpoint, "-o", f"path={table}"],
    ):
        done = CliRunner().invoke(main, [str(word) for word in words])
        assert done.exit_code == 1, (words, done.output)
        assert "krishiv-spark replay" in done.output, (words, done.output)
    assert "has not finished: finish it first" in refused(checkpoint, "--from", 3, "--table", table)
    assert "give the same options as before" in refused(
        checkpoint, "-o", f"path={table.parent}/other"
    ) or "there is no epoch log" in refused(checkpoint, "-o", f"path={table.parent}/other")
    said(checkpoint, "--table", table)
    query.run(2, 50)
    assert table_rows(table) == count_range(50)


def test_a_replay_that_is_done_can_be_run_again(query, checkpoint, table):
    said(checkpoint, "--from", 2, "--table", table)
    shown = said(checkpoint, "--from", 2, "--table", table)
    assert "no file of epoch 2 or later" in shown
    query.run(2, 50)
    assert table_rows(table) == count_range(50)


def test_a_checkpoint_that_went_back_alone_gets_its_table_back_too(query, checkpoint, table):
    done = CliRunner().invoke(main, ["checkpoint", "rewind", str(checkpoint), "--to", "1"])
    assert done.exit_code == 0
    with pytest.raises(PlanningFailed, match="CheckpointMismatch"):
        query.run(2, 50)
    (checkpoint / "offsets/2").unlink()
    said(checkpoint, "--from", 2, "--table", table)
    query.run(2, 50)
    assert table_rows(table) == count_range(50)


@pytest.mark.usefixtures("query")
def test_what_the_checkpoint_has_of_others_stays(checkpoint, table):
    for name in ("krishiv/query-id", "krishiv/else/where", "sources/0/0", "mine.txt"):
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text("theirs")
    said(checkpoint, "--from", 2, "--table", table)
    for name in ("krishiv/query-id", "krishiv/else/where", "sources/0/0", "mine.txt"):
        assert (checkpoint / name).read_text() == "theirs"
