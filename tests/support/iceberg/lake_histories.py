"""Many random histories of Iceberg tables, with saved results.

    python tests/support/iceberg/lake_histories.py --histories 1000 --results histories.jsonl

Each history has a line in the results, and a history that has one is not played again. So the
command continues where it was interrupted. `--only SEED` plays one history and prints its steps.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
from duck_iceberg import open_duckdb
from java_iceberg import open_java
from lake_history import play

from benchmarks.bench import MEMORY


@click.command(help=__doc__)
@click.option("--histories", default=100, show_default=True, help="How many, with the results.")
@click.option("--seed", default=0, show_default=True, help="Of the first; the others follow.")
@click.option("--steps", default=14, show_default=True, help="Of each history.")
@click.option("--results", type=click.Path(path_type=Path), help="File with a line for each.")
@click.option("--only", type=int, help="Play this seed only, and print its steps.")
@click.option("--java/--no-java", default=True, help="With Iceberg-Java, which needs its jars.")
def main(
    histories: int, seed: int, steps: int, results: Path | None, only: int | None, *, java: bool
) -> None:
    """Play the histories that have no result yet; the exit code is 1 if one failed."""
    known = {} if results is None else read_results(results)
    seeds = [only] if only is not None else range(seed, seed + histories)
    with open_duckdb() as duck, open_java() if java else nullcontext() as tables:
        for number in seeds:
            if number in known and only is None:
                continue
            known[number] = line = play_once(number, (duck, tables), steps)
            if line["failed"] or only is not None:
                click.echo("\n".join([line["failed"] or "passed", *line.pop("tale")]))
            if results is not None:
                with results.open("a") as file:
                    line.pop("tale", None)
                    file.write(json.dumps(line) + "\n")
    chosen = [known[number] for number in seeds]
    click.echo(summarize(chosen))
    sys.exit(any(line["failed"] for line in chosen))


def read_results(file: Path) -> dict[int, dict[str, Any]]:
    """Return the results by seed; the later line of a seed counts."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {line["seed"]: line for line in map(json.loads, lines)}


def play_once(seed: int, readers: tuple[Any, Any], steps: int) -> dict[str, Any]:
    """Play one history, with a connection of DuckDB and Iceberg-Java, and return its line."""
    begin = time.monotonic()
    line: dict[str, Any] = {"seed": seed, "failed": "", "counts": {}, "tale": []}
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="krishiv-lake-") as folder:
        try:
            history = play(Path(folder), seed, *readers, steps)
            line |= {"counts": dict(history.counts), "tale": history.tale}
        except Exception:  # noqa: BLE001  any error is a finding; the others are played too
            line["failed"] = traceback.format_exc()
    return {**line, "seconds": round(time.monotonic() - begin, 2)}


def summarize(lines: list[dict[str, Any]]) -> str:
    """Return how many histories passed, and how often each reader and step was in them."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line["counts"])
    failed = [line["seed"] for line in lines if line["failed"]]
    told = ", ".join(f"{name} {count:,}" for name, count in counts.most_common())
    return f"{len(lines) - len(failed)} histories passed, {len(failed)} failed {failed}; {told}"


if __name__ == "__main__":
    main()
