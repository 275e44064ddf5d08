"""The recorded counts of ``benchmarks/counts.json``, and the differences of new ones from them."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.counts.count import Count

__all__ = ["FILE", "Difference", "Record", "Verdict", "newest_of", "packages", "python"]

FILE = Path(__file__).parent.parent / "counts.json"

_ANY = "any"
"""In the place of a version of Python, for what depends on none."""

_PACKAGES = (
    "pyspark",
    "pyarrow",
    "numpy",
    "pydantic",
    "pyiceberg",
    "sqlalchemy",
    "kafka-python",
    "numba",
)
_DIGITS = 4

Found = Mapping[str, Sequence[Count]]
"""The counts of cases, by their names."""


class Verdict(Enum):
    """The meaning of a difference."""

    SAME = "as recorded"
    REGRESSION = "REGRESSION"
    GAIN = "gain: keep it with --record"
    UNKNOWN = "not recorded"


@dataclass(frozen=True)
class Difference:
    """A count beside the recorded one.

    Attributes:
        case: Which case has counted.
        count: What it found.
        recorded: What is recorded; None for nothing.
        verdict: What that means.
    """

    case: str
    count: Count
    recorded: float | None
    verdict: Verdict

    @property
    def percent(self) -> float | None:
        """Return the increase over the recorded count in per cent; None if that is no number."""
        if not self.recorded:
            return None
        return (self.count.value / self.recorded - 1) * 100


@dataclass
class Record:
    """The counts that are kept.

    Attributes:
        taken: By minor version of Python, the versions of packages that were installed.
        cases: By case and name, the unit, and the value by minor version of Python or `_ANY`.
    """

    taken: dict[str, dict[str, str]] = field(default_factory=dict)
    cases: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)

    @classmethod
    def load(cls, file: Path = FILE) -> Record:
        """Read a record; an empty one if there is none."""
        try:
            found = json.loads(file.read_text())
        except FileNotFoundError:
            return cls()
        return cls(found["taken"], found["cases"])

    def save(self, file: Path = FILE) -> None:
        """Write it: one line for each count, so that changes can be read."""
        taken = ",\n".join(f"  {_text(name)}: {_text(what)}" for name, what in self.taken.items())
        cases = ",\n".join(_case(name, self.cases[name]) for name in sorted(self.cases))
        file.write_text(f'{{"taken": {{\n{taken}\n}},\n"cases": {{\n{cases}\n}}}}\n')

    def keep(self, found: Found) -> None:
        """Take counts over; those of other cases and of other versions of Python stay."""
        here = python()
        self.taken = dict(sorted({**self.taken, here: packages()}.items()))
        for case, counts in found.items():
            before = self.cases.get(case, {})
            self.cases[case] = {}
            for count in counts:
                key = here if count.rule.of_python else _ANY
                kept = {**before.get(count.name, {}), "unit": count.unit}
                kept[key] = round(count.value, _DIGITS)
                self.cases[case][count.name] = kept
            self._keep_of_others(case, before, here)

    def _keep_of_others(self, case: str, before: Mapping[str, dict[str, Any]], here: str) -> None:
        """Keep the counts that another version of Python has and this one lacks."""
        for name, kept in before.items():
            others = {key: value for key, value in kept.items() if key not in (here, _ANY)}
            if name not in self.cases[case] and len(others) > 1:
                self.cases[case][name] = others

    # --- comparing

    def differences(self, found: Found) -> Iterator[Difference]:
        """Each count beside what is recorded, and what is recorded but was not found."""
        for case, counts in found.items():
            names = {count.name for count in counts}
            for count in [*counts, *self._vanished(case, names)]:
                recorded = self._recorded(case, count)
                yield Difference(case, count, recorded, self._verdict(count, recorded))

    def _vanished(self, case: str, names: set[str]) -> Iterator[Count]:
        """Yield the counts that no longer exist, which are as good as zero."""
        for name, kept in self.cases.get(case, {}).items():
            count = Count(name, kept["unit"], 0.0)
            if name not in names and self._key(count) in kept and not _is_of_linux(count):
                yield count

    def _recorded(self, case: str, count: Count) -> float | None:
        kept = self.cases.get(case, {}).get(count.name, {})
        found = kept.get(self._key(count))
        if found is None and self._knows(case, count):
            return 0.0  # it is new where others of its kind are known
        return None if found is None else float(found)

    def _knows(self, case: str, count: Count) -> bool:
        """Return True if any count of this kind is recorded for the case."""
        return any(
            kept["unit"] == count.unit and self._key(count) in kept
            for kept in self.cases.get(case, {}).values()
        )

    def _verdict(self, count: Count, recorded: float | None) -> Verdict:
        if recorded is None:
            return Verdict.UNKNOWN
        others = self.other_packages().keys()
        same = python() in self.taken and others <= (set() if count.rule.of_spark else {"pyspark"})
        off = count.value - recorded
        if abs(off) <= count.rule.allows(recorded, same_packages=same):
            return Verdict.SAME
        return Verdict.REGRESSION if off > 0 else Verdict.GAIN

    @staticmethod
    def _key(count: Count) -> str:
        return python() if count.rule.of_python else _ANY

    def other_packages(self) -> dict[str, tuple[str, str]]:
        """Versions of packages that differ from those of the record: recorded, and here."""
        here, then = packages(), self.taken.get(python(), {})
        return {
            name: (then.get(name, "none"), here.get(name, "none"))
            for name in sorted(here.keys() | then.keys())
            if then and then.get(name) != here.get(name)
        }


def _is_of_linux(count: Count) -> bool:
    """Return True if other systems have no such count."""
    return not Path("/proc/self/io").exists() and (
        count.unit == "system calls" or count.name.startswith(("bytes read", "bytes written"))
    )


def _case(name: str, counts: Mapping[str, Any]) -> str:
    lines = ",\n".join(f"  {_text(each)}: {_text(counts[each])}" for each in sorted(counts))
    return f" {_text(name)}: {{\n{lines}\n }}"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def newest_of(kept: Mapping[str, Any]) -> float:
    """Return a recorded count: that of the newest Python, if it depends on the version."""
    if _ANY in kept:
        return float(kept[_ANY])
    versions = [key for key in kept if key != "unit"]
    return float(kept[max(versions, key=lambda each: [int(part) for part in each.split(".")])])


def python() -> str:
    """Return the minor version of this Python, as ``3.11``."""
    return ".".join(platform.python_version_tuple()[:2])


def packages() -> dict[str, str]:
    """Return the versions of packages that counts may depend on."""
    found = {"Python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
