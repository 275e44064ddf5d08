"""examples/flights.ipynb runs from top to bottom, and lies in git without what it has shown."""

import os
import subprocess
import sys

import nbformat
import pytest
from patience import PATIENCE
from wheels import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
RUN = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], 4)
NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""


def cells(path, kind="code"):
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == kind]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_lies_in_git_without_what_it_has_shown(path):
    assert not [cell for cell in cells(path) if cell.outputs or cell.execution_count]


def run(path, folder):
    done = subprocess.run(  # in a process of its own: its threads and sockets are no warnings here
        [sys.executable, "-c", RUN, path, folder / "run.ipynb"],
        cwd=folder,
        env={**os.environ, "KRISHIV_MEMORY_DIR": str(folder / "memory")},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.long  # half a minute; the quickstarts run in every run
@pytest.mark.once
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path, tmp_path):
    run(path, tmp_path)
    shown = [out for cell in cells(tmp_path / "run.ipynb") for out in cell.outputs]
    assert sum("image/png" in out.get("data", {}) for out in shown) == 2


@pytest.mark.once
@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_can_be_run_again(path, tmp_path):
    run(path, tmp_path)
    run(path, tmp_path)
