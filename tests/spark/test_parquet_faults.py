"""Faults of tasks and drivers, into a Parquet table."""

from pathlib import Path

import duckdb
import pytest
from fault_cases import Cases, DriverFaults, TaskFaults, run


class Table(Cases):
    @pytest.fixture
    def sink(self, tmp_path):
        return {
            "format": "krishiv-parquet",
            "options": {"path": str(tmp_path / "out"), "partitionBy": "day"},
        }

    def ids(self, job):
        files = f"{job['options']['path']}/**/*.parquet"
        if not list(Path(job["options"]["path"]).glob("**/*.parquet")):
            return []
        return [row for (row,) in duckdb.sql(f"SELECT id FROM read_parquet('{files}')").fetchall()]


@pytest.mark.long  # in every run with a topic
class TestDrivers(Table, DriverFaults):
    pass


class TestTasks(Table, TaskFaults):
    @pytest.mark.long  # tests/kit/test_parquet_sink.py has every call to the outside fail
    def test_a_commit_that_fails_behind_the_intent_is_finished_by_the_restart(self, job):
        table = Path(job["options"]["path"])
        table.mkdir()
        blocked = table / "day=2013-01-02"
        blocked.touch()  # a file where a partition's folder has to be: the rename cannot happen
        driver = run(job, "FAILED")
        assert "File exists" in driver.lines[-1] or "Not a directory" in driver.lines[-1]
        blocked.unlink()
        run(job)
        self.assert_exact(job)
