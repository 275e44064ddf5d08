"""Descriptions of offsets for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from krishiv_spark.formats import KafkaDataSource, describe_offset
from krishiv_spark.runtime.epoch_times import format_time

__all__ = ["in_words", "time_of"]

_LONGEST = 300
"""Characters of an offset that has no description."""


def in_words(text: str) -> str:
    """Return the position of a source in words.

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
        return _short(text)  # of a newer version


def time_of(ms: int) -> str:
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
