"""From files to jobs that can run, or to all that is wrong with the files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from posixpath import normpath

from krishiv_spark.errors import OptionError
from krishiv_spark.jobs.arranging import arranged, is_workflow, paths_of_jobs
from krishiv_spark.jobs.checks import JobChecker
from krishiv_spark.jobs.depots import read_depots
from krishiv_spark.jobs.located import Located
from krishiv_spark.jobs.models import JobList, JobSpec
from krishiv_spark.jobs.problems import Problems
from krishiv_spark.jobs.reading import not_used, read_tree, validated
from krishiv_spark.jobs.ready import LoadedJobs, ReadyJob
from krishiv_spark.jobs.variables import Variables
from krishiv_spark.jobs.workflows import Workflow
from krishiv_spark.messages.redaction import without_secrets
from krishiv_spark.storage import StoreUrl

__all__ = ["load"]

_BESIDE = "depots.yaml"


def load(
    file: Path | str,
    *,
    depots: Path | str | None = None,
    variables: Mapping[str, str] | None = None,
) -> LoadedJobs:
    """Read a job file and check it; nothing outside of the machine is asked, and no Spark started.

    Args:
        file: The job file.
        depots: What its addresses mean; ``depots.yaml`` beside it, if that is there.
        variables: Values of ``${NAME}``; others are those of the environment.

    Raises:
        ManifestError: With all mistakes in the file, each with its place.
    """
    file = Path(file)
    beside = file.with_name(_BESIDE)
    values = Variables(variables or {}, os.environ)
    known = read_depots(Path(depots) if depots else beside if beside.exists() else None, values)

    def hide(text: str) -> str:
        return values.hide(without_secrets(text, known.secrets()))

    problems, notes = Problems(str(file), hide), list[str]()
    tree = arranged(read_tree(file, problems, values), notes, problems)
    for name, hint in values.unused():
        problems.add(tree.mark, f"--set {name}=...: no ${{{name}}} is in the file; {hint}")
    model, sound = validated(_form_of(tree), tree, problems)
    if model is None:
        raise problems.error()
    unused = sorted({str(path[-1]) for path in not_used(model)})
    left_out = () if sound is tree else tree.names({"inputs", "steps"})
    checker = JobChecker(sound, known, problems, notes, left_out)
    paths = paths_of_jobs(sound)
    named = zip(_jobs(model, file.stem), paths, strict=True)
    jobs = tuple(checker.check(job, name, path) for (name, job), path in named)
    _check_names(jobs, sound, problems)
    _check_checkpoints(jobs, sound, problems)
    problems.raise_if_any()
    side_by_side = isinstance(model, JobList) and model.order == "sideBySide"
    if unused:
        notes.append(f"not used here: {', '.join(unused)}")
    notes += _never_reached(jobs, side_by_side=side_by_side)
    shown = tuple(dict.fromkeys(map(hide, notes)))
    return LoadedJobs(_with_others(jobs), side_by_side, shown, known.secrets(), values.hide)


def _form_of(tree: Located) -> type[Workflow | JobList | JobSpec]:
    if is_workflow(tree):
        return Workflow
    return JobList if "jobs" in tree.entries else JobSpec


def _jobs(model: Workflow | JobList | JobSpec, stem: str) -> Iterator[tuple[str, JobSpec]]:
    if isinstance(model, JobSpec):
        yield model.name or stem, model
    elif isinstance(model, JobList):
        for number, job in enumerate(model.jobs):
            yield job.name or f"{stem}-{number + 1}", job
    else:
        for item in model.workflow.dag:
            yield item.spec.stack_spec.job.name or item.name, item.spec.stack_spec.job


def _check_names(jobs: tuple[ReadyJob, ...], tree: Located, problems: Problems) -> None:
    seen: set[str] = set()
    for job, path in zip(jobs, paths_of_jobs(tree), strict=True):
        if job.name in seen:
            problems.add(tree.mark_of(path), f"two jobs are called {job.name!r}")
        seen.add(job.name)


def _check_checkpoints(jobs: tuple[ReadyJob, ...], tree: Located, problems: Problems) -> None:
    used: set[tuple[str, str, str]] = set()
    for job, path in zip(jobs, paths_of_jobs(tree), strict=True):
        for checkpoint in job.checkpoints:
            place = _place_of(checkpoint)
            if place in used:
                # The second one would go on where the first is, and pass over its own rows.
                problems.add(
                    tree.mark_of((*path, "streaming", "checkpointLocation")),
                    f"two queries would have the checkpoint {checkpoint}: give each its own",
                )
            used.add(place)


def _place_of(checkpoint: str) -> tuple[str, str, str]:
    """The same for each spelling of a place."""
    try:
        url = StoreUrl.parse(checkpoint)
    except OptionError:  # only Spark knows this store
        scheme, _, rest = checkpoint.partition(":")
        return scheme.lower(), "", normpath(rest)
    # HDFS's own names of services are not those of viewfs; other kinds have one place of a name.
    return url.scheme if url.kind == "hdfs" else url.kind, url.authority, normpath(url.path)


def _with_others(jobs: tuple[ReadyJob, ...]) -> tuple[ReadyJob, ...]:
    known = [frozenset(job.checkpoints) for job in jobs]
    others = (frozenset().union(*known[:n], *known[n + 1 :]) for n in range(len(jobs)))
    return tuple(
        replace(job, other_checkpoints=each) for job, each in zip(jobs, others, strict=True)
    )


def _never_reached(jobs: tuple[ReadyJob, ...], *, side_by_side: bool) -> Iterator[str]:
    for job in () if side_by_side else jobs[:-1]:
        if not job.ends:
            yield (
                f"job {job.name!r} never ends by itself, so what comes after it never starts: give "
                "it 'batchMode', 'timeout' or 'stopAfterIdle', or the file 'order: sideBySide'"
            )
