"""What the cases of a source conclude from its driver; each raises a `Violation`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from krishiv_spark.testing.drivers.reading import SourceDriver
from krishiv_spark.testing.rows import Row, ranges, refuse_strange
from krishiv_spark.testing.rules import Rule, Violation
from krishiv_spark.testing.steps import Fault, TrapAt

__all__ = [
    "all_once",
    "bounded",
    "ended",
    "missed",
    "one_text",
    "same_columns",
    "stood_still",
    "within",
]

_NO_MATTER = 8 * 2**20
"""So many bytes come and go with allocators, and with what a task imports."""


def one_text(texts: set[str]) -> None:
    """An offset has one text, wherever it was made."""
    if len(texts) > 1:
        raise Violation(Rule.ONE_TEXT, "\n".join(sorted(texts)))


def stood_still(ends: list[str]) -> None:
    """These ends are one."""
    if len(ends) > 1:
        raise Violation(Rule.STANDS_STILL, f"it became a new batch: {ends}")


def within(driver: SourceDriver, most: int) -> None:
    """No batch has more rows than that, and none but the first has no rows."""
    sizes = [sum(batch.values()) for batch in driver.batches]
    if max(sizes) > most or 0 in sizes[1:]:  # the first one may pin a start
        raise Violation(Rule.LIMITS, f"rows in the batches: {sizes}")


def ended(driver: SourceDriver, before: int, ends: list[str]) -> None:
    """The rows that were there at first were read, and then nothing more."""
    read = sorted(row for batch in driver.batches for row in batch if isinstance(row, int))
    if read != list(range(before)):
        raise Violation(Rule.ENDS, f"{before} rows were there; read: {read}")
    if driver.ends != ends:
        raise Violation(Rule.ENDS, f"it goes on: {driver.ends[len(ends) - 1 :]}")


def all_once(driver: SourceDriver, trap: Fault | None = None, at: TrapAt = "all") -> None:
    """A batch reads each row once, unless it fails at the trap."""
    found = driver.all_in_batch(trap, at)
    if found is None:
        return
    refuse_strange(found, driver.source.schema, driver.source.row, driver.added, "a batch read: ")
    wanted: Counter[int | Row] = Counter(range(driver.added))
    if found != wanted:
        lost, more = ranges(wanted - found) or "none", ranges(found - wanted) or "none"
        seen = f"{driver.added} rows were added; not read: {lost}; read too often: {more}"
        raise Violation(Rule.EVERY_ROW_ONCE, seen)


def missed(driver: SourceDriver, gone: range, batches: int) -> None:
    """After so many batches none has ended well, unless these rows were read."""
    read = {row for batch in driver.batches for row in batch}
    lost = [row for row in gone if row not in read]
    if lost and len(driver.batches) > batches:
        raise Violation(Rule.LOSS_IS_SAID, f"the query goes on without rows {ranges(lost)}")


def same_columns(driver: SourceDriver) -> None:
    """The columns that are inferred are those of the rows."""
    found, given = driver.inferred(), driver.source.schema
    if isinstance(found, str):
        pytest.skip(f"its schema is text, which only Spark's JVM can read: {found}")
    if found is not None and dict(zip(found.names, found.types, strict=True)) != dict(
        zip(given.names, given.types, strict=True)
    ):
        raise Violation(Rule.WORKS, f"inferred: {found}; the rows have: {given}")


def bounded(driver: SourceDriver, few: Sequence[bytes] | None) -> None:
    """Reading grows a process by less than half of what its largest task reads."""
    size, grown = driver.peak(few)
    if grown > max(size // 2, _NO_MATTER):
        raise Violation(Rule.BOUNDED_MEMORY, f"rows: {size >> 20} MB; growth: {grown >> 20} MB")
