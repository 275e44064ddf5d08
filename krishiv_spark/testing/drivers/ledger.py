"""The rows that may, must and must not be visible, given the answers that Spark has received."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations

from typing_extensions import override

from krishiv_spark.sinks.base import Guarantee
from krishiv_spark.testing.rows import Row, ranges, refuse_strange
from krishiv_spark.testing.rules import Rule, Violation
from krishiv_spark.testing.subjects import SinkUnderTest

__all__ = ["Fate", "Ledger", "OrderedLedger", "ResultLedger", "Unit"]


_SEEN = {
    Rule.NO_ROW_LOST: "missing rows",
    Rule.NOTHING_TAKEN_BACK: "rows that were visible before, and are not",
    Rule.NO_ROW_TWICE: "rows that are visible more than once",
    Rule.NOTHING_COMES_BACK: "rows that returned",
}


class Fate(Enum):
    """The state of an epoch, as far as the driver knows it."""

    HIDDEN = "no commit was called: it must be invisible"
    OPEN = "a commit was called, but never returned: it may be visible"
    SETTLED = "a commit returned: it must be visible"
    REPLACED = "an overwrite has replaced it: it must be invisible"


@dataclass
class Unit:
    """An epoch of a query, or a batch job.

    Attributes:
        name: Its name in the story.
        rows: Numbers of its rows.
        query: The query, or "jobs" for all batch jobs: its units are committed in order.
        fate: Its state.
        again: Its first rows, if older units contained them too: they may be visible alone.
    """

    name: str
    rows: range
    query: str
    fate: Fate = Fate.HIDDEN
    again: bool = False

    def open(self) -> None:
        """Record that a commit is being called."""
        if self.fate is Fate.HIDDEN:
            self.fate = Fate.OPEN

    def settle(self) -> None:
        """Record that a commit has returned; for a unit replaced meanwhile, it has done nothing."""
        if self.fate is not Fate.REPLACED:
            self.fate = Fate.SETTLED


class Ledger:
    """All units that were written to one sink, in order.

    Args:
        sink: The sink, whose oracle is read.
        complete: True if units replace one another.
    """

    def __init__(self, sink: SinkUnderTest, *, complete: bool) -> None:
        self._sink = sink
        self._complete = complete
        self._units: list[Unit] = []
        self._seen: set[int] = set()
        self._shown = -1
        self._written = 0

    def new(self, query: str, name: str, rows: int, again: range = range(0)) -> Unit:
        """Add a unit with this many new rows, after the rows of earlier units in `again`."""
        first = again.start if again else self._written
        self._written += rows
        unit = Unit(name, range(first, self._written), query, again=bool(again))
        self._units.append(unit)
        return unit

    def overwritten(self, by: Unit) -> None:
        """Record that a commit which replaces all rows has returned."""
        for unit in self._units:
            # A commit that never returned has happened if readers have read its rows.
            if unit.fate is Fate.SETTLED or self._was_seen(unit):
                unit.fate = Fate.REPLACED
                self._seen -= set(unit.rows)
        by.settle()

    def check_refusal(self, unit: Unit) -> None:
        """Check that the rows of a commit refused for certain have not become visible.

        Raises:
            Violation: If they have become visible.
        """
        new = self._visible().keys() - self._seen
        left = self._left([unit])
        if left and new.issuperset(left):
            self._refuse(sorted(left), Rule.NO_IS_NO)

    def look(self) -> None:
        """Compare the oracle's rows with the rules.

        Raises:
            Violation: If one is broken.
        """
        visible = self._visible()
        refuse_strange(visible, self._sink.schema, self._sink.row, self._written)
        counts = {key: count for key, count in visible.items() if isinstance(key, int)}
        if self._sink.promised is Guarantee.EXACTLY_ONCE:
            self._exactly_once(counts)
        elif self._sink.promised is Guarantee.AT_LEAST_ONCE:
            self._at_least_once(counts)
        self._seen |= counts.keys()

    def is_anything_visible(self) -> bool:
        """Return True if readers see any row.

        Raises:
            Violation: If a reader fails.
        """
        return bool(self._visible())

    def _visible(self) -> Counter[int | Row]:
        try:
            return self._sink.visible(self._written)
        except Exception as error:
            seen = f"the oracle fails with {type(error).__name__}: {error}"
            raise Violation(Rule.READABLE, seen) from error

    def _left(self, units: Iterable[Unit]) -> set[int]:
        """Return the rows that readers see after some units, in this order."""
        return {row for unit in units for row in unit.rows}

    def _was_seen(self, unit: Unit) -> bool:
        return self._seen.issuperset(unit.rows)

    def _exactly_once(self, counts: dict[int, int]) -> None:
        self._refuse([row for row, count in counts.items() if count > 1], Rule.NO_ROW_TWICE)
        allowed = {*self._rows(Fate.OPEN), *self._rows(Fate.SETTLED)}
        hidden = [row for row in self._rows(Fate.HIDDEN) if row in counts and row not in allowed]
        self._refuse(hidden, Rule.NOTHING_EARLY)
        replaced = [row for row in self._rows(Fate.REPLACED) if row in counts]
        self._refuse(replaced, Rule.NOTHING_COMES_BACK)
        if self._complete:
            self._newest_only(set(counts))
        else:
            self._all_there(counts)

    def _all_there(self, counts: dict[int, int]) -> None:
        self._none_lost(counts)
        self._refuse([row for row in self._seen if row not in counts], Rule.NOTHING_TAKEN_BACK)
        if self._sink.whole_epochs:
            self._all_whole(counts)

    def _at_least_once(self, counts: dict[int, int]) -> None:
        settled = [unit for unit in self._units if unit.fate is Fate.SETTLED]
        wanted = settled[-1:] if self._complete else settled
        lost = [row for unit in wanted for row in unit.rows if row not in counts]
        self._refuse(lost, Rule.NO_ROW_LOST)

    def _none_lost(self, counts: dict[int, int]) -> None:
        lost = [row for row in self._rows(Fate.SETTLED) if row not in counts]
        self._refuse(lost, Rule.NO_ROW_LOST)

    def _all_whole(self, counts: dict[int, int]) -> None:
        for unit in self._units:
            part = [row for row in unit.rows if row in counts]
            if not unit.again and len(part) not in {0, len(unit.rows)}:
                self._refuse(part, Rule.WHOLE_EPOCHS)

    def _newest_only(self, seen: set[int]) -> None:
        settled = [i for i, unit in enumerate(self._units) if unit.fate is Fate.SETTLED]
        newest = settled[-1] if settled else -1
        results = {newest: self._left(self._units[newest : newest + 1]) if settled else set()}
        # A commit that never returned may have replaced the epoch of the newest one that did.
        for i, unit in enumerate(self._units[newest + 1 :], newest + 1):
            if unit.fate is Fate.OPEN:
                results[i] = self._left([unit])
        found = [i for i, rows in results.items() if rows == seen]
        if found:
            self._go_on_from(found)
        elif not self._is_passing(seen, *results.values()):
            raise Violation(Rule.NEWEST_EPOCH_ONLY, f"visible: {ranges(seen) or 'nothing'}; {self}")

    def _go_on_from(self, found: list[int]) -> None:
        """Record that readers see one of these units, not older than the last one they saw."""
        later = [i for i in found if i >= self._shown]
        if not later:
            shown, now = self._units[self._shown].name, ranges(self._units[found[-1]].rows)
            raise Violation(
                Rule.NOTHING_TAKEN_BACK, f"{shown} was there; visible: {now or 'nothing'}; {self}"
            )
        self._shown = later[0]

    def _is_passing(self, seen: set[int], base: set[int], *later: set[int]) -> bool:
        """Return True if the rows are between two epochs, as a sink without whole epochs allows."""
        is_some = not self._sink.whole_epochs and bool(later)
        covered = base.union(*later)
        return is_some and seen <= covered and any(rows <= seen for rows in [base, *later])

    def _rows(self, fate: Fate) -> Iterable[int]:
        return (row for unit in self._units if unit.fate is fate for row in unit.rows)

    def _refuse(self, rows: Sequence[int | Row], rule: Rule) -> None:
        if rows:
            raise Violation(rule, f"{_SEEN.get(rule, 'visible rows')}: {ranges(rows)}; {self}")

    def __str__(self) -> str:
        units = (f"{u.name} (rows {ranges(u.rows) or 'none'}): {u.fate.value}" for u in self._units)
        return "\n".join(["the results that Spark has:", *units])


class OrderedLedger(Ledger):
    """The units of a sink whose rows replace or change those of earlier units.

    Readers see the result of units, not their rows: from a result, a ledger concludes which of the
    units whose commit has not returned have happened.

    Args:
        sink: The sink, whose oracle is read.
        complete: True if units replace one another.
    """

    def __init__(self, sink: SinkUnderTest, *, complete: bool) -> None:
        super().__init__(sink, complete=complete)
        self._happened: list[Unit] = []

    @override
    def _was_seen(self, unit: Unit) -> bool:
        return any(unit is seen for seen in self._happened)

    def _find_happened(
        self, matches: Callable[[Sequence[Unit]], bool], without: Unit | None = None
    ) -> bool:
        """Remember the units of which readers see the result; False if no units have it.

        Args:
            matches: Returns True if readers see the result of these units.
            without: A unit that is known not to have happened.
        """
        open_units = [
            unit
            for unit in self._units
            if unit.fate is Fate.OPEN and not self._was_seen(unit) and unit is not without
        ]
        for some in (c for n in range(len(open_units) + 1) for c in combinations(open_units, n)):
            happened = [*self._happened, *some]
            applied = [
                unit
                for unit in self._units
                if unit.fate is Fate.SETTLED or any(unit is seen for seen in happened)
            ]
            if matches(applied):
                self._happened = happened
                return True
        return False


class ResultLedger(OrderedLedger):
    """The units of one query on a sink with `SinkUnderTest.result`."""

    @override
    def check_refusal(self, unit: Unit) -> None:
        self._compare(Rule.NO_IS_NO, without=unit)

    @override
    def look(self) -> None:
        self._compare(Rule.RESULT_OF_EPOCHS)

    def _compare(self, rule: Rule, without: Unit | None = None) -> None:
        visible = self._visible()
        if not self._find_happened(lambda units: self._make(units) == visible, without):
            settled = self._make([unit for unit in self._units if unit.fate is Fate.SETTLED])
            lost, more = _list_rows(settled - visible), _list_rows(visible - settled)
            seen = f"after the settled epochs, lost: {lost}; never made by them: {more}"
            raise Violation(rule, f"{seen}; {self}")

    def _make(self, units: Iterable[Unit]) -> Counter[int | Row]:
        return self._sink.remaining(row for unit in units for row in unit.rows)


def _list_rows(rows: Iterable[int | Row]) -> str:
    return "; ".join(sorted(map(str, rows))) or "none"
