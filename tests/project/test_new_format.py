"""The files of a new format: its own and the module of the formats, but no list elsewhere."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from wheels import build_distribution

OWN = {
    "discovery/pyspark_krishiv_tiny.py",
    "sinks/tiny/__init__.py",
    "sinks/tiny/writer.py",
    "sources/tiny/__init__.py",
    "sources/tiny/reader.py",
    "tests/kit/test_tiny_sink.py",
    "tests/kit/test_tiny_source.py",
    "tests/golden/offsets/tiny-v1.json",
}


def contents(tree: Path) -> dict[str, bytes]:
    files = (path for path in tree.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(tree)): path.read_bytes() for path in files}


def run(tree: Path, *command: object, path: Path | str = "") -> str:
    """Return the output of a Python command in a tree, whose modules come first."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def trees(plain_clone, tmp_path_factory) -> tuple[dict[str, bytes], Path]:
    """The files of the repository, and a copy with a format more."""
    tree = tmp_path_factory.mktemp("new") / "krishiv-spark"
    shutil.copytree(plain_clone, tree, symlinks=True)
    before = contents(tree)
    run(tree, "-m", "examples.new_format", "tiny")
    run(tree, "-m", "docs.generate")
    return before, tree


@pytest.mark.long  # creates a format in a clone
def test_a_new_format_adds_its_own_files_and_changes_nothing_but_its_class_and_pages(trees):
    before, tree = trees
    after = contents(tree)
    assert after.keys() - before.keys() == OWN
    changed = {name for name, body in before.items() if after[name] != body}
    assert changed == {"docs/formats.md", "README.md", "krishiv_spark/formats.py"}


@pytest.mark.long  # creates a format in a clone
def test_the_pages_show_a_new_format(trees):
    _, tree = trees
    assert "| `krishiv-tiny` | stream, batch | stream, batch |" in (tree / "README.md").read_text()
    page = (tree / "docs/formats.md").read_text()
    assert "| `path` | required | Where the rows are. |" in page
    assert "| `path` | required | Where the rows go. |" in page


@pytest.mark.long  # creates a format in a clone
def test_the_wheel_has_a_new_format_and_spark_finds_it(trees, tmp_path):
    _, tree = trees
    with zipfile.ZipFile(build_distribution(tree, "wheel", tmp_path / "wheel")) as archive:
        archive.extractall(tmp_path / "installed")
    code = """
import importlib, json, pkgutil
from krishiv_spark.formats import every_format
found = [m.name for m in pkgutil.iter_modules() if m.name.startswith("pyspark_krishiv_")]
spark = {importlib.import_module(name).DefaultSource.format_name for name in found}
print(json.dumps([sorted(spark), [source.format_name for source in every_format()]]))
"""
    spark, ours = json.loads(run(tmp_path, "-c", code, path=tmp_path / "installed"))
    assert spark == ours
    assert "krishiv-tiny" in ours


@pytest.mark.long  # 13 s: runs these tests in a copy
def test_what_holds_of_every_format_holds_of_a_new_one(trees):
    _, tree = trees
    offsets = "tests/unit/test_offset.py::test_every"  # the others know no format
    tests = [
        "tests/project/test_structure.py",
        f"{offsets}_released_form_still_loads_and_keeps_its_text",
        f"{offsets}_form_has_a_golden_file_of_its_version",
        "tests/kit/test_tiny_source.py::TestTinyOffset",
    ]
    run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    modules = [*sorted(name for name in OWN if name.endswith(".py")), "krishiv_spark/formats.py"]
    run(tree, "-m", "ruff", "check", "--no-cache", *modules)
    run(tree, "-m", "ruff", "format", "--check", "--no-cache", *modules)


@pytest.mark.parametrize("name", ["Tiny", "a-b", "../a", "kafka"])
def test_a_name_that_is_none_or_is_taken_changes_nothing(plain_clone, name):
    before = contents(plain_clone)
    command = [sys.executable, "-m", "examples.new_format", name]
    done = subprocess.run(command, cwd=plain_clone, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert contents(plain_clone) == before
