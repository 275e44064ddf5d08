"""Vacuum: it removes what no epoch will name, and nothing else."""

import os
import time
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner
from sink_life import Job, Life, rows
from tables import look
from wrong_clocks import shifted_clock

from krishiv_spark.cli import main
from krishiv_spark.offsets import EpochLog
from krishiv_spark.offsets.journal import open_journal
from krishiv_spark.parquet.layout import log_folder
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.parquet import vacuum as vacuuming
from krishiv_spark.sinks.parquet.disk_table import DiskParticipant
from krishiv_spark.sinks.parquet.vacuum import find_orphans
from krishiv_spark.sinks.parquet.writer import ParquetWriter

DAY = 86_400


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with one epoch of ten rows, of the query q."""
    table = tmp_path / "table"
    life(table).epoch(0, rows(0, 10))
    return table


def life(table: Path, query: str = "q") -> Life:
    return Life(ParquetWriter, {"path": str(table)}, query, OutputMode.APPEND)


def vacuum(table: Path, *options: str) -> str:
    result = CliRunner().invoke(
        main, ["parquet", "vacuum", str(table), *options], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.output


def staged(table: Path) -> set[str]:
    found = table.glob("_krishiv/*/staged/*/*")
    return {path.name for path in found if not path.parent.name.endswith(".done")}


def age(table: Path, days: float) -> None:
    then = time.time() - days * DAY
    for path in table.glob("_krishiv/*/staged/*/*"):
        os.utime(path, (then, then))


def abandon(table: Path, generations: int = 1) -> None:
    """Attempts that staged rows and died, each taken over by the next."""
    for _ in range(generations):
        driver = life(table)
        driver.plan()
        driver.task(1, 0, rows(10, 10))


def superseded(table: Path) -> None:
    """An attempt that staged rows and died; another took over, whose clean-up failed."""
    abandon(table)
    EpochLog(open_journal(log_folder(table, "q"))).begin()


def test_a_table_in_order_has_nothing_to_remove(table):
    assert vacuum(table, "--older-than", "0s") == "0 files, 0 bytes removed\n"
    assert look(table) == (10, 10, 45)


def test_a_dry_run_removes_nothing_and_says_what_would_go(table):
    superseded(table)
    before = staged(table)
    (name,) = before
    said = vacuum(table, "--dry-run")
    assert staged(table) == before
    size = next(table.glob(f"_krishiv/*/staged/*/{name}")).stat().st_size
    assert said.splitlines() == [
        f"{table}/_krishiv/q/staged/3/{name}  its generation was superseded",
        f"1 files, {size} bytes would be removed",
    ]
    assert vacuum(table).splitlines()[-1] == f"1 files, {size} bytes removed"
    assert staged(table) == set()


def test_what_a_superseded_generation_left_goes_at_any_age(table):
    superseded(table)
    vacuum(table, "--older-than", "1000w")
    assert staged(table) == set()
    assert look(table) == (10, 10, 45)


def test_what_the_current_generation_staged_goes_only_when_it_is_old(table):
    abandon(table)
    assert len(staged(table)) == 1
    vacuum(table)
    age(table, 6.9)
    vacuum(table)
    assert len(staged(table)) == 1
    age(table, 7.1)
    assert "older than the guard age" in vacuum(table, "--dry-run")
    vacuum(table)
    assert staged(table) == set()


def test_a_batch_that_runs_meanwhile_is_left_alone(table):
    driver = life(table)
    driver.plan()
    message = driver.task(1, 0, rows(10, 10))
    vacuum(table, "--older-than", "1m")
    driver.commit(1, [message])
    assert look(table) == (20, 20, 190)


@pytest.mark.parametrize("successors", [0, 1])
def test_the_files_of_an_intent_that_is_not_finished_are_never_orphans(
    table, monkeypatch, successors
):
    driver = life(table)
    driver.plan()
    message = driver.task(1, 0, rows(10, 10))
    with monkeypatch.context() as patch:
        killed = lambda *_: (_ for _ in ()).throw(OSError("killed"))  # noqa: E731
        patch.setattr(DiskParticipant, "finish", killed)
        with pytest.raises(OSError, match="killed"):
            driver.commit(1, [message])
    for _ in range(successors):
        EpochLog(open_journal(log_folder(table, "q"))).begin()
    age(table, 1000)
    assert vacuum(table, "--older-than", "0s") == "0 files, 0 bytes removed\n"
    life(table).plan()
    assert look(table) == (20, 20, 190)


def test_each_query_is_judged_by_its_own_log(table):
    life(table, "other").epoch(0, rows(100, 1))
    superseded(table)
    driver = life(table, "other")
    driver.plan()
    message = driver.task(1, 0, rows(101, 1))
    vacuum(table)
    assert len(staged(table)) == 1
    driver.commit(1, [message])
    assert look(table)[:2] == (12, 12)


def test_a_file_that_is_gone_meanwhile_is_no_error(table):
    driver = life(table)
    driver.plan()
    for partition in range(3):
        driver.task(1, partition, rows(10, 1))
    EpochLog(open_journal(log_folder(table, "q"))).begin()
    found = find_orphans(table, 0)
    assert next(found).path.exists()
    life(table).plan()  # sweeps
    assert list(found) == []


def test_what_others_put_among_the_staged_files_is_in_nobodys_way(table):
    superseded(table)
    folder = table / "_krishiv" / "q" / "staged"
    (folder / ".DS_Store").write_bytes(b"x")
    (folder / "notes").mkdir()
    vacuum(table)
    assert staged(table) == set()
    assert (folder / ".DS_Store").exists()


def abandoned_job(table) -> Path:
    """The staged folder of a batch job whose driver died."""
    job = Job(ParquetWriter, {"path": str(table)})
    job.plan()
    job.task(0, 0, rows(10, 10))
    return next(table.glob("_krishiv/batch-*/staged/*"))


def test_the_folder_of_a_batch_job_that_died_goes_when_it_is_old(table):
    folder = abandoned_job(table).parents[1]
    vacuum(table)
    assert folder.exists()
    time.sleep(0.02)
    vacuum(table, "--older-than", "0s")
    assert not folder.exists()
    assert look(table) == (10, 10, 45)


def test_a_folder_that_cannot_be_listed_is_not_taken_for_empty(table, refuse_to_list):
    superseded(table)
    refuse_to_list(table / "_krishiv" / "q" / "staged")
    code, said = run("parquet", "vacuum", str(table))
    assert code == 1
    assert said == f"Error: [Errno 13] Permission denied: '{table}/_krishiv/q/staged'\n"


def test_a_batch_job_is_not_judged_by_a_part_of_its_folder(table, refuse_to_list):
    folder = abandoned_job(table)
    refuse_to_list(folder)
    code, said = run("parquet", "vacuum", str(table), "--older-than", "0s")
    assert (code, str(folder) in said) == (1, True)
    assert folder.exists()


def test_a_batch_job_that_ends_meanwhile_is_no_error(table, monkeypatch):
    folder = abandoned_job(table).parents[1]
    monkeypatch.setattr(vacuuming, "walk", lambda _: [(str(folder), [], ["gone"])])
    assert vacuum(table, "--older-than", "0s") == "0 files, 0 bytes removed\n"


def test_what_streams_remember_goes_only_when_it_is_asked_for_by_age(table):
    old, new = table / "_krishiv_sources" / "1", table / "_krishiv_sources" / "2"
    for folder in (old, new):
        (folder / "skipped").mkdir(parents=True)
        (folder / "block").touch()
    then = time.time() - 100 * DAY
    for path in (old / "block", old / "skipped", old):
        os.utime(path, (then, then))
    vacuum(table, "--older-than", "0s")
    assert "101d" not in vacuum(table, "--source-state", "101d")
    assert old.exists()
    assert "its query has not run for longer" in vacuum(table, "--source-state", "90d")
    assert (old.exists(), new.exists()) == (False, True)
    assert look(table) == (10, 10, 45)


@pytest.mark.parametrize("age", ["0s", "30m", "119m"])
def test_the_state_of_a_stream_that_runs_cannot_be_removed_by_its_age(table, age):
    code, said = run("parquet", "vacuum", str(table), "--source-state", age)
    assert code == 2
    assert "a running stream updates its state once an hour" in " ".join(said.split())


def test_visible_files_and_the_log_are_never_touched(table):
    superseded(table)
    kept = {path for path in table.rglob("*") if path.is_file() and path.suffix != ".staged"}
    age(table, 1000)
    vacuum(table, "--older-than", "0s")
    assert {path for path in table.rglob("*") if path.is_file()} == kept


# --- the command line


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(arguments))
    assert not isinstance(result.exception, Exception) or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def test_a_folder_that_no_query_keeps_a_log_in_is_told_so(tmp_path):
    code, said = run("parquet", "vacuum", str(tmp_path))
    assert code == 0
    assert "no query" in said


def test_a_path_that_is_not_there_is_an_error(tmp_path):
    code, said = run("parquet", "vacuum", str(tmp_path / "nothing"))
    assert code == 2
    assert "does not exist" in said


def test_a_file_is_no_table(tmp_path):
    (tmp_path / "file").touch()
    code, said = run("parquet", "vacuum", str(tmp_path / "file"))
    assert code == 2
    assert "is a file" in said


@pytest.mark.parametrize("text", ["7", "soon", "-1d", ""])
def test_a_guard_age_without_a_unit_is_an_error(table, text):
    code, said = run("parquet", "vacuum", str(table), "--older-than", text)
    assert code == 2
    assert "--older-than" in said


def test_a_damaged_log_is_a_message_and_no_traceback(table):
    superseded(table)
    before = staged(table)
    newest = max((table / "_krishiv" / "q" / "log").glob("*.json"))
    newest.write_bytes(b"{")
    code, said = run("parquet", "vacuum", str(table))
    assert code == 1
    assert said.startswith(f"Error: entry {newest.name} of the epoch log")
    assert "Traceback" not in said
    assert staged(table) == before


def test_the_version_and_the_help_are_there():
    assert version("krishiv-spark") in run("--version")[1]
    code, said = run("parquet", "vacuum", "--help")
    assert code == 0
    assert "--older-than" in said
    assert "7d" in said


def test_the_command_is_found_under_its_older_name_too(table):
    code, said = run("vacuum", str(table), "--dry-run")
    assert code == 0
    assert "would be removed" in said


@pytest.mark.parametrize("kind", ["stream", "job"])
@pytest.mark.parametrize("place", ["logs", "/logs"], ids=["relative", "absolute"])
def test_what_is_staged_is_left_alone_while_its_log_cannot_be_found(
    tmp_path, monkeypatch, kind, place
):
    """It is not mounted where vacuum runs, or vacuum runs in another folder than the driver."""
    monkeypatch.chdir(tmp_path)
    table = tmp_path / "table"
    options = {"path": str(table), "epochLog": f"{tmp_path}{place}" if place[0] == "/" else place}
    is_job = kind == "job"
    driver = (
        Job(ParquetWriter, options)
        if is_job
        else Life(ParquetWriter, options, "q", OutputMode.APPEND)
    )
    driver.plan()
    message = driver.task(0, 0, rows(0, 10))
    with monkeypatch.context() as patch:
        patch.setattr(DiskParticipant, "finish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            driver.commit(0, [message])
    then = time.time() - 1000 * DAY
    for path in table.glob("_krishiv/**/*"):
        os.utime(path, (then, then))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    if place[0] == "/":
        (tmp_path / "logs").rename(tmp_path / "unmounted")
    vacuum(table)
    monkeypatch.chdir(tmp_path)
    if place[0] == "/":
        (tmp_path / "unmounted").rename(tmp_path / "logs")
    Life(ParquetWriter, options, "next" if is_job else "q", OutputMode.APPEND).plan()
    assert look(table) == (10, 10, 45)


def test_a_clock_that_is_a_month_ahead_makes_no_file_of_a_live_epoch_an_orphan(
    table, monkeypatch, caplog
):
    driver = life(table)
    driver.plan()
    driver.task(1, 0, rows(10, 10))
    shifted_clock(monkeypatch)(30 * DAY)
    assert list(find_orphans(table, 7 * DAY)) == []
    assert "ahead of that of" in caplog.text
    assert staged(table)
