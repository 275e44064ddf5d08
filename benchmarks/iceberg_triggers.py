"""The duration of one trigger into an Iceberg table with next to nothing to write."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from benchmarks.bare import BARE_SINK, register_bare_sink
from benchmarks.bench import Run, benchmark
from benchmarks.iceberg_tables import OURS, TABLES, THEIRS, Warehouse, names, warehouse
from benchmarks.measure import Figure, Goal, figure, ratios
from benchmarks.peer import ICEBERG
from benchmarks.trigger import Sink, batches, figures, measured

__all__ = ["trigger"]

_GOAL = Goal(1.0)
_COLUMNS = pa.schema({"timestamp": pa.timestamp("us", "UTC"), "value": pa.int64()})


@benchmark("iceberg.trigger", "pyiceberg", peers=(ICEBERG,), alone=True)
def trigger(run: Run) -> Iterator[Figure]:
    """Tiny batches, one after the other, against Iceberg's own connector.

    A sink in Python that drops the rows shows what PySpark takes for itself; the cost of a sink is
    what its trigger takes over that of Spark's no-op sink.
    """
    register_bare_sink(run.spark())
    with warehouse(run, "krishiv_trigger") as place:
        sinks = {name: _sink(run, place, name) for name in ("noop", BARE_SINK, *names(run))}
        medians = measured(run, sinks)
        for name in names(run):
            sinks[name].expect_whole(*place.totals(TABLES[name], "value"))
        yield from figures(sinks)
    costs = {
        name: [mine - none for mine, none in zip(medians[name], medians["noop"], strict=True)]
        for name in names(run)
    }
    for name, cost in costs.items():
        yield figure(f"cost over noop, {name}", "ms", cost)
    if THEIRS in costs:
        times = ratios(medians[OURS], medians[THEIRS])
        yield figure(f"trigger, {OURS} / {THEIRS}", "x", times, _GOAL)


def _sink(run: Run, place: Warehouse, name: str) -> Sink:
    if name in TABLES:
        place.make(TABLES[name], _COLUMNS)
    given = place.given(name) if name in TABLES else {}
    return Sink(name, place.folder / f"query-{name}", batches(run), given)
