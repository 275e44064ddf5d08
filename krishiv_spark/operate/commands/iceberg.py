"""``krishiv-spark iceberg``: tables in catalogs."""

from __future__ import annotations

from typing import Any

import click

from krishiv_spark.operate.commands.common import DRY_RUN, OLDER_THAN, clear, name_and_value, say

__all__ = ["iceberg"]


@click.group()
def iceberg() -> None:
    """Clean up and move tables of krishiv-iceberg."""


@iceberg.command("vacuum")
@click.argument("table")
@click.option("--warehouse", help="Value of the query's option warehouse.")
@click.option(
    "-o",
    "--option",
    "given",
    multiple=True,
    help="Further options of the query, each as name=value.",
)
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
def iceberg_vacuum(  # noqa: PLR0913  one for each option of the command
    table: str,
    guard_s: float,
    *,
    foreign_names: bool,
    unfinished: bool,
    other_lines: bool,
    dry_run: bool,
    **place: Any,
) -> None:
    """Remove files in the folders of TABLE that no snapshot refers to."""
    from krishiv_spark.iceberg.options import FORMAT
    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
    from krishiv_spark.sinks.iceberg.orphans import find_orphans, make_deleter

    given = dict(map(name_and_value, place["given"]))
    warehouse = {"warehouse": place["warehouse"]} if place["warehouse"] else {}
    options = IcebergSinkOptions.parse({"table": table, **warehouse, **given}, FORMAT)
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
