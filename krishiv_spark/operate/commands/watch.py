"""``krishiv-spark watch``: what ``status`` says, again and again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
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
    say_lines,
    seconds,
)

if TYPE_CHECKING:
    from krishiv_spark.operate.inspection.watching import QuerySight, QueryWatcher

__all__ = ["watch"]


@click.command()
@of_checkpoint
@of_log
@click.option(
    "--interval", default="2s", show_default=True, callback=seconds, help="From look to look."
)
@click.option("--once", is_flag=True, help="Look once, and end.")
def watch(
    checkpoint: str, given: tuple[str, ...], interval: float, *, once: bool, **log: Any
) -> None:
    """Watch the query of the checkpoint at CHECKPOINT until Ctrl-C.

    What 'krishiv-spark status' says, and its newest epochs; where the output is no terminal, a
    line for each epoch that is over. Reads only.
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
        say('a line for each epoch; pip install "krishiv-spark[watch]" for more', err=True)
        return False
    return True


def _lines(sight: QuerySight) -> list[str]:
    from krishiv_spark.operate.inspection.texts import pace_line, status_lines

    return [*status_lines(sight.status, sight.live), *map(pace_line, sight.paces)]


def _log_epochs(watcher: QueryWatcher, interval_s: float) -> None:
    from krishiv_spark.operate.inspection.texts import pace_line
    from krishiv_spark.operate.inspection.watching import new_paces

    newest: int | None = None  # the first look goes no further back than a terminal shows

    def look() -> None:
        nonlocal newest
        sight, newest = watcher.look(newest), -1 if newest is None else newest
        for pace in new_paces(sight, newest):
            newest = pace.epoch.epoch
            say(pace_line(pace))
        sys.stdout.flush()

    _repeat(look, interval_s, lambda why: say(why, err=True))


def _live(watcher: QueryWatcher, interval_s: float) -> None:
    from rich.live import Live

    with Live(auto_refresh=False) as screen:

        def draw(what: Any) -> None:
            screen.update(what, refresh=True)

        _repeat(lambda: draw(_drawn(watcher.look())), interval_s, lambda why: draw(_text(why)))


def _repeat(look: Callable[[], None], interval_s: float, complain: Callable[[str], None]) -> None:
    """Look for ever. The first look may fail; what cannot be reached later may come back."""
    look()
    while True:
        time.sleep(interval_s)
        try:
            look()
        except (KrishivError, OSError) as error:
            complain(f"cannot be looked at now: {error}")


def _text(line: str) -> Any:
    """Return a line for rich, which styles `[…]` in plain texts and escapes nothing."""
    from rich.text import Text

    return Text(show_text(line))


def _drawn(sight: QuerySight) -> Any:
    from rich.console import Group
    from rich.table import Table

    from krishiv_spark.operate.inspection.texts import pace_cells, status_lines

    table = Table("epoch", "", "planned", "offsets", "in a second", "watermark")
    for pace in sight.paces:
        table.add_row(*map(_text, pace_cells(pace)))
    return Group(*map(_text, status_lines(sight.status, sight.live)), table)
