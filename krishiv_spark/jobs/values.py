"""Kinds of values in job files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, WithJsonSchema

from krishiv_spark.options import parse_duration

__all__ = [
    "NOT_USED",
    "Names",
    "NotUsed",
    "OptionTexts",
    "OutputModeName",
    "SaveMode",
    "Span",
    "StepArguments",
    "TriggerMode",
    "in_any_case",
]


_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_LONGEST_MS = 100 * 366 * 86_400_000
"""Python's own waits end with an OverflowError after 292 years."""


def _span(given: object) -> object:
    if not isinstance(given, str):
        raise ValueError(  # noqa: TRY004  pydantic takes no other one as a refusal
            f"{given!r} has no unit: write '30 seconds', '10 minutes' or '1 hour'"
        )
    found = parse_duration(given)
    if isinstance(found, int) and found > _LONGEST_MS:
        raise ValueError(f"{given!r} is longer than 100 years")
    return found


def _texts(given: object) -> object:
    if not isinstance(given, Mapping):
        return given
    return {key: _text(key, value) for key, value in given.items()}


def _text(key: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, (list, Mapping)):
        raise ValueError(f"{key!r} needs a value, which is a text, a number, true or false")
    return str(value)


def _arguments(given: object) -> object:
    if not isinstance(given, Mapping):
        return given
    for name, value in given.items():
        if _PARAMETER.fullmatch(str(name)) is None:
            raise ValueError(
                f"{name!r} is not a valid parameter name: start with a letter, followed by "
                "letters, digits and '_'"
            )
        if any(isinstance(one, Mapping | list) for one in _listed(value)):
            raise ValueError(f"{name!r} must be a text, a number, true, false, null or a list")
    return given


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _names(given: object) -> object:
    if isinstance(given, str):
        return [part.strip() for part in given.split(",") if part.strip()]
    return given


def in_any_case(*names: str, **others: str) -> BeforeValidator:
    """Names that are taken in any case, as Spark takes them.

    Args:
        names: As they are shown.
        others: By another spelling, in lower case, the name that is meant.
    """
    meant = {**{name.lower(): name for name in names}, **others}

    def found(given: object) -> object:
        return meant.get(given.strip().lower(), given) if isinstance(given, str) else given

    return BeforeValidator(found)


Span = Annotated[
    int,
    BeforeValidator(_span),
    WithJsonSchema({"type": "string", "examples": ["30 seconds", "10 minutes", "1 hour"]}),
]
"""A length of time, milliseconds, written with its unit."""

OptionTexts = Annotated[
    dict[str, str],
    BeforeValidator(_texts),
    # Options in options have their names with dots between.
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": {"type": ["string", "number", "boolean", "object"]},
        }
    ),
]
"""Options of a format or of Spark; numbers and booleans become texts."""

StepArguments = Annotated[
    dict[str, Any],
    BeforeValidator(_arguments),
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": {"type": ["string", "number", "boolean", "null", "array"]},
        }
    ),
]
"""Values that Spark puts in the place of parameters, which are never SQL."""

Names = Annotated[list[str], BeforeValidator(_names)]
"""A list, or a text with commas."""

TriggerMode = Annotated[
    Literal["Once", "AvailableNow", "ProcessingTime", "Continuous"],
    # The last is how published files misspell it.
    in_any_case("Once", "AvailableNow", "ProcessingTime", "Continuous", continous="Continuous"),
]
"""When a stream looks for rows."""

SaveMode = Annotated[
    Literal["append", "overwrite", "ignore", "errorIfExists"],
    in_any_case(
        "append",
        "overwrite",
        "ignore",
        "errorIfExists",
        error="errorIfExists",
        default="errorIfExists",
    ),
]
"""What a batch does with rows that are there."""

OutputModeName = Annotated[
    Literal["append", "update", "complete"], in_any_case("append", "update", "complete")
]
"""Which rows of a stream's result are written."""

NOT_USED = "not used here"

NotUsed = Annotated[Any, NOT_USED]
"""What says something to another platform only."""
