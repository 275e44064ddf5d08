"""``krishiv-spark epochs``: what Spark wrote down for the epochs of a query."""

from __future__ import annotations

from dataclasses import asdict

import click

from krishiv_spark.operate.commands.common import (
    checkpoint_of,
    of_checkpoint,
    say,
    say_json,
    say_lines,
)

__all__ = ["epochs"]


@click.group()
def epochs() -> None:
    """The epochs of a query, as its checkpoint keeps them (Spark keeps about 100)."""


@epochs.command("list")
@of_checkpoint
@click.option("--newest", type=click.IntRange(1), default=20, show_default=True, help="How many.")
def epochs_list(checkpoint: str, given: tuple[str, ...], newest: int) -> None:
    """Show the newest epochs, a line each."""
    from krishiv_spark.operate.inspection.checkpoints import epoch_status
    from krishiv_spark.operate.inspection.texts import epoch_line

    found = checkpoint_of(checkpoint, given)
    found.query_id()  # or it is no checkpoint
    for epoch in found.epochs()[-newest:]:
        say(epoch_line(epoch_status(found, epoch)))


@epochs.command("show")
@of_checkpoint
@click.argument("epoch", type=click.IntRange(0))
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def epochs_show(checkpoint: str, given: tuple[str, ...], epoch: int, *, as_json: bool) -> None:
    """Show one epoch whole, with the offsets as Spark keeps them."""
    from krishiv_spark.operate.inspection.checkpoints import epoch_status
    from krishiv_spark.operate.inspection.texts import epoch_lines

    status = epoch_status(checkpoint_of(checkpoint, given), epoch)
    if as_json:
        say_json(asdict(status))
    else:
        say_lines(epoch_lines(status))
