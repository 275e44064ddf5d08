"""The command ``krishiv-spark dead-letters``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from krishiv_spark.operate.commands.common import name_and_value, say_json, say_lines

if TYPE_CHECKING:
    from krishiv_spark.operate.inspection.letter_counts import ReasonSummary

__all__ = ["dead_letters"]

_LONGEST = 200
"""Maximum number of characters of a value that is shown."""


@click.group(name="dead-letters")
def dead_letters() -> None:
    """Show the rows that sinks wrote to the target of the options deadLetters.*."""


@dead_letters.command()
@click.argument("place", metavar="[CHECKPOINT|FOLDER]", required=False)
@click.option("--format", "name", help="Format of the target, without 'krishiv-'.")
@click.option(
    "-o",
    "--option",
    "given",
    multiple=True,
    help="Options by which the target is read, each as name=value, such as subscribe=dead.",
)
@click.option("--values", "samples", default=0, metavar="N", help="Show N values of each reason.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array, for programs.")
def show(
    place: str | None, name: str | None, given: tuple[str, ...], samples: int, *, as_json: bool
) -> None:
    """Count dead letters by reason.

    Give the CHECKPOINT of the query or the FOLDER of Parquet files; or for another target its
    --format, and the options of a batch read.
    """
    from krishiv_spark.operate.inspection.letter_counts import count_letters

    options = dict(map(name_and_value, given))
    if name is None:
        if place is None:
            raise click.UsageError("give the checkpoint, the folder of the files, or --format")
        name, options = "parquet", {**options, "path": _folder(place, options)}
    elif place is not None:
        options["path"] = place
    if name == "kafka":
        options = {"includeHeaders": "true", "startingOffsets": "earliest", **options}
    found = count_letters(name, options, samples=samples)
    if as_json:
        say_json([{**vars(each), "values": [*map(_shown, each.values)]} for each in found])
    else:
        say_lines(_lines(found), "no dead letters")


def _folder(place: str, options: dict[str, str]) -> str:
    """Return the folder of the dead letters, which a checkpoint names."""
    from krishiv_spark.operate.inspection.letter_counts import locate_letters
    from krishiv_spark.spark.checkpoint import SparkCheckpoint
    from krishiv_spark.storage import Storage

    checkpoint = SparkCheckpoint(place, Storage.for_query(options))
    is_query = checkpoint.known_query() is not None
    return locate_letters(checkpoint) if is_query else place


def _lines(found: Sequence[ReasonSummary]) -> Iterator[str]:
    if found:
        yield f"{sum(each.count for each in found)} dead letters"
    for each in found:
        yield f"{each.count:>9}  {each.name}"
        yield f"{'':>9}  for example {each.position}: {each.reason}"
        for value in each.values:
            yield f"{'':>11}{_shown(value)}"


def _shown(value: bytes) -> str:
    text = value.decode(errors="backslashreplace")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
