"""A count, and how far it may be from the one that was recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["LOOP", "RULES", "Count", "Rule", "Seen", "least", "per"]

LOOP = "x loop"
"""Processor time, as a multiple of what a fixed loop takes beside it (`effort`)."""


@dataclass(frozen=True)
class Rule:
    """The permitted distance of a count from the recorded one, on either side.

    Attributes:
        percent: Of what was recorded.
        slack: In the count's unit; the wider of the two holds.
        of_python: Whether Python's minor version and the packages decide about it as well as our
            code: then it is kept for each minor version.
        elsewhere: Per cent where other versions of packages are installed than were recorded with.
        of_spark: Whether PySpark is one of these packages.
    """

    percent: float
    slack: float = 0.0
    of_python: bool = False
    elsewhere: float = 0.0
    of_spark: bool = False

    def allows(self, recorded: float, *, same_packages: bool) -> float:
        """Return the permitted distance of a count from a recorded one."""
        percent = self.percent if same_packages else max(self.percent, self.elsewhere)
        return max(self.slack, abs(recorded) * percent / 100)


RULES: Mapping[str, Rule] = {
    "calls": Rule(2.0, of_python=True, elsewhere=10.0),
    "calls beside a broker": Rule(10.0, of_python=True, elsewhere=15.0),  # waiting calls too
    "calls of a process": Rule(2.0, of_python=True, elsewhere=20.0, of_spark=True),
    "looks": Rule(2.0, of_python=True, elsewhere=10.0),
    "modules": Rule(2.0, slack=3.0, of_python=True, elsewhere=10.0),
    "heavy modules": Rule(0.0, of_python=True),
    LOOP: Rule(40.0, of_python=True, elsewhere=60.0),
    "files": Rule(1.0, slack=0.02),
    "statements": Rule(1.0, slack=0.02),
    "requests": Rule(2.0, slack=0.05),
    "system calls": Rule(2.0, slack=0.1, elsewhere=10.0),
    "kernel calls": Rule(2.0, slack=0.1, of_python=True, elsewhere=10.0),
    "bytes": Rule(2.0, slack=0.5, elsewhere=10.0),
    "bytes held": Rule(5.0, slack=0.5, of_python=True, elsewhere=10.0),
    # A batch is encoded while another is sent: one more may be held, a tenth of the maximum.
    "bytes held beside a broker": Rule(15.0, of_python=True),
    "processes": Rule(0.0, slack=2.0, elsewhere=50.0, of_spark=True),
    "jobs": Rule(0.0, elsewhere=50.0, of_spark=True),
}
"""By unit. Smaller is better for each of them."""


@dataclass(frozen=True)
class Count:
    """One that a case has found.

    Attributes:
        name: What was counted, of what: unique in its case.
        unit: One of `RULES`.
        value: How many.
    """

    name: str
    unit: str
    value: float

    @property
    def rule(self) -> Rule:
        """Return the permitted distance."""
        return RULES[self.unit]


Seen = Counter[tuple[str, str]]
"""Observed counts, by their name and unit."""


def per(seen: Seen, times: int, what: str = "") -> Iterator[Count]:
    """Yield the observed counts, divided by the number of repetitions.

    Args:
        seen: What was counted.
        times: How many epochs or rows that was for.
        what: After each name, behind a comma; nothing if empty.
    """
    for (name, unit), number in sorted(seen.items()):
        if number:
            yield Count(f"{name}, {what}" if what else name, unit, number / times)


def least(times: Sequence[Seen]) -> Seen:
    """Return the minimum of each count, since other processes determine some repetitions."""
    return Seen({key: min(seen[key] for seen in times) for key in {k for s in times for k in s}})
