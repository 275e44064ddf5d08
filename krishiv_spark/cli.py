"""The command ``krishiv-spark``."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click

from krishiv_spark.errors import KrishivError
from krishiv_spark.log_commands import log, name_and_value
from krishiv_spark.options import parse_duration

__all__ = ["main"]


class _Sized(Protocol):
    """A file that can go, which shows itself as text."""

    @property
    def size(self) -> int:
        """Bytes."""
        ...


_Orphan = TypeVar("_Orphan", bound=_Sized)


class _Errors(click.Group):
    """Shows our own errors, and a missing permission, as messages, not as tracebacks."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (KrishivError, PermissionError) as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Errors)
@click.version_option(package_name="krishiv-spark")
def main() -> None:
    """Tools for tables and queries of krishiv-spark."""


def _seconds(_: click.Context, __: click.Parameter, text: str) -> float:
    try:
        return int(str(parse_duration(text))) / 1000
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


_OLDER_THAN = click.option(
    "--older-than",
    "guard_s",
    default="7d",
    show_default=True,
    callback=_seconds,
    help="Guard age for files that running queries may still need.",
)
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would go; remove nothing.")


def _clear(orphans: Iterable[_Orphan], remove: Callable[[_Orphan], None], *, dry_run: bool) -> None:
    count = size = 0
    for orphan in orphans:
        click.echo(orphan)
        count, size = count + 1, size + orphan.size
        if not dry_run:
            remove(orphan)
    click.echo(f"{count} files, {size} bytes {'would be ' if dry_run else ''}removed")


@main.command()
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@_OLDER_THAN
@click.option(
    "--source-state",
    "unused_s",
    metavar="AGE",
    callback=lambda context, parameter, text: text and _seconds(context, parameter, text),
    help="Remove also what streams remember of PATH that have not run for so long, such as 90d; "
    "they could not go on.",
)
@_DRY_RUN
def vacuum(path: Path, guard_s: float, unused_s: float | None, *, dry_run: bool) -> None:
    """Remove what failed attempts left in the table at PATH."""
    from krishiv_spark.parquet.progress import table_logs
    from krishiv_spark.sinks.parquet.vacuum import orphans, remove, unused_state

    if next(table_logs(path), None) is None:
        click.echo(f"no query keeps its epoch log in {path}: there is nothing that could be judged")
    found = orphans(path.absolute(), guard_s)
    if unused_s is not None:
        found = itertools.chain(found, unused_state(path.absolute(), unused_s))
    _clear(found, remove, dry_run=dry_run)


main.add_command(log)


@main.group()
def dev() -> None:
    """Real systems on loopback, for development and tests."""


@dev.command("kafka")
@click.option("--brokers", default=1, show_default=True, help="How many.")
@click.option("--secure", is_flag=True, help="Listen with TLS and SASL too.")
def dev_kafka(brokers: int, *, secure: bool) -> None:
    """Run Apache Kafka until Ctrl-C.

    It is KRISHIV_TEST_KAFKA if that is set, or a container, or a process with Kafka's own jars;
    with --secure always the last. Then what is printed is for SCRAM-SHA-512; PLAIN works too.
    """
    from krishiv_spark.kafka.dev import open_cluster

    with open_cluster(brokers, secure=secure) as cluster:
        way_in = cluster.secure.options() if cluster.secure else {}
        for name, text in {"kafka.bootstrap.servers": cluster.bootstrap, **way_in}.items():
            click.echo(f"{name} = {text}")
        if secure:
            click.echo(f"without TLS and SASL: {cluster.bootstrap}", err=True)
        click.echo(f"{cluster.origin}; Ctrl-C ends it", err=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


@main.group()
def kafka() -> None:
    """What krishiv-kafka keeps in a cluster."""


@kafka.group()
def transactions() -> None:
    """Transactions of the sink: what is open, and how to end it."""


_BOOTSTRAP = click.option("--bootstrap", required=True, help="Brokers, as host:port,...")
_CONFIG = click.option(
    "--command-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with Kafka's settings for TLS and SASL, one name=value in a line.",
)
_PREFIX = click.option(
    "--prefix", default="krishiv", show_default=True, help="kafka.transactional.id of the sink."
)
_CHECKPOINT = click.option(
    "--checkpoint", required=True, help="The query's checkpointLocation, which holds its log."
)


_EPOCH_LOG = click.option("--epoch-log", help="The option epochLog of the query, if it has one.")


@transactions.command("list")
@_BOOTSTRAP
@_CONFIG
@_PREFIX
@click.option("--query", default="", help="Id of one query; all without it.")
def transactions_list(bootstrap: str, command_config: Path | None, prefix: str, query: str) -> None:
    """Show what is open, since when, and for which query."""
    from krishiv_spark.sinks.kafka.admin import open_lines

    _echo(open_lines(bootstrap, command_config, prefix, query), "no transaction is open")


@transactions.command("show")
@_BOOTSTRAP
@_CONFIG
@_PREFIX
@_CHECKPOINT
@_EPOCH_LOG
def transactions_show(**where: Any) -> None:
    """Show what the epoch log of a query says of its transactions."""
    from krishiv_spark.sinks.kafka.admin import TransactionAdmin

    admin = TransactionAdmin.of(**where)
    _echo(admin.lines(), "nothing is open, and the newest epoch is complete")


@transactions.command("resolve")
@_BOOTSTRAP
@_CONFIG
@_PREFIX
@_CHECKPOINT
@_EPOCH_LOG
@click.option("--dry-run", is_flag=True, help="Show what would be done; end nothing.")
def transactions_resolve(*, dry_run: bool, **where: Any) -> None:
    """Commit what the epoch log names and abort the rest, as a restart of the query would.

    A driver that still runs on the checkpoint is fenced, and fails.
    """
    from krishiv_spark.sinks.kafka.admin import TransactionAdmin

    admin = TransactionAdmin.of(**where)
    _echo(admin.lines(), "there is nothing to do")
    if not dry_run:
        admin.resolve()
        click.echo("done")


@transactions.command("abort")
@_BOOTSTRAP
@_CONFIG
@_PREFIX
@click.option("--query", required=True, help="Id of a batch job that is dead: batch-....")
@click.option("--dry-run", is_flag=True, help="Show what would be aborted; end nothing.")
def transactions_abort(
    bootstrap: str, command_config: Path | None, prefix: str, query: str, *, dry_run: bool
) -> None:
    """Abort what a batch job has left open whose driver is dead.

    If it died while it committed, rows of some tasks are visible, and those of the others go now.
    A job that lives fails.
    """
    from krishiv_spark.sinks.kafka.admin import abort_job, open_lines

    _echo(open_lines(bootstrap, command_config, prefix, query), "no transaction is open")
    if not dry_run:
        abort_job(bootstrap, command_config, prefix, query)
        click.echo("done")


@main.group()
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
@_OLDER_THAN
@_DRY_RUN
def iceberg_vacuum(
    table: str, guard_s: float, *, foreign_names: bool, dry_run: bool, **place: Any
) -> None:
    """Remove files in the folders of TABLE that no snapshot names."""
    from krishiv_spark.iceberg.options import FORMAT, IcebergOptions
    from krishiv_spark.sinks.iceberg.vacuum import find_orphans, remover

    given = dict(map(name_and_value, place["given"]))
    warehouse = {"warehouse": place["warehouse"]} if place["warehouse"] else {}
    options = IcebergOptions.parse({"table": table, **warehouse, **given}, FORMAT)
    found = find_orphans(options, guard_s, foreign_names=foreign_names)
    _clear(found.files, remover(options), dry_run=dry_run)
    if found.foreign:
        click.echo(
            f"{found.foreign} files left whose names do not have this table's id: --help says more"
        )


def _echo(lines: list[str], otherwise: str) -> None:
    for line in lines or [otherwise]:
        click.echo(line)
