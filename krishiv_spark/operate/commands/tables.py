"""The commands ``krishiv-spark parquet`` and ``iceberg``, for the maintenance of tables."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from krishiv_spark.operate.commands.common import (
    DRY_RUN,
    OLDER_THAN,
    STORAGE,
    clear,
    name_and_value,
    say,
    say_json,
    say_lines,
    seconds,
    storage_of,
)
from krishiv_spark.storage import StoreUrl
from krishiv_spark.storage.paths import url_scheme

if TYPE_CHECKING:
    from krishiv_spark.sinks.iceberg.maintenance.compaction import Compacted
    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

__all__ = ["iceberg", "parquet", "skipped", "vacuum"]


def _parse_place(context: click.Context, parameter: click.Parameter, text: str) -> Path | StoreUrl:
    """Return an existing folder of a disk, or a folder in a store."""
    if url_scheme(text) is not None and (url := StoreUrl.parse(text)).kind != "disk":
        return url
    found = click.Path(exists=True, file_okay=False, path_type=Path).convert(
        text, parameter, context
    )
    return Path(found)


# A running stream updates its state once an hour.
_SHORTEST_UNUSED_S = 7200.0


def _unused_age(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> float | None:
    """Return the age of unused state in seconds.

    Raises:
        click.BadParameter: If the state of a running stream may be as old.
    """
    if text is None:
        return None
    age_s = seconds(context, parameter, text)
    if age_s < _SHORTEST_UNUSED_S:
        raise click.BadParameter(
            f"{text!r} is too short: a running stream updates its state once an hour and could "
            "not continue without it. Give 2h or more"
        )
    return age_s


@click.group()
def parquet() -> None:
    """Clean up tables of krishiv-parquet, and show skipped data."""


_PLACE = click.argument("place", metavar="PATH", callback=_parse_place)


@parquet.command()
@_PLACE
@STORAGE
@click.option("--state", help="Folder of the streams' state, if the option 'stateLocation' is set.")
def skipped(place: Path | StoreUrl, given: tuple[str, ...], state: str | None) -> None:
    """Show the data that streams skipped while they read files in PATH, with the reasons."""
    from krishiv_spark.parquet.layout import SOURCES
    from krishiv_spark.sources.parquet.offset_store import all_skipped_ranges

    usual = place if isinstance(place, StoreUrl) else StoreUrl.parse(str(place.absolute()))
    lines = []
    with suppress(FileNotFoundError):
        where = usual / SOURCES if state is None else StoreUrl.parse(state)
        for stream, skip in all_skipped_ranges(where, storage_of(given).also_at(where)):
            of_file = f"{skip.path}, bytes {skip.start} to {skip.end}"
            lines.append(f"stream {stream}: {of_file}: after {skip.rows} rows: {skip.reason}")
    say_lines(lines, f"no skipped data is recorded for {place}")


@parquet.command()
@_PLACE
@STORAGE
@OLDER_THAN
@click.option(
    "--source-state",
    "unused_s",
    metavar="AGE",
    callback=_unused_age,
    help="Also remove the state of streams that read PATH and have not run for this long, such "
    "as 90d. They cannot continue afterwards. Minimum: 2h.",
)
@click.option(
    "--epoch-log",
    "epoch_logs",
    multiple=True,
    help="Location of the epoch logs of the table's queries, if they are in another store than "
    "the table: the value of a query's option 'epochLog', or the folder 'krishiv' in a "
    "checkpoint. Staged files of a query are kept if its log is not found.",
)
@DRY_RUN
def vacuum(  # noqa: PLR0913  click passes each option by its name
    place: Path | StoreUrl,
    given: tuple[str, ...],
    guard_s: float,
    unused_s: float | None,
    epoch_logs: tuple[str, ...],
    *,
    dry_run: bool,
) -> None:
    """Remove files that failed attempts left in the table at PATH, a folder or a URL."""
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
    from krishiv_spark.sinks.parquet.store_table import StoreTable
    from krishiv_spark.sinks.parquet.vacuum import find_store_orphans

    table = StoreTable(url, storage_of(given).also_at(url))
    found = find_store_orphans(table, guard_s, epoch_logs)
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
    from krishiv_spark.parquet.table_logs import find_table_logs
    from krishiv_spark.sinks.parquet.vacuum import find_orphans, find_unused_state, remove_orphan

    if next(find_table_logs(path), None) is None:
        say(f"no query keeps its epoch log in {path}: no staged file can be identified as orphaned")
    found = find_orphans(path.absolute(), guard_s, epoch_logs, storage_of(given))
    if unused_s is not None:
        found = itertools.chain(found, find_unused_state(path.absolute(), unused_s))
    clear(found, remove_orphan, dry_run=dry_run)


@click.group()
def iceberg() -> None:
    """Inspect, compact, clean up and move tables of krishiv-iceberg."""


def _of_table(command: Callable[..., None]) -> Callable[..., None]:
    """Add the argument and the options that name a table; see `_parse_table`."""
    arguments = (
        click.argument("table"),
        click.option("--warehouse", help="Value of the query's option warehouse."),
        click.option(
            "-o",
            "--option",
            "given",
            multiple=True,
            help="Further options of the query, each as name=value.",
        ),
    )
    for add in reversed(arguments):
        command = add(command)
    return command


def _parse_table(
    table: str, warehouse: str | None, given: tuple[str, ...], **own: str | None
) -> IcebergSinkOptions:
    """Return the options of a query that writes the table.

    Args:
        table: The table's name.
        warehouse: Value of the option `warehouse`.
        given: Further options, each as ``name=value``.
        own: Options that a command has as its own; None for those that were not given.
    """
    from krishiv_spark.iceberg.options import FORMAT
    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions

    named = {"table": table, "warehouse": warehouse, **own}
    texts = {name: text for name, text in named.items() if text is not None}
    return IcebergSinkOptions.parse({**texts, **dict(map(name_and_value, given))}, FORMAT)


@iceberg.command("inspect")
@_of_table
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
def iceberg_inspect(*, as_json: bool, **place: Any) -> None:
    """Show the size of TABLE, of its deletes and of its history, with advice."""
    from krishiv_spark.iceberg.catalogs import open_table
    from krishiv_spark.sinks.iceberg.maintenance.table_report import TableReport

    options = _parse_table(**place)
    report = TableReport.read(open_table(options), options)
    if as_json:
        say_json({**asdict(report), "advice": report.advice()})
    else:
        say_lines(report.lines())


@iceberg.command("snapshots")
@_of_table
@click.option(
    "--most", type=click.IntRange(1), default=20, show_default=True, help="Snapshots to show."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per snapshot.")
def iceberg_snapshots(*, most: int, as_json: bool, **place: Any) -> None:
    """Show the newest snapshots of TABLE, with the query and epoch that wrote each."""
    from krishiv_spark.iceberg.catalogs import open_table
    from krishiv_spark.sinks.iceberg.maintenance.table_report import list_snapshots

    found = list_snapshots(open_table(_parse_table(**place)), most)
    if as_json:
        for one in found:
            say_json(asdict(one))
    else:
        say_lines(found, "the table has no snapshot")


@iceberg.command("vacuum")
@_of_table
@click.option(
    "--foreign-names",
    is_flag=True,
    help="Also remove files whose names do not contain the table's id: files of other programs, "
    "and files that krishiv-spark wrote before it put the id into names. Use this only if "
    "no other table has files in these folders.",
)
@click.option(
    "--unfinished",
    is_flag=True,
    help="Also remove files of epochs that a krishiv-fanout query has not finished. Use this "
    "only if no such query will start again: it would be blocked.",
)
@click.option(
    "--other-lines",
    is_flag=True,
    help="Also remove files of table versions that the catalog does not have. Use this only if "
    "no other catalog has the table, as after a catalog was restored.",
)
@OLDER_THAN
@DRY_RUN
def iceberg_vacuum(
    guard_s: float,
    *,
    foreign_names: bool,
    unfinished: bool,
    other_lines: bool,
    dry_run: bool,
    **place: Any,
) -> None:
    """Remove files in the folders of TABLE that no snapshot refers to."""
    from krishiv_spark.sinks.iceberg.maintenance.orphans import find_orphans, make_deleter

    options = _parse_table(**place)
    found = find_orphans(
        options,
        guard_s,
        foreign_names=foreign_names,
        unfinished=unfinished,
        other_lines=other_lines,
    )
    clear(found.files, make_deleter(options), dry_run=dry_run)
    if found.foreign:
        say(f"{found.foreign} files kept whose names do not contain this table's id: see --help")
    if found.unfinished:
        say(
            f"{found.unfinished} files kept of epochs that a krishiv-fanout query may not have "
            "finished: its next start finishes them. See --help"
        )


@iceberg.command("compact")
@_of_table
@click.option(
    "--where",
    help="Compact only files that may have rows like these, such as \"day = '2026-11-27'\".",
)
@click.option(
    "--target-size",
    help="Size of a new file, such as 256m. Default: the table's write.target-file-size-bytes.",
)
@click.option(
    "--deleted-share",
    type=click.FloatRange(0, 1),
    default=0.1,
    show_default=True,
    help="Also rewrite files of which at least this share of rows is deleted.",
)
@click.option("--dry-run", is_flag=True, help="Show the groups of files, and change nothing.")
def iceberg_compact(
    where: str | None, target_size: str | None, deleted_share: float, *, dry_run: bool, **place: Any
) -> None:
    """Rewrite small files of TABLE, and files with deleted rows, as fewer files.

    Rows do not change, and streams may read and write meanwhile. About each gigabyte is one commit:
    if the command is interrupted, run it again to continue. The old files remain until their
    snapshots expire.
    """
    from krishiv_spark.sinks.iceberg.maintenance.compaction import (
        CompactionRequest,
        compact_in_steps,
    )
    from krishiv_spark.sinks.iceberg.maintenance.compaction_groups import describe_group, get_size
    from krishiv_spark.sinks.iceberg.table_copies import open_own_table

    options = _parse_table(**place, targetFileSize=target_size)
    request = CompactionRequest(where, deleted_share)
    groups = request.find_groups(open_own_table(options), options)
    if not groups:
        say("nothing to compact")
    elif dry_run:
        for group in groups:
            say(f"would rewrite {describe_group(group)}")
    else:
        finished: list[Compacted] = []
        try:
            with _open_progress(sum(map(get_size, groups))) as bar:
                finished.extend(compact_in_steps(options, groups, bar.update))
        finally:  # commits before an interrupt count
            for done in finished:
                say(str(done))


def _open_progress(length: int) -> AbstractContextManager[Any]:
    """Return a progress bar for a number of bytes; it is shown on terminals only."""
    is_hidden = not sys.stderr.isatty()
    return click.progressbar(length=length, label="compacting", file=sys.stderr, hidden=is_hidden)


@iceberg.command("relocate")
@click.argument("old")
@click.argument("new")
@click.option(
    "--copy",
    is_flag=True,
    help="Keep the old warehouse. The tables of the new one get new UUIDs.",
)
@click.option("--dry-run", is_flag=True, help="Show the tables without changing anything.")
def iceberg_relocate(old: str, new: str, *, copy: bool, dry_run: bool) -> None:
    """Move the warehouse OLD of an embedded catalog to the folder NEW.

    If NEW already has a catalog, because the files were moved or copied there, only the paths in
    its catalog and metadata change. Stop the queries that write to the warehouse first. If the
    command is interrupted, run it again to complete it.
    """
    from krishiv_spark.iceberg.relocation.warehouse import relocate

    relocate(old, new, copy=copy, dry_run=dry_run, say=say)
