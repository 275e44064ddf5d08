"""Positions of sources: as text for messages, and as offsets by topic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from krishiv_spark.formats import KafkaDataSource, describe_offset
from krishiv_spark.runtime.epoch_times import format_time

__all__ = ["describe_position", "format_moment", "offsets_by_topic"]


def offsets_by_topic(offset: Any) -> dict[str, dict[int, int]]:
    """Return offsets by topic and partition.

    Args:
        offset: Parsed JSON of an offset, or of a source's newest offset.

    Returns:
        The offsets; empty for a source of another kind.
    """
    if not isinstance(offset, Mapping):
        return {}
    if offset.get("kind") == "chain":
        offset = offset["then"]
    for key in ("topics", "latest"):  # the keys of a krishiv-kafka offset and of a newest offset
        if isinstance(offset.get(key), Mapping):
            offset = offset[key]
            break
    return {
        str(topic): {int(partition): number for partition, number in each.items()}
        for topic, each in offset.items()
        if isinstance(each, Mapping) and each and all(map(_is_numbered, each.items()))
    }


def _is_numbered(item: tuple[Any, Any]) -> bool:
    partition, number = item
    is_number = isinstance(number, int) and not isinstance(number, bool)
    return is_number and str(partition).isdecimal()


_LONGEST = 300
"""Maximum length of an offset that is shown without a description."""


def describe_position(text: str) -> str:
    """Return a description of a source's position.

    Args:
        text: Its offset, as Spark stores it: of a krishiv-spark format, of Spark's Kafka connector
            or file source, or of any other source, whose text is shown unchanged.
    """
    if text == "-":
        return "nothing yet"
    try:
        offset = json.loads(text)
    except ValueError:
        offset = None
    if not isinstance(offset, dict):
        return _short(text)
    try:
        return describe_offset(offset) if "kind" in offset else _of_spark(offset, text)
    except (LookupError, TypeError, ValueError, AttributeError):
        return _short(text)  # it is of a newer version


def format_moment(ms: int) -> str:
    """Return a time, milliseconds since 1970 UTC, as text."""
    return format_time(ms)


def _of_spark(offset: Mapping[str, Any], text: str) -> str:
    if offset.keys() == {"logOffset"}:
        return f"entry {offset['logOffset']} of its own log of files"
    if offset and all(isinstance(found, dict) and found for found in offset.values()):
        return "; ".join(KafkaDataSource.describe_topic(*each) for each in sorted(offset.items()))
    return _short(text)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
