"""The tests that passed in an interrupted run, which `./run test --all --resume` leaves out.

Each part of the run has a file in `.krishiv/passed/`, to which a test is added when its teardown
has passed. It counts as long as the package, the support code and the test's own file are the same.
"""

import hashlib
import os
from collections.abc import Generator, Iterable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".krishiv" / "passed"
TESTED = (
    *("krishiv_spark", "offsets", "sinks", "sources", "discovery", "servers", "requirements"),
    *("tests/support", "tests/conftest.py", "pyproject.toml"),
)
_ENTRY = pytest.StashKey[str]()


class PassedTests:
    """A pytest plugin of the process that collects the reports: it adds to `part`.txt."""

    def __init__(self, part: str, *, resume: bool) -> None:
        self._path = FOLDER / f"{part}.txt"
        self.earlier = frozenset(_read(self._path) if resume else ())
        FOLDER.mkdir(parents=True, exist_ok=True)
        if not resume:
            self._path.unlink(missing_ok=True)
        self._not_passed: set[str] = set()

    def pytest_configure_node(self, node: object) -> None:
        """Give each worker of xdist the same list, also one that replaces a crashed one."""
        node.workerinput["passed_tests"] = sorted(self.earlier)  # type: ignore[attr-defined]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:  # what is skipped is named again by the next run
            self._not_passed.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid not in self._not_passed:
            with self._path.open("a") as file:  # written at once: the run may be killed
                file.write(f"{report.passed_as}\n")  # type: ignore[attr-defined]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Let a part pass of which all tests passed before."""
        if self.earlier and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK


@pytest.hookimpl(trylast=True)  # durations.py needs the variable too
def pytest_configure(config: pytest.Config) -> None:
    """Record a part of `./run test`, in the process that collects the reports."""
    part = os.environ.pop("KRISHIV_TEST_PART", None)  # not for pytest in tests
    resume = bool(os.environ.pop("KRISHIV_TEST_RESUME", None))
    if part and not hasattr(config, "workerinput"):
        config.pluginmanager.register(PassedTests(part, resume=resume), "passed-tests")


@pytest.hookimpl(tryfirst=True)  # before xdist adds groups to the ids of tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that passed before."""
    recorder = config.pluginmanager.get_plugin("passed-tests")
    worker = getattr(config, "workerinput", {}).get("passed_tests")
    if recorder is None and worker is None:
        return  # no part of `./run test`: a single file shall start at once
    earlier = recorder.earlier if recorder else frozenset(worker)
    for item in items:
        item.stash[_ENTRY] = f"{_compute_digest(item.path)}\t{_escape(item.nodeid)}"
    left_out = [item for item in items if item.stash[_ENTRY] in earlier]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.stash[_ENTRY] not in earlier]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the test's entry; it travels to xdist's controller."""
    report = yield
    report.passed_as = item.stash.get(_ENTRY, "")  # type: ignore[attr-defined]
    return report


@cache
def _compute_digest(test_file: Path) -> str:
    digest = hashlib.sha256(_compute_digest_of_tested().encode())
    digest.update(test_file.read_bytes())
    return digest.hexdigest()[:16]


@cache
def _compute_digest_of_tested() -> str:
    digest = hashlib.sha256()
    for path in _list_files(TESTED):
        digest.update(f"{path.relative_to(ROOT)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _list_files(names: Iterable[str]) -> list[Path]:
    """Return the files in or at `names`, without what Python compiled."""
    found = []
    for path in (ROOT / name for name in names):
        found += path.rglob("*") if path.is_dir() else [path]
    return sorted(p for p in found if p.is_file() and "__pycache__" not in p.parts)


def _read(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _escape(test: str) -> str:
    return test.encode("unicode_escape").decode()  # parameters contain line breaks
