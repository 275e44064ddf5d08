"""Sorting rows, and merging sorted rows that are too many to be in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from krishiv_spark.arrow.compute import pc
from krishiv_spark.arrow.partition_files import CHUNK_BYTES, CHUNK_ROWS

__all__ = ["SortKey", "merged", "sorted_places"]

SortKey: TypeAlias = "tuple[pa.ChunkedArray | pa.Array, str]"
"""What rows are sorted by, and the direction as Arrow writes it."""

Keys: TypeAlias = "Callable[[pa.Table], Sequence[SortKey]]"
"""What rows of a table are sorted by."""


def sorted_places(sorts: Sequence[SortKey]) -> pa.Array:
    """The places of rows in the order of their sort keys; nulls last."""
    names = [str(index) for index in range(len(sorts))]
    keys = pa.table([column for column, _ in sorts], names=names)
    directions = (direction for _, direction in sorts)
    return pc.sort_indices(keys, list(zip(names, directions, strict=True)))


def merged(
    runs: Sequence[pa.Table],
    keys: Keys,
    most_rows: int = CHUNK_ROWS,
    most_bytes: int = CHUNK_BYTES,
) -> Iterator[pa.Table]:
    """The rows of sorted tables in one order, in tables of bounded size.

    Args:
        runs: Tables, each sorted by the keys; they may be mapped files, and are read in order.
        keys: What they are sorted by.
        most_rows: About how many rows are in memory at a time.
        most_bytes: About how many bytes.
    """
    rows, size = sum(run.num_rows for run in runs), sum(run.nbytes for run in runs)
    parts = max(rows / most_rows, size / most_bytes, 1)
    windows = [_Window(run, max(1, int(run.num_rows / parts))) for run in runs]
    while windows := [window for window in windows if window.rows.num_rows]:
        yield _next_rows(windows, keys)


@dataclass
class _Window:
    """The next rows of a run.

    Attributes:
        run: What is left of the run.
        size: How many of its rows are looked at together.
    """

    run: pa.Table
    size: int

    @property
    def rows(self) -> pa.Table:
        return self.run.slice(0, self.size)

    @property
    def is_last(self) -> bool:
        """Whether the run has no rows after these."""
        return bool(self.run.num_rows <= self.size)

    def advance(self, rows: int) -> None:
        self.run = self.run.slice(rows)


def _next_rows(windows: Sequence[_Window], keys: Keys) -> pa.Table:
    """The rows that come before all that no window shows, sorted; they leave their windows."""
    windows = _reached(windows, keys)
    if len(windows) == 1:
        rows = windows[0].rows
        windows[0].advance(rows.num_rows)
        return rows
    shown = [window.rows for window in windows]
    rows = pa.concat_tables(shown)
    ends = np.cumsum([table.num_rows for table in shown])
    places = np.asarray(_stable_places(rows, keys))
    # A window hides what follows its last row in the run, if it is not the run's end: what is
    # sorted after that row may have to wait for it.
    stops = [end - 1 for end, window in zip(ends, windows, strict=True) if not window.is_last]
    stopped = np.flatnonzero(np.isin(places, stops))
    places = places[: stopped[0] + 1] if len(stopped) else places
    taken = np.bincount(np.searchsorted(ends, places, side="right"), minlength=len(windows))
    for window, count in zip(windows, taken, strict=True):
        window.advance(int(count))
    return rows.take(pa.array(places))


def _reached(windows: Sequence[_Window], keys: Keys) -> list[_Window]:
    """The windows that begin before the first of them ends that is not the last of its run."""
    firsts = [window.rows.slice(0, 1) for window in windows]
    lasts = [window.rows.slice(window.rows.num_rows - 1) for window in windows]
    places = np.asarray(_stable_places(pa.concat_tables([*firsts, *lasts]), keys))
    stops = [len(windows) + n for n, window in enumerate(windows) if not window.is_last]
    stopped = np.flatnonzero(np.isin(places, stops))
    before = places[: stopped[0]] if len(stopped) else places
    return [windows[place] for place in sorted(before) if place < len(windows)]


def _stable_places(rows: pa.Table, keys: Keys) -> pa.Array:
    """Places of rows in the order of the keys, those of equal ones in their own."""
    numbers = pa.array(np.arange(rows.num_rows))
    return sorted_places([*keys(rows), (numbers, "ascending")])
