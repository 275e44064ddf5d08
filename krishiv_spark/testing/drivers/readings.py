"""The judge of a source: what its batches held, and what they should have held."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from krishiv_spark.testing.rows import Row, numbers_of, ranges, refuse_strange
from krishiv_spark.testing.rules import Rule, Violation
from krishiv_spark.testing.subjects import SourceUnderTest

__all__ = ["Readings", "check_watermark"]


class Readings:
    """The batches of one query.

    Args:
        source: Its rows are known by their numbers.

    Attributes:
        batches: How often each row was read, a batch after the other.
        ends: The offsets at which they end, as text; one more while a batch is being read.
        known: How many rows had been added when each end was chosen.
    """

    def __init__(self, source: SourceUnderTest) -> None:
        self._source = source
        self.batches: list[Counter[int | Row]] = []
        self.ends: list[str] = []
        self.known: list[int] = []

    def counted(self, rows: Sequence[Row], added: int) -> Counter[int | Row]:
        """Rows by their numbers, when so many were added."""
        return numbers_of(rows, self._source.schema, self._source.row, added)

    def check_tasks(self, tasks: Sequence[Counter[int | Row]]) -> None:
        """No row is read by two of them.

        Raises:
            Violation: If one is.
        """
        readers: dict[int, int] = {}
        for place, task in enumerate(tasks):
            numbers = [row for row in task if isinstance(row, int)]
            shared = [number for number in numbers if number in readers]
            if shared:
                seen = f"tasks {readers[shared[0]]} and {place} read rows {ranges(shared)}"
                raise Violation(Rule.TASKS_APART, seen)
            readers.update(dict.fromkeys(numbers, place))

    def compare(self, epoch: int, found: Counter[int | Row], added: int) -> None:
        """Take note of a batch that was read, for the first time or again.

        Raises:
            Violation: If it should have been another.
        """
        where = f"batch {epoch}: "
        refuse_strange(found, self._source.schema, self._source.row, added, where)
        newer = [row for row in found if isinstance(row, int) and row >= self.known[epoch]]
        self._refuse(Rule.NOTHING_NEWER, where, newer)
        self._check_ahead(epoch, found)
        if epoch < len(self.batches):
            changed = (found - self.batches[epoch]) + (self.batches[epoch] - found)
            self._refuse(Rule.SAME_REPLAY, where, list(changed))
        else:
            self.batches.append(found)

    def check_all(self, added: int, skipped: int) -> None:
        """Each row was read once, but for some first ones.

        Raises:
            Violation: If one was not.
        """
        total: Counter[int | Row] = Counter()
        for batch in self.batches:
            total += batch
        wanted: Counter[int | Row] = Counter(range(skipped, added))
        if total != wanted:
            lost, more = ranges(wanted - total) or "none", ranges(total - wanted) or "none"
            raise Violation(Rule.EVERY_ROW_ONCE, f"never read: {lost}; read too often: {more}")

    @staticmethod
    def _refuse(rule: Rule, where: str, rows: list[Any]) -> None:
        if rows:
            raise Violation(rule, f"{where}rows {ranges(rows)}")

    def _check_ahead(self, epoch: int, found: Counter[int | Row]) -> None:
        reached = _watermark_ms(self.ends[epoch])
        if self._source.event_time is None or reached is None:
            return
        column = self._source.schema.names.index(self._source.event_time)
        read = {row for batch in [*self.batches, found] for row in batch if isinstance(row, int)}
        times = (self._source.row(number)[column].timestamp() * 1000 for number in read)
        newest = max(times, default=None)
        if newest is None or reached > newest:
            raise Violation(Rule.WATERMARK, f"{reached} ms; newest time that was read: {newest} ms")


def check_watermark(start: str, end: str) -> None:
    """A watermark does not move back from one offset to the next.

    Raises:
        Violation: If it does.
    """
    before, after = _watermark_ms(start), _watermark_ms(end)
    if before is not None and (after is None or after < before):
        raise Violation(Rule.WATERMARK, f"it moved from {before} to {after} ms")


def _watermark_ms(text: str) -> int | None:
    offset = json.loads(text)
    found = offset.get("watermark") if isinstance(offset, Mapping) else None
    return found.get("ms") if isinstance(found, Mapping) else None
