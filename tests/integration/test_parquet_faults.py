"""Failing, retried and speculative tasks, a stop in mid-write, a failed commit, two drivers."""

import signal
from pathlib import Path

import pytest
from clusters import Cluster
from drivers import Driver
from tables import look, make_input

FILES, ROWS = 12, 30
TOTAL = FILES * ROWS


@pytest.fixture
def job(tmp_path: Path) -> dict[str, object]:
    make_input(tmp_path / "in", FILES, ROWS)
    return {
        "source": str(tmp_path / "in"),
        "table": str(tmp_path / "out"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "release": str(tmp_path / "release"),
        "fault": "none",
        "conf": {},
    }


def assert_exact(job) -> None:
    assert look(Path(job["table"])) == (TOTAL, TOTAL, TOTAL * (TOTAL - 1) // 2)


def run(job, word: str = "DONE", **changes) -> Driver:
    with Driver("faulty_stream.py", {**job, **changes}) as driver:
        driver.wait_for(word, timeout=120)
    return driver


def test_retried_tasks_leave_the_table_exact(job):
    run(job, fault="fail", conf={"spark.master": "local[2,3]"})
    assert_exact(job)


def test_a_batch_whose_task_fails_for_good_shows_nothing_of_itself(job):
    driver = run(job, "FAILED", fault="fail")
    assert "told to fail" in driver.lines[-1]
    assert look(Path(job["table"])) == (0, 0, 0)
    run(job)
    assert_exact(job)


def test_a_speculative_twin_leaves_the_table_exact(job, tmp_path):
    speculation = {
        "spark.executor.memory": "512m",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "100ms",
    }
    with Cluster(tmp_path / "cluster") as cluster:
        run(job, fault="stall", conf={"spark.master": cluster.url, **speculation})
    assert (tmp_path / "release.twin").exists()
    assert_exact(job)


def test_a_stop_in_mid_write_is_survived(job, tmp_path):
    with Driver("faulty_stream.py", {**job, "fault": "stall", "stop": True}) as driver:
        driver.wait_for("STARTED")
        await_path(tmp_path / "release.stalled", driver)
    assert look(Path(job["table"])) == (0, 0, 0)
    run(job)
    assert_exact(job)


def test_a_commit_that_fails_behind_the_intent_is_finished_by_the_restart(job):
    table = Path(job["table"])
    table.mkdir()
    blocked = table / "day=2013-01-02"
    blocked.touch()  # a file where a partition's folder has to be: the rename cannot happen
    driver = run(job, "FAILED")
    assert "File exists" in driver.lines[-1] or "Not a directory" in driver.lines[-1]
    blocked.unlink()
    run(job)
    assert_exact(job)


def test_a_stale_driver_is_fenced_by_the_one_that_took_over(job, tmp_path):
    stalled = tmp_path / "release.stalled"
    with Driver("faulty_stream.py", {**job, "fault": "stall"}) as stale:
        await_path(stalled, stale)
        stale.signal(signal.SIGSTOP)
        stalled.unlink()
        with Driver("faulty_stream.py", {**job, "fault": "stall"}) as fresh:
            await_path(stalled, fresh)
            stale.signal(signal.SIGCONT)
            Path(job["release"]).touch()
            stale.wait_for("FAILED")
            fresh.wait_for("DONE")
    assert "Fenced" in stale.lines[-1], stale.lines[-1]
    assert_exact(job)


def await_path(path: Path, driver: Driver) -> None:
    for _ in range(1200):
        if path.exists():
            return
        assert driver.outlives(0.05), "\n".join(driver.lines[-40:])
    raise AssertionError(f"{path} did not appear: " + "\n".join(driver.lines[-40:]))
