"""`./run test --all --resume`: what passed on the same code is left out, and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[1] / "support"
CONFTEST = """
from pathlib import Path
import passed_tests
passed_tests.FOLDER = Path({folder!r})
pytest_plugins = ["passed_tests"]
"""
TESTS = """
import os
import pytest

@pytest.mark.parametrize("value", ["plain", "a@b", "line\\nbreak"])
@pytest.mark.xdist_group("together")
def test_passes(value):
    pass

def test_fails():
    assert os.path.exists("mended")

@pytest.fixture
def leaves_badly():
    yield
    assert os.path.exists("mended")

def test_fails_at_the_end(leaves_badly):
    pass

def test_is_skipped():
    pytest.skip("not here")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST.format(folder=str(tmp_path / "passed")))
    (tmp_path / "test_some.py").write_text(TESTS)
    return tmp_path


def _run(project: Path, *, resume: bool, part: str = "part") -> tuple[int, str]:
    environment = os.environ | {"PYTHONPATH": str(SUPPORT), "KRISHIV_TEST_PART": part}
    if resume:
        environment["KRISHIV_TEST_RESUME"] = "yes"
    command = [sys.executable, "-m", "pytest", "-q", "-n2", "--dist=loadgroup", "-Wignore"]
    run = subprocess.run(
        command, check=False, cwd=project, env=environment, capture_output=True, text=True
    )
    return run.returncode, run.stdout.splitlines()[-1].strip("= ").partition(" in ")[0]


@pytest.mark.long  # runs pytest in pytest
def test_only_what_passed_is_left_out(project: Path) -> None:
    assert _run(project, resume=False) == (1, "1 failed, 4 passed, 1 skipped, 1 error")
    (project / "mended").touch()
    assert _run(project, resume=True) == (0, "2 passed, 1 skipped")
    assert _run(project, resume=True) == (0, "1 skipped")


@pytest.mark.long  # runs pytest in pytest
def test_a_part_that_passed_is_green(project: Path) -> None:
    (project / "test_some.py").write_text("def test_one(): pass\n")
    assert _run(project, resume=False)[0] == 0
    assert _run(project, resume=True) == (0, "no tests ran")


@pytest.mark.long  # runs pytest in pytest
def test_a_changed_test_runs_again(project: Path) -> None:
    (project / "mended").touch()
    assert _run(project, resume=False) == (0, "5 passed, 1 skipped")
    (project / "test_some.py").write_text(TESTS + "\n# changed\n")
    assert _run(project, resume=True) == (0, "5 passed, 1 skipped")


@pytest.mark.long  # runs pytest in pytest
def test_parts_do_not_mix_and_a_new_run_forgets(project: Path) -> None:
    (project / "mended").touch()
    _run(project, resume=False)
    assert _run(project, resume=True, part="other") == (0, "5 passed, 1 skipped")
    assert _run(project, resume=False) == (0, "5 passed, 1 skipped")
