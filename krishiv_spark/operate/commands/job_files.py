"""The commands ``krishiv-spark run``, ``validate`` and ``job-schema``."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from krishiv_spark.errors import ManifestError
from krishiv_spark.jobs.file import load
from krishiv_spark.jobs.plan import LoadedJobs
from krishiv_spark.messages.suggestions import did_you_mean
from krishiv_spark.operate.commands.common import name_and_value, open_session, say, say_json
from krishiv_spark.spark.logs import write_to_terminal

if TYPE_CHECKING:
    from krishiv_spark.jobs.runner import JobRunner

__all__ = ["JOB_FILE", "job_schema", "load_or_exit", "run", "validate"]


@click.command("job-schema")
def job_schema() -> None:
    """Print the JSON schema of job files, for editors."""
    from krishiv_spark.jobs.models import job_schema as schema

    say_json(schema(), indent=2)


def JOB_FILE(command: Callable[..., object]) -> Callable[..., object]:  # noqa: N802  a decorator
    """Add the argument and the options of commands for job files."""
    for add in (
        click.option(
            "--set",
            "given",
            multiple=True,
            metavar="NAME=VALUE",
            help="Value for ${NAME} in the file.",
        ),
        click.option(
            "--depots",
            type=click.Path(dir_okay=False, path_type=Path),
            help="File that maps addresses to formats and options. Default: depots.yaml next to "
            "the job file, if present.",
        ),
        click.argument("file", type=click.Path(dir_okay=False, path_type=Path)),
    ):
        command = add(command)
    return command


@click.command()
@JOB_FILE
def validate(file: Path, depots: Path | None, given: tuple[str, ...]) -> None:
    """Check a job file without Spark, and report all errors at once, each with its location.

    The exit code is 2 if there is an error.
    """
    found = load_or_exit(file, depots, given)
    count = len(found.jobs)
    say(f"{file}: {count} {'job is' if count == 1 else 'jobs are'} valid")


def load_or_exit(file: Path, depots: Path | None, given: tuple[str, ...]) -> LoadedJobs:
    """Return the jobs of a file; exit with 2 if the file is invalid."""
    try:
        found = load(file, depots=depots, variables=dict(map(name_and_value, given)))
    except ManifestError as error:
        for line in error.lines:
            say(line, err=True)
        sys.exit(2)
    for note in found.notes:
        say(f"{file}: note: {note}", err=True)
    return found


_FAILED, _WRONG, _NO_SPARK, _NOTHING_DONE = 1, 2, 3, 4
_ECHOES = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Loggers by which PySpark writes each error of Spark to standard error a second time, with the
text of the query, which contains values of variables."""


@click.command()
@JOB_FILE
@click.option(
    "--dry-run", is_flag=True, help="Validate the jobs against Spark without starting any query."
)
@click.option(
    "--strict",
    is_flag=True,
    help="Fail if Spark cannot honour a setting exactly as written. Default: warn and continue.",
)
@click.option(
    "--new-target",
    "new_targets",
    multiple=True,
    metavar="OUTPUT",
    help="Output that may write to another target than before, or that has a new name and "
    "writes all rows again. Give it for one run only.",
)
@click.option(
    "--master",
    help="Spark master, as for spark-submit. Not needed under spark-submit, which sets it.",
)
@click.option("--remote", help="Spark Connect server, as sc://host:15002.")
@click.option("--conf", multiple=True, help="Spark setting, as name=value.")
def run(file: Path, depots: Path | None, given: tuple[str, ...], **said: Any) -> None:
    """Run the jobs of a file until they end.

    SIGTERM and SIGINT stop streams between two epochs, if that is possible within 'graceTime'.
    Otherwise the current epoch is aborted, and the next start repeats it.

    Exit codes: 0 all jobs ended, or were stopped; 1 a job failed; 2 the file is invalid, and no
    job was started; 3 no Spark session could be opened; 4 the run was ended, by 'timeout' or a
    signal, before a query with work had completed an epoch, or before a job or output started.
    """
    found = load_or_exit(file, depots, given)
    _check_outputs(found, said["new_targets"])
    write_to_terminal(found.redact)
    for name in _ECHOES:
        logging.getLogger(name).disabled = True
    if found.calls_python:
        # It is appended at the end: a module beside the job file must not replace an installed one.
        sys.path.append(str(file.resolve().parent))
    spark = _session(found, said)

    from krishiv_spark.jobs.runner import JobRunner

    runner = JobRunner(
        spark,
        lambda line: say(found.redact(line)),
        strict=said["strict"],
        new_targets=said["new_targets"],
    )
    _end_on_signals(runner)
    try:
        if said["dry_run"]:
            _try(runner, found)
        else:
            runner.run(found)
    except Exception as error:  # noqa: BLE001  sources, sinks and Spark raise errors of any class
        _fail(found, error)
    except KeyboardInterrupt:
        say("stopped before the end of a batch: the next start repeats it", err=True)
        sys.exit(_FAILED)
    finally:
        _stop(spark)
    if runner.unfinished:
        for line in runner.unfinished:
            say(found.redact(f"not done: {line}"), err=True)
        sys.exit(_NOTHING_DONE)


def _check_outputs(found: LoadedJobs, named: Collection[str]) -> None:
    names = [(job.name, output.model.name) for job in found.jobs for output in job.outputs]
    known = {output for _, output in names} | {f"{job}.{output}" for job, output in names}
    for name in named:
        if name not in known:
            hint = did_you_mean(name, sorted(known), f"known: {', '.join(sorted(known))}")
            say(f"--new-target {name}: no output has this name; {hint}", err=True)
            sys.exit(_WRONG)


def _try(runner: JobRunner, found: LoadedJobs) -> None:
    for job in found.jobs:
        runner.check(job)
        say(f"{job.name}: valid for Spark")


def _session(found: LoadedJobs, said: dict[str, Any]) -> Any:
    conf: dict[str, str] = {}
    for job in found.jobs:
        conf |= job.model.spark
    conf |= dict(map(name_and_value, said["conf"]))
    if said["remote"] is None and (said["master"] or "local").startswith("local"):
        # Local workers use the Python of this process, not the one that is called python3.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        spark = open_session(said["remote"], said["master"], conf, found.jobs[0].name)
    except Exception as error:  # noqa: BLE001  errors of any class
        say(found.redact(f"cannot open a Spark session: {_line(error)}"), err=True)
        sys.exit(_NO_SPARK)
    if said["remote"] is None:
        spark.sparkContext.setLogLevel(found.jobs[0].model.log_level)
    return spark


def _end_on_signals(runner: JobRunner) -> None:
    if threading.current_thread() is not threading.main_thread():
        return

    def end(number: int, frame: object) -> None:
        del number, frame
        if runner.stop.is_set() or runner.is_in_batch:
            raise KeyboardInterrupt
        say("ending after the current epoch", err=True)
        runner.stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def _fail(found: LoadedJobs, error: Exception) -> None:
    say(found.redact(_line(error)), err=True)
    sys.exit(_FAILED)


def _line(error: Exception) -> str:
    from krishiv_spark.queries.failures import failure_of

    return failure_of(error).line


def _stop(spark: Any) -> None:
    stop: Callable[[], object] = spark.stop
    try:
        stop()
    except Exception:  # noqa: BLE001  the session may have ended already
        return
