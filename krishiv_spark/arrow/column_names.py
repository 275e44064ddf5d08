"""Which column is meant by a name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from krishiv_spark.errors import SchemaError

__all__ = ["places", "twins"]


def places(wanted: Sequence[str], held: Sequence[str], above: str = "") -> list[int | None]:
    """For each wanted name the place of the one that is meant: the same, or else in any case.

    The session's ``spark.sql.caseSensitive`` is not known where rows are read. So case tells names
    apart where it has to: where two that are wanted, or that are there, differ by nothing else.

    Args:
        wanted: The names to find.
        held: The names that are there.
        above: What stands in front of them in messages, such as ``person.``.

    Returns:
        Places in `held`, in the order of `wanted`; None for a name that is not there.

    Raises:
        SchemaError: If a wanted name is there twice, or not itself, but in several spellings.
    """
    exact, folded = _places_by(held), _places_by(name.lower() for name in held)
    asked = _places_by(name.lower() for name in wanted)
    found: list[int | None] = []
    for name in wanted:
        told_apart = len(asked[name.lower()]) > 1
        near = exact.get(name) or ([] if told_apart else folded.get(name.lower(), []))
        if len(near) > 1:
            raise SchemaError(_ambiguous(above + name, [held[place] for place in near]))
        found.append(near[0] if near else None)
    return found


def twins(names: Iterable[str]) -> tuple[str, str] | None:
    """Two names that differ by nothing but case, if at all; None if there are none."""
    seen: dict[str, str] = {}
    for name in names:
        if name.lower() in seen:
            return seen[name.lower()], name
        seen[name.lower()] = name
    return None


def _places_by(names: Iterable[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        found.setdefault(name, []).append(place)
    return found


def _ambiguous(name: str, found: Sequence[str]) -> str:
    return (
        f"column {name!r} could be any of {' and '.join(map(repr, found))}: leave it out, or write "
        "the rows again with names that differ by more than their case"
    )
