"""Values of options that have a form of their own: times, sizes, lists of names."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from krishiv_spark.messages.suggestions import suggest

__all__ = [
    "ByteSize",
    "DistinctNames",
    "Duration",
    "Names",
    "parse_bytes",
    "parse_duration",
    "reason_of",
]

_MILLISECONDS = {
    unit: size
    for size, units in (
        (1, ("ms", "millisecond", "milliseconds")),
        (1_000, ("s", "second", "seconds")),
        (60_000, ("m", "min", "mins", "minute", "minutes")),
        (3_600_000, ("h", "hour", "hours")),
        (86_400_000, ("d", "day", "days")),
        (604_800_000, ("w", "week", "weeks")),
    )
    for unit in units
}
_BYTES = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
# Python converts no more than 4 300 digits, and no number of these is longer than 18.
_QUANTITY = re.compile(r"\s*(\d{1,18})\s*([a-zA-Z]*)\s*")


def parse_duration(text: object) -> object:
    """Turn ``"10 minutes"``, ``"7d"`` or ``"500 ms"`` into milliseconds.

    Args:
        text: A whole number and a unit; an int is taken as milliseconds already.

    Raises:
        ValueError: If the number or the unit cannot be read; a bare number has no unit.
    """
    if not isinstance(text, str):
        return text
    number, unit = _quantity(text, "a number and a unit, such as '10 minutes', '30 s' or '7d'")
    if unit not in _MILLISECONDS:
        raise ValueError(f"{text!r} needs a unit of time: ms, s, min, h, d or w")
    return number * _MILLISECONDS[unit]


def parse_bytes(text: object) -> object:
    """Turn ``"128m"``, ``"1 GiB"`` or ``"65536"`` into bytes; units are powers of 1024.

    Raises:
        ValueError: If the number or the unit cannot be read.
    """
    if not isinstance(text, str):
        return text
    number, unit = _quantity(text, "a number of bytes, such as '134217728', '128m' or '1 GiB'")
    unit = re.sub(r"(?<=[kmgt])i?b$", "", unit)
    if unit not in _BYTES:
        raise ValueError(f"{text!r} needs a unit of size: b, k, m, g or t")
    return number * _BYTES[unit]


def _quantity(text: str, wanted: str) -> tuple[int, str]:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not {wanted}")
    return int(match[1]), match[2].lower()


def _check_distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise ValueError(f"{twice!r} is there twice: name each column once")
    return names


def _split(text: object) -> object:
    if isinstance(text, str):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text


Duration = Annotated[int, BeforeValidator(parse_duration)]
"""Milliseconds, written with a unit."""

ByteSize = Annotated[int, BeforeValidator(parse_bytes)]
"""Bytes, written with or without a unit."""

Names = Annotated[tuple[str, ...], BeforeValidator(_split)]
"""Names separated by commas."""

DistinctNames = Annotated[Names, AfterValidator(_check_distinct)]
"""Names separated by commas, none of which is there twice."""

_NEEDED = {
    "bool": "true or false is needed",
    "float": "a number is needed",
    "int": "a whole number is needed",
}
"""By how pydantic's types of problems begin."""


def reason_of(kind: str, said: str, value: object) -> str:
    """Why a value is not taken, as the messages here have it.

    Args:
        kind: Pydantic's type of the problem.
        said: Its message.
        value: Which was given.
    """
    if kind == "literal_error":
        known = re.findall(r"'([^']*)'", said)
        near = suggest(str(value), known)
        return f"{f'did you mean {near!r}? There' if near else 'there'} are {', '.join(known)}"
    needed = _NEEDED.get(kind.partition("_")[0])
    return needed or said.removeprefix("Value error, ").replace("Input should", "it has to")
