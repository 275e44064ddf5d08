"""Processor time beside a loop that never changes, and memory that is asked for."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from benchmarks.counts.count import LOOP, Count, Seen

__all__ = ["arrow", "effort", "loop_seconds", "peak"]

_ROUNDS = 5


def effort(name: str, work: Callable[[], object], rounds: int = _ROUNDS) -> Count:
    """Processor time of some work, of all threads, as a multiple of that of the loop.

    Both run in turn, and the least of each counts: what others on the machine take away from
    caches only adds to it.
    """
    taken: dict[Callable[[], object], list[float]] = {_loop: [], work: []}
    for _ in range(rounds):
        for each, times in taken.items():
            begin = time.process_time()
            each()
            times.append(time.process_time() - begin)
    return Count(name, LOOP, min(taken[work]) / min(taken[_loop]))


def loop_seconds(rounds: int = _ROUNDS) -> float:
    """Return the processor time of the loop on this machine, the least of some rounds."""
    taken = []
    for _ in range(rounds):
        begin = time.process_time()
        _loop()
        taken.append(time.process_time() - begin)
    return min(taken)


def _loop() -> int:
    """Count the work of connectors: calls and dictionaries in Python, and copies of megabytes."""
    found: dict[str, int] = {}
    for number in range(60_000):
        key = f"{number % 1_000}"
        found[key] = _one_more(found.get(key, 0))
    rows = np.arange(1_000_000)
    for _ in range(8):
        rows = rows[::-1].copy()
    return len(found) + int(rows[0])


def _one_more(value: int) -> int:
    return value + 1


@contextmanager
def arrow(seen: Seen) -> Iterator[None]:
    """Count the bytes that Arrow asks its memory pool for, and how often."""
    pool = pa.default_memory_pool()
    before = pool.total_bytes_allocated(), pool.num_allocations()
    yield
    seen["bytes that Arrow allocates", "bytes"] += pool.total_bytes_allocated() - before[0]
    seen["allocations of Arrow", "calls"] += pool.num_allocations() - before[1]


@contextmanager
def peak(seen: Seen, unit: str = "bytes held") -> Iterator[None]:
    """Measure the maximum memory of Python and NumPy, beyond that at the start."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        yield
        _, most = tracemalloc.get_traced_memory()
        seen["most bytes of Python and NumPy", unit] += most - before
    finally:
        tracemalloc.stop()
