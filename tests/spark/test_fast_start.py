"""Queries whose Python processes are forks of one: `krishiv_spark.fast_start`."""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from zipfile import ZipFile

import psutil
import pytest
import quick_jvm
from clusters import Cluster
from drivers import SUPPORT, Driver
from killers import Killer
from lookers import DiskLooker
from patience import PATIENCE
from tables import look, make_input

from krishiv_spark.testing.real_spark.driver import DriverProcess

pytestmark = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="forks are for Linux, with pidfds"
)
FILES, ROWS = 60, 50
ZYGOTE = "krishiv_spark.spark.fast_start.zygote"
LAUNCHER = "krishiv_spark.spark.fast_start.launcher"
PROGRAM = Path(sys.executable).with_name("krishiv-spark-python")


@pytest.fixture
def job(tmp_path: Path, monkeypatch) -> dict[str, object]:
    make_input(tmp_path / "in", FILES, ROWS)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return {
        "source": str(tmp_path / "in"),
        "table": str(tmp_path / "out"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "conf": {"spark.master": "local[2,8]"},  # a task whose worker was killed is tried again
        "fast_start": True,
    }


def pythons(folder: Path) -> dict[psutil.Process, list[str]]:
    """Command lines below the drivers of a test, by process; it is named by its folder."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("TMPDIR") == str(folder) and "-m" in process.cmdline():
                found[process] = process.cmdline()
    return found


def zygotes(folder: Path) -> list[psutil.Process]:
    """Those, and their forks, which look alike."""
    return [each for each, words in pythons(folder).items() if ZYGOTE in words]


def jvms_of_zygotes(folder: Path) -> set[str]:
    """The JVMs that they are told of, by number."""
    return {words[-3] for words in pythons(folder).values() if ZYGOTE in words}


def is_whole(job) -> bool:
    total = FILES * ROWS
    return look(Path(job["table"])) == (total, total, total * (total - 1) // 2)


def test_source_sink_and_functions_run_in_forks_with_files_that_were_added(job, tmp_path) -> None:
    added = module_in(tmp_path / "added", "def apply(value):\n    return value\n")
    job |= {"py_files": [added], "udfs": {"added_module": "id"}}
    with Driver("stream_copy.py", job) as driver:
        driver.wait_for("EPOCH")
        assert_all_are_forks(tmp_path / "tmp")
        driver.wait_for("DONE", 2 * PATIENCE)
    assert is_whole(job)


def module_in(folder: Path, text: str) -> str:
    """An archive with `added_module`, whose function `apply` is defined by a text."""
    folder.mkdir(exist_ok=True)
    with ZipFile(folder / "added.zip", "w") as archive:
        archive.writestr("added_module.py", text)
    return str(folder / "added.zip")


def assert_all_are_forks(folder: Path) -> None:
    started = pythons(folder)
    assert started
    for process, words in started.items():
        with suppress(psutil.Error):
            parents = process.parents()
            assert ZYGOTE in words or LAUNCHER in words, (words, parents, started)


@pytest.mark.long
def test_files_and_archives_of_spark_submit(job, tmp_path, monkeypatch) -> None:
    """The JVM is there before the program: the variables have to be there before both."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, str(PROGRAM))
    with ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("zero.txt", "0")
    added = module_in(
        tmp_path / "added",
        "from pyspark import SparkFiles\n"
        "def apply(value):\n"
        "    with open(SparkFiles.get('data/zero.txt')) as file:\n"
        "        return value + int(file.read())\n",
    )
    submit = [f"{quick_jvm.home()}/bin/spark-submit", "--driver-memory", "700m"]
    submit += ["--driver-java-options", quick_jvm.options()]
    submit += ["--py-files", added, "--archives", f"{tmp_path}/data.zip#data"]
    job |= {"udfs": {"added_module": "id"}, "fast_start": False}
    command = [*submit, str(SUPPORT / "stream_copy.py"), json.dumps(job)]
    with DriverProcess(command, os.environ) as driver:
        assert driver.says("EPOCH", PATIENCE), "\n".join(driver.lines[-40:])
        assert_all_are_forks(tmp_path / "tmp")
        assert driver.says("DONE", 2 * PATIENCE), "\n".join(driver.lines[-40:])
    assert is_whole(job)


@pytest.mark.long
def test_two_applications_on_one_cluster_share_no_process(job, tmp_path) -> None:
    with Cluster(tmp_path / "cluster") as cluster:
        jobs = [an_application(job, tmp_path / str(n), cluster.url, 10_000 * n) for n in (0, 1)]
        with Driver("stream_copy.py", jobs[0]) as one, Driver("stream_copy.py", jobs[1]) as other:
            for driver in (one, other):
                driver.wait_for("EPOCH", 2 * PATIENCE)
            # Of two drivers, and of the executor that each of them has. Four that import at once on
            # a busy machine may take longer than their JVMs' first processes wait for them.
            assert len(jvms_of_zygotes(tmp_path / "tmp")) == 4
            for driver in (one, other):
                driver.wait_for("DONE", 2 * PATIENCE)
    rows = FILES * ROWS
    for n, each in enumerate(jobs):
        added = n * 10_000 * rows
        assert look(Path(each["table"])) == (rows, rows, rows * (rows - 1) // 2 + added)


def an_application(job, folder: Path, url: str, adds: int):
    """One that adds to the ids, by a module that another one has under the same name."""
    conf = {
        "spark.master": url,
        "spark.cores.max": "1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": quick_jvm.options(),
        "spark.driver.host": "127.0.0.1",
    }
    added = module_in(folder, f"def apply(value):\n    return value + {adds}\n")
    own = {"table": str(folder / "out"), "checkpoint": str(folder / "checkpoint")}
    return {**job, **own, "conf": conf, "py_files": [added], "udfs": {"added_module": "id"}}


@pytest.mark.crash
@pytest.mark.once
@pytest.mark.timeout(2400)
def test_kills_of_zygotes_and_forks_lose_and_repeat_nothing(job, tmp_path) -> None:
    def kill(which):
        def now():
            found = zygotes(tmp_path / "tmp")
            numbers = {each.pid for each in found}
            for each in found:
                with suppress(psutil.Error):
                    if (each.ppid() in numbers) is (which == "fork"):
                        each.kill()

        return now

    more = {which: kill(which) for which in ("fork", "zygote")}
    with DiskLooker(Path(job["table"])) as looker:
        Killer("stream_copy.py", job, sign="STARTED", pauses=(0.0, 2.0), more=more).run(6)
    assert not looker.problems + looker.failures
    assert is_whole(job)
