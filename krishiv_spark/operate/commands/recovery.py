"""The commands ``krishiv-spark log`` and ``replay``, which repair a log and repeat epochs."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from krishiv_spark.errors import OptionError
from krishiv_spark.formats import format_names, format_of
from krishiv_spark.messages.redaction import redact
from krishiv_spark.operate.commands.common import checkpoint_of, name_and_value, say, say_lines

if TYPE_CHECKING:
    from krishiv_spark.operate.moving.replaying import QueryReplay, ReplayRecord
    from krishiv_spark.sinks.operating import Operator
    from krishiv_spark.spark.checkpoint import SparkCheckpoint

__all__ = ["log", "replay"]


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
    """Add the options that identify a query's sink."""
    # Click shows the options in reverse order.
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
    planned = operator.check_adoption(newest)
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
    if source.writer_type is None:
        raise OptionError(f"{source.format_name} is not a sink")
    kind, parsed = source.open_sink(options)
    # There are no columns, since only the log is read.
    committer = kind(parsed, pa.schema([]), OutputMode.APPEND, streaming=True).committer()
    if not isinstance(committer, LogCommitter):
        raise OptionError(f"{source.format_name} has no epoch log")
    if (query := name_of_query(parsed)) is not None:
        return Operator(committer, query, None)
    named = SparkCheckpoint(checkpoint, Storage.for_query(options))
    return Operator(committer, named.query_id(), named)


_SHOWN = ("path", "table", "warehouse", "epochlog", "format")
"""Last parts of the names of options without secrets, which the command that finishes a replay
shows."""


@click.command()
@click.argument("checkpoint")
@click.option(
    "--from",
    "start",
    metavar="EPOCH|TIME",
    help="First epoch to process again, or a time such as 2026-11-24T09:00:00Z (or milliseconds "
    "since 1970), which selects the first epoch planned at that time or later. Not needed "
    "to finish an interrupted replay.",
)
@click.option("--table", help="Folder of the query's table, if its sink is krishiv-parquet.")
@click.option("--epoch-log", help="Value of the sink's option epochLog, if it is set.")
@click.option(
    "--format",
    "name",
    help="Format of the query's sink, without 'krishiv-'. Needed only if the options do not "
    "show it.",
)
@click.option(
    "-o",
    "--option",
    "given",
    multiple=True,
    help="Options of the query's writer, each as name=value, that name its target, such as "
    "warehouse=/data/w and table=db.t, and those that connect to Kafka and stores.",
)
@click.option(
    "-s",
    "--source-option",
    "of_source",
    multiple=True,
    help="Options of the query's source that differ from -o, such as the table of a "
    "krishiv-iceberg source. For one source among several, put the number from the plan "
    "first: 1.table=db.t.",
)
@click.option(
    "--stopped",
    is_flag=True,
    help="Confirm that no driver runs, although the newest epoch is open.",
)
@click.option(
    "--dry-run", is_flag=True, help="Check everything and show the plan without changing anything."
)
def replay(checkpoint: str, *, dry_run: bool, **said: Any) -> None:
    """Process the rows of CHECKPOINT's query again, starting at an epoch or a time.

    Stop the query first. The command rewinds its target, its epoch log and its checkpoint to the
    end of the previous epoch; then start the query. If the command is killed, run it again: the
    query cannot start until the replay is done. Removed files are kept. See docs/replay.md.
    """
    from krishiv_spark.operate.moving.replaying import pending_replay

    found = checkpoint_of(checkpoint, said["given"], said["table"], said["epoch_log"])
    found.query_id()  # raises if it is not a checkpoint
    replaying = _replaying(found, pending_replay(found), said)
    say_lines(replaying.lines())
    if dry_run:
        say("nothing was changed")
        return
    kept = replaying.run()
    say(
        f"done: start the query; its next epoch is {replaying.first}. The files removed from "
        f"the checkpoint are in {kept}"
    )


def _replaying(
    checkpoint: SparkCheckpoint, pending: ReplayRecord | None, said: Mapping[str, Any]
) -> QueryReplay:
    from krishiv_spark.operate.moving.replay_sources import source_options
    from krishiv_spark.operate.moving.replay_targets import open_target
    from krishiv_spark.operate.moving.replaying import QueryReplay

    first = _first(checkpoint, pending, said["start"])
    given = dict(map(name_and_value, said["given"]))
    options = {**given, **_drop_unset(path=said["table"], epochLog=said["epoch_log"])}
    return QueryReplay(
        checkpoint,
        open_target(checkpoint, options, first, said["name"]),
        first,
        _command(checkpoint.location, first, said),
        source_options(given, dict(map(name_and_value, said["of_source"]))),
        is_stopped=said["stopped"],
        pending=pending,
    )


def _first(checkpoint: SparkCheckpoint, pending: ReplayRecord | None, start: str | None) -> int:
    from krishiv_spark.operate.moving.replaying import find_first, is_epoch

    if pending is None:
        if start is None:
            raise click.UsageError("give --from with an epoch or a time")
        return find_first(checkpoint, start)
    # A time is not resolved again: some of the epochs are removed already.
    if start is not None and is_epoch(start) and int(start) != pending.first:
        raise OptionError(
            f"the replay {pending.name} from epoch {pending.first} on has not finished: finish "
            "it first, with the command without --from"
        )
    return pending.first


def _drop_unset(**given: str | None) -> dict[str, str]:
    return {name: text for name, text in given.items() if text is not None}


def _command(location: str, first: int, said: Mapping[str, Any]) -> str:
    """Return the command that finishes a replay; values that may be secrets are omitted."""
    words = ["krishiv-spark", "replay", location, "--from", str(first)]
    for option, text in (
        ("--table", said["table"]),
        ("--epoch-log", said["epoch_log"]),
        ("--format", said["name"]),
    ):
        words += [option, text] if text is not None else []
    return redact(" ".join([*map(shlex.quote, words), *_shown(said["given"])]))


def _shown(given: Iterable[str]) -> Iterable[str]:
    for name, text in map(name_and_value, given):
        is_shown = name.lower().rpartition(".")[2] in _SHOWN
        yield f"-o {shlex.quote(f'{name}={text}')}" if is_shown else f"-o {shlex.quote(name)}=…"
