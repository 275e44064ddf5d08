"""The cost of an epoch apart from Spark: plan, stage a tiny batch, commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from benchmarks.bare_commits import Loop, appends, synced_files, transactions
from benchmarks.bare_epochs import bare_epochs
from benchmarks.bench import MEMORY, Run, benchmark, scratch
from benchmarks.check import consumed, memory_totals, table_totals, totals
from benchmarks.lives import iceberg_life, kafka_life, memory_life, parquet_life
from benchmarks.measure import Figure, Goal, expect, figure, in_turn, ratios, seconds, slope
from benchmarks.topics import OURS
from benchmarks.writers import Life

__all__ = ["epoch_rates", "growth", "iceberg", "kafka", "memory", "parquet"]

_RESTARTS = 10
_BARE = "bare loop, tmpfs"
_APPEND, _PRODUCER = "PyIceberg's append", "kafka-python's producer"
_REQUESTS = "the same requests, bare"


@benchmark("commits.parquet")
def parquet(run: Run) -> Iterator[Figure]:
    """Epochs per second with 1 and 8 tasks, in memory and on the disk; and of a loop that syncs."""
    with scratch(MEMORY) as memory_folder, scratch(run.folder) as disk, scratch(MEMORY) as bare:
        loop = synced_files(bare)
        lives = {
            "1 task, tmpfs": parquet_life(memory_folder / "table-1"),
            "8 tasks, tmpfs": parquet_life(memory_folder / "table-8", 8),
            "1 task, disk": parquet_life(disk / "table-1"),
            "8 tasks, disk": parquet_life(disk / "table-8", 8),
        }
        rates = epoch_rates(run, {**lives, _BARE: loop})
        for life in lives.values():
            expect("rows and sum of ids", totals(Path(life.options["path"]), "id"), life.rows)
        expect("rows and sum of ids", totals(bare, "id"), loop.rows)
    goals = {"1 task, tmpfs": Goal(500, at_most=False)}
    for name in lives:
        yield figure(f"krishiv-parquet, {name}", "epochs/s", rates[name], goals.get(name))
    yield from _beside("krishiv-parquet", rates["1 task, tmpfs"], _BARE, rates[_BARE])


@benchmark("commits.memory", "krishiv_spark.sinks.memory")
def memory(run: Run) -> Iterator[Figure]:
    """Epochs per second of the memory sink."""
    life = memory_life("benchmark")
    rates = epoch_rates(run, {"1 task": life})
    expect("rows and sum of ids", memory_totals("benchmark", "id"), life.rows)
    goal = Goal(1000, at_most=False)
    yield figure("krishiv-memory, 1 task", "epochs/s", rates["1 task"], goal)


@benchmark("commits.iceberg", "krishiv_spark.sinks.iceberg.writer")
def iceberg(run: Run) -> Iterator[Figure]:
    """Epochs per second of the Iceberg sink, in memory, and the last hundreds beside the first."""
    yield from _beside_appends(run)
    epochs = 500 if run.quick else 5_000
    with scratch(MEMORY) as folder:
        life = iceberg_life(folder)
        life.commits(10)
        times = []
        for number in range(epochs // 100):
            run.told(f"epoch {100 * number:,} of {epochs:,}")
            times.append(seconds(lambda: life.commits(100)))
        expect("rows and sum of ids", table_totals(folder, "id"), life.rows)
    goal = Goal(90, at_most=False)
    yield figure("krishiv-iceberg, 1 task", "epochs/s", [100 / time for time in times], goal)
    fifth = len(times) // 5
    growth = ratios(times[-fifth:], times[:fifth])
    yield figure("last hundreds / first", "x", growth, Goal(1.2))


def _beside_appends(run: Run) -> Iterator[Figure]:
    with scratch(MEMORY) as folder, scratch(MEMORY) as bare:
        life, loop = iceberg_life(folder), appends(bare)
        # Few, since appends slow with their history.
        rates = epoch_rates(run, {"ours": life, _APPEND: loop}, count=20)
        expect("rows and sum of ids", table_totals(folder, "id"), life.rows)
        expect("rows and sum of ids", table_totals(bare, "id"), loop.rows)
    yield from _beside("krishiv-iceberg", rates["ours"], _APPEND, rates[_APPEND])


@benchmark("commits.growth", long=True)
def growth(run: Run) -> Iterator[Figure]:
    """Compare commits at epochs 100 000 and 10, and measure restarts after so long a history.

    Both tables are written in turn, commit by commit, so that each pair meets the same machine.
    """
    epochs = 10_000 if run.quick else 100_000
    restarts: dict[int, list[float]] = {}
    with scratch(MEMORY) as folder:
        old = parquet_life(folder / "table-1")
        for length in (10, 1_000, epochs):
            _grow(run, old, length)
            restarts[length] = [1000 * old.restart() for _ in range(_RESTARTS)]
        pairs = _pairs(run, old, folder)
        expect("rows and sum of ids", totals(Path(old.options["path"]), "id"), old.rows)
    yield figure(f"commit at epoch {epochs:,}", "ms", [1000 * late for _, late in pairs])
    yield figure("commit at epoch 10", "ms", [1000 * early for early, _ in pairs])
    early, late = zip(*pairs, strict=True)
    yield figure("late / early", "x", ratios(late, early), Goal(1.2))
    for length, times in restarts.items():
        yield figure(f"restart at epoch {length:,}", "ms", times)
    yield figure("restart, for 10 000 epochs more", "ms", [10_000 * slope(restarts)])


@benchmark("kafka.commits")
def kafka(run: Run) -> Iterator[Figure]:
    """Epochs per second of the Kafka sink with 1 and 8 tasks, each a transaction; log in memory."""
    with ExitStack() as stack:
        folder = stack.enter_context(scratch(MEMORY))
        topics = {tasks: stack.enter_context(run.kafka().topic()) for tasks in (1, 8)}
        lives = {
            f"{tasks} task{'s' * (tasks > 1)}": kafka_life(
                run.kafka().cluster, topic, folder / str(tasks), tasks
            )
            for tasks, topic in topics.items()
        }
        producer, bare = (stack.enter_context(run.kafka().topic()) for _ in range(2))
        loops = {
            _PRODUCER: stack.enter_context(transactions(run.kafka(), producer)),
            _REQUESTS: stack.enter_context(bare_epochs(run.kafka(), bare)),
        }
        rates = epoch_rates(run, {**lives, **loops})
        written = [
            *zip(topics.values(), lives.values(), strict=True),
            *zip((producer, bare), loops.values(), strict=True),
        ]
        for topic, life in written:
            expect("rows and sum of numbers", consumed(run.kafka(), topic), life.rows)
    goals = {"1 task": Goal(150, at_most=False)}
    for name in lives:
        yield figure(f"{OURS}, {name}", "epochs/s", rates[name], goals.get(name))
    for name in loops:
        yield from _beside(OURS, rates["1 task"], name, rates[name])


def _beside(name: str, ours: list[float], other: str, theirs: list[float]) -> Iterator[Figure]:
    yield figure(other, "epochs/s", theirs)
    yield figure(f"{name} / {other}", "x", ratios(ours, theirs))


def epoch_rates(
    run: Run, lives: Mapping[str, Life | Loop], count: int | None = None
) -> dict[str, list[float]]:
    """Epochs per second, in turn, of `count` each time."""
    count = count or (400 if run.profile else 50 if run.quick else 150)

    def rate(life: Life | Loop) -> float:
        return count / seconds(lambda: life.commits(count))

    variants = {name: lambda life=life: rate(life) for name, life in lives.items()}
    for life in lives.values():
        life.commits(10)
    return in_turn(5, variants, run.told)


def _grow(run: Run, life: Life, epochs: int) -> None:
    while life.epoch < epochs:
        run.told(f"epoch {life.epoch:,} of {epochs:,}")
        life.commits(min(1000, epochs - life.epoch))


def _pairs(run: Run, old: Life, folder: Path) -> list[tuple[float, float]]:
    """Return the times of commits into a young table and into the old one, in turn."""
    pairs: list[tuple[float, float]] = []
    for number in range(2, 32):
        young = parquet_life(folder / f"table-{number}")
        run.told(f"young table {number - 1} of 30")
        young.commits(5)
        pairs += [(seconds(young.commit), seconds(old.commit)) for _ in range(10)]
    return pairs
