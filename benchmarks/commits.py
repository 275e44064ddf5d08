"""What an epoch costs apart from Spark: plan, stage a tiny batch, commit."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import MEMORY, Run, benchmark, scratch
from benchmarks.check import memory_totals, totals
from benchmarks.measure import Figure, Goal, expect, figure, in_turn, ratios, seconds
from benchmarks.writers import Life, SeparateLogs

__all__ = ["growth", "memory", "parquet"]


@benchmark("commits.parquet")
def parquet(run: Run) -> Iterator[Figure]:
    """Epochs per second with 1 and 8 tasks, in memory and on the disk."""
    with scratch(MEMORY) as memory_folder, scratch(run.folder) as disk:
        lives = {
            "1 task, tmpfs": Life(SeparateLogs, _options(memory_folder, 1)),
            "8 tasks, tmpfs": Life(SeparateLogs, _options(memory_folder, 8), tasks=8),
            "1 task, disk": Life(SeparateLogs, _options(disk, 1)),
            "8 tasks, disk": Life(SeparateLogs, _options(disk, 8), tasks=8),
        }
        rates = _rates(run, lives)
        for life in lives.values():
            expect("rows and sum of ids", totals(Path(life.options["path"]), "id"), life.rows)
        if run.profile:
            _profile(Life(SeparateLogs, _options(memory_folder, 2)))
    goals = {"1 task, tmpfs": Goal(500, at_most=False)}
    for name, values in rates.items():
        yield figure(f"krishiv-parquet, {name}", "epochs/s", values, goals.get(name))


@benchmark("commits.memory", "krishiv_spark.sinks.memory")
def memory(run: Run) -> Iterator[Figure]:
    """Epochs per second of the memory sink."""
    from krishiv_spark.sinks.memory import MemoryWriter

    life = Life(MemoryWriter, {"queryName": "benchmark"})
    rates = _rates(run, {"1 task": life})
    expect("rows and sum of ids", memory_totals("benchmark", "id"), life.rows)
    if run.profile:
        _profile(life)
    goal = Goal(1000, at_most=False)
    yield figure("krishiv-memory, 1 task", "epochs/s", rates["1 task"], goal)


@benchmark("commits.growth")
def growth(run: Run) -> Iterator[Figure]:
    """A commit at epoch 100 000 beside one at epoch 10.

    Both tables are written in turn, commit by commit, so that each pair meets the same machine.
    """
    epochs = 10_000 if run.quick else 100_000
    with scratch(MEMORY) as folder:
        old = Life(SeparateLogs, _options(folder, 1))
        _grow(run, old, epochs)
        pairs = _pairs(run, old, folder)
        expect("rows and sum of ids", totals(Path(old.options["path"]), "id"), old.rows)
    yield figure(f"commit at epoch {epochs:,}", "ms", [1000 * late for _, late in pairs])
    yield figure("commit at epoch 10", "ms", [1000 * early for early, _ in pairs])
    early, late = zip(*pairs, strict=True)
    yield figure("late / early", "x", ratios(late, early), Goal(1.2))


def _options(folder: Path, number: int) -> dict[str, str]:
    return {"path": f"{folder}/table-{number}"}


def _rates(run: Run, lives: dict[str, Life]) -> dict[str, list[float]]:
    count = 50 if run.quick else 150

    def rate(life: Life) -> float:
        return count / seconds(lambda: life.commits(count))

    variants = {name: lambda life=life: rate(life) for name, life in lives.items()}
    for life in lives.values():
        life.commits(10)
    return in_turn(5, variants, run.told)


def _grow(run: Run, life: Life, epochs: int) -> None:
    while life.epoch < epochs:
        run.told(f"epoch {life.epoch:,} of {epochs:,}")
        life.commits(1000)


def _pairs(run: Run, old: Life, folder: Path) -> list[tuple[float, float]]:
    """Times of a commit into a young table and into the old one, in turn."""
    pairs: list[tuple[float, float]] = []
    for number in range(2, 32):
        young = Life(SeparateLogs, _options(folder, number))
        run.told(f"young table {number - 1} of 30")
        young.commits(5)
        pairs += [(seconds(young.commit), seconds(old.commit)) for _ in range(10)]
    return pairs


def _profile(life: Life) -> None:
    life.commits(10)
    profile = cProfile.Profile()
    profile.runcall(life.commits, 300)
    pstats.Stats(profile).sort_stats("cumulative").print_stats(45)
    pstats.Stats(profile).sort_stats("tottime").print_stats(25)
