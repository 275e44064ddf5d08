"""Offsets in words: where a source stands, as people ask for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from krishiv_spark.runtime.epoch_times import format_time

__all__ = ["in_words", "time_of"]

_LONGEST = 300
_SHOWN = 8
"""Partitions of a topic."""


def in_words(text: str) -> str:
    """Where a source stands.

    Args:
        text: Its offset, as Spark keeps it: of our formats, of Spark's Kafka connector and file
            source, or of any other source, which is shown as it is.
    """
    if text == "-":
        return "nothing yet"
    try:
        offset = json.loads(text)
    except ValueError:
        offset = None
    if not isinstance(offset, dict):
        return _short(text)
    said = _SAID.get(str(offset.get("kind")))
    try:
        return _of_spark(offset, text) if said is None else said(offset)
    except (LookupError, TypeError, ValueError, AttributeError):
        return _short(text)  # of a newer version


def time_of(ms: int) -> str:
    """A time, milliseconds since 1970 UTC."""
    return format_time(ms)


def _kafka(offset: Mapping[str, Any]) -> str:
    if "at" in offset and not offset.get("topics"):
        return f"before its first batch, at {offset['at']}"
    parts = [_topic(topic, found) for topic, found in sorted(offset.get("topics", {}).items())]
    parts += [
        f"{_topic(topic, found)}, no longer read"
        for topic, found in sorted(offset.get("left", {}).items())
    ]
    return "; ".join(parts) or "no partition"


def _topic(topic: str, offsets: Mapping[str, int]) -> str:
    ends = {int(partition): offset for partition, offset in offsets.items()}
    shown = ", ".join(f"{partition}: {ends[partition]}" for partition in sorted(ends)[:_SHOWN])
    more = f", and {len(ends) - _SHOWN} more" if len(ends) > _SHOWN else ""
    return f"topic {topic}, next offsets {shown}{more} (sum {sum(ends.values())})"


def _iceberg(offset: Mapping[str, Any]) -> str:
    if "at" in offset:
        return f"before its first batch, at {offset['at']}"
    spot = offset["spot"]
    table = f"table {offset.get('table', 'of no UUID')}"
    if spot.get("snapshot") is None:
        return f"{table}, before its first snapshot"
    inside = f", {spot['file']} of its files" if spot.get("file") is not None else ""
    first = " of the first load" if spot.get("scan") else ""
    return (
        f"{table}, snapshot {spot['snapshot']} (sequence {spot.get('sequence', 0)}){inside}{first}"
    )


def _parquet(offset: Mapping[str, Any]) -> str:
    files = len(offset.get("files", ()))
    many = "many (in its state)" if offset.get("files_in") else str(files)
    parts = [f"{many} files in its last batch"]
    newest = offset.get("newest")
    if newest is not None:
        parts.append(f"newest of {time_of(newest // 1_000_000)}")
    followed = offset.get("epochs", {})
    parts += [f"epoch {epoch} of {key}" for key, epoch in sorted(followed.items())[:4]]
    if offset.get("stream"):
        parts.append(f"state {offset['stream']}")
    return ", ".join(parts)


def _memory(offset: Mapping[str, Any]) -> str:
    return f"push {offset['next']} is next"


def _start(offset: Mapping[str, Any]) -> str:
    when = f" {time_of(offset['ms'])}" if offset.get("ms") is not None else ""
    return f"before its first batch, at {offset['at']}{when}"


def _chain(offset: Mapping[str, Any]) -> str:
    first, then = (in_words(json.dumps(offset[place])) for place in ("first", "then"))
    is_over = offset["first"]["spot"].get("file") is None
    return f"{then}; after {first}" if is_over else f"{first}; then {then}"


_SAID: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "chain": _chain,
    "iceberg": _iceberg,
    "kafka": _kafka,
    "memory": _memory,
    "parquet": _parquet,
    "start": _start,
}


def _of_spark(offset: Mapping[str, Any], text: str) -> str:
    if offset.keys() == {"logOffset"}:
        return f"entry {offset['logOffset']} of its own log of files"
    if offset and all(isinstance(found, dict) and found for found in offset.values()):
        return "; ".join(_topic(topic, found) for topic, found in sorted(offset.items()))
    return _short(text)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
