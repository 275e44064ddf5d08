"""``krishiv-spark new``: what it makes runs as it is, from the wheel."""

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from krishiv_spark.cli import main


def made(folder, kind, name="my_orders"):
    done = CliRunner().invoke(main, ["new", kind, name, "--into", str(folder)])
    assert done.exit_code == 0, done.output
    return folder / name


def green(project, installed, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *arguments],
        cwd=project,
        env={**os.environ, "PYTHONPATH": f"{installed}{os.pathsep}{project}"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


@pytest.mark.once
def test_a_project_is_green(installed, tmp_path):
    assert "1 passed" in green(made(tmp_path, "project"), installed)


@pytest.mark.once
@pytest.mark.long  # the same code is in tests/kit
def test_a_connector_is_green(installed, tmp_path):
    project = made(tmp_path, "connector")
    assert "sqlite" not in (project / "pyspark_my_orders.py").read_text()
    green(project, installed, "--one-in", "16")


def test_nothing_is_written_over(tmp_path):
    made(tmp_path, "project")
    again = CliRunner().invoke(main, ["new", "project", "my_orders", "--into", str(tmp_path)])
    assert "exists already" in again.output
    odd = CliRunner().invoke(main, ["new", "project", "My Orders", "--into", str(tmp_path)])
    assert "is not a valid name" in odd.output
