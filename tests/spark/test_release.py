"""A trial of the release in an empty environment: ``./run release-check``."""

import json
import shutil
import subprocess
import sys

import pytest
from patience import PATIENCE

from release.__main__ import LINES

pytestmark = [pytest.mark.once, pytest.mark.long]  # what is in the wheel: project/test_packaging.py


@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is missing: ./run has it on its path")
@pytest.mark.timeout(1200)  # where nothing is in uv's cache yet
@pytest.mark.parametrize("line", LINES)
def test_a_release_could_be_made(line, committed_clone, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "release", "--spark", line, "--dist", tmp_path / "dist"],
        cwd=committed_clone,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE * 4,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pip-audit" in done.stdout
    dist = tmp_path / "dist"
    assert sorted(path.suffix for path in dist.iterdir()) == [".gz", ".json", ".whl"]
    (listed,) = dist.glob("*.cdx.json")
    names = {part["name"] for part in json.loads(listed.read_text())["components"]}
    assert {"pyspark", "pyarrow", "pyiceberg"} <= names
    assert not names & {"pytest", "ruff", "mkdocs"}
