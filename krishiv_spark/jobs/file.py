"""Job files, read into jobs that can run, or into a list of all errors in the files.

Keys that published job files have in other positions are moved to their positions in the models.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from posixpath import normpath

from krishiv_spark.errors import OptionError
from krishiv_spark.jobs.checker import JobChecker
from krishiv_spark.jobs.depots import read_depots
from krishiv_spark.jobs.models import JobList, JobSpec, Workflow
from krishiv_spark.jobs.plan import LoadedJobs, ReadyJob
from krishiv_spark.jobs.validation import find_unused_keys, read_nodes, validate_model
from krishiv_spark.jobs.variables import Variables
from krishiv_spark.jobs.yaml_nodes import NodePath, Problems, TextMark, YamlNode
from krishiv_spark.messages.redaction import without_secrets
from krishiv_spark.storage import StoreUrl

__all__ = ["load"]


_MOVED = ("logLevel", "outputs", "steps")
"""Keys of a job that published files have at several levels."""

_OF_OUTPUTS = ("saveMode", "checkpointLocation", "outputMode")
_OF_ICEBERG = {"properties": "properties", "partitionBy": "partitionBy", "sort": "sort"}


def is_workflow(tree: YamlNode) -> bool:
    """Return True if a file is a workflow; False for the short form."""
    return "workflow" in tree.entries


def paths_of_jobs(tree: YamlNode) -> list[NodePath]:
    """Return the paths of the jobs in a file."""
    if is_workflow(tree):
        dag = tree.entries["workflow"].entries.get("dag")
        count = 0 if dag is None else len(dag.items)
        return [("workflow", "dag", n, "spec", "stackSpec", "job") for n in range(count)]
    if "jobs" in tree.entries:
        return [("jobs", n) for n in range(len(tree.entries["jobs"].items))]
    return [()]


def normalize(tree: YamlNode, notes: list[str], problems: Problems) -> YamlNode:
    """Return a file in the form of the models; note moved keys, and report duplicates."""
    if is_workflow(tree):
        for *above, _ in paths_of_jobs(tree):
            tree = tree.at(tuple(above[:-1]), lambda spec: _push_into_job(spec, notes))
    for path in paths_of_jobs(tree):
        tree = tree.at(path, lambda job: _job(job, problems))
    return tree


def _push_into_job(spec: YamlNode, notes: list[str]) -> YamlNode:
    """Move keys of a job into it that are beside it or one level above it."""
    found: dict[str, tuple[TextMark, YamlNode]] = {}
    for name, where in _misplaced_keys(spec):
        found[name] = (where.keys[name], where.entries[name])
        line = where.keys[name].line
        notes.append(f"line {line}: {name!r} belongs in 'job', and was read there")
    if not found:
        return spec
    spec = spec.without(*_MOVED).at(("stackSpec",), lambda stack: stack.without(*_MOVED))
    return spec.at(("stackSpec", "job"), lambda job: job.with_keys(found))


def _misplaced_keys(spec: YamlNode) -> Iterator[tuple[str, YamlNode]]:
    stack = spec.entries.get("stackSpec")
    places = [spec] if stack is None else [spec, stack]
    job = None if stack is None else stack.entries.get("job")
    for where in places:
        for name in _MOVED:
            if name in where.entries and (job is None or name not in job.entries):
                yield name, where


def _job(job: YamlNode, problems: Problems) -> YamlNode:
    for kind, lift in (("inputs", None), ("outputs", _hoist_keys)):
        count = len(job.entries[kind].items) if kind in job.entries else 0
        for number in range(count):
            if lift is not None:
                job = job.at((kind, number), lift)
            job = job.at((kind, number, "options"), lambda options: _flat(options, problems))
    return job


def _hoist_keys(output: YamlNode) -> YamlNode:
    """Move the keys of an output that published files have among its options."""
    options = output.entries.get("options")
    if options is None or not options.entries:
        return output
    lifted = {
        name: (options.keys[name], options.entries[name])
        for name in _OF_OUTPUTS
        if name in options.entries and name not in output.entries
    }
    iceberg = options.entries.get("iceberg")
    for name, own in _OF_ICEBERG.items() if iceberg is not None else ():
        if iceberg is not None and name in iceberg.entries and own not in output.entries:
            lifted[own] = (iceberg.keys[name], iceberg.entries[name])
    output = output.with_keys(lifted)
    output = output.at(("options", "iceberg"), lambda found: found.without(*_OF_ICEBERG))
    return output.at(("options",), lambda found: found.without(*lifted))


def _flat(options: YamlNode, problems: Problems) -> YamlNode:
    """Flatten options: ``kafka: {bootstrap.servers: …}`` is ``kafka.bootstrap.servers``."""
    flat: dict[str, tuple[TextMark, YamlNode]] = {}
    for name, mark, inner in _leaves(options, ""):
        if name in flat:
            problems.add(mark, f"{name!r} occurs twice")
        flat[name] = (mark, inner)
    return YamlNode({}, options.mark).with_keys(flat) if options.entries else options


def _leaves(options: YamlNode, prefix: str) -> Iterator[tuple[str, TextMark, YamlNode]]:
    for name, inner in options.entries.items():
        if isinstance(inner.value, dict):
            yield from _leaves(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", options.keys[name], inner


_BESIDE = "depots.yaml"


def load(
    file: Path | str,
    *,
    depots: Path | str | None = None,
    variables: Mapping[str, str] | None = None,
) -> LoadedJobs:
    """Read a job file and check it. This reads local files only, and does not start Spark.

    Args:
        file: The job file.
        depots: The file that defines depots. Default: ``depots.yaml`` beside the job file, if
            present.
        variables: Values of ``${NAME}``. Other values are read from the environment.

    Raises:
        ManifestError: If there are mistakes; the error lists all of them, each with its position.
    """
    file = Path(file)
    beside = file.with_name(_BESIDE)
    values = Variables(variables or {}, os.environ)
    known = read_depots(Path(depots) if depots else beside if beside.exists() else None, values)

    def hide(text: str) -> str:
        return values.hide(without_secrets(text, known.secrets()))

    problems, notes = Problems(str(file), hide), list[str]()
    tree = normalize(read_nodes(file, problems, values), notes, problems)
    for name, hint in values.find_unused():
        problems.add(tree.mark, f"--set {name}=...: no ${{{name}}} is in the file; {hint}")
    model, sound = validate_model(_form_of(tree), tree, problems)
    if model is None:
        raise problems.error()
    unused = sorted({str(path[-1]) for path in find_unused_keys(model)})
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


def _form_of(tree: YamlNode) -> type[Workflow | JobList | JobSpec]:
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


def _check_names(jobs: tuple[ReadyJob, ...], tree: YamlNode, problems: Problems) -> None:
    seen: set[str] = set()
    for job, path in zip(jobs, paths_of_jobs(tree), strict=True):
        if job.name in seen:
            problems.add(tree.mark_of(path), f"two jobs are called {job.name!r}")
        seen.add(job.name)


def _check_checkpoints(jobs: tuple[ReadyJob, ...], tree: YamlNode, problems: Problems) -> None:
    used: set[tuple[str, str, str]] = set()
    for job, path in zip(jobs, paths_of_jobs(tree), strict=True):
        for checkpoint in job.checkpoints:
            place = _place_of(checkpoint)
            if place in used:
                # The second query would continue from the position of the first, and skip its own
                # rows.
                problems.add(
                    tree.mark_of((*path, "streaming", "checkpointLocation")),
                    f"two queries would have the checkpoint {checkpoint}: give each its own",
                )
            used.add(place)


def _place_of(checkpoint: str) -> tuple[str, str, str]:
    """Return the same value for all spellings of a location."""
    try:
        url = StoreUrl.parse(checkpoint)
    except OptionError:  # only Spark knows this store
        scheme, _, rest = checkpoint.partition(":")
        return scheme.lower(), "", normpath(rest)
    return *url.store, normpath(url.path)


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
                f"job {job.name!r} never ends, so the jobs after it never start: give it "
                "'batchMode', 'timeout' or 'stopAfterIdle', or the file 'order: sideBySide'"
            )
