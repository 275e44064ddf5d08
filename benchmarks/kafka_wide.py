"""The growth of a Kafka sink's epoch with its tasks and the topic's partitions."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.bench import MEMORY, Run, benchmark, scratch
from benchmarks.check import consumed
from benchmarks.measure import Figure, expect, figure
from benchmarks.topics import OURS, Topics, open_topics
from benchmarks.writers import Life, SeparateKafkaLogs, keyed

__all__ = ["wide"]

_TASKS, _PARTITIONS = (1, 50, 200), (4, 1_000)
_ROWS = 1_000
"""Of each task: with keys, they go to most of the partitions, however many."""

_EPOCHS = 5


@benchmark("kafka.wide", long=True)
def wide(run: Run) -> Iterator[Figure]:
    """Milliseconds of plan and publish, and of a plan after a death, to 200 tasks.

    One task is staged after the other, so what staging takes is not shown. On a broker of its own.
    """
    with scratch(run.folder) as folder, open_topics(folder) as topics:
        for partitions in _PARTITIONS:
            for tasks in _TASKS[: 2 if run.quick else 3]:
                run.told(f"{tasks} tasks, {partitions} partitions")
                yield from _size(topics, tasks, partitions)


def _size(topics: Topics, tasks: int, partitions: int) -> Iterator[Figure]:
    name = f"{OURS}, {tasks} task{'s' * (tasks > 1)}, {partitions:,} partitions"
    with scratch(MEMORY) as folder, topics.topic(partitions) as topic:
        given = {**topics.cluster, "topic": topic, "checkpointLocation": str(folder)}
        life = Life(SeparateKafkaLogs, given, tasks, keyed(_ROWS))
        life.commit()  # the first one asks who coordinates each id
        life.spent.clear()
        life.commits(_EPOCHS)
        expect(f"{name}: rows and sum", consumed(topics, topic), life.rows)
        sweeps = [life.restart() for _ in range(2)]
    for phase in ("plan", "publish"):
        yield figure(f"{name}, {phase}", "ms", [taken * 1000 for taken in life.spent[phase]])
    yield figure(f"{name}, plan after a death", "ms", [taken * 1000 for taken in sweeps])
