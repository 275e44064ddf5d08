"""A log and a checkpoint that tell different stories, and the ways out: over the Parquet sink."""

import fnmatch
import os
import pickle
import re
import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from sink_life import Job, Life, rows
from tables import look

from krishiv_spark.cli import main
from krishiv_spark.errors import CommitRejected, CommitUnknown
from krishiv_spark.lifecycle.epoch_write import StreamWrite
from krishiv_spark.lifecycle.plans import PlanningFailed, Staged
from krishiv_spark.offsets import Claim, EpochLog, open_log
from krishiv_spark.offsets.journal import StoredEntries
from krishiv_spark.parquet.layout import log_folder
from krishiv_spark.sinks import epoch_checks
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.parquet.disk_table import DiskParticipant
from krishiv_spark.sinks.parquet.participant import TableParticipant
from krishiv_spark.sinks.parquet.writer import ParquetWriter
from krishiv_spark.spark import checkpoint as checkpoint_module
from krishiv_spark.spark.checkpoint import SparkCheckpoint
from krishiv_spark.storage.disk import DiskFolder


class Stream(Life):
    """A stream with a checkpoint, as Spark writes it; an epoch may be any rows."""

    def __init__(
        self, place: Path, query: str = "q1", mode: OutputMode = OutputMode.APPEND, **options: str
    ) -> None:
        self.checkpoint = place / f"checkpoint-{query}"
        for name in ("offsets", "commits"):
            (self.checkpoint / name).mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "metadata").write_text(f'{{"id": "{query}"}}')
        self.table = Path(options.setdefault("path", str(place / "table")))
        options.setdefault("partitionBy", "day")
        super().__init__(ParquetWriter, options, query, mode)

    def plan(self) -> None:
        write = StreamWrite(self._make(), checkpoint=SparkCheckpoint(str(self.checkpoint)))
        self._planned = pickle.loads(pickle.dumps(write))

    def offsets(self, epoch: int, first: int, count: int) -> None:
        (self.checkpoint / "offsets" / str(epoch)).write_text(f"v1\n{{}}\n{first + count}")

    def epoch(self, number: int, first: int, count: int = 10, *, over: bool = True) -> None:
        """The rows from `first` on; `over` unless Spark dies before its commit log."""
        self.offsets(number, first, count)
        self.plan()
        self.commit(number, [self.task(number, 0, rows(first, count))])
        if over:
            (self.checkpoint / "commits" / str(number)).write_text("v1\n{}")

    def forget(self, *epochs: int) -> None:
        """The checkpoint is that of some epochs ago."""
        for epoch in epochs:
            for name in ("offsets", "commits"):
                (self.checkpoint / name / str(epoch)).unlink(missing_ok=True)

    def count(self) -> int:
        return look(self.table)[0]


@pytest.fixture
def stream(tmp_path) -> Stream:
    stream = Stream(tmp_path)
    for epoch in range(3):
        stream.epoch(epoch, 10 * epoch)
    return stream


def refused(stream: Stream, why: str, number: int, first: int, count: int = 10) -> None:
    """Nothing of the epoch is written, and nothing is changed: the same again is refused again."""
    before = stream.count()
    for _ in range(2):
        with pytest.raises(PlanningFailed, match=why):
            stream.epoch(number, first, count)
    assert stream.count() == before


# --- stories that differ


def test_the_newest_epoch_removed_from_the_checkpoint(stream):
    stream.forget(2)
    refused(stream, r"CheckpointMismatch: epoch 2 .*\(up to 0: 30\).*\(up to 0: 40\)", 2, 20, 20)


def test_an_older_copy_of_the_checkpoint(stream):
    stream.forget(1, 2)
    refused(stream, "CheckpointMismatch: query q1 is at epoch 1, but the sink has epoch 2", 1, 10)


def test_a_checkpoint_that_begins_anew_under_the_old_id(stream):
    stream.forget(0, 1, 2)
    refused(stream, "CheckpointMismatch: query q1 is at epoch 0", 0, 0, 40)


def test_a_lost_metadata_file_before_anything_but_the_first_epoch_was_committed(tmp_path):
    stream = Stream(tmp_path)
    stream.epoch(0, 0, over=False)
    renamed = Stream(tmp_path)
    (stream.checkpoint / "metadata").write_text('{"id":"made-by-spark"}')
    refused(renamed, '.* belongs to query q1, .*whose one line is {"id":"q1"}', 0, 0)
    (stream.checkpoint / "metadata").write_text('{"id":"q1"}')
    renamed.epoch(0, 0)
    renamed.epoch(1, 10)
    assert look(stream.table)[:2] == (20, 20)


def test_a_driver_that_dies_between_the_id_and_the_first_row_leaves_a_query_that_goes_on(tmp_path):
    stream = Stream(tmp_path)
    stream.offsets(0, 0, 10)
    stream.plan()
    recorded = stream.checkpoint / "krishiv" / "query-id.json"
    assert recorded.read_text() == '{"id":"q1"}\n'
    Stream(tmp_path).epoch(0, 0)
    assert look(stream.table)[:2] == (10, 10)


def test_a_query_from_before_the_id_was_stored_goes_on_and_stores_it(stream):
    recorded = stream.checkpoint / "krishiv" / "query-id.json"
    recorded.unlink()
    epoch_checks._begun.clear()
    checkpoint_module._recorded.put(SparkCheckpoint(str(stream.checkpoint)), "")  # another process
    stream.epoch(3, 30)
    assert stream.count() == 40
    assert recorded.read_text() == '{"id":"q1"}\n'


def test_a_new_id_that_the_log_refuses_is_not_stored(stream):
    recorded = stream.checkpoint / "krishiv" / "query-id.json"
    recorded.unlink()
    (stream.checkpoint / "metadata").write_text('{"id":"made-by-spark"}')
    refused(stream, "LogError: .*its epoch log .* is empty: .*'metadata' was lost", 3, 30)
    assert not recorded.exists()
    (stream.checkpoint / "metadata").write_text('{"id":"q1"}')
    stream.epoch(3, 30)
    assert stream.count() == 40


def test_offsets_that_were_edited(stream):
    stream.offsets(2, 20, 1_000)
    refused(stream, "CheckpointMismatch: epoch 3 does not start where epoch 2 ended", 3, 1_020)


def test_offsets_that_were_edited_when_the_next_epoch_had_begun(stream):
    stream.offsets(3, 30, 10)
    stream.plan()
    stream.offsets(2, 20, 1_000)
    refused(stream, "CheckpointMismatch: epoch 3 does not start where epoch 2 ended", 3, 1_020)


def test_an_older_copy_of_the_log(stream, tmp_path):
    log = stream.table / "_krishiv" / "q1" / "log"
    shutil.copytree(log, tmp_path / "copy")
    for epoch in (3, 4):
        stream.epoch(epoch, 10 * epoch)
    shutil.rmtree(log)
    shutil.copytree(tmp_path / "copy", log)
    refused(stream, "CheckpointMismatch: the query is at epoch 5, .* recorded none after 2", 5, 50)


def test_a_log_that_is_gone(stream):
    shutil.rmtree(stream.table / "_krishiv")
    refused(stream, "LogError: query q1 is at epoch 3, but its epoch log .* empty", 3, 30)


def test_an_epoch_that_is_repeated_is_no_other_story(stream):
    stream.epoch(3, 30, over=False)
    stream.epoch(3, 30)
    stream.epoch(4, 40)
    assert stream.count() == 50


def test_a_driver_that_was_left_behind_does_not_take_the_query_back(stream):
    """Epochs without rows leave no intent, so only their owner entries tell."""
    stream.epoch(3, 30, over=False)
    for epoch in (4, 5):
        stream.epoch(epoch, 40, 0)
    stream.forget(4, 5)
    refused(
        stream,
        "CheckpointMismatch: the query is at epoch 3, .* has recorded the start of epoch 5",
        3,
        30,
    )
    stream.offsets(4, 40, 0)  # the checkpoint of the other driver
    stream.epoch(5, 40, 0)
    stream.epoch(6, 40)
    assert stream.count() == 50


def test_what_was_begun_and_not_published_may_be_planned_anew(stream):
    stream.offsets(3, 30, 10)
    stream.plan()
    stream.forget(3)
    stream.epoch(3, 30, 25)
    assert stream.count() == 55


def test_a_table_and_its_log_that_were_copied_while_an_epoch_ran(stream, tmp_path, caplog):
    """The log says that epoch 3 began, as it does of epochs without rows."""
    stream.offsets(3, 30, 10)
    stream.plan()
    shutil.copytree(stream.table, tmp_path / "copy")
    stream.commit(3, [stream.task(3, 0, rows(30, 10))])
    shutil.rmtree(stream.table)
    shutil.copytree(tmp_path / "copy", stream.table)
    open_log.cache_clear()
    epoch_checks._begun.clear()
    stream.epoch(4, 40)
    assert "the sink lacks epochs 3 to 3" in caplog.text
    # What the warning says to do: the copy once more, and back to the epoch that it has.
    (words,) = re.findall(r"'krishiv-spark checkpoint (rewind --to \d+)'", caplog.text)
    shutil.rmtree(stream.table)
    shutil.copytree(tmp_path / "copy", stream.table)
    open_log.cache_clear()
    run("checkpoint", *words.split(), str(stream.checkpoint), "--table", str(stream.table))
    for epoch in (3, 4, 5):
        stream.epoch(epoch, 10 * epoch)
    assert look(stream.table)[:2] == (60, 60)


def test_two_queries_that_have_begun_on_an_empty_folder(tmp_path):
    """Test that missing state is read again later: the second query is refused."""
    first, second = Stream(tmp_path, "q1"), Stream(tmp_path, "q2", partitionBy="id")
    second.offsets(0, 0, 0)
    second.plan()
    first.epoch(0, 0)
    refused(second, "OptionError: .* partitioned by 'day'", 0, 0, 0)


def test_another_folder_under_a_log_that_is_elsewhere(tmp_path):
    log = str(tmp_path / "logs")
    Stream(tmp_path, epochLog=log).epoch(0, 0)
    other = Stream(tmp_path, epochLog=log, path=str(tmp_path / "other"))
    refused(
        other,
        "LogError: the epochs .* were written to Parquet table .*, and would now be written to",
        1,
        10,
    )
    (tmp_path / "table").rename(tmp_path / "moved")
    Stream(tmp_path, epochLog=log, path=str(tmp_path / "moved")).epoch(1, 10)


def test_another_querys_log(stream, tmp_path):
    meta = stream.table / "_krishiv"
    shutil.copytree(meta / "q1", meta / "q2")
    refused(
        Stream(tmp_path, "q2"), "LogError: the epoch log .* belongs to query q1, not to q2", 0, 9
    )


# --- what fails for good fails before the intent


def test_a_partition_folder_that_is_a_link_to_another_file_system(stream, tmp_path):
    elsewhere = Path(
        "/dev/shm" if os.stat("/dev/shm").st_dev != os.stat(tmp_path).st_dev else "/tmp"
    )
    target = elsewhere / f"krishiv-{os.getpid()}"
    target.mkdir()
    try:
        shutil.rmtree(stream.table / "day=d1")
        (stream.table / "day=d1").symlink_to(target)
        left = stream.count()
        with pytest.raises(CommitRejected, match=r"day=d1 is a link"):
            stream.epoch(3, 30)
        (stream.table / "day=d1").unlink()
        stream.epoch(3, 30)
        assert stream.count() == left + 10
    finally:
        shutil.rmtree(target)


@pytest.mark.parametrize("columns", ["", "id"])
def test_other_partition_columns_than_those_of_the_folder(stream, tmp_path, columns):
    why = r"OptionError: .*'partitionBy' is .* partitioned by 'day'"
    refused(Stream(tmp_path, "q2", partitionBy=columns), why, 0, 0)
    with pytest.raises(PlanningFailed, match=why):
        job(stream, partitionBy=columns).epoch(0, rows(0, 1))


def test_a_batch_that_replaces_everything_may_have_other_partition_columns(stream):
    job(stream, OutputMode.REPLACE, partitionBy="").epoch(0, rows(0, 7))
    assert stream.count() == 7


# --- batch jobs


def job(stream: Stream, mode: OutputMode = OutputMode.APPEND, **options: str) -> Job:
    given = {"path": str(stream.table), "partitionBy": "day", **options}
    return Job(ParquetWriter, given, mode)


def commit_and_die(monkeypatch, driver: Life, epoch: int, *messages: Staged) -> None:
    """The driver ends after the first of its renames."""
    left = iter([os.rename])

    def rename(source: str, target: str, **folders: int) -> None:
        next(left, die)(source, target, **folders)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", rename)
        with pytest.raises(KeyboardInterrupt):
            driver.commit(epoch, messages)


def die(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def leave_half_a_job(stream: Stream, monkeypatch, **options: str) -> None:
    killed = job(stream, **options)
    killed.plan()
    commit_and_die(monkeypatch, killed, 0, killed.task(0, 0, rows(100, 9)))


@pytest.mark.parametrize("place", ["table", "elsewhere"])
def test_a_job_that_is_half_visible_is_finished_by_the_next_writer(
    stream, tmp_path, monkeypatch, place
):
    log = {} if place == "table" else {"epochLog": str(tmp_path / "logs")}
    leave_half_a_job(stream, monkeypatch, **log)
    assert 30 < stream.count() < 39
    assert vacuumed(stream) == "0 files, 0 bytes removed"
    job(stream).epoch(0, rows(200, 1))
    assert stream.count() == 40


def test_a_job_whose_outcome_is_not_known_is_not_to_be_run_again_unchecked(stream, monkeypatch):
    """Another run is another job: the next writer makes the rows of this one visible, too."""
    failing = job(stream)
    failing.plan()
    messages = [failing.task(0, 0, rows(100, 9))]

    def fail(*_):
        raise OSError("the disk is away")

    with monkeypatch.context() as away:
        away.setattr(StoredEntries, "list_after", fail)
        with pytest.raises(CommitUnknown, match="check the target before you run the job again"):
            failing.commit(0, messages)
    failing.abort(0, messages)
    job(stream).epoch(0, rows(200, 1))
    assert stream.count() == 40


def vacuumed(stream: Stream) -> str:
    line = ["parquet", "vacuum", str(stream.table), "--older-than", "0s"]
    return CliRunner().invoke(main, line, catch_exceptions=False).output.splitlines()[-1]


def test_a_job_that_cannot_be_finished_stops_nobody_else(stream, monkeypatch, caplog):
    leave_half_a_job(stream, monkeypatch)
    (stream.table / "day=d2").rename(stream.table / "away")
    (stream.table / "day=d2").write_text("in the way")
    job(stream, partitionBy="day").epoch(0, rows(201, 1))
    stream.epoch(3, 33, 1)
    assert "not all of it can be made visible" in caplog.text
    assert list(stream.table.glob("_krishiv/batch-*/staged/*/*.staged"))


def test_what_fails_after_a_job_was_published_does_not_fail_it(stream, monkeypatch, caplog):
    def broken(_: object) -> None:
        raise OSError("input/output error")

    monkeypatch.setattr(DiskFolder, "destroy", broken)
    job(stream).epoch(0, rows(100, 5))
    assert stream.count() == 35
    assert "could not be removed" in caplog.text


# --- ways out


def run(*words: str) -> str:
    done = CliRunner().invoke(main, [*words])
    assert done.exit_code == 0, done.output
    return done.output


def command(stream: Stream, *words: str, fails: str | None = None, **options: str) -> str:
    given = {"path": str(stream.table), "partitionBy": "day", **options}
    pairs = [text for name, value in given.items() for text in ("-o", f"{name}={value}")]
    where = ["--format", "parquet", "--checkpoint", str(stream.checkpoint), *pairs]
    result = CliRunner().invoke(main, ["log", words[0], *where, *words[1:]])
    assert (result.exit_code != 0) == (fails is not None), result.output
    assert (fails or "") in result.output
    return result.output


def test_show_says_what_log_and_checkpoint_know(stream):
    shown = command(stream, "show")
    assert "the checkpoint has planned epoch 2, which is completed" in shown
    assert "newest committed epoch of the log: 2" in shown
    assert "the newest intent is of epoch 2, and finished" in shown


def test_a_log_is_adopted_for_a_query_that_was_stopped_in_good_order(stream):
    shutil.rmtree(stream.table / "_krishiv")
    assert "containing everything up to epoch 2" in command(stream, "adopt", "--dry-run")
    refused(stream, "is empty", 3, 30)
    stream.forget(3)
    command(stream, "adopt")
    stream.epoch(3, 30)
    stream.epoch(3, 30)
    assert stream.count() == 40


def test_a_log_is_adopted_right_after_a_way_back(stream, tmp_path):
    """Spark had written down that epochs 1 and 2 are over, and ``rewind`` keeps its word for it."""
    run("checkpoint", "rewind", str(stream.checkpoint), "--to", "0")
    open_log.cache_clear()  # each command is a process of its own
    command(stream, "adopt", fails="has files of epoch 2")
    for path in stream.table.rglob("part-000000000[12]-*.parquet"):
        path.rename(tmp_path / path.name)
    assert "of epoch 2, and finished" in command(stream, "show")
    command(stream, "adopt")
    for epoch in (1, 2, 3):
        stream.epoch(epoch, 10 * epoch)
    assert look(stream.table)[:2] == (40, 40)


def test_a_way_back_says_of_its_own_epochs_alone_that_they_are_over(stream, monkeypatch):
    """Epoch 2 was over once; the one that has its number now has died behind its intent."""
    run("checkpoint", "rewind", str(stream.checkpoint), "--to", "1")
    (removed,) = (stream.checkpoint / "krishiv-rewound").iterdir()
    removed.rename(removed.with_name("20130101T000000Z-to-1"))  # it was not in this second
    for path in stream.table.rglob("part-0000000002-*.parquet"):
        path.unlink()
    command(stream, "adopt")
    stream.offsets(2, 20, 9)
    stream.plan()
    commit_and_die(monkeypatch, stream, 2, stream.task(2, 0, rows(20, 9)))
    assert "perhaps not finished" in command(stream, "show")
    run("checkpoint", "rewind", str(stream.checkpoint), "--to", "1")  # its commit is not there
    for words in (["adopt"], ["adopt", "--dry-run"]):
        command(stream, *words, fails="may not be finished")


@pytest.mark.parametrize("words", [["adopt"], ["resolve", "--assume", "aborted"]])
def test_an_intent_that_comes_meanwhile_is_not_decided_unseen(stream, monkeypatch, words):
    """The operator has read of one epoch; a driver, which runs on, logs the intent of the next."""
    log = open_log(str(log_folder(stream.table, "q1")))
    if words[0] == "resolve":
        killed_while_it_publishes(stream, monkeypatch)
        open_log.cache_clear()
    log.begin(Claim(query="q1"))
    taken_over, later = EpochLog.begin, log.state().committed_epoch + 1

    def begin_late(*args):
        monkeypatch.setattr(EpochLog, "begin", taken_over)
        log.intend(log.state().owner, later, [])
        return taken_over(*args)

    monkeypatch.setattr(EpochLog, "begin", begin_late)
    command(stream, *words, fails="has changed, so nothing was decided")
    assert log.state().intent.epoch == later


@pytest.mark.parametrize("newest", ["published", "unpublished"])
def test_an_epoch_whose_end_is_not_known_is_adopted_as_the_operator_says(stream, newest):
    if newest == "published":
        stream.epoch(3, 30, over=False)
    else:
        stream.offsets(3, 30, 10)
    shutil.rmtree(stream.table / "_krishiv")
    command(stream, "adopt", fails="--newest published or --newest unpublished")
    command(stream, "adopt", "--newest", newest)
    stream.epoch(3, 30)
    stream.epoch(4, 40)
    assert stream.count() == 50


def test_numbers_that_files_have_are_not_given_twice(stream):
    """Test that a number is not given twice, since followers would take new files for read ones."""
    stream.forget(2)
    for _ in range(2):
        command(stream, "adopt", "--dry-run", fails="has files of epoch 2")
        command(stream, "adopt", fails="has files of epoch 2")
        shutil.rmtree(stream.table / "_krishiv", ignore_errors=True)
    assert stream.count() == 30


@pytest.mark.parametrize("newest", [[], ["--newest", "unpublished"]])  # started in between
def test_what_a_way_back_says_to_do_writes_each_row_once(stream, tmp_path, newest):
    """``rewind``, then what it and the next command name, in this order, and nothing else."""
    for epoch in (3, 4):
        stream.epoch(epoch, 10 * epoch)
    where = ["--table", str(stream.table)]
    said = run("checkpoint", "rewind", str(stream.checkpoint), "--to", "2", *where)
    assert re.findall(r"'krishiv-spark log (\w+)'", said)[:2] == ["resolve", "adopt"]
    refused(stream, "CheckpointMismatch", 3, 30)
    if not newest:
        stream.forget(3)
    command(stream, "resolve")
    named = command(
        stream, "adopt", *newest, fails="move the files of these epochs out of the folder"
    )
    (first,) = re.findall(r"\((part-\S+\.parquet) and later\)", named)
    assert fnmatch.filter((p.name for p in stream.table.rglob("*.parquet")), first)
    for path in stream.table.rglob("part-*.parquet"):
        if path.name >= first.split("*")[0]:
            path.rename(tmp_path / path.name)
    command(stream, "adopt", *newest)
    for epoch in (3, 4, 5):
        stream.epoch(epoch, 10 * epoch)
    assert look(stream.table)[:2] == (60, 60)


def test_a_copy_of_an_earlier_epoch_goes_on_in_a_target_of_its_own(stream, tmp_path):
    """The other way that ``rewind`` names, and what ``copy`` says for a table."""
    new = tmp_path / "new"
    said = run("checkpoint", "copy", str(stream.checkpoint), str(new), "--to", "1")
    (words,) = re.findall(r"'krishiv-spark (log adopt --format parquet \S+ \S+) -o path=", said)
    query = SparkCheckpoint(str(new)).query_id()
    new.rename(tmp_path / f"checkpoint-{query}")
    copy = Stream(tmp_path, query, path=str(tmp_path / "own"))
    words = words.replace(str(new), str(copy.checkpoint))
    refused(copy, "its epoch log .* is empty", 2, 20)
    copy.forget(2)
    run(*words.split(), "-o", f"path={copy.table}")
    for epoch in (2, 3):
        copy.epoch(epoch, 10 * epoch)
    assert look(copy.table)[:2] == (20, 20)


def test_the_target_is_changed_by_adopting(tmp_path):
    log = str(tmp_path / "logs")
    Stream(tmp_path, epochLog=log).epoch(0, 0)
    other = Stream(tmp_path, epochLog=log, path=str(tmp_path / "other"))
    command(other, "adopt", epochLog=log)
    other.epoch(1, 10)
    assert other.count() == 10


def killed_while_it_publishes(stream: Stream, monkeypatch) -> None:
    """Epoch 3 has an intent, and one of its three files is visible."""
    stream.offsets(3, 30, 9)
    stream.plan()
    commit_and_die(monkeypatch, stream, 3, stream.task(3, 0, rows(30, 9)))


def half_published(stream: Stream, monkeypatch) -> None:
    """The same, and another one is gone."""
    killed_while_it_publishes(stream, monkeypatch)
    next(stream.table.glob("_krishiv/q1/staged/*/*.staged")).unlink()


def test_an_epoch_that_has_lost_a_file_is_not_passed_over(stream, monkeypatch):
    half_published(stream, monkeypatch)
    with pytest.raises(
        PlanningFailed, match=rf"{CommitUnknown.__name__}: .* is missing.*--assume committed"
    ):
        stream.epoch(3, 30, 9)
    command(stream, "resolve", fails="is missing")


def test_a_log_that_is_gone_is_not_resolved(stream):
    """An entry of the operator's own in an empty log would have epoch 3 written once more."""
    stream.epoch(3, 30)
    stream.forget(3)
    shutil.rmtree(stream.table / "_krishiv")
    command(stream, "resolve", fails="is empty, so there is nothing to resolve")
    refused(stream, "is empty", 3, 30)


def test_an_owner_entry_of_nobody_makes_no_story(stream):
    shutil.rmtree(stream.table / "_krishiv")
    open_log(str(log_folder(stream.table, "q1"))).begin(Claim(query="q1"))
    refused(stream, "is empty", 3, 30)


def test_what_a_decree_shows_takes_the_place_of_what_it_replaces(tmp_path, monkeypatch):
    stream = Stream(tmp_path, mode=OutputMode.REPLACE)
    stream.epoch(0, 0)
    stream.offsets(1, 10, 9)
    stream.plan()
    commit_and_die(monkeypatch, stream, 1, stream.task(1, 0, rows(10, 9)))
    command(stream, "resolve", "--assume", "committed")
    assert stream.count() == 9


def test_taking_an_epoch_back_may_die_anywhere(stream, monkeypatch):
    half_published(stream, monkeypatch)
    with monkeypatch.context() as dying:
        dying.setattr(EpochLog, "void", lambda *_: sys.exit("killed"))
        command(stream, "resolve", "--assume", "aborted", fails="killed")
    refused(stream, "is missing", 3, 30, 9)
    command(stream, "resolve", "--assume", "aborted")
    stream.epoch(3, 30, 9)
    assert stream.count() == 39


def test_a_driver_that_sleeps_behind_its_intent_makes_nothing_visible_after_a_decree(
    stream, monkeypatch
):
    calls = []

    def fall_asleep(*given):
        calls.append(given)
        raise KeyboardInterrupt

    finish = DiskParticipant.finish
    stream.offsets(3, 30, 9)
    stream.plan()
    messages = [stream.task(3, 0, rows(30, 9))]
    with monkeypatch.context() as asleep:
        asleep.setattr(DiskParticipant, "finish", fall_asleep)
        with pytest.raises(KeyboardInterrupt):
            stream.commit(3, messages)
    command(stream, "resolve", "--assume", "aborted")
    with pytest.raises(CommitUnknown, match="is missing"):
        finish(*calls[0])
    stream.epoch(3, 30, 9)
    assert stream.count() == 39


@pytest.mark.parametrize(("assumed", "count"), [("committed", 36), ("aborted", 39)])
def test_an_epoch_that_has_lost_a_file_is_settled_by_decree(stream, monkeypatch, assumed, count):
    half_published(stream, monkeypatch)
    shown = command(stream, "resolve", "--assume", assumed, "--dry-run")
    assert {"committed": "are LOST", "aborted": "appear TWICE"}[assumed] in shown
    command(stream, "resolve", "--assume", assumed)
    stream.epoch(3, 30, 9)
    stream.epoch(4, 39, 1)
    assert stream.count() == count + 1
    command(stream, "resolve", "--assume", assumed, fails="no open intent")


def test_an_epoch_that_spark_takes_for_over_is_not_assumed_to_be_aborted(stream, monkeypatch):
    half_published(stream, monkeypatch)
    (stream.checkpoint / "commits" / "3").write_text("v1\n{}")
    command(stream, "resolve", "--assume", "aborted", fails="its rows would be lost")


def test_resolve_does_what_the_next_driver_would(stream, monkeypatch):
    killed_while_it_publishes(stream, monkeypatch)
    command(stream, "resolve")
    assert stream.count() == 39


def test_what_was_resolved_can_be_adopted(stream, monkeypatch):
    killed_while_it_publishes(stream, monkeypatch)
    for words in (["adopt", "--newest", "published"], ["resolve"]):
        command(stream, *words, fails="may not be finished" if "adopt" in words else None)
        open_log.cache_clear()  # each command is a process of its own
    assert "of epoch 3, and finished" in command(stream, "show")
    command(stream, "resolve", "--assume", "aborted", fails="no open intent")
    command(stream, "adopt", "--newest", "published")
    stream.epoch(3, 30, 9)
    assert stream.count() == 39


def test_an_epoch_is_not_resolved_in_another_folder(tmp_path, monkeypatch):
    """Nothing is staged there, as if all were visible; said twice, the log would keep it."""
    log = str(tmp_path / "logs")
    stream = Stream(tmp_path, epochLog=log)
    for epoch in range(3):
        stream.epoch(epoch, 10 * epoch)
    killed_while_it_publishes(stream, monkeypatch)
    for _ in range(2):
        open_log.cache_clear()  # each command is a process of its own
        mistyped = {"path": str(tmp_path / "tabel"), "epochLog": log}
        command(stream, "resolve", fails="and would now be written to Parquet table", **mistyped)
    open_log.cache_clear()
    stream.epoch(3, 30, 9)
    assert stream.count() == 39


def test_a_driver_that_was_overtaken_at_its_first_epoch_is_not_told_that_the_log_was_removed(
    tmp_path, monkeypatch
):
    slow, fast = Stream(tmp_path), Stream(tmp_path)
    look_at_table = TableParticipant.verify_empty_log

    def overtaken(participant, query):
        monkeypatch.setattr(TableParticipant, "verify_empty_log", look_at_table)
        fast.epoch(0, 0)
        return look_at_table(participant, query)

    monkeypatch.setattr(TableParticipant, "verify_empty_log", overtaken)
    with pytest.raises(PlanningFailed, match="Fenced: another driver has started the query"):
        slow.epoch(0, 0)
    assert fast.count() == 10
