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
    from krishiv_spark.operate.inspection.checkpoints import epoch_status
    from krishiv_spark.operate.inspection.texts import epoch_line

    found = checkpoint_of(checkpoint, given)
    found.query_id()  # or it is no checkpoint
    for epoch in found.epochs()[-newest:]:
        say(epoch_line(epoch_status(found, epoch)))


@epochs.command("show")
@of_checkpoint
@click.argument("epoch", type=click.IntRange(0))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
def epochs_show(checkpoint: str, given: tuple[str, ...], epoch: int, *, as_json: bool) -> None:
    """Show one epoch in full, with the offsets as Spark stores them."""
    from krishiv_spark.operate.inspection.checkpoints import epoch_status
    from krishiv_spark.operate.inspection.texts import epoch_lines

    status = epoch_status(checkpoint_of(checkpoint, given), epoch)
    if as_json:
        say_json(asdict(status))
    else:
        say_lines(epoch_lines(status))
