"""Brings what stands elsewhere in published files to where the models have it."""

from __future__ import annotations

from collections.abc import Iterator

from krishiv_spark.jobs.located import Located, LocatedPath
from krishiv_spark.jobs.problems import Problems, TextMark

__all__ = ["arranged", "is_workflow", "paths_of_jobs"]

_MOVED = ("logLevel", "outputs", "steps")
"""Keys of a job that published files indent in several ways."""

_OF_OUTPUTS = ("saveMode", "checkpointLocation", "outputMode")
_OF_ICEBERG = {"properties": "properties", "partitionBy": "partitionBy", "sort": "sort"}


def is_workflow(tree: Located) -> bool:
    """Whether a file is a workflow, rather than our own form."""
    return "workflow" in tree.entries


def paths_of_jobs(tree: Located) -> list[LocatedPath]:
    """Where the jobs stand in a file."""
    if is_workflow(tree):
        dag = tree.entries["workflow"].entries.get("dag")
        count = 0 if dag is None else len(dag.items)
        return [("workflow", "dag", n, "spec", "stackSpec", "job") for n in range(count)]
    if "jobs" in tree.entries:
        return [("jobs", n) for n in range(len(tree.entries["jobs"].items))]
    return [()]


def arranged(tree: Located, notes: list[str], problems: Problems) -> Located:
    """A file as the models have it; what was moved is noted, and `problems` told what is twice."""
    if is_workflow(tree):
        for *above, _ in paths_of_jobs(tree):
            tree = tree.at(tuple(above[:-1]), lambda spec: _lowered(spec, notes))
    for path in paths_of_jobs(tree):
        tree = tree.at(path, lambda job: _job(job, problems))
    return tree


def _lowered(spec: Located, notes: list[str]) -> Located:
    """The parts of a job that stand beside it, or one level above, are put into it."""
    found: dict[str, tuple[TextMark, Located]] = {}
    for name, where in _astray(spec):
        found[name] = (where.keys[name], where.entries[name])
        line = where.keys[name].line
        notes.append(f"line {line}: {name!r} belongs into 'job' and was taken as if it stood there")
    if not found:
        return spec
    spec = spec.without(*_MOVED).at(("stackSpec",), lambda stack: stack.without(*_MOVED))
    return spec.at(("stackSpec", "job"), lambda job: job.having(found))


def _astray(spec: Located) -> Iterator[tuple[str, Located]]:
    stack = spec.entries.get("stackSpec")
    places = [spec] if stack is None else [spec, stack]
    job = None if stack is None else stack.entries.get("job")
    for where in places:
        for name in _MOVED:
            if name in where.entries and (job is None or name not in job.entries):
                yield name, where


def _job(job: Located, problems: Problems) -> Located:
    for kind, lift in (("inputs", None), ("outputs", _lifted)):
        count = len(job.entries[kind].items) if kind in job.entries else 0
        for number in range(count):
            if lift is not None:
                job = job.at((kind, number), lift)
            job = job.at((kind, number, "options"), lambda options: _flat(options, problems))
    return job


def _lifted(output: Located) -> Located:
    """What published files have among the options is the output's own."""
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
    output = output.having(lifted)
    output = output.at(("options", "iceberg"), lambda found: found.without(*_OF_ICEBERG))
    return output.at(("options",), lambda found: found.without(*lifted))


def _flat(options: Located, problems: Problems) -> Located:
    """Options in options: ``kafka: {bootstrap.servers: …}`` is ``kafka.bootstrap.servers``."""
    flat: dict[str, tuple[TextMark, Located]] = {}
    for name, mark, inner in _leaves(options, ""):
        if name in flat:
            problems.add(mark, f"{name!r} is there twice")
        flat[name] = (mark, inner)
    return Located({}, options.mark).having(flat) if options.entries else options


def _leaves(options: Located, prefix: str) -> Iterator[tuple[str, TextMark, Located]]:
    for name, inner in options.entries.items():
        if isinstance(inner.value, dict):
            yield from _leaves(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", options.keys[name], inner
