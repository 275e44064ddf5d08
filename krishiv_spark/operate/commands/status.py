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
    lag and for open transactions of the query. krishiv-iceberg has no epoch log: with the options
    of its table, such as -o warehouse=PATH -o table=NAME, the committed epoch is read from the
    table.
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
