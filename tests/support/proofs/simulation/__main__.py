"""``./run simulate``: histories of the production code that never happened, but may."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace

import click

from simulation.campaign import run
from simulation.histories import Kind, prepare
from simulation.mutations import MUTATIONS
from simulation.play import play
from simulation.seams import installed


@click.command(help=__doc__)
@click.option("--steps", default=100_000, show_default=True, help="Stop after so many calls.")
@click.option("--histories", default=2**62, help="Stop after so many histories.")
@click.option("--seed", default=0, show_default=True, help="Of the first history; others follow.")
@click.option("--sink", type=click.Choice(["shelf", "kafka"]), help="Only this one.")
@click.option("--without", type=click.Choice(list(MUTATIONS)), help="Switch a rule off.")
@click.option("--tell", is_flag=True, help="Tell the history of the seed, whatever comes of it.")
def main(
    steps: int, histories: int, seed: int, sink: str | None, without: str | None, *, tell: bool
) -> None:
    """Play, and say what came of it."""
    kind = Kind() if without is None else MUTATIONS[without].kind
    if sink is not None:
        kind = replace(kind, fixed={**kind.fixed, "sink": sink})
    rules = contextlib.nullcontext() if without is None else MUTATIONS[without].switched_off()
    with installed(), rules:
        if tell:
            click.echo("\n".join(play(*prepare(seed, kind), tell=True).tale))
            return
        _play(seed, histories, steps, kind)


def _play(seed: int, histories: int, steps: int, kind: Kind) -> None:
    found = run(seed, histories=histories, steps=steps, kind=kind)
    click.echo(str(found))
    if found.failure is not None:
        click.echo(str(found.failure))
        sys.exit(1)


if __name__ == "__main__":
    main()
