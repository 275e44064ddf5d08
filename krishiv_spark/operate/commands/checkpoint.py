"""The command ``krishiv-spark checkpoint``: copy, rewind, import and export."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from krishiv_spark.operate.commands.common import STORAGE, checkpoint_of, name_and_value, say_lines

if TYPE_CHECKING:
    from krishiv_spark.operate.moving.copying import NewCheckpoint
    from krishiv_spark.operate.moving.translations import CheckpointTranslation, Translation
    from krishiv_spark.spark.checkpoint import SparkCheckpoint

__all__ = ["checkpoint"]

_DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="Show the consequences without changing anything."
)
_NEWEST = click.option(
    "--newest",
    type=click.Choice(["published", "unpublished"]),
    help="Outcome of the newest epoch, if the query was not stopped cleanly. published: rows of "
    "it that are not in the sink are LOST. unpublished: rows of it that are in the sink "
    "appear TWICE.",
)
_OPTIONS = click.option(
    "-o",
    "--option",
    "given",
    multiple=True,
    help="Settings of the stores, each as storage.<kind>.<setting>=value. With --from files and "
    "--from iceberg, also the options of the new source, such as path=/data/in.",
)


@click.group()
def checkpoint() -> None:
    """Copy and rewind checkpoints, and move queries from and to Spark's own sources.

    Stop the query first, except for a copy. Files are backed up before they are removed.
    """


@checkpoint.command()
@click.argument("old")
@click.argument("new")
@click.option(
    "--to",
    "epoch",
    type=click.IntRange(0),
    help="Last epoch to include. Default: the newest completed epoch.",
)
@STORAGE
@_DRY_RUN
def copy(old: str, new: str, given: tuple[str, ...], epoch: int | None, *, dry_run: bool) -> None:
    """Copy the checkpoint OLD to NEW, under a new query id. Both queries can continue.

    The query of OLD may be running. NEW starts after the newest completed epoch, with the state
    of that epoch.
    """
    from krishiv_spark.operate.moving.boundaries import newest_restore_point, restore_point_at
    from krishiv_spark.operate.moving.consequences import describe_copy
    from krishiv_spark.operate.moving.copying import CheckpointCopy

    place = checkpoint_of(old, given)
    place.query_id()  # raises if it is not a checkpoint
    boundary = newest_restore_point(place) if epoch is None else restore_point_at(place, epoch)
    copying = CheckpointCopy(place, checkpoint_of(new, given), boundary)
    stores = copying.check()
    _say(f"{new} will start after epoch {boundary.epoch}, with {stores} state stores")
    _say(*describe_copy(new, boundary.epoch))
    if not dry_run:
        _say_made(new, copying.run())


@checkpoint.command()
@click.argument("location", metavar="CHECKPOINT")
@click.option(
    "--to",
    "epoch",
    type=click.IntRange(0),
    required=True,
    help="Epoch to rewind to: the last one that the checkpoint keeps.",
)
@click.option("--table", help="Folder of the query's table, if its sink is krishiv-parquet.")
@click.option("--epoch-log", help="Value of the sink's option epochLog, if it is set.")
@STORAGE
@_DRY_RUN
def rewind(
    location: str, epoch: int, given: tuple[str, ...], *, dry_run: bool, **said: Any
) -> None:
    """Rewind CHECKPOINT to the end of an epoch. Removed files are backed up first."""
    from krishiv_spark.offsets import open_log
    from krishiv_spark.operate.inspection.query_status import locate_log
    from krishiv_spark.operate.moving.consequences import describe_log_after_rewind, describe_rewind
    from krishiv_spark.operate.moving.rewinding import CheckpointRewind

    found = checkpoint_of(location, given, said["table"], said["epoch_log"])
    rewinding = CheckpointRewind(found, epoch)
    stores = rewinding.check()
    later = sorted({*rewinding.offsets, *rewinding.commits})
    _say(f"epochs {later[0]} to {later[-1]} will be removed, also from {stores} state stores")
    query = found.query_id()
    place = str(locate_log(found, query, said["table"], said["epoch_log"]))
    state = open_log(place, query, found.storage).state()
    named = said["epoch_log"] is not None
    _say(*describe_log_after_rewind(state, place, epoch, named=named), *describe_rewind(epoch))
    if not dry_run:
        aside = rewinding.run()
        _say(f"done: the next epoch is {epoch + 1}. The removed files are in {aside}")


def _of_another_source(command: Callable[..., None]) -> Callable[..., None]:
    return _OPTIONS(_NEWEST(_DRY_RUN(command)))


@checkpoint.command("import")
@click.option(
    "--from",
    "kind",
    required=True,
    type=click.Choice(["kafka", "files", "parquet", "iceberg", "delta"]),
    help="Spark source that the query used. parquet is the same as files.",
)
@click.argument("old")
@click.option(
    "--to", "new", required=True, help="Path of the checkpoint to create. It must not exist yet."
)
@_of_another_source
def import_(old: str, new: str, kind: str, *, dry_run: bool, **said: Any) -> None:
    """Create a checkpoint for a krishiv-spark source from the checkpoint OLD of a Spark source.

    kafka: for krishiv-kafka. files: for krishiv-parquet; give its 'path' with -o. iceberg: for
    krishiv-iceberg; give its table and catalog with -o. OLD is not changed. Its query must not
    run again.
    """
    from krishiv_spark.operate.moving.translations import CheckpointTranslation

    given: tuple[str, ...] = said["given"]
    place = checkpoint_of(old, _of_stores(given))
    moving = CheckpointTranslation(place, _translation(kind, place, given), said["newest"])
    _move(moving, new, given, dry_run=dry_run)


@checkpoint.command("export")
@click.option(
    "--to",
    "kind",
    required=True,
    type=click.Choice(["kafka"]),
    help="Spark source to create the checkpoint for.",
)
@click.argument("old")
@click.argument("new", required=False)
@_of_another_source
def export(old: str, new: str | None, *, dry_run: bool, **said: Any) -> None:
    """Create a checkpoint NEW for Spark's own Kafka source from OLD, a query with krishiv-kafka.

    Without NEW, only print the position and the value for 'startingOffsets'.
    """
    from krishiv_spark.operate.moving.translations import CheckpointTranslation, ToKafka

    given: tuple[str, ...] = said["given"]
    moving = CheckpointTranslation(checkpoint_of(old, given), ToKafka(), said["newest"])
    if new is None:
        _say(*moving.lines())
    else:
        _move(moving, new, given, dry_run=dry_run)


def _move(
    moving: CheckpointTranslation, new: str, given: tuple[str, ...], *, dry_run: bool
) -> None:
    from krishiv_spark.operate.moving.consequences import describe_copy

    place = checkpoint_of(new, _of_stores(given))
    _say(*moving.lines())
    stores = moving.check(place)
    _say(f"{new} will start after epoch {moving.boundary.epoch}, with {stores} state stores")
    _say(*describe_copy(new, moving.boundary.epoch))
    if not dry_run:
        _say_made(new, moving.run(place))


def _translation(kind: str, old: SparkCheckpoint, given: tuple[str, ...]) -> Translation:
    from krishiv_spark.operate.moving.translations import FromFiles, FromIceberg, FromKafka

    if kind == "kafka":
        return FromKafka()
    if kind == "delta":
        raise click.UsageError(
            "positions of Delta's own source cannot be imported: keep that source, whose "
            "checkpoint works with every krishiv-spark sink; or start krishiv-delta with a new "
            "checkpoint, and 'startingVersion' = the version after the last one that was read "
            "(with a smaller one rows are read again, with a greater one they are lost)"
        )
    options = dict(map(name_and_value, given))
    return FromIceberg(options) if kind == "iceberg" else FromFiles(old, options)


def _of_stores(given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(text for text in given if text.lower().startswith("storage."))


def _say_made(new: str, made: NewCheckpoint) -> None:
    log = "" if made.has_log else "; its store cannot contain an epoch log, so set 'epochLog'"
    _say(f"done: {new} belongs to query {made.query}{log}")


def _say(*lines: str) -> None:
    say_lines(lines)
