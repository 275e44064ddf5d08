"""``python -m benchmarks.roles``: where the time of an epoch goes, by role, a flame graph a sink.

As in ``commits``: an epoch of one task and 100 rows apart from Spark, in memory. The whole is how
long it takes when nobody looks.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import click

from benchmarks.bench import MEMORY, scratch
from benchmarks.flames import watched
from benchmarks.lives import iceberg_life, kafka_life, memory_life, parquet_life
from benchmarks.report.flame import Frame, flame_graph
from benchmarks.topics import open_topics
from benchmarks.writers import Life

__all__ = ["main"]

_DRAWN = Path(__file__).parent.parent / ".krishiv" / "flames"
_WARM_S, _WATCHED_S = 20.0, 15.0  # a broker takes a thousand epochs until it is compiled
_TIMED = 200  # epochs
_DRIVER = "benchmarks/writers.py"
_ROLES = {"Life._plan": "planner", "Life._stage": "task", "Life._publish": "committer"}
_REST = "Spark's part"
_PARTS = (*_ROLES.values(), _REST)
_OURS = {"krishiv_spark", "benchmarks"}


@click.command()
@click.argument("sinks", nargs=-1)
@click.option(
    "--folder",
    default=_DRAWN,
    show_default=".krishiv/flames",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the graphs to this folder.",
)
def main(sinks: tuple[str, ...], folder: Path) -> None:
    """Draw where an epoch's time goes: memory, parquet, iceberg and kafka, or the SINKS named."""
    unknown = set(sinks).difference(_LIVES)
    if unknown:
        raise click.UsageError(f"no sink {', '.join(unknown)}; there are {', '.join(_LIVES)}")
    folder.mkdir(parents=True, exist_ok=True)
    for name in sinks or _LIVES:
        with _LIVES[name]() as life:
            graph = _graph(name, life)
        (folder / f"{name}.svg").write_text(graph)
        click.echo(f"{name}: {folder / name}.svg")


# --- lives


@contextmanager
def _memory() -> Iterator[Life]:
    yield memory_life("roles")


@contextmanager
def _parquet() -> Iterator[Life]:
    with scratch(MEMORY) as place:
        yield parquet_life(place)


@contextmanager
def _iceberg() -> Iterator[Life]:
    with scratch(MEMORY) as place:
        yield iceberg_life(place)


@contextmanager
def _kafka() -> Iterator[Life]:
    with scratch(MEMORY) as place, open_topics(place) as topics, topics.topic() as topic:
        yield kafka_life(topics.cluster, topic, place)


_LIVES: dict[str, Callable[[], AbstractContextManager[Life]]] = {
    "memory": _memory,
    "parquet": _parquet,
    "iceberg": _iceberg,
    "kafka": _kafka,
}


# --- what was seen


def _graph(name: str, life: Life) -> str:
    _live(life, _WARM_S)
    epoch_us = statistics.median(_timed(life) for _ in range(_TIMED))
    with scratch(MEMORY) as place:
        with watched(place / "stacks", raw=True):
            _live(life, _WATCHED_S)
        lines = (place / "stacks").read_text().splitlines()
    return flame_graph(f"an epoch of {name}", _by_role(lines), epoch_us)


def _live(life: Life, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        life.commit()


def _timed(life: Life) -> float:
    begin = time.perf_counter()
    life.commit()
    return 1e6 * (time.perf_counter() - begin)


def _by_role(lines: list[str]) -> Counter[tuple[Frame, ...]]:
    found: Counter[tuple[Frame, ...]] = Counter({(Frame(part),): 0 for part in _PARTS})
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frames = [_frame(each) for each in stack.split(";")]
        inside = [n for n, frame in enumerate(frames) if frame.file == _DRIVER]
        if not inside:
            continue  # before, after, or of another thread
        role = next((n for n in inside if frames[n].name in _ROLES), None)
        if role is None:
            found[(Frame(_REST),)] += int(count)
        else:
            found[(Frame(_ROLES[frames[role].name]), *frames[role + 1 :])] += int(count)
    return found


def _frame(text: str) -> Frame:
    """From ``name (folder/file.py:12)``, as py-spy writes it."""
    name, _, place = text.partition(" (")
    file = place.partition(":")[0].rstrip(")")
    top = file.partition("/")[0].removesuffix(".py")
    kind = "ours" if top in _OURS else "python" if top in sys.stdlib_module_names else "others"
    return Frame(name, file, kind)


if __name__ == "__main__":
    main()
