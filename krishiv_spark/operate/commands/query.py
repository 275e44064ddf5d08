"""The commands ``krishiv-spark status``, ``epochs`` and ``watch``, which only read."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from krishiv_spark.errors import KrishivError
from krishiv_spark.messages.terminal import show_text
from krishiv_spark.operate.commands.common import (
    checkpoint_of,
    name_and_value,
    of_checkpoint,
    of_log,
    say,
    say_json,
    say_lines,
    seconds,
)

if TYPE_CHECKING:
    from krishiv_spark.operate.inspection.watching import ObservedQuery, QueryWatcher

__all__ = ["epochs", "status", "watch"]


@click.command()
@of_checkpoint
@of_log
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
def status(
    checkpoint: str,
    given: tuple[str, ...],
    table: str | None,
    epoch_log: str | None,
    *,
    as_json: bool,
) -> None:
    """Show the state of the query of CHECKPOINT, whether the query runs or not.

    The command reads the checkpoint and the epoch log and changes nothing. With the options of the
    source or sink, such as -o kafka.bootstrap.servers=b:9092, it also queries the cluster for the
    lag and for open transactions of the query, and with -o registry.url=URL the schema registry
    for newer versions of the schemas. A sink without an epoch log has the epochs in its target:
    with the options that name it, such as -o warehouse=PATH -o table=NAME (krishiv-iceberg) or
    -o path=PATH (krishiv-delta), the committed epoch is read from there.
    """
    from krishiv_spark.operate.inspection.live import inspect_live_systems
    from krishiv_spark.operate.inspection.query_status import inspect_checkpoint
    from krishiv_spark.operate.inspection.watching import status_lines

    options = dict(map(name_and_value, given))
    place = checkpoint_of(checkpoint, given, table, epoch_log)
    found = inspect_checkpoint(place, table=table, epoch_log=epoch_log, given=options)
    live = inspect_live_systems(found, options, table=table)
    if as_json:
        say_json({**asdict(found), "live": asdict(live)})
    else:
        say_lines(status_lines(found, live))


@click.group()
def epochs() -> None:
    """Show the epochs in a query's checkpoint (Spark keeps about 100)."""


@epochs.command("list")
@of_checkpoint
@click.option(
    "--newest",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Number of epochs to show.",
)
def epochs_list(checkpoint: str, given: tuple[str, ...], newest: int) -> None:
    """Show the newest epochs, one per line."""
    from krishiv_spark.operate.inspection.query_status import read_epoch_status
    from krishiv_spark.operate.inspection.watching import epoch_line

    found = checkpoint_of(checkpoint, given)
    found.query_id()  # raises if it is not a checkpoint
    for epoch in found.epochs()[-newest:]:
        say(epoch_line(read_epoch_status(found, epoch)))


@epochs.command("show")
@of_checkpoint
@click.argument("epoch", type=click.IntRange(0))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
def epochs_show(checkpoint: str, given: tuple[str, ...], epoch: int, *, as_json: bool) -> None:
    """Show one epoch in full, with the offsets as Spark stores them."""
    from krishiv_spark.operate.inspection.query_status import read_epoch_status
    from krishiv_spark.operate.inspection.watching import epoch_lines

    status = read_epoch_status(checkpoint_of(checkpoint, given), epoch)
    if as_json:
        say_json(asdict(status))
    else:
        say_lines(epoch_lines(status))


@click.command()
@of_checkpoint
@of_log
@click.option(
    "--interval",
    default="2s",
    show_default=True,
    callback=seconds,
    help="Time between two readings.",
)
@click.option("--once", is_flag=True, help="Print the status once and exit.")
def watch(
    checkpoint: str, given: tuple[str, ...], interval: float, *, once: bool, **log: Any
) -> None:
    """Watch the query of CHECKPOINT until Ctrl-C.

    The view shows the output of 'krishiv-spark status' and the newest epochs. If the output is not
    a terminal, one line is printed for each completed epoch. The command only reads.
    """
    from krishiv_spark.operate.inspection.watching import QueryWatcher

    options = dict(map(name_and_value, given))
    watcher = QueryWatcher(checkpoint_of(checkpoint, given, *log.values()), options, **log)
    if once:
        say_lines(_lines(watcher.look()))
        return
    try:
        _live(watcher, interval) if _can_draw() else _log_epochs(watcher, interval)
    except KeyboardInterrupt:
        return


def _can_draw() -> bool:
    if not sys.stdout.isatty():
        return False
    try:
        import rich.live  # noqa: F401
    except ImportError:
        say(
            'printing one line per epoch; pip install "krishiv-spark[watch]" for a live view',
            err=True,
        )
        return False
    return True


def _lines(sight: ObservedQuery) -> list[str]:
    from krishiv_spark.operate.inspection.watching import rate_line, status_lines

    return [*status_lines(sight.status, sight.live), *map(rate_line, sight.paces)]


def _log_epochs(watcher: QueryWatcher, interval_s: float) -> None:
    from krishiv_spark.operate.inspection.watching import completed_rates_after, rate_line

    newest: int | None = None  # the first reading includes the newest epochs only

    def look() -> None:
        nonlocal newest
        sight, newest = watcher.look(newest), -1 if newest is None else newest
        for pace in completed_rates_after(sight, newest):
            newest = pace.epoch.epoch
            say(rate_line(pace))
        sys.stdout.flush()

    _repeat(look, interval_s, lambda why: say(why, err=True))


def _live(watcher: QueryWatcher, interval_s: float) -> None:
    from rich.live import Live

    with Live(auto_refresh=False) as screen:

        def draw(what: Any) -> None:
            screen.update(what, refresh=True)

        _repeat(lambda: draw(_drawn(watcher.look())), interval_s, lambda why: draw(_text(why)))


def _repeat(look: Callable[[], None], interval_s: float, complain: Callable[[str], None]) -> None:
    """Read periodically. The first reading may raise; later ones report an error and continue."""
    look()
    while True:
        time.sleep(interval_s)
        try:
            look()
        except (KrishivError, OSError) as error:
            complain(f"cannot be read now: {error}")


def _text(line: str) -> Any:
    """Return a line for rich, which would parse `[…]` in a plain text as a style."""
    from rich.text import Text

    return Text(show_text(line))


def _drawn(sight: ObservedQuery) -> Any:
    from rich.console import Group
    from rich.table import Table

    from krishiv_spark.operate.inspection.watching import rate_cells, status_lines

    table = Table("epoch", "", "planned", "offsets", "per second", "watermark")
    for pace in sight.paces:
        table.add_row(*map(_text, rate_cells(pace)))
    return Group(*map(_text, status_lines(sight.status, sight.live)), table)
