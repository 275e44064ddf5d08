"""Positions of Spark's own Kafka source, and ours: both name the next record of each partition."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from krishiv_spark.errors import OffsetError
from krishiv_spark.offsets import canonical_json
from krishiv_spark.sources.kafka.position import KafkaOffset

__all__ = ["from_spark", "is_ours", "is_spark", "starting_offsets", "to_spark"]


def is_spark(text: str) -> bool:
    """Whether an offset has the form of Spark's source: numbers by topic and partition."""
    value = _object(text)
    return value is not None and "kind" not in value and all(map(_is_numbers, value.values()))


def is_ours(text: str) -> bool:
    """Whether an offset is of our source."""
    value = _object(text)
    return value is not None and value.get("kind") == KafkaOffset.kind


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _is_numbers(value: object) -> bool:
    return isinstance(value, dict) and all(
        partition.isdecimal() and isinstance(number, int) and number >= 0
        for partition, number in value.items()
    )


def from_spark(text: str) -> KafkaOffset:
    """Our offset at the position of one of Spark's (``JsonUtils.partitionOffsets``).

    It knows neither ids of topics nor leader epochs: the first batch finds them out.
    """
    found: dict[str, dict[str, int]] = json.loads(text)
    return KafkaOffset(topics={topic: each for topic, each in found.items() if each})


def to_spark(text: str) -> str:
    """Spark's offset at the position of one of ours.

    Raises:
        OffsetError: If ours is damaged, or is a start without a position yet.
    """
    offset = KafkaOffset.from_json(text)
    if not offset.topics:
        raise OffsetError(f"{text[:200]} names no partition yet: start the query once more first")
    return starting_offsets(offset.topics)


def starting_offsets(topics: Mapping[str, Mapping[str, int]]) -> str:
    """A position as ``startingOffsets`` of both sources takes it."""
    return canonical_json(topics)
