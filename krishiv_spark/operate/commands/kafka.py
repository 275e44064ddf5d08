"""``krishiv-spark kafka``: what the sink keeps in a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from krishiv_spark.operate.commands.common import name_and_value, say, say_lines

if TYPE_CHECKING:
    from krishiv_spark.sinks.kafka.admin import TransactionAdmin

__all__ = ["kafka"]


@click.group()
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
_OPTIONS = click.option(
    "-o",
    "--option",
    "given",
    multiple=True,
    callback=lambda _, __, given: dict(map(name_and_value, given)),
    help="Further options of the query, as name=value: storage.… of its checkpoint.",
)


@transactions.command("list")
@_BOOTSTRAP
@_CONFIG
@_PREFIX
@click.option("--query", default="", help="Id of one query; all without it.")
def transactions_list(bootstrap: str, command_config: Path | None, prefix: str, query: str) -> None:
    """Show what is open, since when, and for which query."""
    from krishiv_spark.sinks.kafka.admin import open_lines

    say_lines(open_lines(bootstrap, command_config, prefix, query), "no transaction is open")


def _admin(*, epoch_log: str | None, given: Mapping[str, str], **where: Any) -> TransactionAdmin:
    from krishiv_spark.sinks.kafka.admin import TransactionAdmin

    elsewhere = {} if epoch_log is None else {"epochLog": epoch_log}
    return TransactionAdmin.of(**where, given={**given, **elsewhere})


@transactions.command("show")
@_BOOTSTRAP
@_CONFIG
@_PREFIX
@_CHECKPOINT
@_EPOCH_LOG
@_OPTIONS
def transactions_show(**where: Any) -> None:
    """Show what the epoch log of a query says of its transactions."""
    admin = _admin(**where)
    say_lines(admin.lines(), "nothing is open, and the newest epoch is complete")


@transactions.command("resolve")
@_BOOTSTRAP
@_CONFIG
@_PREFIX
@_CHECKPOINT
@_EPOCH_LOG
@_OPTIONS
@click.option("--dry-run", is_flag=True, help="Show what would be done; end nothing.")
def transactions_resolve(*, dry_run: bool, **where: Any) -> None:
    """Commit what the epoch log names and abort the rest, as a restart of the query would.

    A driver that still runs on the checkpoint is fenced, and fails.
    """
    admin = _admin(**where)
    say_lines(admin.lines(), "there is nothing to do")
    if not dry_run:
        admin.resolve()
        say("done")


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

    say_lines(open_lines(bootstrap, command_config, prefix, query), "no transaction is open")
    if not dry_run:
        abort_job(bootstrap, command_config, prefix, query)
        say("done")
