"""``krishiv-spark validate``: what is wrong with a job file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import click

from krishiv_spark.errors import ManifestError
from krishiv_spark.jobs.loading import load
from krishiv_spark.jobs.ready import LoadedJobs
from krishiv_spark.operate.commands.common import name_and_value, say

__all__ = ["JOB_FILE", "loaded", "validate"]


def JOB_FILE(command: Callable[..., object]) -> Callable[..., object]:  # noqa: N802  a decorator
    """What commands over job files are given."""
    for add in (
        click.option(
            "--set",
            "given",
            multiple=True,
            metavar="NAME=VALUE",
            help="Value of ${NAME} in the file.",
        ),
        click.option(
            "--depots",
            type=click.Path(dir_okay=False, path_type=Path),
            help="What addresses mean; depots.yaml beside the job file, if that is there.",
        ),
        click.argument("file", type=click.Path(dir_okay=False, path_type=Path)),
    ):
        command = add(command)
    return command


@click.command()
@JOB_FILE
def validate(file: Path, depots: Path | None, given: tuple[str, ...]) -> None:
    """Check a job file, without Spark: all mistakes at once, each with its place.

    The exit code is 2 if there is one.
    """
    found = loaded(file, depots, given)
    count = len(found.jobs)
    say(f"{file}: {count} {'job is' if count == 1 else 'jobs are'} right")


def loaded(file: Path, depots: Path | None, given: tuple[str, ...]) -> LoadedJobs:
    """The jobs of a file; the process ends with 2 if something is wrong with it."""
    try:
        found = load(file, depots=depots, variables=dict(map(name_and_value, given)))
    except ManifestError as error:
        for line in error.lines:
            say(line, err=True)
        sys.exit(2)
    for note in found.notes:
        say(f"{file}: note: {note}", err=True)
    return found
