"""The time until a query's first batch is over, in a driver that has run none before."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from operator import sub

from benchmarks.bare import BARE_SOURCE
from benchmarks.bench import Run, benchmark, scratch
from benchmarks.measure import Figure, Goal, Wrong, figure, in_turn
from benchmarks.peer import KAFKA
from benchmarks.starter import FAST, ROWS
from benchmarks.topics import OURS, THEIRS

__all__ = ["start"]

_GOALS = {"read": Goal(1.5), "copy": Goal(3.0)}


@benchmark("kafka.start", peers=(KAFKA,), long=True)
def start(run: Run) -> Iterator[Figure]:
    """Until the first batch of 1000 rows is over, each time in a new driver.

    From a topic into the no-op sink, and from topic to topic; and from a source in Python that
    does nothing, into the no-op sink and into such a sink; ours as ever and after `fast_start`. The
    second query of the same driver finds Python workers that are running already.
    """
    with run.kafka().topic() as topic:
        run.kafka().fill(run.spark(), topic, ROWS, 100)
        for what, copies in (("read", False), ("copy", True)):
            yield from _compared(run, topic, what, copies=copies)


def _compared(run: Run, topic: str, what: str, *, copies: bool) -> Iterator[Figure]:
    second: dict[str, list[float]] = {THEIRS: [], OURS: [], FAST: [], BARE_SOURCE: []}
    variants = {
        name: partial(_once, run, topic, name, later, copies=copies)
        for name, later in second.items()
    }
    first = in_turn(2 if run.quick else 3, variants, lambda name: run.told(f"{what}, {name}"))
    for name, later in second.items():
        yield figure(f"{what}, {name}, first query", "s", first[name])
        yield figure(f"{what}, {name}, next query", "s", later)
    goals = {OURS: None, FAST: _GOALS[what], BARE_SOURCE: None}
    for name, goal in goals.items():
        longer = list(map(sub, first[name], first[THEIRS]))
        yield figure(f"{what}, first query, {name} longer by", "s", longer, goal)


def _once(run: Run, topic: str, name: str, later: list[float], *, copies: bool) -> float:
    """One driver; its second query's time goes into `later`."""
    with scratch(run.folder) as folder, run.kafka().topic() as target:
        given = (name, run.kafka().bootstrap, topic, target if copies else "", str(folder))
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.starter", *given],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Wrong(f"{name}: {done.stderr[-2000:]}")
        if copies and name != BARE_SOURCE:  # two queries, which have a row each time
            run.kafka().verify(run.spark(), target, ROWS, exactly=False)
    taken = json.loads(done.stdout.splitlines()[-1])
    later.append(taken[1])
    return float(taken[0])
