"""``krishiv-spark doctor`` on real clusters: what is well, and what is not."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from clusters import ManyMachines
from kafka_topics import make_topic
from patience import PATIENCE
from store_or_skip import open_when_possible

from krishiv_spark.kafka.dev import open_cluster

COMMAND = str(Path(sys.executable).with_name("krishiv-spark"))

pytestmark = [pytest.mark.once, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def machines():
    with ManyMachines() as found:
        yield found


@pytest.fixture(scope="module")
def bootstrap():
    with open_cluster() as cluster:
        make_topic(cluster.bootstrap, "target")
        yield cluster.bootstrap


@contextmanager
def opened(kind, folder):
    folder.mkdir()
    with open_when_possible(kind, folder) as store:
        yield store


def doctor(machines, *words):
    """The exit code, and what it said."""
    conf = (f"--conf={name}={text}" for name, text in machines.conf().items())
    machine = machines.new_driver()
    done = subprocess.run(
        machine.command(COMMAND, "doctor", *conf, "--tasks=4", *words),
        env=machine.environment(PYSPARK_PYTHON=sys.executable),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.stdout, done.stderr[-3000:]
    return done.returncode, done.stdout + done.stderr


def test_a_python_without_the_package_is_said_to_be_one():
    environment = {**os.environ, "PYSPARK_PYTHON": sys._base_executable}
    done = subprocess.run(
        [COMMAND, "doctor", "--master=local[1]", "--tasks=1"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert "WRONG  the Python that Spark runs has no module" in done.stdout


@pytest.mark.long  # so is the cluster; what is said of reports and places is in tests/unit
def test_a_cluster_that_lacks_nothing_is_well(machines, bootstrap, tmp_path):
    with opened("versity", tmp_path / "store") as store:
        places = (f"--checkpoint={store.url}/c", f"--target={store.url}/t")
        given = [f"--option={name}={text}" for name, text in store.options.items()]
        code, said = doctor(machines, *places, *given, f"--kafka={bootstrap}", "--topic=target")
        assert code == 0, said
        assert sum(line.startswith("ok  ") for line in said.splitlines()) == 11, said
        assert said.count("executor on") == 2
        assert not any(secret in said for secret in store.secrets)
        assert not any((tmp_path / "store/files/box").rglob("*doctor*"))


@pytest.mark.long
def test_what_is_wrong_is_said_of_each_machine_without_secrets(machines, tmp_path):
    with opened("versity", tmp_path / "store") as store:
        options = {**store.options, "storage.s3.secretAccessKey": "not-the-secret"}
        given = [f"--option={name}={text}" for name, text in options.items()]
        places = (f"--checkpoint={store.url}/c", "--target=/tmp/work/table")
        code, said = doctor(machines, *places, *given, "--kafka=127.0.0.1:1")
    wrong = [line for line in said.splitlines() if line.startswith("WRONG")]
    assert code == 1
    assert sum("the driver has written does not exist" in line for line in wrong) == 2, said
    assert any(line.startswith(f"WRONG  checkpoint {store.url}/c, from the") for line in wrong)
    assert sum("cannot reach the cluster" in line for line in wrong) == 3
    assert all("; " in line for line in wrong)
    assert "not-the-secret" not in said
