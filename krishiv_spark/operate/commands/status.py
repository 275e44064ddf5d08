"""``krishiv-spark status``: where a query stands, by what its folders say."""

from __future__ import annotations

from dataclasses import asdict

import click

from krishiv_spark.operate.commands.common import (
    checkpoint_of,
    name_and_value,
    of_checkpoint,
    of_log,
    say_json,
    say_lines,
)

__all__ = ["status"]


@click.command()
@of_checkpoint
@of_log
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def status(
    checkpoint: str,
    given: tuple[str, ...],
    table: str | None,
    epoch_log: str | None,
    *,
    as_json: bool,
) -> None:
    """Show where the query of the checkpoint at CHECKPOINT stands, whether it runs or not.

    Reads the checkpoint and the epoch log, and changes nothing. With the options of its source or
    sink, such as -o kafka.bootstrap.servers=b:9092, the cluster is asked for the lag, and for
    transactions of the query that are open. krishiv-iceberg has no log: -o warehouse=PATH -o
    table=NAME, or whatever names its table, has that asked what it holds.
    """
    from krishiv_spark.operate.inspection.checkpoints import look_at
    from krishiv_spark.operate.inspection.live import look_live
    from krishiv_spark.operate.inspection.texts import status_lines

    options = dict(map(name_and_value, given))
    place = checkpoint_of(checkpoint, given, table, epoch_log)
    found = look_at(place, table=table, epoch_log=epoch_log, given=options)
    live = look_live(found, options, table=table)
    if as_json:
        say_json({**asdict(found), "live": asdict(live)})
    else:
        say_lines(status_lines(found, live))
