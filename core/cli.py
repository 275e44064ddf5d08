"""The command ``krishiv-spark``."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import click

from krishiv_spark.errors import KrishivError
from krishiv_spark.options import parse_duration

__all__ = ["main"]


class _Errors(click.Group):
    """Shows our own errors as messages, not as tracebacks."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KrishivError as error:
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


@main.command()
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--older-than",
    "guard_s",
    default="7d",
    show_default=True,
    callback=_seconds,
    help="Guard age for files that a running batch may still need.",
)
@click.option("--dry-run", is_flag=True, help="Show what would go; remove nothing.")
def vacuum(path: Path, guard_s: float, dry_run: bool) -> None:
    """Remove what failed attempts left in the table at PATH."""
    from krishiv_spark.parquet.progress import table_logs
    from krishiv_spark.parquet.vacuum import orphans, remove

    if next(table_logs(path), None) is None:
        click.echo(f"no query keeps its epoch log in {path}: there is nothing that could be judged")
    count = size = 0
    for orphan in orphans(path.absolute(), guard_s):
        click.echo(f"{orphan.path.relative_to(path.absolute())}  {orphan.reason}")
        count, size = count + 1, size + orphan.size
        if not dry_run:
            remove(orphan)
    click.echo(f"{count} files, {size} bytes {'would be ' if dry_run else ''}removed")


@main.group()
def dev() -> None:
    """Real systems on loopback, for development and tests."""


@dev.command("kafka")
@click.option("--brokers", default=1, show_default=True, help="How many.")
def dev_kafka(brokers: int) -> None:
    """Run Apache Kafka until Ctrl-C.

    It is KRISHIV_TEST_KAFKA if that is set, or a container, or a process with Kafka's own jars.
    """
    from krishiv_spark.kafka.dev import open_cluster

    with open_cluster(brokers) as cluster:
        click.echo(f"kafka.bootstrap.servers = {cluster.bootstrap}")
        click.echo(f"{cluster.origin}; Ctrl-C ends it", err=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
