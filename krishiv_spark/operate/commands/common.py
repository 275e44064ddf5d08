"""Options and functions that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

import click

from krishiv_spark.messages.terminal import show_text
from krishiv_spark.options import parse_duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from krishiv_spark.spark.checkpoint import SparkCheckpoint
    from krishiv_spark.storage import Storage

__all__ = [
    "DRY_RUN",
    "OLDER_THAN",
    "STORAGE",
    "checkpoint_of",
    "clear",
    "name_and_value",
    "of_checkpoint",
    "of_log",
    "open_session",
    "say",
    "say_json",
    "say_lines",
    "seconds",
    "storage_of",
]


class Sized(Protocol):
    """A file that may be removed; its text shows it."""

    @property
    def size(self) -> int:
        """The size in bytes."""
        ...


OrphanT = TypeVar("OrphanT", bound=Sized)


def seconds(_: click.Context, __: click.Parameter, text: str) -> float:
    """Return a duration from the command line, in seconds."""
    try:
        return int(str(parse_duration(text))) / 1000
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


OLDER_THAN = click.option(
    "--older-than",
    "guard_s",
    default="7d",
    show_default=True,
    callback=seconds,
    help="Minimum age of a file to remove. Younger files may still be needed by running queries.",
)
STORAGE = click.option(
    "-o",
    "--option",
    "given",
    multiple=True,
    help="Settings of the store, each as storage.<kind>.<setting>=value.",
)
DRY_RUN = click.option("--dry-run", is_flag=True, help="Show the files without removing them.")


def clear(orphans: Iterable[OrphanT], remove: Callable[[OrphanT], None], *, dry_run: bool) -> None:
    """Show and remove orphaned files, and count them."""
    count = size = 0
    for orphan in orphans:
        say(orphan)
        count, size = count + 1, size + orphan.size
        if not dry_run:
            remove(orphan)
    say(f"{count} files, {size} bytes {'would be ' if dry_run else ''}removed")


def say(line: object, *, err: bool = False) -> None:
    """Print one line; control characters are escaped.

    Everything that a command prints goes through this function or `say_json`.

    Args:
        line: Converted to text.
        err: Print to standard error.
    """
    click.echo(show_text(str(line)), err=err)


def say_lines(lines: Iterable[object], otherwise: str | None = None) -> None:
    """Print each line as `say` does; `otherwise` if there is none."""
    count = 0
    for count, line in enumerate(lines, 1):  # noqa: B007  counted
        say(line)
    if not count and otherwise is not None:
        say(otherwise)


def say_json(value: object, indent: int | None = None) -> None:
    """Print a value as JSON in ASCII, without control characters."""
    # JSON leaves this one control character unescaped.
    click.echo(json.dumps(value, indent=indent).replace("\x7f", r"\u007f"))


def name_and_value(text: str) -> tuple[str, str]:
    """Split an option ``name=value`` of the command line."""
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{name!r} is not name=value", param_hint="--option")
    return name, value


def of_checkpoint(command: Callable[..., None]) -> Callable[..., None]:
    """Add the argument CHECKPOINT, and the options of its store."""
    return click.argument("checkpoint")(STORAGE(command))


def of_log(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that locate an epoch log outside the checkpoint."""
    with_log = click.option(
        "--epoch-log", help="Value of the sink's option epochLog, if it is set."
    )(command)
    return click.option(
        "--table", help="Folder of the query's table, if its sink is krishiv-parquet."
    )(with_log)


def checkpoint_of(location: str, given: Iterable[str], *others: str | None) -> SparkCheckpoint:
    """Return the checkpoint that `of_checkpoint` names.

    Args:
        location: Its path or URL.
        given: Options of stores. If others are among them, they may name locations, and credentials
            are sent to named locations only.
        others: Further locations on the command line, such as those of `of_log`.
    """
    from krishiv_spark.spark.checkpoint import SparkCheckpoint

    storage = storage_of(given)
    if storage.places is not None:
        storage = storage.also_at(location, *others)
    return SparkCheckpoint(location, storage)


def storage_of(given: Iterable[str]) -> Storage:
    """Return the storage that the options of `STORAGE` configure."""
    from krishiv_spark.storage import Storage

    return Storage.for_query(dict(map(name_and_value, given)))


def open_session(
    remote: str | None, master: str | None, conf: Mapping[str, str], name: str
) -> SparkSession:
    """Return the session of ``spark-submit``, or a new one.

    Args:
        remote: The server of Spark Connect, such as ``sc://host``.
        master: The master, as for ``spark-submit``.
        conf: Further settings.
        name: The name of the application.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    own = {} if remote else {"spark.ui.showConsoleProgress": "false"}  # a server decides itself
    for setting, text in {**own, **conf}.items():
        builder = builder.config(setting, text)
    if remote is not None:
        return builder.remote(remote).getOrCreate()
    return (builder if master is None else builder.master(master)).getOrCreate()
