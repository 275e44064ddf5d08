"""Offsets of topics, as sources of Kafka keep them: ours, and Spark's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["offsets_by_topic"]


def offsets_by_topic(offset: Any) -> dict[str, dict[int, int]]:
    """Numbers by topic and partition.

    Args:
        offset: From JSON: an offset, or what a source says of what is newest.

    Returns:
        Nothing if it is of a source of another kind.
    """
    if not isinstance(offset, Mapping):
        return {}
    if offset.get("kind") == "chain":
        offset = offset["then"]
    for key in ("topics", "latest"):  # of our offset, and of what is newest
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
