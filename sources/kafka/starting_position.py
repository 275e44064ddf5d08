"""Where users want to begin and end, as they write it: words, JSON of offsets, times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from krishiv_spark.kafka.topic_partition import EARLIEST, LATEST, TopicPartition

__all__ = [
    "StartingPosition",
    "parse_assignment",
    "parse_moment",
    "parse_moments",
    "parse_offsets",
]

_WORDS = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True)
class StartingPosition:
    """A position in each partition.

    Attributes:
        everywhere: One number for all partitions; None if each has its own.
        each: A number for each partition.
        is_time: Whether the numbers are times, milliseconds since 1970 UTC, which mean the first
            record that is not older. Otherwise they are offsets, or `EARLIEST` or `LATEST`.
    """

    everywhere: int | None = None
    each: Mapping[TopicPartition, int] = field(default_factory=dict)
    is_time: bool = False

    def uses(self, word: int) -> bool:
        """Whether `EARLIEST` or `LATEST` is asked for anywhere."""
        return not self.is_time and (self.everywhere == word or word in self.each.values())

    def of(self, tp: TopicPartition) -> int:
        """The number for a partition."""
        return self.each[tp] if self.everywhere is None else self.everywhere


def parse_offsets(given: object) -> object:
    """``earliest``, ``latest``, or JSON such as ``{"orders": {"0": 23, "1": -2}}``.

    Raises:
        ValueError: If it is neither, with an example.
    """
    if not isinstance(given, str):
        return given
    if given.strip().lower() in _WORDS:
        return StartingPosition(_WORDS[given.strip().lower()])
    example = "'earliest', 'latest' or JSON such as '{\"orders\": {\"0\": 23, \"1\": -2}}'"
    return StartingPosition(
        each=_by_partition(given, EARLIEST, f"{example} (-2: earliest, -1: latest)")
    )


def parse_moment(given: object) -> object:
    """A time for all partitions: milliseconds since 1970 UTC.

    Raises:
        ValueError: If it is no whole number, or below 0.
    """
    if not isinstance(given, str):
        return given
    if not given.strip().isdecimal():
        raise ValueError("write a whole number: milliseconds since 1970 UTC")
    return StartingPosition(int(given), is_time=True)


def parse_moments(given: object) -> object:
    """A time for each partition, as JSON such as ``{"orders": {"0": 1700000000000}}``.

    Raises:
        ValueError: If it is anything else, with an example.
    """
    if not isinstance(given, str):
        return given
    example = 'JSON such as \'{"orders": {"0": 1700000000000}}\', milliseconds since 1970 UTC'
    return StartingPosition(each=_by_partition(given, 0, example), is_time=True)


def parse_assignment(given: object) -> object:
    """Partitions, as JSON such as ``{"orders": [0, 2]}``.

    Raises:
        ValueError: If it is anything else, with an example.
    """
    if not isinstance(given, str):
        return given
    example = "JSON such as '{\"orders\": [0, 2]}'"
    found = _parsed(given, example)
    partitions = [
        TopicPartition(topic, _whole(partition, 0, example))
        for topic, each in found.items()
        for partition in _list(each, example)
    ]
    if not partitions:
        raise ValueError(f"write at least one partition: {example}")
    return tuple(dict.fromkeys(partitions))


def _by_partition(text: str, least: int, example: str) -> dict[TopicPartition, int]:
    found = {}
    for topic, each in _parsed(text, example).items():
        _need(isinstance(each, dict), f"{topic!r} needs a number for each partition: {example}")
        for partition, number in each.items():
            tp = TopicPartition(topic, _whole(_number(partition), 0, example))
            found[tp] = _whole(number, least, example)
    if not found:
        raise ValueError(f"write at least one partition: {example}")
    return found


def _parsed(text: str, example: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        raise ValueError(f"write {example}") from None
    _need(isinstance(value, dict), f"write {example}")
    found: dict[str, Any] = value
    return found


def _number(text: str) -> object:
    return int(text) if text.isdecimal() else text


def _list(value: Any, example: str) -> list[object]:
    _need(isinstance(value, list), f"write a list of partitions: {example}")
    found: list[object] = value
    return found


def _need(is_so: bool, text: str) -> None:
    if not is_so:
        raise ValueError(text)


def _whole(value: object, least: int, example: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{value!r} is not valid; write {example}")
    return value
