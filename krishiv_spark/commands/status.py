"""``krishiv-spark status``: where a query stands, by what its folders say."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from krishiv_spark.commands.common import checkpoint_of, of_checkpoint

__all__ = ["status"]


@click.command()
@of_checkpoint
@click.option("--table", help="Folder of the query's table, if its sink is krishiv-parquet.")
@click.option("--epoch-log", help="The option epochLog of the query's sink, if it has one.")
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

    Reads the checkpoint and the epoch log, and changes nothing.
    """
    from krishiv_spark.inspection.checkpoints import look_at
    from krishiv_spark.inspection.texts import status_lines

    found = look_at(checkpoint_of(checkpoint, given), table=table, epoch_log=epoch_log)
    click.echo(json.dumps(asdict(found)) if as_json else "\n".join(status_lines(found)))
