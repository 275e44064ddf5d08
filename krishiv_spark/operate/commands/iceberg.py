"""``krishiv-spark iceberg``: tables in catalogs."""

from __future__ import annotations

from typing import Any

import click

from krishiv_spark.operate.commands.common import DRY_RUN, OLDER_THAN, clear, name_and_value, say

__all__ = ["iceberg"]


@click.group()
def iceberg() -> None:
    """Tables of krishiv-iceberg."""


@iceberg.command("vacuum")
@click.argument("table")
@click.option("--warehouse", help="The option warehouse of the query.")
@click.option(
    "-o", "--option", "given", multiple=True, help="Further options of the query, as name=value."
)
@click.option(
    "--foreign-names",
    is_flag=True,
    help="Remove files too whose names do not have the table's id: those of other programs, and of "
    "krishiv-spark before it put the id there. Only where no other table has files.",
)
@click.option(
    "--unfinished",
    is_flag=True,
    help="Remove files too of epochs that a query of krishiv-fanout has not finished. Only where "
    "no such query will start again: it would be blocked.",
)
@click.option(
    "--other-lines",
    is_flag=True,
    help="Remove files too that belong to versions of the table which its catalog does not have. "
    "Only where no other catalog has the table, as after a catalog was restored.",
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
    """Remove files in the folders of TABLE that no snapshot names."""
    from krishiv_spark.iceberg.options import FORMAT
    from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
    from krishiv_spark.sinks.iceberg.vacuum import find_orphans, remover

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
    clear(found.files, remover(options), dry_run=dry_run)
    if found.foreign:
        say(f"{found.foreign} files left whose names do not have this table's id: --help says more")
    if found.unfinished:
        say(
            f"{found.unfinished} files left of epochs that a query of krishiv-fanout may not have "
            "finished: its next start finishes them. --help says more"
        )


@iceberg.command("relocate")
@click.argument("old")
@click.argument("new")
@click.option(
    "--copy",
    is_flag=True,
    help="Keep the old warehouse; the tables of the new one get UUIDs of their own.",
)
@click.option("--dry-run", is_flag=True, help="Show the tables; change nothing.")
def iceberg_relocate(old: str, new: str, *, copy: bool, dry_run: bool) -> None:
    """Move the warehouse OLD of an embedded catalog to the folder NEW.

    If NEW has a catalog already, since its files were moved or copied there, only the paths in its
    catalog and metadata are changed. Stop the queries that write to it first. A command that was
    ended in the middle is completed by running it again.
    """
    from krishiv_spark.iceberg.relocation.warehouse import relocate

    relocate(old, new, copy=copy, dry_run=dry_run, say=say)
