"""The formats under Spark Connect: a client and a local server, both in a process of their own."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from patience import PATIENCE

CLIENT = Path(__file__).parents[1] / "support" / "spark" / "connect_client.py"
NEEDED = ("grpc", "grpc_status", "google.rpc")


def missing() -> list[str]:
    return [name for name in NEEDED if find_spec(name.split(".")[0]) is None]


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> dict:
    if missing():
        pytest.skip(f"Spark Connect needs {', '.join(missing())}: install pyspark[connect]")
    folder = tmp_path_factory.mktemp("connect")
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"PYSPARK_PYTHON": sys.executable, "KRISHIV_MEMORY_DIR": str(folder / "store")}
    done = subprocess.run(
        [sys.executable, str(CLIENT), str(folder)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return json.loads(lines[0].removeprefix("RESULT "))


def test_the_session_is_one_of_connect(result):
    assert result["client"].startswith("pyspark.sql.connect")


def test_a_batch_is_written_and_read(result):
    assert result["batch"] == [[number, number % 3] for number in range(10)]


def test_a_stream_that_is_stopped_and_resumed_is_written_once(result):
    assert result["stream"] == [[0], [1]]


def test_what_was_pushed_in_the_client_comes_back_to_it(result):
    assert result["memory"] == [[10], [20], [30]]


def test_a_sink_is_asked_before_the_start_and_leaves_nothing(result):
    (refusal,) = result["refused"]
    assert refusal.startswith("OptionError: krishiv-parquet: unknown option")
    assert "did you mean 'partitionBy'" in refusal


def test_metrics_are_served_in_the_client(result):
    assert result["metrics"] == [2, 2]


def test_sql_reads_a_format(result):
    assert result["sql"] == [[2]]


def test_registering_works(result):
    assert result["registered"] == [[0], [1]]
