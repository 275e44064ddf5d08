"""The workflows of public runners are well-formed, and call existing commands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
DEPENDABOT = ROOT / ".github/dependabot.yml"
LINES = {"3.10", "3.11", "3.12", "3.13", "3.14"}, {"4.0", "4.1", "4.2", "4.3"}
PINNED = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


def steps_of(workflow):
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


@pytest.mark.long  # starts check-jsonschema
@pytest.mark.parametrize("path", [*WORKFLOWS, DEPENDABOT], ids=lambda path: path.name)
def test_a_file_has_the_form_that_runners_read(path):
    schema = "vendor.dependabot" if path == DEPENDABOT else "vendor.github-workflows"
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema]
    checked = subprocess.run([*command, path], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_each_action_is_pinned_by_its_commit(workflow):
    used = re.findall(r"uses: *(.+)", workflow.read_text())
    assert used
    assert [action for action in used if not PINNED.fullmatch(action)] == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_reads_the_repository_and_keeps_no_token(workflow):
    tree = yaml.safe_load(workflow.read_text())
    assert tree["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in tree[True]  # YAML 1.1 takes the key "on" for a boolean
    steps = [step for job in tree["jobs"].values() for step in job["steps"]]
    checkouts = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
    assert checkouts
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_only_the_job_that_publishes_has_an_identity_and_it_runs_no_code_of_the_repository():
    permitted = {
        (path.name, name): job
        for path in WORKFLOWS
        for name, job in yaml.safe_load(path.read_text())["jobs"].items()
        if "permissions" in job
    }
    assert permitted.keys() == {("publish.yml", "publish")}
    job = permitted["publish.yml", "publish"]
    assert job["permissions"] == {"id-token": "write"}
    assert job["environment"] == "pypi"
    assert [step.get("uses", step.get("run")).partition("@")[0] for step in job["steps"]] == [
        "actions/download-artifact",
        "rm dist/*.json",
        "pypa/gh-action-pypi-publish",
    ]


def test_what_is_locked_has_updates():
    updates = yaml.safe_load(DEPENDABOT.read_text())["updates"]
    there = {
        update["package-ecosystem"]: ROOT / update["directory"].lstrip("/") for update in updates
    }
    assert {"pip", "github-actions", "npm"} == there.keys()
    assert list(there["pip"].glob("spark-*.txt"))
    assert (there["npm"] / "package-lock.json").exists()


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_scripts_and_options_that_there_are(workflow):
    usage = subprocess.run([ROOT / "run", "help"], capture_output=True, text=True, check=True)
    ours = [words for step in steps_of(workflow) if (words := step.split())[0][0] == "."]
    assert ours, "a workflow without a command of this repository"
    for script, *arguments in ours:
        assert (ROOT / script).stat().st_mode & 0o111
        for option in re.findall(r"--[a-z]+", " ".join(arguments)):
            assert option in usage.stdout


def test_each_python_meets_each_pyspark_that_it_can_have():
    nightly = ROOT / ".github/workflows/nightly.yml"
    matrix = yaml.safe_load(nightly.read_text())["jobs"]["versions"]["strategy"]["matrix"]
    assert (set(matrix["python"]), set(matrix["spark"])) == LINES
    assert "include" not in matrix
    assert matrix["exclude"] == [{"python": "3.10", "spark": "4.3"}]  # which needs Python 3.11
    assert len(matrix["system"]) == 2
