"""The rows that may and must be visible in a target that keeps the newest row of each key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from krishiv_spark.testing.drivers.ledger import Fate, OrderedLedger, Unit
from krishiv_spark.testing.rows import ranges
from krishiv_spark.testing.rules import Rule, Violation

__all__ = ["KeyedLedger"]

_UNTOUCHED = -1

_Choices: TypeAlias = dict[object, set[int | None]]
"""The rows of which readers may see one, by key; None is a deleted row."""


class KeyedLedger(OrderedLedger):
    """All units that were written to one sink with keys, in order.

    A unit that was committed twice in a row hides itself behind its own rows. One that is
    committed again after a later unit does not: its rows replace newer ones.

    Args:
        sink: The sink, with `SinkUnderTest.key`.
        complete: True if units replace one another.
    """

    def _left(self, units: Iterable[Unit]) -> set[int]:
        return self._sink.left(row for unit in units for row in unit.rows)

    def _at_least_once(self, counts: dict[int, int]) -> None:
        # Rows that are written again replace themselves.
        if self._complete:
            super()._at_least_once(counts)
        else:
            self._each_key_newest(set(counts))

    def _all_there(self, counts: dict[int, int]) -> None:
        seen = set(counts)
        self._each_key_newest(seen)
        # Two queries have no order, so many results are right.
        if self._sink.whole_epochs and len({unit.query for unit in self._units}) == 1:
            self._each_epoch_whole(seen)

    def _each_key_newest(self, seen: set[int]) -> None:
        choices = self._choices()
        visible: dict[object, list[int]] = {}
        for row in sorted(seen):
            visible.setdefault(self._key(row), []).append(row)
        wrong = [
            f"key {key!r}: visible: {ranges(rows) or 'no row'}; allowed: {_list_choices(allowed)}"
            for key, allowed in choices.items()
            if (rows := visible.get(key, [])) not in [_as_rows(choice) for choice in allowed]
        ]
        if wrong:
            raise Violation(Rule.NEWEST_OF_KEY, "\n".join([*wrong, str(self)]))

    def _choices(self) -> _Choices:
        """Return the rows that readers may see, by each key that is in a unit."""
        of_queries = [self._choices_of(q) for q in dict.fromkeys(u.query for u in self._units)]
        choices: _Choices = {}
        for key in dict.fromkeys(key for of_query in of_queries for key in of_query):
            results = [of_query.get(key, {_UNTOUCHED}) for of_query in of_queries]
            seen = set().union(*results) - {_UNTOUCHED}
            is_untouched = all(_UNTOUCHED in result for result in results)
            choices[key] = seen | {None} if is_untouched else seen
        return choices

    def _choices_of(self, query: str) -> _Choices:
        """Return the last changes that one query may have made, by key."""
        choices: _Choices = {}
        for unit in self._units:
            if unit.query != query or unit.fate in {Fate.HIDDEN, Fate.REPLACED}:
                continue
            is_settled = unit.fate is Fate.SETTLED or self._was_seen(unit)
            for key, row in {self._key(row): row for row in unit.rows}.items():
                before = set() if is_settled else choices.get(key, {_UNTOUCHED})
                choices[key] = before | {None if self._sink.deletes(row) else row}
        return choices

    def _each_epoch_whole(self, seen: set[int]) -> None:
        """Check that the rows are the result of whole units, and remember which have happened."""
        if not self._find_happened(lambda units: self._left(units) == seen):
            raise Violation(Rule.WHOLE_EPOCHS, f"visible: {ranges(seen) or 'nothing'}; {self}")

    def _key(self, row: int) -> object:
        assert self._sink.key is not None
        return self._sink.key(row)


def _as_rows(choice: int | None) -> list[int]:
    return [] if choice is None else [choice]


def _list_choices(choices: Iterable[int | None]) -> str:
    return " or ".join("no row" if choice is None else str(choice) for choice in choices)
