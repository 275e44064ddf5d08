"""Messages to brokers and their answers, in a few words, for the story of a history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simulation.cluster.partitions import parse_batch_header

__all__ = ["Said", "shown"]

_UNSAID = {"client_software_name", "client_software_version", "key_type", "acks", "timeout_ms"}
_MANY = 4


def shown(request: Any) -> str:
    """A message for people."""
    name = type(request).__name__.removesuffix("Request")
    if name == "Produce":
        return f"Produce {request.transactional_id}: {', '.join(_batches(request))}"
    given = (request.to_dict() if hasattr(request, "to_dict") else {}).items()
    told = (f"{k.removeprefix('v3_and_below_')}={_short(v)}" for k, v in given if k not in _UNSAID)
    return f"{name} {' '.join(told)}"


def _short(value: object) -> object:
    """Names come from sets, in no order."""
    if not isinstance(value, list):
        return value
    names = sorted(value, key=str)
    return names if len(names) <= _MANY else f"[{names[0]} and {len(names) - 1} more]"


def _batches(request: Any) -> Iterator[str]:
    for topic in request.topic_data:
        for part in topic.partition_data:
            batch = parse_batch_header(part.records)
            who = f"producer {batch.producer} epoch {batch.epoch}"
            tp = f"{topic.name}-{part.index}"
            yield f"{batch.count} records to {tp} by {who} from {batch.sequence}"


class Said:
    """An answer, or a part of one: values by name, as kafka-python's classes have them."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __str__(self) -> str:
        kept = {k: v for k, v in self.__dict__.items() if v not in (0, None, -1, [], (), "")}
        return " ".join(f"{k}={_said(v)}" for k, v in kept.items()) or "done"


def _said(value: object) -> str:
    if isinstance(value, list):
        parts = [f"({each})" for each in value[:_MANY]]
        return " ".join([*parts, "..."] if len(value) > _MANY else parts)
    return str(value)
