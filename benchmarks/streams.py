"""Streams that bring many rows in one batch, in turn, and how fast they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.bench import Run
from benchmarks.measure import Figure, Goal, expect, figure, in_turn, ratios

__all__ = ["Load", "Pairs", "Variants", "compared", "rate"]

_ROUNDS = 3

Variants = Mapping[str, Callable[[], float]]
"""By their names: each moves a load once, and returns its rows per second."""

Pairs = Mapping[tuple[str, str], Goal | None]
"""Of which variants the ratio is shown, and what it should reach."""


@dataclass(frozen=True)
class Load:
    """The rows of each run.

    Attributes:
        size: Bytes of a value; its key has ten more.
        rows: How many.
    """

    size: int
    rows: int

    def __str__(self) -> str:
        return f"{self.size + 10} bytes"


def compared(run: Run, load: Load, variants: Variants, pairs: Pairs) -> Iterator[Figure]:
    """Rates in turn; those of the first round apart, since they are cold."""
    told = run.told
    cold = in_turn(1, variants, lambda what: told(f"{load}, cold: {what}"))
    in_turn(1, variants, lambda what: told(f"{load}, warming up: {what}"))
    run.costs.clear()
    warm = in_turn(2 if run.quick else _ROUNDS, variants, lambda what: told(f"{load}, {what}"))
    for name, rates in warm.items():
        yield figure(f"{name}, {load}", "rows/s", rates)
    for name, rates in cold.items():
        yield figure(f"{name}, {load}, first run", "rows/s", rates)
    for (mine, other), goal in pairs.items():
        yield figure(f"{mine} / {other}, {load}", "x", ratios(warm[mine], warm[other]), goal)
    yield from run.costs.figures(f", {load}", load.rows)


def rate(run: Run, name: str, writer: Any, rows: int) -> float:
    """Rows per second of Spark's ``addBatch``, over the batches that bring all rows.

    Args:
        run: The call of the command; what Spark uses meanwhile goes into its costs.
        name: Of the variant.
        writer: Writes a stream.
        rows: How many there are to be.
    """
    with run.costs.of(name):
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    batches = [p for p in query.recentProgress if p.numInputRows]
    expect("rows in Spark's progress", sum(p.numInputRows for p in batches), rows)
    return rows / sum(p.durationMs["addBatch"] for p in batches) * 1000
