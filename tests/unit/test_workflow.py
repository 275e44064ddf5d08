"""What public runners are told to do is well-formed, and calls commands that there are."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
LINES = {"3.10", "3.11", "3.12", "3.13", "3.14"}, {"4.0", "4.1", "4.2", "4.3"}


def steps_of(workflow):
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_the_form_that_runners_read(workflow):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    checked = subprocess.run(
        [*command, "vendor.github-workflows", workflow],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_scripts_and_options_that_there_are(workflow):
    usage = subprocess.run([ROOT / "run", "help"], capture_output=True, text=True, check=True)
    ours = [words for step in steps_of(workflow) if (words := step.split())[0][0] == "."]
    assert ours
    for script, *arguments in ours:
        assert (ROOT / script).stat().st_mode & 0o111
        for option in re.findall(r"--[a-z]+", " ".join(arguments)):
            assert option in usage.stdout


def test_each_python_meets_each_pyspark():
    (workflow,) = WORKFLOWS
    matrix = yaml.safe_load(workflow.read_text())["jobs"]["versions"]["strategy"]["matrix"]
    assert (set(matrix["python"]), set(matrix["spark"])) == LINES
    assert not matrix.keys() & {"include", "exclude"}
    assert len(matrix["system"]) == 2
