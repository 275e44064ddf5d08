"""The Parquet sink, driven as Spark drives it, with every crash window opened."""

import errno
import itertools
import json
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from disk_calls import record_disk
from sink_life import SCHEMA, Job, Life, dies_at, rows
from tables import look, visible_names

from krishiv_spark.errors import CommitRejected, Fenced, OptionError, SchemaError, StorageError
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.offsets import open_log
from krishiv_spark.parquet.layout import DataFile, log_folder
from krishiv_spark.runtime.caches import LruCache
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.parquet import target_folders
from krishiv_spark.sinks.parquet.checks import check_columns, check_same_types
from krishiv_spark.sinks.parquet.disk_table import DiskParticipant, DiskTable
from krishiv_spark.sinks.parquet.staging import DiskStaging, FileLayout, TaskFiles
from krishiv_spark.sinks.parquet.writer import ParquetWriter
from krishiv_spark.sources.base import UNLIMITED
from krishiv_spark.sources.parquet.reader import ParquetReader, ParquetSourceOptions


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


def life(table: Path, query: str = "q1", mode: OutputMode = OutputMode.APPEND, **options) -> Life:
    options.setdefault("partitionBy", "day")
    return Life(ParquetWriter, {"path": str(table), **options}, query, mode)


def exact(table: Path, count: int) -> None:
    assert look(table) == (count, count, count * (count - 1) // 2)


def staged_files(table: Path) -> list[Path]:
    return list(table.glob("_krishiv/*/staged/**/*.staged"))


def test_an_epoch_is_invisible_until_it_is_committed(table):
    driver = life(table)
    driver.plan()
    messages = [driver.task(0, 0, rows(0, 10)), driver.task(0, 1, rows(10, 10))]
    assert visible_names(table) == set()
    driver.commit(0, messages)
    exact(table, 20)
    assert staged_files(table) == []


def test_a_replayed_epoch_with_other_messages_adds_nothing(table):
    life(table).epoch(0, rows(0, 10))
    life(table).epoch(0, rows(0, 5), rows(5, 5))
    exact(table, 10)


def test_a_replay_after_a_lost_commit_log_costs_no_work(table):
    first, second = life(table), life(table)
    first.plan()
    message = first.task(0, 0, rows(0, 10))
    first.commit(0, [message])
    second.plan()
    replayed = second.task(0, 0, rows(0, 10))
    assert replayed.payload is None
    second.commit(0, [replayed])
    exact(table, 10)


def test_attempts_that_lose_leave_nothing_visible_and_are_swept(table):
    driver = life(table)
    driver.plan()
    driver.task(0, 0, rows(0, 10), attempt=0)
    winner = driver.task(0, 0, rows(0, 10), attempt=1)
    driver.task(0, 0, rows(0, 10), attempt=2)
    driver.commit(0, [winner])
    exact(table, 10)
    assert staged_files(table) == []


def test_an_abort_after_failed_tasks_removes_what_the_others_staged(table):
    driver = life(table)
    driver.plan()
    message = driver.task(0, 0, rows(0, 10))
    driver.abort(0, [message, None])
    assert staged_files(table) == []
    driver.epoch(0, rows(0, 10))
    exact(table, 10)


def test_an_abort_with_every_message_after_a_failed_commit_touches_nothing(table):
    driver = life(table)
    driver.plan()
    messages = [driver.task(0, 0, rows(0, 10))]
    driver.abort(0, messages)
    assert len(staged_files(table)) == 3
    driver.commit(0, messages)
    driver.abort(0, messages)
    exact(table, 10)


def test_a_stale_driver_is_fenced_and_the_table_stays_exact(table):
    stale, fresh = life(table), life(table)
    stale.plan()
    held_back = [stale.task(0, 0, rows(0, 10))]
    fresh.epoch(0, rows(0, 10))
    fresh.epoch(1, rows(10, 10))
    with pytest.raises(Fenced):
        stale.commit(2, [stale.task(2, 0, rows(10, 10))])
    with pytest.raises(Fenced):
        stale.commit(0, held_back)
    exact(table, 20)


def test_a_stale_driver_is_fenced_after_its_numbers_were_folded_away(table):
    stale, fresh = life(table, partitionBy=""), life(table, partitionBy="")
    stale.plan()
    for number in range(80):
        fresh.epoch(number, rows(number * 10, 10))
    with pytest.raises(Fenced):
        stale.commit(80, [stale.task(80, 0, rows(800, 10))])
    exact(table, 800)
    assert len(list(table.glob("_krishiv/q1/log/*"))) < 140


def test_a_job_that_dies_while_another_one_overwrites_does_not_come_back(table, monkeypatch):
    first, second = (Job(ParquetWriter, {"path": str(table)}, OutputMode.REPLACE) for _ in "ab")
    for job in (first, second):
        job.plan()
    with monkeypatch.context() as patched:
        patched.setattr(DiskParticipant, "finish", dies)
        with pytest.raises(KeyboardInterrupt):
            first.commit(0, [first.task(0, 0, rows(100, 10))])
    second.commit(0, [second.task(0, 0, rows(0, 10))])
    exact(table, 10)
    Job(ParquetWriter, {"path": str(table)}).epoch(0, rows(10, 5))
    exact(table, 15)


def dies(*_):
    raise KeyboardInterrupt


def test_a_folder_of_sparks_own_sink_is_refused(table):
    """Spark's readers go by that sink's log, and would not find these rows."""
    log = table / "_spark_metadata"
    log.mkdir(parents=True)
    (log / "0").write_text("v1")
    with pytest.raises(PlanningFailed, match=r"OptionError: .* Spark's own file sink"):
        life(table).plan()
    assert [path.name for path in table.iterdir()] == ["_spark_metadata"]
    shutil.rmtree(log)
    life(table).epoch(0, rows(0, 10))
    exact(table, 10)


def test_a_link_whose_rows_would_stay_is_refused_by_what_replaces(table, tmp_path):
    """Readers go into it, and the rows of before would be there beside the new ones."""
    life(table, "first").epoch(0, rows(0, 10))
    shutil.copytree(table, tmp_path / "cold", ignore=shutil.ignore_patterns("_krishiv"))
    link = table / "old" / "2013"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "cold")
    with pytest.raises(PlanningFailed, match=r"OptionError: .*/old/2013 is a link"):
        life(table, "whole", OutputMode.REPLACE).plan()
    life(table, "first").epoch(1, rows(10, 10))
    link.unlink()
    (table / "_krishiv" / "link").symlink_to(tmp_path / "cold")  # no reader goes there
    life(table, "whole", OutputMode.REPLACE).epoch(0, rows(20, 10))
    exact(table, 30)


def test_a_new_checkpoint_on_an_old_path_appends(table):
    life(table, "first").epoch(0, rows(0, 10))
    life(table, "second").epoch(0, rows(10, 10))
    life(table, "first").epoch(1, rows(20, 10))
    exact(table, 30)


def test_replace_shows_only_the_newest_epoch_of_its_own_query(table):
    life(table, "other").epoch(0, rows(0, 5))
    whole = life(table, "whole", OutputMode.REPLACE)
    whole.epoch(0, rows(100, 10))
    whole.epoch(1, rows(5, 10))
    exact(table, 15)
    whole.plan()
    whole.commit(2, [whole.task(2, 0, rows(0, 0))])
    exact(table, 5)


def test_what_an_epoch_replaces_is_gone_from_the_disk_before_the_epoch_is_finished(
    table, monkeypatch
):
    whole = life(table, mode=OutputMode.REPLACE, partitionBy="")
    whole.epoch(0, rows(0, 10))
    steps = record_disk(monkeypatch, "unlink", "rename", "fsync")
    whole.epoch(1, rows(10, 10))
    (removed,) = (
        n for n, (call, name) in enumerate(steps) if (call, name[:5]) == ("unlink", "part-")
    )
    (finished,) = (
        n for n, (call, name) in enumerate(steps) if call == "rename" and name.endswith(".done")
    )
    assert ("fsync", table.name) in steps[removed:finished]


# Before a call is little else than after the one before it, and the kit tries it too.
MOMENTS = [pytest.param(True, id="after"), pytest.param(False, id="before", marks=pytest.mark.long)]


@pytest.mark.long  # the kit tries some of these deaths in each run
@pytest.mark.parametrize("after", MOMENTS)
@pytest.mark.parametrize("mode", list(OutputMode), ids=lambda mode: mode.value)
def test_a_crash_at_any_call_to_the_file_system_is_survived(tmp_path, mode, after):
    for step in itertools.count():
        table = tmp_path / f"table-{step}"
        first = (rows(0, 6), rows(6, 6)) if mode is OutputMode.APPEND else (rows(50, 3),)
        again = (rows(12, 6),) if mode is OutputMode.APPEND else (rows(0, 18),)
        life(table, mode=mode).epoch(0, *first)
        died = dies_at(step, lambda t=table, a=again: life(t, mode=mode).epoch(1, *a), after=after)
        # Whatever is visible between crash and restart is of a logged epoch. The mode REPLACE
        # is excused from being seen half done: several files cannot be swapped at once.
        if mode is OutputMode.APPEND:
            count, distinct, _ = look(table)
            assert count == distinct >= 12
        life(table, mode=mode).epoch(1, *again)
        exact(table, 18)
        life(table, mode=mode).epoch(1, *again)
        exact(table, 18)
        assert staged_files(table) == []
        if not died:
            break
    assert step > 20


@pytest.mark.soak  # the kit tries some of these pairs, each time
def test_the_driver_may_die_again_while_it_recovers(tmp_path):
    for first, second in itertools.product(range(0, 60, 3), range(0, 30, 3)):
        table = tmp_path / f"table-{first}-{second}"
        work = lambda t=table: life(t).epoch(0, rows(0, 6), rows(6, 6))  # noqa: E731
        dies_at(first, work, after=True)
        dies_at(second, work, after=True)
        work()
        exact(table, 12)


def job(table: Path, mode: OutputMode = OutputMode.APPEND, **options) -> Job:
    options.setdefault("partitionBy", "day")
    return Job(ParquetWriter, {"path": str(table), **options}, mode)


def followed(table: Path) -> list[int]:
    """The ids that our own source reads from a table."""
    options = ParquetSourceOptions.parse({"path": str(table)}, "test")
    reader = ParquetReader(options, pa.schema([("id", pa.int64())]), streaming=True)
    start = reader.initial()
    parts = reader.plan(start, reader.latest(start, UNLIMITED))
    return sorted(
        i for part in parts for b in reader.read(part) for i in b.column("id").to_pylist()
    )


@pytest.mark.long  # the kit tries this too
@pytest.mark.parametrize("after", MOMENTS)
@pytest.mark.parametrize("mode", list(OutputMode), ids=lambda mode: mode.value)
def test_a_batch_job_that_dies_anywhere_shows_all_or_nothing_to_the_next_writer(
    tmp_path, mode, after
):
    outcomes = set()
    for step in itertools.count():
        table = tmp_path / f"table-{step}"
        job(table).epoch(0, rows(0, 4))
        died = dies_at(
            step, lambda t=table: job(t, mode).epoch(0, rows(4, 6), rows(10, 6)), after=after
        )
        life(table, "next").epoch(0, rows(100, 1))
        visible = set(followed(table)) - {100}
        old = set(range(4)) if mode is OutputMode.APPEND else set()
        assert visible in (set(range(4)), old | set(range(4, 16))), f"step {step}"
        assert look(table)[0] == len(visible) + 1
        outcomes.add(len(visible))
        if not died:
            break
    assert outcomes == {4, len(old) + 12}


@pytest.mark.long
def test_a_writer_with_another_epoch_log_finishes_a_dead_job_all_the_same(table, tmp_path):
    dead = job(table)
    for step in itertools.count():
        assert dies_at(step, lambda: dead.epoch(0, rows(0, 10)), after=True)
        if visible_names(table):  # it died between its renames
            break
    life(table, "other", epochLog=str(tmp_path / "elsewhere")).epoch(0, rows(10, 2))
    exact(table, 12)


def test_jobs_side_by_side_do_not_disturb_one_another(table):
    first, second = job(table), job(table)
    first.plan()
    message = first.task(0, 0, rows(0, 5))
    second.epoch(0, rows(5, 5))
    life(table).epoch(0, rows(10, 5))
    first.commit(0, [message])
    exact(table, 15)
    assert not list(table.glob("_krishiv/batch-*"))


@contextmanager
def before_renames(act):
    """Call a function with the two paths right before each rename, which goes by descriptors."""
    rename = os.rename

    def acting(source, target, *, src_dir_fd, dst_dir_fd):
        above = (os.readlink(f"/proc/self/fd/{one}") for one in (src_dir_fd, dst_dir_fd))
        if "probe" not in source:
            act(*(f"{folder}/{name}" for folder, name in zip(above, (source, target), strict=True)))
        rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "rename", acting)
        yield


def test_a_removed_partition_folder_behind_the_intent_loses_nothing(table):
    # The folder vanishes between being made and being renamed into: the commit must not succeed.
    driver = life(table)
    driver.plan()
    messages = [driver.task(0, 0, rows(0, 6))]

    def removing(source, target):
        if source.endswith(".staged"):
            os.rmdir(os.path.dirname(target))

    with before_renames(removing), pytest.raises(FileNotFoundError):
        driver.commit(0, messages)
    driver.abort(0, messages)
    life(table).epoch(0, rows(0, 6))
    exact(table, 6)


def test_a_partition_folder_that_is_removed_once_more_is_made_again(table):
    driver = life(table)
    driver.plan()
    messages = [driver.task(0, 0, rows(0, 6))]
    removed = []

    def removing(source, target):
        del source
        if not removed:
            removed.append(os.path.dirname(target))
            os.rmdir(removed[0])

    with before_renames(removing):
        driver.commit(0, messages)
    assert Path(removed[0]).name.startswith("day=")
    exact(table, 6)


@pytest.mark.parametrize("folder_stays", [True, False])
def test_an_epoch_that_another_process_finishes_meanwhile_is_no_error(table, folder_stays):
    driver = life(table)
    driver.plan()
    messages = [driver.task(0, 0, rows(0, 6))]
    others = []

    def overtaken(source, target):
        if not others:  # the other one does all of it, while this one is asleep
            others.append(target)
            staged = os.path.dirname(source)
            for name in [each for each in os.listdir(staged) if each.endswith(".staged")]:
                os.unlink(f"{staged}/{name}")
            os.rmdir(staged)
            for day in table.glob("day=*"):
                if not folder_stays:
                    os.rmdir(day)

    with before_renames(overtaken):
        driver.commit(0, messages)  # what has become of published files is their owner's business
    assert others


def test_a_file_that_another_process_renames_first_into_a_new_folder_is_no_error(table):
    driver = life(table)
    driver.plan()
    messages = [driver.task(0, 0, rows(0, 6))]
    seen = []

    def racing(source, target):
        seen.append(target)
        if len(seen) == 1:
            os.rmdir(os.path.dirname(target))
        if len(seen) == 2:
            os.replace(source, target)  # another recovery, right before

    with before_renames(racing):
        driver.commit(0, messages)
    exact(table, 6)


def test_columns_that_differ_in_what_they_stand_for_are_looked_at_again():
    # PySpark hands a variant over as this struct, and marks one of its fields.
    fields = [pa.field("value", pa.binary()), pa.field("metadata", pa.binary())]
    marked = [fields[0], fields[1].with_metadata({"variant": "true"})]
    check_columns(pa.schema([("v", pa.struct(fields))]), ())
    with pytest.raises(SchemaError, match="variant"):
        check_columns(pa.schema([("v", pa.struct(marked))]), ())


def test_staged_files_that_somebody_removed_are_missed_before_the_intent(table):
    driver = life(table)
    driver.plan()
    messages = [driver.task(0, 0, rows(0, 6))]
    staged_files(table)[0].unlink()
    with pytest.raises(CommitRejected, match="stages it again"):
        driver.commit(0, messages)
    assert visible_names(table) == set()
    life(table).epoch(0, rows(0, 6))
    exact(table, 6)


def test_a_query_whose_log_is_gone_or_elsewhere_is_refused(table, tmp_path):
    life(table).epoch(0, rows(0, 6))
    with pytest.raises(PlanningFailed, match="its epoch log is empty"):
        life(table, epochLog=str(tmp_path / "elsewhere")).plan()
    shutil.rmtree(table / "_krishiv")
    with pytest.raises(PlanningFailed, match="its epoch log is empty"):
        life(table).plan()
    exact(table, 6)


def test_a_partition_value_that_is_no_folder_name_fails_before_the_intent(table):
    bad = pa.record_batch([[1, 2], ["x" * 300, "fine"]], schema=SCHEMA)
    with pytest.raises(SchemaError, match=r"column 'day' has the value x{40}\.\.\., .* 304 bytes"):
        life(table).epoch(0, bad)
    assert visible_names(table) == set()
    life(table).epoch(0, rows(0, 6))
    exact(table, 6)


def test_a_straggler_of_a_finished_generation_does_not_hide_its_epoch(table):
    driver = life(table)
    driver.plan()
    driver.commit(0, [driver.task(0, 0, rows(0, 6))])
    with pytest.raises(Fenced):
        driver.task(0, 0, rows(0, 6), attempt=1)
    assert followed(table) == list(range(6))


def test_a_task_on_a_machine_that_has_not_the_folder_says_so(table):
    driver = life(table)
    driver.plan()
    table.rename(table.with_name("elsewhere"))
    with pytest.raises(OptionError, match="must be in a folder that all machines share"):
        driver.task(0, 0, rows(0, 6))


@pytest.mark.long
def test_our_source_waits_for_the_whole_epoch(tmp_path):
    for step in itertools.count():
        table = tmp_path / f"table-{step}"
        life(table).epoch(0, rows(0, 6))
        assert dies_at(step, lambda t=table: life(t).epoch(1, rows(6, 6)), after=True)
        if len(visible_names(table)) == 4:
            break
    assert followed(table) == list(range(6))
    life(table).epoch(1, rows(6, 6))
    assert followed(table) == list(range(12))


def test_a_stale_driver_is_fenced_by_an_epoch_without_rows_too(table):
    stale, fresh = life(table), life(table)
    stale.plan()
    fresh.plan()
    with pytest.raises(Fenced):
        stale.commit(5, [stale.task(5, 0, rows(0, 0))])
    fresh.commit(5, [fresh.task(5, 0, rows(0, 0))])


def test_epochs_without_rows_leave_a_small_log(table):
    for number in range(200):
        life(table).epoch(number, rows(0, 0))
    assert len(list(table.glob("_krishiv/q1/log/*"))) < 140


def test_replace_never_shows_an_empty_table(table):
    whole = life(table, mode=OutputMode.REPLACE)
    whole.epoch(0, rows(0, 3))
    for step in itertools.count():
        again = lambda: life(table, mode=OutputMode.REPLACE).epoch(1, rows(0, 3))  # noqa: E731
        died = dies_at(step, again, after=True)
        assert visible_names(table)
        if not died:
            break
    exact(table, 3)


def test_every_reader_sees_the_same_rows_and_none_that_are_staged(table):
    driver = life(table)
    driver.epoch(0, rows(0, 12))
    driver.plan()
    driver.task(1, 0, rows(12, 6))
    assert len(staged_files(table)) == 3
    ids = list(range(12))
    glob = f"{table}/**/*.parquet"
    assert sorted(duckdb.sql(f"select id from '{glob}'").fetchall()) == [(i,) for i in ids]
    assert sorted(ds.dataset(table, partitioning="hive").to_table()["id"].to_pylist()) == ids
    assert sorted(pd.read_parquet(table)["id"]) == ids
    assert sorted(pl.read_parquet(glob)["id"]) == ids


def test_a_folder_without_permission_is_refused(table):
    table.mkdir(mode=0o555)
    table.parent.chmod(0o755)
    for folder in table.parents[1:]:
        if not os.stat(folder).st_mode & 0o001:
            folder.chmod(0o711)
    child = os.fork()
    if child == 0:
        if os.getuid() == 0:
            os.setuid(65534)  # root may write anywhere
        try:
            life(table).plan()
        except PlanningFailed as error:
            os._exit(0 if "permission denied" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_files_are_cut_by_rows_and_by_size(table):
    life(table, partitionBy="", maxRecordsPerFile="4").epoch(0, rows(0, 10))
    sizes = sorted(pq.read_metadata(f).num_rows for f in table.glob("*.parquet"))
    assert sizes == [2, 4, 4]
    life(table, partitionBy="", targetFileSize="1b").epoch(1, rows(10, 10))
    exact(table, 20)


def test_an_epoch_without_rows_makes_no_file(table):
    life(table).epoch(0, rows(0, 0))
    assert visible_names(table) == set()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"partitonBy": "day"}, "did you mean 'partitionBy'"),
        ({"partitionBy": "hour"}, "names column 'hour'"),
        ({"partitionBy": "id,day"}, "leaves no column"),
        ({"targetFileSize": "12 parsecs"}, "needs a unit of size"),
        ({"compression": "zip"}, "compression"),
        ({"path": "ftp://host/table"}, "which is not known"),
        ({"path": "s3://bucket"}, "is a whole bucket"),
        ({"path": "/proc/version/table"}, "cannot be created"),
        ({"epochLog": "ftp://host/log"}, "cannot be stored at 'ftp://host/log/.*is not known"),
        ({"epochLog": "hdfs:///log"}, "does not say where HDFS answers"),
    ],
)
def test_bad_options_are_refused_before_any_row(table, options, says):
    with pytest.raises((OptionError, PlanningFailed), match=says):
        Life(ParquetWriter, {"path": str(table), **options}, "q1", OutputMode.APPEND).plan()


@pytest.mark.parametrize(("there", "says"), [("id", "string in"), ("ID", "string as 'ID' in")])
def test_rows_of_another_type_than_the_table_holds_are_refused(table, there, says):
    table.mkdir()
    pq.write_table(pa.table({there: ["text"]}), table / "old.parquet")
    with pytest.raises(PlanningFailed, match=f"SchemaError: column 'id' is int64, but {says}"):
        life(table).plan()


def test_a_table_with_times_of_int96_takes_times(table):
    """As Spark writes them by default: PyArrow gives them as times without a zone."""
    table.mkdir()
    old = pa.table({"at": pa.array([0], pa.timestamp("us", "UTC"))})
    pq.write_table(old, table / "old.parquet", use_deprecated_int96_timestamps=True)
    check_same_types(DiskTable(table), old.schema)
    with pytest.raises(SchemaError, match=r"'at' is int64, but timestamp\[us, tz=UTC\] in"):
        check_same_types(DiskTable(table), pa.schema([("at", pa.int64())]))


@pytest.fixture
def small_disk(tmp_path: Path):
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a tmpfs, to fill a disk for real")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_while_staging_shows_nothing_and_is_survived(small_disk):
    table = small_disk / "table"
    life(table).epoch(0, rows(0, 10))
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space left"):
        ballast.write_bytes(bytes(4 * 2**20))
    driver = life(table)
    named = f"(?s)No space left.* bytes for 'path' .{table}.*Make room and restart the query"
    with pytest.raises((StorageError, PlanningFailed), match=named):
        driver.epoch(1, rows(10, 1000))
    exact(table, 10)
    ballast.unlink()
    life(table).epoch(1, rows(10, 1000))
    exact(table, 1010)


# --- names that say how many files an epoch has


def numbered(table: Path) -> list[tuple[int, int, int]]:
    """Epoch, number and total of every visible file."""
    names = (DataFile.parse(name) for name in visible_names(table))
    return sorted((name.epoch, name.number, name.total) for name in names)


def test_each_file_says_of_how_many_it_is_one(table):
    life(table).epoch(0, rows(0, 6), rows(6, 2))
    life(table).epoch(1, rows(8, 1))
    assert numbered(table) == [*((0, n, 5) for n in range(1, 6)), (1, 1, 1)]
    exact(table, 9)


@pytest.mark.parametrize("mode", list(OutputMode), ids=lambda mode: mode.value)
def test_an_intent_of_an_earlier_version_is_finished_under_its_names(table, mode):
    driver = life(table, mode=mode)
    driver.plan()
    message = driver.task(0, 0, rows(0, 6))
    old = [message.payload.model_dump(mode="json")]  # with the names of the staged files
    open_log(str(log_folder(table, "q1"))).intend(message.task.generation, 0, old)
    life(table, mode=mode).plan()
    exact(table, 6)
    assert numbered(table) == [(0, 0, 0)] * 3
    life(table, mode=mode).epoch(1, rows(6 if mode is OutputMode.APPEND else 0, 6))
    exact(table, 12 if mode is OutputMode.APPEND else 6)


def test_a_table_of_batch_jobs_alone_is_still_known_as_ours(table):
    job(table).epoch(0, rows(0, 6))
    assert list((table / "_krishiv").iterdir()) == []


GEOMETRY = pa.struct(
    [
        pa.field("srid", pa.int32(), nullable=False),
        pa.field("wkb", pa.binary(), nullable=False, metadata={"geometry": "true", "srid": "0"}),
    ]
)
UNFIT = [
    ([("a", pa.int64()), ("A", pa.int64())], "", "columns 'a' and 'A' differ only in case"),
    ([("a", pa.int64()), ("a", pa.int64())], "", "columns 'a' and 'a' differ only in case"),
    (
        [("c", pa.list_(pa.struct([("a", pa.int64()), ("A", pa.int64())])))],
        "",
        "columns 'c.element.a' and 'c.element.A' differ only in case",
    ),
    ([("g", GEOMETRY)], "", r"column 'g' is a geometry, .*st_asbinary"),
    ([("m", pa.map_(pa.string(), GEOMETRY))], "", "column 'm.value' is a geometry"),
    ([(".p", pa.string()), ("n", pa.int64())], ".p", "readers ignore folders that start with"),
    ([("b", pa.binary()), ("n", pa.int64())], "b", r"column 'b' is binary .*hex"),
]


@pytest.mark.parametrize(("fields", "by", "reason"), UNFIT, ids=[reason for *_, reason in UNFIT])
def test_columns_that_no_reader_would_get_back_are_refused_before_the_first_row(
    table, fields, by, reason
):
    options = ParquetWriter.options_type.parse({"path": str(table), "partitionBy": by}, "test")
    writer = ParquetWriter(options, pa.schema(fields), OutputMode.APPEND, streaming=True)
    with pytest.raises((OptionError, SchemaError), match=reason):
        writer.check()


def test_times_of_day_are_stored_in_microseconds_at_any_depth(table):
    kind = pa.struct([("t", pa.time64("ns")), ("all", pa.list_(pa.time64("ns")))])
    schema = pa.schema([("t", pa.time64("ns")), ("s", kind), ("m", pa.map_(pa.string(), kind))])
    noon = 43_200_000_001_000
    value = {"t": noon, "all": [noon, None]}
    batch = pa.record_batch([[noon], [value], [[("k", value)]]], schema=schema)
    layout = FileLayout((), "none", None, None)
    table.mkdir()
    with TaskFiles(DiskStaging(table), DataFile(0, 0, 0, "a" * 12, "b" * 12), layout) as files:
        files.write(pa.Table.from_batches([batch]))
        files.close()
    (path,) = table.iterdir()
    logical = [column.logical_type for column in map(pq.ParquetFile(path).schema.column, range(6))]
    times = [json.loads(kind.to_json()) for kind in logical if "Time" in str(kind)]
    assert {(kind["timeUnit"], kind["isAdjustedToUTC"]) for kind in times} == {
        ("microseconds", False)
    }
    assert pq.read_table(path).cast(schema).to_pylist() == batch.to_pylist()


@pytest.mark.parametrize("is_real", [True, False], ids=["bind mount", "errno"])
def test_a_folder_on_another_mount_of_the_same_disk_is_refused_before_the_intent(
    table, tmp_path, monkeypatch, is_real
):
    """It has the same device, and a rename into it fails: after the intent, permanently."""
    driver = life(table)
    driver.epoch(0, rows(0, 10))
    other, mounted = tmp_path / "other", table / "day=d1"
    other.mkdir()
    driver.plan()
    messages = [driver.task(1, 0, rows(10, 10))]
    with _mount(other, mounted) if is_real else _renames_fail(monkeypatch, mounted):
        with pytest.raises(CommitRejected, match=r"day=d1 is on another file system or mount"):
            driver.commit(1, messages)
        assert open_log(str(log_folder(table, "q1"))).state().committed_epoch == 0
    assert not list(table.rglob("*probe*"))
    driver.epoch(1, rows(10, 10))
    exact(table, 20)
    assert not list(table.rglob("*probe*"))


@contextmanager
def _mount(folder, place):
    if subprocess.run(["mount", "--bind", str(folder), str(place)], check=False).returncode:
        pytest.skip("needs the right to mount a folder")
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


@contextmanager
def _renames_fail(monkeypatch, place):
    rename = os.rename

    def fail(source, target, *, src_dir_fd=None, dst_dir_fd=None):
        if dst_dir_fd is not None and os.path.samestat(os.fstat(dst_dir_fd), place.stat()):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    with monkeypatch.context() as broken:
        broken.setattr(target_folders, "_tried", LruCache(8))
        broken.setattr(os, "rename", fail)
        yield
