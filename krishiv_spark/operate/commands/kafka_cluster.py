"""The commands ``krishiv-spark kafka``, for transactions, and ``dev``, for a local broker."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from krishiv_spark.operate.commands.common import name_and_value, say, say_lines

if TYPE_CHECKING:
    from krishiv_spark.sinks.kafka.admin import TransactionAdmin

__all__ = ["dev", "kafka"]


@click.group()
def kafka() -> None:
    """Inspect what krishiv-kafka keeps in a cluster."""


@kafka.group()
def transactions() -> None:
    """Show and end open transactions of the sink."""


_BOOTSTRAP = click.option("--bootstrap", required=True, help="Kafka brokers, as host:port,...")
_CONFIG = click.option(
    "--command-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with Kafka's TLS and SASL settings, one name=value per line.",
)
_PREFIX = click.option(
    "--prefix",
    default="krishiv",
    show_default=True,
    help="Value of the sink's option kafka.transactional.id.",
)
_CHECKPOINT = click.option(
    "--checkpoint",
    required=True,
    help="The query's checkpointLocation, which contains its epoch log.",
)


_EPOCH_LOG = click.option("--epoch-log", help="Value of the query's option epochLog, if it is set.")
_OPTIONS = click.option(
    "-o",
    "--option",
    "given",
    multiple=True,
    callback=lambda _, __, given: dict(map(name_and_value, given)),
    help="Further options of the query, each as name=value: storage.… of its checkpoint.",
)


@transactions.command("list")
@_BOOTSTRAP
@_CONFIG
@_PREFIX
@click.option("--query", default="", help="Id of one query. Default: all queries.")
def transactions_list(bootstrap: str, command_config: Path | None, prefix: str, query: str) -> None:
    """Show each open transaction with its start time and its query."""
    from krishiv_spark.sinks.kafka.admin import list_open_lines

    say_lines(list_open_lines(bootstrap, command_config, prefix, query), "no transaction is open")


def _admin(*, epoch_log: str | None, given: Mapping[str, str], **where: Any) -> TransactionAdmin:
    from krishiv_spark.sinks.kafka.admin import TransactionAdmin

    elsewhere = {} if epoch_log is None else {"epochLog": epoch_log}
    return TransactionAdmin.from_options(**where, given={**given, **elsewhere})


@transactions.command("show")
@_BOOTSTRAP
@_CONFIG
@_PREFIX
@_CHECKPOINT
@_EPOCH_LOG
@_OPTIONS
def transactions_show(**where: Any) -> None:
    """Show a query's transactions and the intent in its epoch log that decides about them."""
    admin = _admin(**where)
    say_lines(admin.list_lines(), "no transaction is open, and the newest epoch is complete")


@transactions.command("resolve")
@_BOOTSTRAP
@_CONFIG
@_PREFIX
@_CHECKPOINT
@_EPOCH_LOG
@_OPTIONS
@click.option("--dry-run", is_flag=True, help="Show the actions without ending any transaction.")
def transactions_resolve(*, dry_run: bool, **where: Any) -> None:
    """Commit the transactions in the epoch log and abort the rest, as a restart would.

    A driver that still runs on the checkpoint is fenced and fails.
    """
    admin = _admin(**where)
    say_lines(admin.list_lines(), "nothing to do")
    if not dry_run:
        admin.resolve()
        say("done")


@transactions.command("abort")
@_BOOTSTRAP
@_CONFIG
@_PREFIX
@click.option("--query", required=True, help="Id of a batch job whose driver is dead: batch-...")
@click.option("--dry-run", is_flag=True, help="Show the transactions without aborting them.")
def transactions_abort(
    bootstrap: str, command_config: Path | None, prefix: str, query: str, *, dry_run: bool
) -> None:
    """Abort the open transactions of a batch job whose driver is dead.

    If the driver died while it committed, the rows of some tasks are visible already; the rows of
    the other tasks are deleted now. A job that is still running fails.
    """
    from krishiv_spark.sinks.kafka.admin import abort_job, list_open_lines

    say_lines(list_open_lines(bootstrap, command_config, prefix, query), "no transaction is open")
    if not dry_run:
        abort_job(bootstrap, command_config, prefix, query)
        say("done")


@click.group()
def dev() -> None:
    """Start real systems on loopback, for development and tests."""


@dev.command("kafka")
@click.option("--brokers", default=1, show_default=True, help="Number of brokers to start.")
@click.option("--secure", is_flag=True, help="Also listen with TLS and SASL.")
def dev_kafka(brokers: int, *, secure: bool) -> None:
    """Run Apache Kafka until Ctrl-C.

    The broker is the one in KRISHIV_TEST_KAFKA if that variable is set, otherwise a container, or
    a process with Kafka's own jars. With --secure, it is always a process. The printed settings
    are then for SCRAM-SHA-512; PLAIN works too.
    """
    from krishiv_spark.kafka.dev import open_cluster

    _end_on_signals()
    # Otherwise nothing would be shown for a minute while jars are downloaded.
    with open_cluster(brokers, secure=secure, tell=lambda line: say(line, err=True)) as cluster:
        way_in = cluster.secure.options() if cluster.secure else {}
        for name, text in {"kafka.bootstrap.servers": cluster.bootstrap, **way_in}.items():
            say(f"{name} = {text}")
        if secure:
            say(f"without TLS and SASL: {cluster.bootstrap}", err=True)
        say(f"{cluster.origin}; press Ctrl-C to stop", err=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


def _end_on_signals() -> None:
    """End on SIGTERM and SIGHUP as on Ctrl-C, which kills the brokers and removes their folder."""

    def end(number: int, frame: object) -> None:
        del number, frame
        raise KeyboardInterrupt

    for name in ("SIGTERM", "SIGHUP"):
        if (known := getattr(signal, name, None)) is not None:  # Windows has no SIGHUP
            signal.signal(known, end)
