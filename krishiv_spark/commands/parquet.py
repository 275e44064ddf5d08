"""``krishiv-spark parquet``: tables in folders."""

from __future__ import annotations

import itertools
from pathlib import Path

import click

from krishiv_spark.commands.common import DRY_RUN, OLDER_THAN, clear, seconds

__all__ = ["parquet", "vacuum"]


@click.group()
def parquet() -> None:
    """Tables of krishiv-parquet."""


@parquet.command()
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@OLDER_THAN
@click.option(
    "--source-state",
    "unused_s",
    metavar="AGE",
    callback=lambda context, parameter, text: text and seconds(context, parameter, text),
    help="Remove also what streams remember of PATH that have not run for so long, such as 90d; "
    "they could not go on.",
)
@DRY_RUN
def vacuum(path: Path, guard_s: float, unused_s: float | None, *, dry_run: bool) -> None:
    """Remove what failed attempts left in the table at PATH."""
    from krishiv_spark.parquet.progress import table_logs
    from krishiv_spark.sinks.parquet.vacuum import orphans, remove, unused_state

    if next(table_logs(path), None) is None:
        click.echo(f"no query keeps its epoch log in {path}: there is nothing that could be judged")
    found = orphans(path.absolute(), guard_s)
    if unused_s is not None:
        found = itertools.chain(found, unused_state(path.absolute(), unused_s))
    clear(found, remove, dry_run=dry_run)
