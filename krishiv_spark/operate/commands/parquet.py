"""``krishiv-spark parquet``: tables in folders."""

from __future__ import annotations

import itertools
from contextlib import suppress
from pathlib import Path

import click

from krishiv_spark.operate.commands.common import (
    DRY_RUN,
    OLDER_THAN,
    STORAGE,
    clear,
    say,
    say_lines,
    seconds,
    storage_of,
)
from krishiv_spark.storage import StoreUrl
from krishiv_spark.storage.paths import url_scheme

__all__ = ["parquet", "skipped", "vacuum"]


def _placed(context: click.Context, parameter: click.Parameter, text: str) -> Path | StoreUrl:
    """A folder of a disk, which is there, or one in a store."""
    if url_scheme(text) is not None and (url := StoreUrl.parse(text)).kind != "disk":
        return url
    found = click.Path(exists=True, file_okay=False, path_type=Path).convert(
        text, parameter, context
    )
    return Path(found)


# A stream that runs touches its state once an hour.
_SHORTEST_UNUSED_S = 7200.0


def _unused_age(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> float | None:
    """Return the age of unused state in seconds.

    Raises:
        click.BadParameter: If the state of a stream that runs may be as old.
    """
    if text is None:
        return None
    age_s = seconds(context, parameter, text)
    if age_s < _SHORTEST_UNUSED_S:
        raise click.BadParameter(
            f"{text!r} is too short: a stream that runs touches its state once an hour, and could "
            "not go on without it. Give 2h or more"
        )
    return age_s


@click.group()
def parquet() -> None:
    """Tables of krishiv-parquet."""


_PLACE = click.argument("place", metavar="PATH", callback=_placed)


@parquet.command()
@_PLACE
@STORAGE
@click.option("--state", help="Where the streams keep their state, if 'stateLocation' says so.")
def skipped(place: Path | StoreUrl, given: tuple[str, ...], state: str | None) -> None:
    """Show what streams left out while they read files in PATH, and why."""
    from krishiv_spark.parquet.layout import SOURCES
    from krishiv_spark.sources.parquet.skips import all_skips

    usual = place if isinstance(place, StoreUrl) else StoreUrl.parse(str(place.absolute()))
    lines = []
    with suppress(FileNotFoundError):
        where = usual / SOURCES if state is None else StoreUrl.parse(state)
        for stream, skip in all_skips(where, storage_of(given).also_at(where)):
            of_file = f"{skip.path}, bytes {skip.start} to {skip.end}"
            lines.append(f"stream {stream}: {of_file}: after {skip.rows} rows of it: {skip.reason}")
    say_lines(lines, f"nothing is noted for {place}: no stream left anything out")


@parquet.command()
@_PLACE
@STORAGE
@OLDER_THAN
@click.option(
    "--source-state",
    "unused_s",
    metavar="AGE",
    callback=_unused_age,
    help="Remove also what streams remember of PATH that have not run for so long, such as 90d; "
    "they could not go on. At least 2h.",
)
@click.option(
    "--epoch-log",
    "epoch_logs",
    multiple=True,
    help="Where the epoch logs of the table's queries are, if they are in another store than the "
    "table: as the option 'epochLog' of a query, or the folder 'krishiv' in a checkpoint. What a "
    "query has staged is left alone if its log is not found.",
)
@DRY_RUN
def vacuum(  # noqa: PLR0913  click gives each option by its name
    place: Path | StoreUrl,
    given: tuple[str, ...],
    guard_s: float,
    unused_s: float | None,
    epoch_logs: tuple[str, ...],
    *,
    dry_run: bool,
) -> None:
    """Remove what failed attempts left in the table at PATH, a folder or a URL."""
    if isinstance(place, Path):
        _vacuum_disk(place, given, guard_s, unused_s, epoch_logs, dry_run=dry_run)
    else:
        _vacuum_store(place, given, guard_s, epoch_logs, dry_run=dry_run)


def _vacuum_store(
    url: StoreUrl,
    given: tuple[str, ...],
    guard_s: float,
    epoch_logs: tuple[str, ...],
    *,
    dry_run: bool,
) -> None:
    from krishiv_spark.sinks.parquet.store_vacuum import store_orphans
    from krishiv_spark.sinks.parquet.tables import StoreTable

    table = StoreTable(url, storage_of(given).also_at(url))
    found = store_orphans(table, guard_s, epoch_logs)
    clear(found, lambda orphan: orphan.remove(), dry_run=dry_run)


def _vacuum_disk(  # noqa: PLR0913  as `vacuum`
    path: Path,
    given: tuple[str, ...],
    guard_s: float,
    unused_s: float | None,
    epoch_logs: tuple[str, ...],
    *,
    dry_run: bool,
) -> None:
    from krishiv_spark.parquet.progress import table_logs
    from krishiv_spark.sinks.parquet.vacuum import orphans, remove, unused_state

    if next(table_logs(path), None) is None:
        say(f"no query keeps its epoch log in {path}: there is nothing that could be judged")
    found = orphans(path.absolute(), guard_s, epoch_logs, storage_of(given))
    if unused_s is not None:
        found = itertools.chain(found, unused_state(path.absolute(), unused_s))
    clear(found, remove, dry_run=dry_run)
