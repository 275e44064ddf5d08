"""A record of each part of `./run test`: wall and processor time of every phase of every test.

The slowest come first. CI keeps the files; `python tests/support/durations.py` sums them by file.
"""

import os
import resource
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / ".krishiv" / "durations"
_CPU_BEFORE = pytest.StashKey[float]()


class DurationRecorder:
    """A pytest plugin that writes `part`.tsv when the run ends."""

    def __init__(self, part: str) -> None:
        self._path = FOLDER / f"{part}.tsv"
        self._phases: list[tuple[float, float, str, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid.encode("unicode_escape").decode()  # parameters contain line breaks
        self._phases.append((report.duration, getattr(report, "cpu", 0.0), report.when, test))

    def pytest_sessionfinish(self) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        lines = ["wall_s\tcpu_s\tphase\ttest"]
        for wall, cpu, phase, test in sorted(self._phases, reverse=True):
            lines.append(f"{wall:.3f}\t{cpu:.3f}\t{phase}\t{test}")
        self._path.write_text("\n".join(lines) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Record a part of `./run test`, in the process that collects the reports."""
    part = os.environ.get("KRISHIV_TEST_PART")  # which passed_tests.py removes
    if part and not hasattr(config, "workerinput"):
        config.pluginmanager.register(DurationRecorder(part))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the processor time since the previous phase; it travels to xdist's controller."""
    report = yield
    now = measure_cpu_seconds()
    report.cpu = now - item.session.stash.get(_CPU_BEFORE, now)  # type: ignore[attr-defined]
    item.session.stash[_CPU_BEFORE] = now
    return report


def measure_cpu_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def sum_by_file(path: Path) -> list[tuple[float, float, int, str]]:
    """Return (cpu_s, wall_s, tests, file) of a recorded part, the most expensive file first."""
    cpu, wall, tests = Counter[str](), Counter[str](), Counter[str]()
    for line in path.read_text().splitlines()[1:]:
        wall_s, cpu_s, phase, test = line.split("\t", 3)
        file = test.partition("::")[0]
        cpu[file] += float(cpu_s)
        wall[file] += float(wall_s)
        tests[file] += phase == "call"
    return [(cpu_s, wall[file], tests[file], file) for file, cpu_s in cpu.most_common()]


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]) if sys.argv[1:] else sorted(FOLDER.glob("*.tsv")):
        rows = sum_by_file(path)
        print(f"{path.stem}: {sum(row[0] for row in rows):.0f} s of processor time")
        for cpu_s, wall_s, tests, file in rows[:40]:
            print(f"{cpu_s:8.1f} s cpu {wall_s:8.1f} s wall {tests:5d} tests  {file}")
