"""Faults of tasks and drivers of a stream on real Spark, for any sink."""

import signal
import time
from pathlib import Path

import pytest
import quick_jvm
from clusters import Cluster
from drivers import Driver
from patience import PATIENCE
from tables import make_input

FILES, ROWS = 12, 30
TOTAL = FILES * ROWS

SPECULATION = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": quick_jvm.options(),
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
}


def run(job, word: str = "DONE", **changes) -> Driver:
    with Driver("faulty_stream.py", {**job, **changes}) as driver:
        driver.wait_for(word)
    return driver


def await_path(path: Path, driver: Driver) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if path.exists():
            return
        assert driver.outlives(0.05), "\n".join(driver.lines[-40:])
    raise AssertionError(f"{path} did not appear: " + "\n".join(driver.lines[-40:]))


class Cases:
    """A class for a sink has a fixture `sink`, which names it, and a method that reads its rows."""

    def ids(self, job) -> list[int]:
        """The ids that a reader sees."""
        raise NotImplementedError

    @pytest.fixture
    def job(self, tmp_path: Path, sink: dict[str, object]) -> dict[str, object]:
        make_input(tmp_path / "in", FILES, ROWS)
        return {
            "source": str(tmp_path / "in"),
            "checkpoint": str(tmp_path / "checkpoint"),
            "release": str(tmp_path / "release"),
            "fault": "none",
            "conf": {},
            **sink,
        }

    def assert_exact(self, job) -> None:
        assert sorted(self.ids(job)) == list(range(TOTAL))


class TaskFaults(Cases):
    """Tasks fail, and Spark starts them again, or another beside them."""

    @pytest.mark.long  # so are tasks whose worker is killed, in test_*_crash.py
    def test_retried_tasks_leave_it_exact(self, job):
        run(job, fault="fail", conf={"spark.master": "local[2,3]"})
        self.assert_exact(job)

    @pytest.mark.long
    def test_a_batch_whose_task_fails_for_good_shows_nothing_of_itself(self, job):
        driver = run(job, "FAILED", fault="fail")
        assert "told to fail" in driver.lines[-1]
        assert self.ids(job) == []
        run(job)
        self.assert_exact(job)

    def test_a_speculative_twin_leaves_it_exact(self, job, tmp_path):
        with Cluster(tmp_path / "cluster") as cluster:
            run(job, fault="stall", conf={"spark.master": cluster.url, **SPECULATION})
        assert (tmp_path / "release.twin").exists()
        self.assert_exact(job)


class DriverFaults(Cases):
    """Drivers stop and fall asleep."""

    @pytest.mark.long
    def test_a_stop_in_mid_write_is_survived(self, job, tmp_path):
        with Driver("faulty_stream.py", {**job, "fault": "stall", "stop": True}) as driver:
            driver.wait_for("STARTED")
            await_path(tmp_path / "release.stalled", driver)
        assert self.ids(job) == []
        run(job)
        self.assert_exact(job)

    def test_a_stale_driver_is_fenced_by_the_one_that_took_over(self, job, tmp_path):
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
        self.assert_fenced(stale.lines[-1])
        self.assert_exact(job)

    def assert_fenced(self, said: str) -> None:
        assert "Fenced" in said, said
