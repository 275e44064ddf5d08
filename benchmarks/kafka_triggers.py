"""The duration of one trigger into Kafka with next to nothing to write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from benchmarks.bare import BARE_SINK, register_bare_sink
from benchmarks.bench import Run, benchmark, scratch
from benchmarks.measure import Figure, Goal, figure, ratios
from benchmarks.peer import KAFKA
from benchmarks.topics import OURS, SINKS, THEIRS, columns
from benchmarks.trigger import Sink, batches, figures, measured

__all__ = ["trigger"]

_GOAL = Goal(1.2)


@benchmark("kafka.trigger", peers=(KAFKA,))
def trigger(run: Run) -> Iterator[Figure]:
    """Tiny batches, one after the other: ours with transactions, against Spark's own sink.

    A sink in Python that drops the rows shows what PySpark takes for itself.
    """
    register_bare_sink(run.spark())
    with ExitStack() as stack:
        folder = stack.enter_context(scratch(run.folder))
        topics = {name: stack.enter_context(run.kafka().topic()) for name in SINKS}
        sinks = _sinks(run, folder, topics)
        medians = measured(run, sinks)
        for name, topic in topics.items():
            _verify(run, sinks[name], topic)
        yield from figures(sinks)
    for name in (*SINKS, BARE_SINK):
        goal = _GOAL if name == OURS else None
        if name != THEIRS:
            times = ratios(medians[name], medians[THEIRS])
            yield figure(f"trigger, {name} / {THEIRS}", "x", times, goal, smaller=True)


def _sinks(run: Run, folder: Path, topics: Mapping[str, str]) -> dict[str, Sink]:
    made = {name: Sink(name, folder / name, batches(run)) for name in ("noop", BARE_SINK)}
    for number, (name, topic) in enumerate(topics.items()):
        given = {**run.kafka().cluster, **SINKS[name], "topic": topic}
        place = folder / str(number)
        made[name] = Sink(name, place, batches(run), given, columns("value", 100))
    return made


def _verify(run: Run, sink: Sink, topic: str) -> None:
    """All values from 0 on; each once, where that is promised: a query was stopped in between."""
    rows = run.kafka().count(run.spark(), topic)
    sink.expect_batches(rows)
    run.kafka().verify(run.spark(), topic, rows, exactly=sink.name == OURS)
