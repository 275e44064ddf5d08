"""Fixtures for every test: one Spark session per process, with a folder of its own."""

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import quick_jvm
from hypothesis import settings
from wheels import (  # noqa: F401  fixtures
    committed_clone,
    installed,
    plain_clone,
    wheel,
    wheel_of_sdist,
)

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("SPARK_HOME", quick_jvm.home())
os.environ.setdefault("PYSPARK_SUBMIT_ARGS", quick_jvm.submit(quick_jvm.options()))

# A broker that starts, or was killed, refuses connections in hundreds of lines.
logging.getLogger("kafka").setLevel(logging.CRITICAL)

# The same examples in each run, except in the soak; a failure prints how to see it again.
settings.register_profile("krishiv", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("soak", deadline=None, print_blob=True)
settings.load_profile("krishiv")


@pytest.hookimpl(tryfirst=True)  # before -m selects by the markers, and xdist deals groups out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the kit's suite for a variant, the random sequences try all of it a little.

    Of a suite with `long_cases`, all but those are short. What shares a broker, or compiled code,
    runs in one process of xdist, which makes it once.
    """
    for item in items:
        if item.get_closest_marker("variant") and item.name != "test_random_sequences":
            item.add_marker(pytest.mark.long)
        long_cases = item.get_closest_marker("long_cases")
        if long_cases and item.name.partition("[")[0] in long_cases.args:
            item.add_marker(pytest.mark.long)
        if not item.get_closest_marker("xdist_group") and _shares_with_its_module(item):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def _shares_with_its_module(item: pytest.Item) -> bool:
    known = getattr(item, "_fixtureinfo", None)
    made = known.name2fixturedefs.values() if known else ()
    return any(definitions[-1].scope == "module" for definitions in made)


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
def answered_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has the patience with stores, catalogs and brokers of a new process."""
    monkeypatch.setattr("krishiv_spark.runtime.contacts._here", set())
    monkeypatch.setattr("krishiv_spark.storage.patience._patient", set())


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
