"""``krishiv-spark checkpoint``: copies, ways back, and moves from and to Spark's own sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from krishiv_spark.operate.commands.common import STORAGE, checkpoint_of, name_and_value, say_lines

if TYPE_CHECKING:
    from krishiv_spark.operate.moving.translating import Translating
    from krishiv_spark.operate.moving.translations import Translation
    from krishiv_spark.operate.moving.writing import NewCheckpoint
    from krishiv_spark.spark.checkpoint import SparkCheckpoint

__all__ = ["checkpoint"]

_DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what it means; change nothing.")
_NEWEST = click.option(
    "--newest",
    type=click.Choice(["published", "unpublished"]),
    help="What became of the newest epoch, if the query was not stopped in good order. published: "
    "if its rows are not in the sink, they are LOST. unpublished: if they are, they will be there "
    "TWICE.",
)
_OPTIONS = click.option(
    "-o",
    "--option",
    "given",
    multiple=True,
    help="How stores are reached, as storage.<kind>.<setting>=value; with --from files and iceberg "
    "also the options of the new source, such as path=/data/in.",
)


@click.group()
def checkpoint() -> None:
    """Copy checkpoints, go back in them, and move queries from and to Spark's own sources.

    Stop the query first, but for a copy. Nothing is removed that is not copied aside.
    """


@checkpoint.command()
@click.argument("old")
@click.argument("new")
@click.option("--to", "epoch", type=click.IntRange(0), help="At the end of which; the newest else.")
@STORAGE
@_DRY_RUN
def copy(old: str, new: str, given: tuple[str, ...], epoch: int | None, *, dry_run: bool) -> None:
    """Copy the checkpoint OLD to NEW, under a new query id: both queries can go on.

    OLD may be of a query that runs. NEW begins after the newest epoch that is over, with what
    state there was.
    """
    from krishiv_spark.operate.moving.boundaries import boundary_at, newest_boundary
    from krishiv_spark.operate.moving.copying import Copying
    from krishiv_spark.operate.moving.meanings import lines_of_new

    place = checkpoint_of(old, given)
    place.query_id()  # or it is no checkpoint
    boundary = newest_boundary(place) if epoch is None else boundary_at(place, epoch)
    copying = Copying(place, checkpoint_of(new, given), boundary)
    stores = copying.check()
    _say(f"{new} will begin after epoch {boundary.epoch}, with {stores} state stores")
    _say(*lines_of_new(new, boundary.epoch))
    if not dry_run:
        _say_made(new, copying.run())


@checkpoint.command()
@click.argument("location", metavar="CHECKPOINT")
@click.option("--to", "epoch", type=click.IntRange(0), required=True, help="At the end of which.")
@click.option("--table", help="Folder of the query's table, if its sink is krishiv-parquet.")
@click.option("--epoch-log", help="The option epochLog of the query's sink, if it has one.")
@STORAGE
@_DRY_RUN
def rewind(
    location: str, epoch: int, given: tuple[str, ...], *, dry_run: bool, **said: Any
) -> None:
    """Go back to the end of an epoch of CHECKPOINT. What goes is copied aside first."""
    from krishiv_spark.offsets import open_log
    from krishiv_spark.operate.inspection.checkpoints import place_of_log
    from krishiv_spark.operate.moving.meanings import lines_of_log, lines_of_rewinding
    from krishiv_spark.operate.moving.rewinding import Rewinding

    found = checkpoint_of(location, given, said["table"], said["epoch_log"])
    rewinding = Rewinding(found, epoch)
    stores = rewinding.check()
    later = sorted({*rewinding.offsets, *rewinding.commits})
    _say(f"epochs {later[0]} to {later[-1]} go, of {stores} state stores too")
    query = found.query_id()
    place = str(place_of_log(found, query, said["table"], said["epoch_log"]))
    state = open_log(place, query, found.storage).state()
    named = said["epoch_log"] is not None
    _say(*lines_of_log(state, place, epoch, named=named), *lines_of_rewinding(epoch))
    if not dry_run:
        aside = rewinding.run()
        _say(f"done: the next epoch is {epoch + 1}. What went is in {aside}")


def _of_another_source(command: Callable[..., None]) -> Callable[..., None]:
    return _OPTIONS(_NEWEST(_DRY_RUN(command)))


@checkpoint.command("import")
@click.option(
    "--from",
    "kind",
    required=True,
    type=click.Choice(["kafka", "files", "parquet", "iceberg", "delta"]),
    help="Which source of Spark's. parquet is the same as files.",
)
@click.argument("old")
@click.option("--to", "new", required=True, help="Where that will be; nothing may be there.")
@_of_another_source
def import_(old: str, new: str, kind: str, *, dry_run: bool, **said: Any) -> None:
    """Make a checkpoint for a source of ours where a query with Spark's own source stopped.

    kafka: for krishiv-kafka. files: for krishiv-parquet, whose 'path' is given with -o. iceberg:
    for krishiv-iceberg, whose table and catalog are given with -o. OLD stays as it is; its query
    must not run again.
    """
    from krishiv_spark.operate.moving.translating import Translating

    given: tuple[str, ...] = said["given"]
    place = checkpoint_of(old, _of_stores(given))
    moving = Translating(place, _translation(kind, place, given), said["newest"])
    _move(moving, new, given, dry_run=dry_run)


@checkpoint.command("export")
@click.option(
    "--to", "kind", required=True, type=click.Choice(["kafka"]), help="Which source of Spark's."
)
@click.argument("old")
@click.argument("new", required=False)
@_of_another_source
def export(old: str, new: str | None, *, dry_run: bool, **said: Any) -> None:
    """Make a checkpoint NEW for Spark's own Kafka source where a query with krishiv-kafka stopped.

    Without NEW, only say where that is, with the value of 'startingOffsets'.
    """
    from krishiv_spark.operate.moving.translating import Translating
    from krishiv_spark.operate.moving.translations import ToKafka

    given: tuple[str, ...] = said["given"]
    moving = Translating(checkpoint_of(old, given), ToKafka(), said["newest"])
    if new is None:
        _say(*moving.lines())
    else:
        _move(moving, new, given, dry_run=dry_run)


def _move(moving: Translating, new: str, given: tuple[str, ...], *, dry_run: bool) -> None:
    from krishiv_spark.operate.moving.meanings import lines_of_new

    place = checkpoint_of(new, _of_stores(given))
    _say(*moving.lines())
    stores = moving.check(place)
    _say(f"{new} will begin after epoch {moving.boundary.epoch}, with {stores} state stores")
    _say(*lines_of_new(new, moving.boundary.epoch))
    if not dry_run:
        _say_made(new, moving.run(place))


def _translation(kind: str, old: SparkCheckpoint, given: tuple[str, ...]) -> Translation:
    from krishiv_spark.operate.moving.translations import FromFiles, FromIceberg, FromKafka

    if kind == "kafka":
        return FromKafka()
    if kind == "delta":
        raise click.UsageError(
            "there is no source of ours for tables of Delta Lake, so nothing could go on from its "
            "position: keep Delta's own source, whose checkpoint any sink of ours can be used with"
        )
    options = dict(map(name_and_value, given))
    return FromIceberg(options) if kind == "iceberg" else FromFiles(old, options)


def _of_stores(given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(text for text in given if text.lower().startswith("storage."))


def _say_made(new: str, made: NewCheckpoint) -> None:
    log = "" if made.has_log else "; its store cannot hold an epoch log, so give 'epochLog'"
    _say(f"done: {new} is of query {made.query}{log}")


def _say(*lines: str) -> None:
    say_lines(lines)
