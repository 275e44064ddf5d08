"""Fixtures for every test: one Spark session per process, with a folder of its own."""

import gc
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import quick_jvm
from huge_pages import collapse_memory
from hypothesis import settings
from wheels import (  # noqa: F401  fixtures
    committed_clone,
    installed,
    plain_clone,
    wheel,
    wheel_of_sdist,
)

pytest_plugins = ["durations", "own_processes", "passed_tests", "shared_broker"]

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("SPARK_HOME", quick_jvm.home())
os.environ.setdefault("PYSPARK_SUBMIT_ARGS", quick_jvm.submit(quick_jvm.options()))

# A broker that starts, or was killed, refuses connections in hundreds of lines.
logging.getLogger("kafka").setLevel(logging.CRITICAL)

# The same examples in each run, except in the soak; a failure prints how to see it again.
settings.register_profile("krishiv", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("some", settings.get_profile("krishiv"), max_examples=20)
settings.register_profile("soak", deadline=None, print_blob=True)
settings.load_profile("krishiv")


CORE_CASES = frozenset(
    f"test_{case}"
    for case in (
        "a_stale_driver_cannot_publish",
        "a_stale_driver_finds_the_commit_of_a_dead_one",
        "a_rolled_back_checkpoint_is_refused",
        "an_unknown_outcome_is_looked_up",
        "death_at_any_call",
        "death_while_recovering",
        "lost_attempts_are_swept",
        "nothing_stays_staged",
        "values_are_kept",
        # of a source
        "a_replay_has_the_same_rows",
        "a_restart_at_each_point",
        "an_error_at_any_call",
        "every_row_is_read_once",
        "limits_are_honoured",
        "the_watermark_follows_the_rows",
        # of both
        "random_sequences",
        "sequences_that_failed_once",
    )
)
"""Cases that `./run test` runs of a suite marked `core_cases`; `--all` runs the others too."""


def pytest_configure(config: pytest.Config) -> None:
    """Let the processes that tests start import the support code too."""
    folders = [str(path) for path in config.getini("pythonpath") if "support" in path.parts]
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = dict.fromkeys(filter(None, [*folders, *inherited]))
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def pytest_sessionstart() -> None:
    gc.disable()  # a collection finds nothing among thousands of tests that are kept


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exempt the collected tests from garbage collections, and make forks of them cheap."""
    gc.freeze()
    gc.enable()
    collapse_memory()


@pytest.hookimpl(tryfirst=True)  # before -m selects by the markers, and before xdist assigns groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases of the kit that only `--all` runs, and group tests that share a fixture.

    The tests that share a fixture of their module, or one client of a broker in the kit's suites,
    run in one process of xdist, which creates it once.
    """
    for item in items:
        if _runs_only_in_full(item):
            item.add_marker(pytest.mark.long)
        if not item.get_closest_marker("xdist_group"):
            scopes = _scopes_of_fixtures(item)
            if "module" in scopes:
                item.add_marker(pytest.mark.xdist_group(item.path.stem))
            elif "class" in scopes:
                item.add_marker(pytest.mark.xdist_group(item.nodeid.rpartition("::")[0]))


def _runs_only_in_full(item: pytest.Item) -> bool:
    case = item.name.partition("[")[0]
    long_cases = item.get_closest_marker("long_cases")
    if long_cases and case in long_cases.args:
        return True
    if item.get_closest_marker("variant"):
        return case != "test_random_sequences"
    return item.get_closest_marker("core_cases") is not None and case not in CORE_CASES


def _scopes_of_fixtures(item: pytest.Item) -> set[str]:
    info = getattr(item, "_fixtureinfo", None)
    fixtures = info.name2fixturedefs.values() if info else ()
    return {definitions[-1].scope for definitions in fixtures}


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:  # noqa: F821
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory(prefix="krishiv-spark-") as folder:
        os.environ["KRISHIV_MEMORY_DIR"] = f"{folder}/memory"
        session = (
            SparkSession.builder.master("local[2]")
            .appName("krishiv-spark-tests")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "1g")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
            .config("spark.sql.session.timeZone", "America/New_York")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()


@pytest.fixture(autouse=True)
def fresh_contacts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test the time-outs of a process that has not contacted a store or broker yet."""
    monkeypatch.setattr("krishiv_spark.runtime.contact._contacted", set())
    monkeypatch.setattr("krishiv_spark.runtime.contact._waiting_processes", set())


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
