"""``krishiv-spark replay``: rows since an epoch are processed again."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from krishiv_spark.errors import OptionError
from krishiv_spark.messages.redaction import redact
from krishiv_spark.operate.commands.common import checkpoint_of, name_and_value, say, say_lines

if TYPE_CHECKING:
    from krishiv_spark.operate.moving.replaying import Replaying, ReplayRecord
    from krishiv_spark.spark.checkpoint import SparkCheckpoint

__all__ = ["replay"]

_SHOWN = ("path", "table", "warehouse", "epochlog", "format")
"""Last parts of names of options without secrets: the command that finishes a replay has them."""


@click.command()
@click.argument("checkpoint")
@click.option(
    "--from",
    "start",
    metavar="EPOCH|TIME",
    help="The first epoch that is processed again; or a time such as 2026-11-24T09:00:00Z (or "
    "milliseconds since 1970): the first epoch that was planned then or later. Not needed to "
    "finish a replay that died.",
)
@click.option("--table", help="Folder of the query's table, if its sink is krishiv-parquet.")
@click.option("--epoch-log", help="The option epochLog of the query's sink, if it has one.")
@click.option(
    "--format",
    "name",
    help="Of the query's sink, without 'krishiv-', if the options do not show it.",
)
@click.option(
    "-o",
    "--option",
    "given",
    multiple=True,
    help="The options of the query's writer that name its target, each as name=value, such as "
    "warehouse=/data/w and table=db.t; and how Kafka and stores are reached.",
)
@click.option(
    "-s",
    "--source-option",
    "of_source",
    multiple=True,
    help="The options of the query's source where -o does not have them, such as the table of a "
    "krishiv-iceberg source. Of one source among several: 1.table=db.t, with the number that the "
    "plan shows.",
)
@click.option("--stopped", is_flag=True, help="No driver runs, although the newest epoch is open.")
@click.option("--dry-run", is_flag=True, help="Check everything, show the plan; change nothing.")
def replay(checkpoint: str, *, dry_run: bool, **said: Any) -> None:
    """Process the rows of CHECKPOINT's query again, from an epoch or a time on.

    Stop the query first. Its target, its epoch log and its checkpoint go back to the end of the
    epoch before; then start it again. It can be killed at any time and run again: until it is done,
    the query does not start. What goes is kept. See docs/replay.md.
    """
    from krishiv_spark.operate.moving.replaying import pending_replay

    found = checkpoint_of(checkpoint, said["given"], said["table"], said["epoch_log"])
    found.query_id()  # or it is no checkpoint
    replaying = _replaying(found, pending_replay(found), said)
    say_lines(replaying.lines())
    if dry_run:
        say("nothing was changed")
        return
    kept = replaying.run()
    say(
        f"done: start the query, whose next epoch is {replaying.first}. What went out of the "
        f"checkpoint is in {kept}"
    )


def _replaying(
    checkpoint: SparkCheckpoint, pending: ReplayRecord | None, said: Mapping[str, Any]
) -> Replaying:
    from krishiv_spark.operate.moving.replay_sources import source_options
    from krishiv_spark.operate.moving.replay_targets import open_target
    from krishiv_spark.operate.moving.replaying import Replaying

    first = _first(checkpoint, pending, said["start"])
    given = dict(map(name_and_value, said["given"]))
    options = {**given, **_named(path=said["table"], epochLog=said["epoch_log"])}
    return Replaying(
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
            raise click.UsageError("give --from: an epoch, or a time")
        return find_first(checkpoint, start)
    # A time is not looked up: a part of the epochs has gone already.
    if start is not None and is_epoch(start) and int(start) != pending.first:
        raise OptionError(
            f"the replay {pending.name} from epoch {pending.first} on has not finished: finish it "
            "first, with the command without --from"
        )
    return pending.first


def _named(**given: str | None) -> dict[str, str]:
    return {name: text for name, text in given.items() if text is not None}


def _command(location: str, first: int, said: Mapping[str, Any]) -> str:
    """Return the words that finish a replay; values that may be secrets are left out."""
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
