"""``python -m benchmarks.counts``: counts beside those that are recorded in git."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from benchmarks.counts.case import Case
from benchmarks.counts.every import CASES
from benchmarks.counts.record import FILE, Difference, Record, Verdict, python
from benchmarks.counts.runner import Ran, run_all
from benchmarks.report.words import number

__all__ = ["main"]

_COLOURS = {Verdict.REGRESSION: "red", Verdict.GAIN: "green", Verdict.UNKNOWN: "yellow"}

_console = Console(width=None if sys.stdout.isatty() else 150)


@click.command()
@click.option("--only", multiple=True, help="Name of a case, or how it begins; repeatable.")
@click.option("--list", "listed", is_flag=True, help="Name the cases.")
@click.option("--every", is_flag=True, help="Show all counts, not only those that differ.")
@click.option("--record", is_flag=True, help="Keep the counts in benchmarks/counts.json.")
@click.option("--json", type=click.Path(dir_okay=False, path_type=Path), help="Write them there.")
@click.option(
    "--against",
    type=click.Path(dir_okay=False, path_type=Path),
    default=FILE,
    help="Compare with another record than that of the repository.",
)
def main(**given: Any) -> None:
    """Count what an epoch and a row cost, and compare with what is recorded.

    The exit code is 1 if a case failed or a count is above the recorded one by more than its
    tolerance. Counts below it ask to be recorded; cases whose server cannot be had are named.
    """
    chosen = _chosen(given["only"])
    if given["listed"]:
        for case in chosen:
            _console.print(f"{case.name:24} {case.about}", markup=False)
        return
    record = Record.load(given["against"])
    if given["record"] and given["only"] and record.other_packages():
        raise click.UsageError("other packages than recorded: --record all cases, without --only")
    begin = time.monotonic()
    ran = run_all(chosen, lambda what: _console.print(what, style="dim"))
    if given["json"]:
        found = {name: [asdict(each) for each in counts] for name, counts in ran.counts.items()}
        given["json"].write_text(json.dumps(found, indent=1))
    worse = _show(record, ran, every=given["every"], recording=given["record"])
    _console.print(f"{len(ran.counts)} cases in {time.monotonic() - begin:.0f} s")
    if given["record"]:
        _keep(record, ran, given["against"])
    sys.exit(1 if ran.failed or (worse and not given["record"]) else 0)


def _chosen(only: Sequence[str]) -> list[Case]:
    chosen = [case for name, case in CASES.items() if not only or name.startswith(tuple(only))]
    if not chosen:
        raise click.UsageError(f"no case {', '.join(only)}; there are {', '.join(CASES)}")
    return chosen


def _show(record: Record, ran: Ran, *, every: bool, recording: bool) -> int:
    """Print what differs.

    Returns:
        How many regressions there are.
    """
    found = list(record.differences(ran.counts))
    shown = [each for each in found if every or each.verdict not in (Verdict.SAME, Verdict.UNKNOWN)]
    if shown:
        _console.print(_table(shown))
    for name, why in ran.missing.items():
        _console.print(f"{name} is missing: {why}", style="yellow", markup=False)
    for name, why in ran.failed.items():
        _console.print(f"{name} failed: {why}", style="red", markup=False)
    for name, (then, now) in record.other_packages().items():
        _console.print(f"{name} is {now} here, and was {then}: wider tolerances", style="yellow")
    verdicts = [each.verdict for each in found]
    unknown = verdicts.count(Verdict.UNKNOWN)
    if unknown and not recording:
        _console.print(
            f"{unknown} counts are not recorded for Python {python()}: --record keeps them",
            style="yellow",
        )
    _console.print(", ".join(f"{verdicts.count(each)} {each.value}" for each in Verdict))
    return verdicts.count(Verdict.REGRESSION)


def _table(shown: Sequence[Difference]) -> Table:
    columns = (Column("case", no_wrap=True), Column("count", overflow="fold"))
    table = Table(*columns, "recorded", "here", "unit", "more by", "verdict")
    for each in shown:
        recorded = "-" if each.recorded is None else number(each.recorded)
        percent = "-" if each.percent is None else f"{each.percent:+.1f} %"
        cells = (recorded, number(each.count.value), each.count.unit, percent, each.verdict.value)
        table.add_row(each.case, escape(each.count.name), *cells, style=_COLOURS.get(each.verdict))
    return table


def _keep(record: Record, ran: Ran, file: Path) -> None:
    record.keep(ran.counts)
    record.save(file)
    _console.print(f"kept in {file}")
    if file == FILE:
        from docs import generate

        generate.main([])


if __name__ == "__main__":
    main()
