"""Names of views and outputs in a job: each once, and each that is used is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from krishiv_spark.jobs.located import LocatedPath
from krishiv_spark.jobs.models import JobSpec, JobStep
from krishiv_spark.messages.suggestions import did_you_mean

__all__ = ["mistaken_names"]

_Mistake = tuple[LocatedPath, str]


def mistaken_names(job: JobSpec, left_out: set[str]) -> Iterator[_Mistake]:
    """What is wrong with the names of a job, each with its path in it.

    Args:
        job: What was written.
        left_out: Names, in lower case, of views that could not be looked at, and may be used.
    """
    known: dict[str, str] = {}
    for where, view, used in _views(job):
        for number, other in enumerate(used):
            yield from _unknown(other, known, left_out, (*where, "inputs", number))
        if view.lower() in known:
            yield (
                (*where, "name"),
                f"there is a view {view!r} already; SQL takes names in any case",
            )
        known[view.lower()] = view
    names: set[str] = set()
    for number, output in enumerate(job.outputs):
        key = "view" if output.view else "name"
        yield from _unknown(output.source, known, left_out, ("outputs", number, key))
        if output.name in names:
            text = (
                f"two outputs are called {output.name!r}, and each needs its own checkpoint: call "
                f"one of them otherwise, and say 'view: {output.source}'"
            )
            yield ("outputs", number, "name"), text
        names.add(output.name)


def _unknown(
    view: str, known: Mapping[str, str], left_out: set[str], where: LocatedPath
) -> Iterator[_Mistake]:
    if view.lower() not in known and view.lower() not in left_out:
        near = did_you_mean(view.lower(), known, f"known: {', '.join(known.values())}")
        yield where, f"no input and no step before is called {view!r}; {near}"


def _views(job: JobSpec) -> Iterator[tuple[LocatedPath, str, list[str]]]:
    """Where each view stands, its name, and which others a function makes it of."""
    for number, one in enumerate(job.inputs):
        yield ("inputs", number), one.name, []
    for number, step in enumerate(job.steps):
        if isinstance(step, JobStep):
            yield ("steps", number), step.name, step.inputs
            continue
        for place, inner in enumerate(step.sequence):
            yield ("steps", number, "sequence", place), inner.name, inner.inputs
