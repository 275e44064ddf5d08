"""The result of a run, as it stands in a JSON file."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from benchmarks.measure import Figure

__all__ = [
    "Machine",
    "Outcome",
    "Results",
    "Taken",
    "Unreadable",
    "is_shown",
    "load",
    "merged",
    "save",
    "summary",
]


class Unreadable(Exception):  # noqa: N818  it names what the file is
    """A file is no result of a run."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True)


class Machine(_Value):
    """The machine that the figures were measured on.

    Attributes:
        system: Kernel and C library.
        processor: Its model.
        cores: That this process may use.
        memory: Bytes.
        filesystem: Of the folder that is written to.
    """

    system: str
    processor: str
    cores: int
    memory: int
    filesystem: str

    def like(self, other: Machine) -> bool:
        """Return True if figures of the two can be compared: the system may have been updated."""
        mine, its = (
            (one.processor, one.cores, round(one.memory / 2**30), one.filesystem)
            for one in (self, other)
        )
        return mine == its


class Taken(_Value):
    """The circumstances of a run.

    Attributes:
        date: When it began, with its time zone.
        commit: Of this repository; empty without one.
        changed: Whether files differed from the commit.
        command: As it was called.
        quick: Smaller and fewer.
        profiled: Whether a profiler slowed it down.
        machine: Where.
        versions: Of what was measured, and of what it was measured with.
        peers: The versions of each peer's jars.
    """

    date: datetime
    commit: str
    changed: bool
    command: str
    quick: bool
    profiled: bool
    machine: Machine
    versions: dict[str, str]
    peers: dict[str, str] = {}


class Outcome(_Value):
    """The results of one benchmark.

    Attributes:
        about: The first line of its description.
        command: Repeats it.
        taken: The run that it belongs to, as `Results.taken` knows it.
        seconds: How long it took.
        figures: What was measured; empty if it failed or could not run.
        missing: What could not be had, by name, and why.
        failed: What was wrong with its output, or stopped it; empty if nothing.
    """

    about: str
    command: str
    taken: str
    seconds: float
    figures: tuple[Figure, ...] = ()
    missing: dict[str, str] = {}
    failed: str = ""


class Results(_Value):
    """Benchmarks of one run, or of several that were merged.

    Attributes:
        taken: The runs, by their date.
        benchmarks: What each benchmark found, by its name.
        is_summary: True if only the figures that `is_shown` selects were kept.
    """

    taken: dict[str, Taken]
    benchmarks: dict[str, Outcome]
    is_summary: bool = False

    def of(self, benchmark: str) -> Taken:
        """Return the run that a benchmark belongs to."""
        return self.taken[self.benchmarks[benchmark].taken]

    def failures(self) -> list[str]:
        """Return the benchmarks that failed."""
        return [name for name, outcome in self.benchmarks.items() if outcome.failed]

    def figures(self) -> Iterator[tuple[str, Figure]]:
        """Each figure, with the name of its benchmark."""
        for name, outcome in self.benchmarks.items():
            for line in outcome.figures:
                yield name, line


def merged(older: Results, newer: Results) -> Results:
    """Return the newer outcome of each benchmark, and the runs that are still needed.

    One that lacked a peer does not take the place of one that had it.
    """
    benchmarks = dict(older.benchmarks)
    for name, outcome in newer.benchmarks.items():
        if name not in benchmarks or outcome.missing.keys() <= benchmarks[name].missing.keys():
            benchmarks[name] = outcome
    needed = {outcome.taken for outcome in benchmarks.values()}
    known = {**older.taken, **newer.taken}
    return Results(
        taken={key: taken for key, taken in known.items() if key in needed},
        benchmarks=dict(sorted(benchmarks.items())),
        is_summary=older.is_summary or newer.is_summary,
    )


def is_shown(line: Figure) -> bool:
    """Return True if the documentation shows a figure: a ratio, or a figure with a goal."""
    return line.unit == "x" or (line.goal is not None and line.unit != "GiB")


def summary(results: Results) -> Results:
    """Return every benchmark with the figures that the documentation shows, and no others.

    A benchmark without such a figure stays, since its duration is used to estimate later runs.
    """
    benchmarks = {
        name: outcome.model_copy(update={"figures": tuple(filter(is_shown, outcome.figures))})
        for name, outcome in results.benchmarks.items()
    }
    return results.model_copy(update={"benchmarks": benchmarks, "is_summary": True})


def load(file: Path) -> Results:
    """Read a result.

    Raises:
        Unreadable: If it is not there, or is none.
    """
    try:
        return Results.model_validate_json(file.read_bytes())
    except OSError as error:
        raise Unreadable(f"{file} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise Unreadable(f"{file} is no result of ./run bench --json: {error}") from error


def save(results: Results, file: Path) -> None:
    """Write a result, for people too."""
    file.write_text(results.model_dump_json(indent=2) + "\n", encoding="utf-8")
