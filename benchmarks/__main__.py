"""``python -m benchmarks``: figures beside Spark's own connectors."""

from __future__ import annotations

import functools
import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks import bulk, commits, listing, session, trigger
from benchmarks.bench import BENCHMARKS, MEMORY, Benchmark, Run, scratch
from benchmarks.measure import Figure, Wrong

__all__ = ["main"]

TOPICS = (trigger, bulk, commits, listing)  # importing them makes their benchmarks known

_console = Console()


@click.command()
@click.option("--only", multiple=True, help="Name of a benchmark, or how it begins; repeatable.")
@click.option("--quick", is_flag=True, help="Smaller and fewer.")
@click.option("--profile", is_flag=True, help="Show where the time goes, where that is known.")
@click.option("--json", "to", type=click.Path(path_type=Path), help="Write the figures there.")
@click.option("--folder", default="/tmp", type=click.Path(exists=True, path_type=Path))
@click.option("--list", "listed", is_flag=True, help="Name the benchmarks.")
def main(  # noqa: PLR0913  one for each option
    only: tuple[str, ...],
    *,
    quick: bool,
    profile: bool,
    to: Path | None,
    folder: Path,
    listed: bool,
) -> None:
    """Measure, verify what was written, and compare with the goals."""
    chosen = _chosen(only)
    if listed:
        _show_names(chosen)
        return
    figures, failed = _measured(chosen, quick=quick, profile=profile, folder=folder)
    _show(figures)
    if to is not None:
        to.write_text(json.dumps(_document(figures, quick=quick), indent=2) + "\n")
    sys.exit(1 if failed else 0)


def _chosen(only: Sequence[str]) -> list[Benchmark]:
    chosen = [item for name, item in BENCHMARKS.items() if not only or name.startswith(tuple(only))]
    if not chosen:
        raise click.UsageError(f"no benchmark {', '.join(only)}; there are {', '.join(BENCHMARKS)}")
    return chosen


def _measured(
    chosen: Sequence[Benchmark], *, quick: bool, profile: bool, folder: Path
) -> tuple[dict[str, list[Figure]], bool]:
    figures, failed = {}, False
    with (
        scratch(folder) as place,
        scratch(MEMORY) as store,
        _console.status("starting") as status,
    ):
        os.environ["KRISHIV_MEMORY_DIR"] = str(store)  # seen by workers that start later
        spark = functools.cache(lambda: session.start(place))
        for item in chosen:
            run = Run(quick, profile, _teller(status, item.name), place, spark)
            try:
                figures[item.name] = list(_figures(item, run))
            except Wrong as error:
                _console.print(f"[red]{item.name}: wrong output: {error}")
                failed = True
        if spark.cache_info().currsize:
            spark().stop()
    return figures, failed


def _teller(status: Any, name: str) -> Any:
    def told(text: str) -> None:
        if _console.is_terminal:
            status.update(f"{name}: {text}")
        else:
            print(f"{name}: {text}", file=sys.stderr, flush=True)

    return told


def _figures(item: Benchmark, run: Run) -> Iterator[Figure]:
    if item.missing:
        _console.print(f"{item.name}: left out, there is no {', '.join(item.missing)} yet")
        return
    run.told("starting")
    yield from item.run(run)


def _show_names(chosen: Sequence[Benchmark]) -> None:
    for item in chosen:
        _console.print(f"{item.name:18} {item.about}")


def _show(figures: dict[str, list[Figure]]) -> None:
    table = Table("benchmark", "figure", "median", "quartiles", "n", "goal")
    for name, lines in figures.items():
        for line in lines:
            table.add_row(name, line.name, *_cells(line))
        table.add_section()
    _console.print(table)


def _cells(line: Figure) -> tuple[str, ...]:
    goal = "" if line.goal is None else f"{line.goal} {'met' if line.met else 'MISSED'}"
    spread = f"{_short(line.low)} .. {_short(line.high)}"
    return f"{_short(line.median)} {line.unit}", spread, str(line.count), goal


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _document(figures: dict[str, list[Figure]], *, quick: bool) -> dict[str, Any]:
    return {
        "machine": {"python": platform.python_version(), "system": platform.platform()},
        "quick": quick,
        "figures": {
            name: [asdict(line) | {"goal": str(line.goal or ""), "met": line.met} for line in lines]
            for name, lines in figures.items()
        },
    }


if __name__ == "__main__":
    main()
