"""``python -m benchmarks``: figures beside Spark's own connectors."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from benchmarks import (
    bulk,
    commits,
    delta_rates,
    ends,
    epochs,
    footprint,
    footprint_age,
    iceberg_bulk,
    iceberg_compactions,
    iceberg_files,
    iceberg_growth,
    iceberg_mirrors,
    iceberg_rates,
    iceberg_triggers,
    iceberg_upserts,
    kafka_avro,
    kafka_json,
    kafka_json_schema,
    kafka_lake,
    kafka_latency,
    kafka_offsets,
    kafka_protobuf,
    kafka_rates,
    kafka_start,
    kafka_triggers,
    kafka_wide,
    kafka_worlds,
    listing,
    many_rows,
    phases,
    resident,
    resident_sources,
    resident_spark,
    session,
    shown_triggers,
    store_bulk,
    store_commits,
    store_requests,
    store_triggers,
    trigger,
)
from benchmarks.bench import BENCHMARKS, Benchmark
from benchmarks.progress import Clock, Shown
from benchmarks.report import machine, markdown, words
from benchmarks.report.compare import Change, Verdict, changes, regressions
from benchmarks.report.page import page
from benchmarks.report.results import Results, Taken, Unreadable, load, merged, save, summary
from benchmarks.suite import Start, Suite
from krishiv_spark.spark.fast_start.preloading import libraries

__all__ = ["main"]

TOPICS = (
    trigger,
    shown_triggers,
    bulk,
    commits,
    phases,
    epochs,
    footprint,
    footprint_age,
    listing,
    kafka_rates,
    kafka_json,
    kafka_json_schema,
    kafka_lake,
    kafka_avro,
    kafka_triggers,
    kafka_start,
    kafka_latency,
    kafka_offsets,
    kafka_protobuf,
    kafka_wide,
    kafka_worlds,
    iceberg_triggers,
    iceberg_bulk,
    iceberg_upserts,
    iceberg_growth,
    iceberg_compactions,
    iceberg_rates,
    iceberg_files,
    delta_rates,
    iceberg_mirrors,
    many_rows,
    resident,
    resident_sources,
    resident_spark,
    store_bulk,
    store_commits,
    store_requests,
    store_triggers,
    ends,
)  # importing them makes their benchmarks known

_RECORD = Path(__file__).parent.parent / "docs" / "performance.json"
_QUICK = (
    "commits.memory",
    "commits.parquet",
    "commits.iceberg",
    "kafka.commits",
    "parquet.trigger",
    "kafka.trigger",
    "store.commits",
)  # minutes, with --quick
_NEWEST = "4.3"  # PySpark, of ./run without --spark
_COLOURS = {Verdict.REGRESSION: "red", Verdict.IMPROVEMENT: "green"}
_COLUMNS = (Column("benchmark", no_wrap=True), Column("figure", overflow="fold"))
_FLAGS = (("--quick", "quick"), ("--all", "every"), ("--fast-start", "fast"))
_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)

_console = Console()


@click.command()
@click.option("--only", multiple=True, help="Name of a benchmark, or how it begins; repeatable.")
@click.option("--quick", is_flag=True, help="Smaller; commits and triggers alone, without --only.")
@click.option("--all", "every", is_flag=True, help="Those that take many minutes as well.")
@click.option("--folder", default="/tmp", type=_FOLDER, help="What is written to a disk goes here.")
@click.option("--list", "listed", is_flag=True, help="Name the benchmarks.")
@click.option("--size", multiple=True, metavar="NAME=N", help="Of a benchmark; --list names them.")
@click.option("--keep", type=_FOLDER, help="Long ones keep their state there, and continue.")
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="For Spark; repeatable.")
@click.option("--fast-start", "fast", is_flag=True, help="With krishiv_spark.fast_start.")
@click.option("--json", type=_FILE, help="Write the result there.")
@click.option("--html", type=_FILE, help="Write a report with plots there, one file.")
@click.option("--markdown", type=_FILE, help="Write the tables there.")
@click.option("--compare", type=_FILE, help="An earlier result: show what is beyond the noise.")
@click.option("--fail-on-regression", is_flag=True, help="Exit with 1 if --compare shows one.")
@click.option("--record", is_flag=True, help="Keep the figures in docs/, whose table shows them.")
@click.option(
    "--profile",
    type=_FOLDER,
    is_flag=False,
    flag_value=".",
    help="Write a flame graph of each benchmark to this folder, or to the present one.",
)
def main(**given: Any) -> None:
    """Measure, verify what was written, and compare with the goals.

    The exit code is 1 if an output was wrong or a benchmark broke off, or if there is a regression
    with --fail-on-regression. It is 0 otherwise: goals may be missed, regressions are shown only,
    and a peer that cannot be had is named as missing.
    """
    chosen = _chosen(given)
    if given["listed"]:
        _show_names(chosen)
        return
    _refuse(given)
    _sizes(chosen, given)
    earlier = _earlier(given["compare"])
    results = _measured(chosen, given, earlier)
    found = changes(earlier, results) if earlier else []
    _show(results)
    _show_left_out(chosen, given)
    _show_changes(found)
    _write(results, found, given)
    worse = regressions(found) if given["fail_on_regression"] else []
    sys.exit(1 if results.failures() or worse else 0)


def _chosen(given: dict[str, Any]) -> list[Benchmark]:
    every = given["every"] or given["listed"]
    only = given["only"] or (_QUICK if given["quick"] and not every else ())
    if only:
        return _named(only)
    return [item for item in BENCHMARKS.values() if every or not item.long]


def _named(only: Sequence[str]) -> list[Benchmark]:
    chosen = [item for name, item in BENCHMARKS.items() if name.startswith(tuple(only))]
    if not chosen:
        raise click.UsageError(f"no benchmark {', '.join(only)}; there are {', '.join(BENCHMARKS)}")
    return chosen


def _refuse(given: dict[str, Any]) -> None:
    """Refuse arguments that contradict each other, before a benchmark runs."""
    if given["fail_on_regression"] and not given["compare"]:
        raise click.UsageError("--fail-on-regression needs --compare RESULT.json")
    if given["record"] and given["profile"]:
        raise click.UsageError("--record keeps no figures that --profile has slowed down")
    if given["record"] and (given["conf"] or given["fast"]):
        raise click.UsageError(
            "--record keeps figures of Spark as it comes: no --conf, --fast-start"
        )
    for text in given["conf"]:
        if "=" not in text:
            raise click.UsageError(f"--conf {text}: write KEY=VALUE")


def _sizes(chosen: Sequence[Benchmark], given: dict[str, Any]) -> dict[str, int]:
    """Return the sizes of ``--size``, which a chosen benchmark must have."""
    known = {name for item in chosen for name in item.sizes}
    found: dict[str, int] = {}
    for text in given["size"]:
        name, _, number = text.partition("=")
        if name not in known or not number.isdecimal() or int(number) < 1:
            sizes = ", ".join(sorted(known)) or "none"
            raise click.UsageError(f"--size {text}: write NAME=N, of these sizes: {sizes}")
        found[name] = int(number)
    return found


def _earlier(file: Path | None) -> Results | None:
    try:
        return load(file) if file else None
    except Unreadable as error:
        raise click.UsageError(str(error)) from error


# --- measuring


def _measured(
    chosen: Sequence[Benchmark], given: dict[str, Any], earlier: Results | None
) -> Results:
    taken = _taken(chosen, given)
    key = taken.date.isoformat(timespec="seconds")

    def repeat(name: str) -> str:
        return _command({**given, "every": False, "only": [name]}, taken.versions["pyspark"])

    profiles, start = given["profile"], _start(given)
    more = (_sizes(chosen, given), given["keep"])
    folder = given["folder"]
    suite = Suite(chosen, taken.quick, profiles, folder, start, key, repeat, _console, *more)
    names = [item.name for item in chosen]
    shown = Shown(_console, Clock(names, _durations(earlier, quick=taken.quick)))
    outcomes = suite.outcomes(shown)
    absent = {what for outcome in outcomes.values() for what in outcome.missing}
    there = {name: versions for name, versions in taken.peers.items() if name not in absent}
    taken = taken.model_copy(update={"peers": there})
    return Results(taken={key: taken}, benchmarks=outcomes)


def _start(given: dict[str, Any]) -> Start:
    """Return the function that starts Spark for all benchmarks."""
    asked = dict(text.split("=", 1) for text in given["conf"])
    fast = tuple(libraries()) if given["fast"] else None

    def start(folder: Path, jars: Sequence[Path], conf: Mapping[str, str]) -> Any:
        return session.start(folder, jars, {**conf, **asked}, fast)

    return start


def _taken(chosen: Sequence[Benchmark], given: dict[str, Any]) -> Taken:
    commit, changed = machine.commit()
    versions = machine.versions()
    return Taken(
        date=datetime.now(timezone.utc),
        commit=commit,
        changed=changed,
        command=_command(given, versions["pyspark"]),
        quick=given["quick"],
        profiled=given["profile"] is not None,
        machine=machine.machine(given["folder"]),
        versions=versions,
        peers={peer.name: peer.versions() for item in chosen for peer in item.peers},
    )


def _command(given: dict[str, Any], pyspark: str) -> str:
    """Return the command that repeats the figures elsewhere, without the paths of results."""
    flags = [flag for flag, name in _FLAGS if given[name]]
    named = (("--size", given["size"]), ("--conf", given["conf"]), ("--only", given["only"]))
    pairs = [word for option, texts in named for text in texts for word in (option, text)]
    return shlex.join(["./run", "bench", *_line(pyspark), *flags, *pairs])


def _line(pyspark: str) -> list[str]:
    """Return the option of ./run that picks this version; empty for the default one."""
    line = ".".join(pyspark.split(".")[:2])
    return [] if line == _NEWEST else ["--spark", line]


def _durations(earlier: Results | None, *, quick: bool) -> dict[str, float]:
    """Return the seconds that each benchmark took before."""
    try:
        known = earlier or load(_RECORD)
    except Unreadable:
        return {}
    return {
        name: outcome.seconds
        for name, outcome in known.benchmarks.items()
        if known.of(name).quick == quick and (outcome.figures or known.is_summary)
    }


# --- showing


def _show_names(chosen: Sequence[Benchmark]) -> None:
    for item in chosen:
        sizes = f" (--size: {', '.join(item.sizes)})" if item.sizes else ""
        _console.print(f"{item.name:24} {item.about}{' (with --all)' * item.long}{sizes}")


def _show_left_out(chosen: Sequence[Benchmark], given: dict[str, Any]) -> None:
    left = [name for name, item in BENCHMARKS.items() if item not in chosen]
    if left and not given["only"]:
        _console.print(f"Left out: {', '.join(left)}. --all runs everything, --only NAME one.")


def _show(results: Results) -> None:
    table = Table(*_COLUMNS, "median", "95 % interval", "n", "goal")
    for name, outcome in results.benchmarks.items():
        for line in outcome.figures:
            cells = (words.middle(line), words.spread(line), str(line.count), words.goal(line))
            table.add_row(name, escape(line.name), *cells)
        table.add_section()
    _console.print(table)
    for name, outcome in results.benchmarks.items():
        for what, why in outcome.missing.items():
            _console.print(f"{name}: {what} is missing: {why}", style="yellow", markup=False)
        if outcome.failed:
            _console.print(f"{name}: failed: {outcome.failed}", style="red", markup=False)


def _show_changes(found: Sequence[Change]) -> None:
    if not found:
        return
    table = Table(*_COLUMNS, "before", "now", "change")
    for change in found:
        sides = (words.middle(line) if line else "-" for line in (change.before, change.after))
        cells = (change.benchmark, escape(change.figure.name), *sides, words.change(change))
        table.add_row(*cells, style=_COLOURS.get(change.verdict))
    _console.print(table)
    worse = len(regressions(found))
    _console.print(
        f"{worse} regressions beyond the noise (--fail-on-regression: exit code 1 if any)"
    )


# --- writing


def _write(results: Results, found: Sequence[Change], given: dict[str, Any]) -> None:
    if given["json"]:
        save(results, given["json"])
    if given["html"]:
        given["html"].write_text(page(results, found), encoding="utf-8")
    if given["markdown"]:
        given["markdown"].write_text(markdown.document(results, found), encoding="utf-8")
    if given["record"]:
        _keep(results)


def _keep(results: Results) -> None:
    """Write the shown figures to docs/. A benchmark that failed keeps its earlier figures."""
    from docs import generate

    measured = {name: found for name, found in results.benchmarks.items() if found.figures}
    results = results.model_copy(update={"benchmarks": measured})
    whole = merged(load(_RECORD), results) if _RECORD.exists() else results
    save(summary(whole), _RECORD)
    generate.main([])


if __name__ == "__main__":
    main()
