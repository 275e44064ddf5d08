"""The pages in docs/authors/, followed to the letter, outside the repository, with the wheel."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "authors").glob("*.md"))
SHOWN = re.compile(r"Save this\s+as\s+`(\w+\.py)`.*?```python\n(.*?)```", re.DOTALL)
LINKED = re.compile(r"\]\(\.\./\.\./([\w/]+\.py)\)\s+as\s+`(\w+\.py)`")


@pytest.fixture
def project(tmp_path) -> Path:
    """Return a folder with the files that the guide shows or links, under the names it gives."""
    for page in PAGES:
        text = page.read_text()
        found = dict(SHOWN.findall(text))
        for linked, name in LINKED.findall(text):
            found[name] = (ROOT / linked).read_text().replace("from examples.", "from ")
        for name, code in found.items():
            (tmp_path / name).write_text(code)
    return tmp_path


def pytest_in(project: Path, installed: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *arguments],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(installed)},
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.mark.long  # a minute; test_new.py tries what a new project begins with
def test_all_suites_of_the_guide_are_green(project, installed):
    # ./run test --all tries all of their calls, in tests/kit.
    quick = ("-p", "krishiv_spark.testing.plugin", "--one-in", "16")
    done = pytest_in(project, installed, *quick)
    assert done.returncode == 0, done.stdout[-3000:]
    assert {path.name for path in project.glob("*.py")} == {
        "events_service.py",
        "events_source.py",
        "inbox_sink.py",
        "json_source.py",
        "sqlite_sink.py",
        "test_events_source.py",
        "test_inbox_sink.py",
        "test_json_source.py",
        "test_sqlite_sink.py",
        "test_webhook_sink.py",
        "webhook_sink.py",
    }


def test_the_mistake_of_the_guide_fails_as_it_says(project, installed):
    sink = project / "sqlite_sink.py"
    marked = re.compile(r'( +)(db\.execute\("INSERT INTO _epochs.*\n)')
    broken, count = marked.subn(r"\1\2\1db.commit()\n", sink.read_text())
    assert count == 1
    sink.write_text(broken)
    done = pytest_in(project, installed, "-k", "death_at_any_call")
    assert done.returncode == 1
    for part in ("PROMISED", "NO_ROW_LOST", "DONE", "SEEN", "AGAIN", "Sequence(Begin()"):
        assert part in done.stdout, done.stdout[-3000:]
