"""The headers of the batches at an offset, where metadata does not say enough. Driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from krishiv_spark.kafka.client import Client, is_passing
from krishiv_spark.kafka.fetches import Answer, Wanted, answers, request, usable_id
from krishiv_spark.kafka.pauses import Pauses
from krishiv_spark.kafka.places import Place

__all__ = ["Head", "heads"]

_BYTES = 64 * 1024
"""Of each partition; a whole batch comes at least (KIP-74)."""

_ANSWERED = {0, 1}
"""Without an error, or OFFSET_OUT_OF_RANGE: the offset has just aged out, or was cut off."""


class Head(NamedTuple):
    """What the header of a batch says.

    Attributes:
        base: Its first offset.
        last: Its last offset.
        newest_ms: The greatest timestamp in it; below 0 if it has none.
        is_marker: Whether it is no batch of records: it ends a transaction, and has the time at
            which that was done.
    """

    base: int
    last: int
    newest_ms: int
    is_marker: bool


def heads(client: Client, offsets: Mapping[Place, int]) -> dict[Place, list[Head]]:
    """Look at the batches that hold some offsets, or follow them, and a few behind each.

    Args:
        client: The cluster.
        offsets: An offset for each partition, before its end.

    Returns:
        By partition; none for those that have nothing there.

    Raises:
        KafkaFailedError: If a partition has no answer in time, or may not be read.
    """
    found: dict[Place, list[Head]] = {}
    pauses = Pauses(client.connection.patience_s)
    while waiting := [place for place in offsets if place not in found]:
        for answer in _asked(client, waiting, offsets):
            if answer.code in _ANSWERED:
                found[answer.place] = list(_heads(answer.records))
            elif not _passes(answer):
                raise client.failed(f"read {answer.place}", _error(answer))
        if len(found) < len(offsets):
            client.forget_leaders({place.topic for place in offsets})
            pauses.pause_or(lambda: client.failed("read records", f"no answer for {waiting[0]}"))
    return found


def _asked(
    client: Client, places: Iterable[Place], offsets: Mapping[Place, int]
) -> Iterator[Answer]:
    """Ask for each partition by itself, all at once, since a message brings one whole batch."""
    from kafka.errors import KafkaError

    asked: list[tuple[Any, dict[str, str]]] = []
    for place in places:
        node, topic = client.leader(place), client.topic_of(place.topic)
        if node is not None and topic is not None:
            wanted = Wanted(place, usable_id(topic), offsets[place], _BYTES)
            message = request([wanted], committed=False, most_bytes=_BYTES)
            asked.append((client.submit(message, node), {topic.id: topic.name}))
    for future, names in asked:
        try:
            yield from answers(client.wait(future), names)
        except KafkaError as error:
            if not is_passing(error):
                raise client.failed("read records", error) from error


def _error(answer: Answer) -> Exception:
    from kafka.errors import for_code

    error: Exception = for_code(answer.code)()
    return error


def _passes(answer: Answer) -> bool:
    return is_passing(_error(answer))


def _heads(records: Any) -> Iterator[Head]:
    from krishiv_spark.kafka.records.layout import CONTROL, HEADER, HEADER_BYTES, LOG_OVERHEAD

    at = 0
    while at + HEADER_BYTES <= len(records):
        base, length, _, _, _, attributes, delta, _, newest, *_ = HEADER.unpack_from(records, at)
        yield Head(base, base + delta, newest, bool(attributes & CONTROL))
        at += LOG_OVERHEAD + max(length, 0)
