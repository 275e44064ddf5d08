"""docs/quickstarts.md, to the letter: each script prints what stands below it."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from patience import PATIENCE
from wheels import ROOT

from krishiv_spark.kafka.dev import open_cluster

PAGE = (ROOT / "docs" / "quickstarts.md").read_text()
SCRIPTS = {
    heading: (code, printed)
    for heading, code, printed in re.findall(
        r"^## (\w[\w-]*): .*?```python\n(.*?)```\n\n```text\n(.*?)```",
        PAGE,
        re.MULTILINE | re.DOTALL,
    )
}
BROKER = "127.0.0.1:9092"  # "what the command has printed"
pytestmark = pytest.mark.once


ONE_AFTER_ANOTHER = """
import contextlib, io, json, sys
printed = []
for code in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, {"__name__": "__main__"})
    printed.append(out.getvalue())
json.dump(printed, sys.stdout)
"""


def run(code, folder, given=""):
    """Return the output of a program that runs in a folder, without Spark's own."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=given,
        cwd=folder,
        env={**os.environ, "KRISHIV_MEMORY_DIR": str(folder / "memory")},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def scripts():
    """Each script and what it prints, with the address of a broker that there is."""
    with open_cluster() as cluster:
        code, printed = SCRIPTS["Kafka"]
        assert code.count(BROKER) == 1
        yield {**SCRIPTS, "Kafka": (code.replace(BROKER, cluster.bootstrap), printed)}


def test_there_is_a_script_for_each_format():
    assert list(SCRIPTS) == ["Memory", "Parquet", "Kafka", "Iceberg", "Fan-out"]


def test_the_scripts_print_what_the_page_says(scripts, tmp_path):
    """One after the other in one session; Parquet's again, which repeats nothing."""
    codes, printed = zip(*scripts.values(), scripts["Parquet"], strict=True)
    assert tuple(json.loads(run(ONE_AFTER_ANOTHER, tmp_path, json.dumps(codes)))) == printed


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "Kafka"])
def test_a_script_prints_the_same_when_the_folder_was_removed(name, tmp_path):
    code, printed = SCRIPTS[name]
    assert run(code, tmp_path) == printed
    shutil.rmtree(tmp_path / "quickstart")
    assert run(code, tmp_path) == printed
