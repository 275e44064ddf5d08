"""``krishiv-spark log``: the epoch log of a query, for operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from krishiv_spark.errors import OptionError
from krishiv_spark.formats import format_names, format_of
from krishiv_spark.operate.commands.common import name_and_value, say, say_lines

if TYPE_CHECKING:
    from krishiv_spark.sinks.operating import Operator

__all__ = ["log"]

_RISKS = {
    "committed": "its epoch counts as published: rows of it that are not visible are LOST",
    "aborted": "its epoch is staged again: rows of it that are visible now may appear TWICE",
}


@click.group()
def log() -> None:
    """Show the epoch log of a query, resolve its newest intent, or recreate it.

    Stop the query first: a driver that still runs is fenced and fails.
    """


def _of_a_query(command: Callable[..., None]) -> Callable[..., None]:
    """The options by which a query's sink is found."""
    # The last one comes first in --help.
    for option in (
        click.option(
            "-o",
            "--option",
            "given",
            multiple=True,
            help="Options of the query's writer, each as name=value, such as path=/data/t.",
        ),
        click.option("--checkpoint", required=True, help="The query's checkpointLocation."),
        click.option(
            "--format",
            "name",
            required=True,
            metavar="|".join([*format_names(), "NAME"]),
            help="Format of the query's sink, without 'krishiv-', or the whole name of another "
            "author's. It must have an epoch log.",
        ),
    ):
        command = option(command)
    return command


_DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="Show the actions without changing anything."
)


@log.command()
@_of_a_query
def show(name: str, checkpoint: str, given: tuple[str, ...]) -> None:
    """Show the state of the log and of the checkpoint."""
    _tell(_operator(name, checkpoint, given))


@log.command()
@_of_a_query
@click.option(
    "--assume",
    type=click.Choice(["committed", "aborted"]),
    help="Force the outcome of the newest intent when it cannot be determined. committed: "
    f"{_RISKS['committed']}. aborted: {_RISKS['aborted']}.",
)
@_DRY_RUN
def resolve(
    name: str, checkpoint: str, given: tuple[str, ...], assume: str | None, *, dry_run: bool
) -> None:
    """Finish the newest intent as the next driver would, or force its outcome with --assume."""
    operator = _operator(name, checkpoint, given)
    _tell(operator)
    if assume is not None:
        say(f"the newest intent is assumed to be {assume}: {_RISKS[assume]}")
    if dry_run:
        return
    if assume is None:
        operator.resolve()
    else:
        operator.force_outcome(committed=assume == "committed")
    say("done")


@log.command()
@_of_a_query
@click.option(
    "--newest",
    type=click.Choice(["published", "unpublished"]),
    help="Outcome of the newest epoch, if the query was not stopped cleanly. published: "
    f"{_RISKS['committed']}. unpublished: {_RISKS['aborted']}.",
)
@_DRY_RUN
def adopt(
    name: str, checkpoint: str, given: tuple[str, ...], newest: str | None, *, dry_run: bool
) -> None:
    """Recreate the epoch log for the current checkpoint and the given target.

    Use this if the log was lost, was restored from an older copy, or belongs to another target.
    Everything that the checkpoint has planned counts as published: rows that are not, are LOST.
    """
    operator = _operator(name, checkpoint, given)
    _tell(operator)
    planned = operator.adopted(newest)
    until = "nothing" if planned is None else f"everything up to epoch {planned.epoch}"
    say(f"from now on the target counts as containing {until}")
    if not dry_run:
        operator.adopt(newest)
        say("done")


def _tell(operator: Operator) -> None:
    say_lines(operator.lines())


def _operator(name: str, checkpoint: str, given: tuple[str, ...]) -> Operator:
    import pyarrow as pa

    from krishiv_spark.sinks.base import OutputMode
    from krishiv_spark.sinks.logged import LogCommitter
    from krishiv_spark.sinks.operating import Operator
    from krishiv_spark.sinks.options import name_of_query
    from krishiv_spark.spark.checkpoint import SparkCheckpoint
    from krishiv_spark.storage import Storage

    options = {**dict(map(name_and_value, given)), "checkpointLocation": checkpoint}
    source = format_of(name)
    kind = source.writer_type
    if kind is None:
        raise OptionError(f"{source.format_name} is not a sink")
    parsed = kind.options_type.parse(options, source.format_name)
    # Without columns: nothing but the log is looked at.
    committer = kind(parsed, pa.schema([]), OutputMode.APPEND, streaming=True).committer()
    if not isinstance(committer, LogCommitter):
        raise OptionError(f"{source.format_name} has no epoch log")
    if (query := name_of_query(parsed)) is not None:
        return Operator(committer, query, None)
    named = SparkCheckpoint(checkpoint, Storage.given(options))
    return Operator(committer, named.query_id(), named)
