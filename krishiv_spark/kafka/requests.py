"""Requests about many items, each of which some broker answers for.

They go side by side to the brokers, and again for those items only that had no answer yet.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from krishiv_spark.kafka.client import Client
from krishiv_spark.kafka.failures import is_retriable
from krishiv_spark.kafka.network import Node
from krishiv_spark.runtime.retry import Backoff

__all__ = ["BatchedRequest", "Parts", "Routed", "Tried", "demand", "exchange", "gather"]

_log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
Parts: TypeAlias = Sequence[tuple[Node, list[K]]]
"""Items, by the node that is asked about them in one message."""

Routed: TypeAlias = tuple[Parts[K], Exception | str | None]
"""Where items are asked for, and why some are left out, if there are such."""


class Tried(NamedTuple):
    """What was tried in vain before, in another way; its time counts.

    Attributes:
        since_s: When it was begun, by the monotonic clock.
        why: Why it came to nothing.
    """

    since_s: float
    why: Exception | str


class BatchedRequest(Protocol[K, V_co]):
    """A kind of request about many items, each of which some node answers for."""

    @property
    def what(self) -> str:
        """What is tried, for messages."""
        ...

    def nodes_for(self, client: Client, items: Collection[K], within_s: float) -> Routed[K]:
        """Which node is asked about which items; those that are left out are tried again.

        Args:
            client: Of this process.
            items: What still has no answer.
            within_s: How long it may take to find out.
        """
        ...

    def request(self, items: list[K]) -> Any:
        """The message about one part."""
        ...

    def answers(self, response: Any, items: list[K]) -> Iterator[tuple[K, int, V_co]]:
        """For each item the number of an error, 0 for none, and its value."""
        ...

    def forget(self, client: Client, items: Collection[K]) -> None:
        """Where these items were asked for may be stale."""
        ...


def exchange(
    client: Client,
    kind: BatchedRequest[K, V],
    items: Iterable[K],
    within_s: float | None = None,
    tried: Tried | None = None,
) -> dict[K, V | Exception]:
    """Ask about many items until each has an answer.

    Args:
        client: Of this process.
        kind: What is asked.
        items: What is asked about: keys, as the kind of request groups them by node.
        within_s: How long that may take; None for ``default.api.timeout.ms``.
        tried: A first attempt at them that was made before.

    Returns:
        By item its value, or kafka-python's error that is final for it.

    Raises:
        KafkaFailedError: If some have no answer in time, or the login is refused.
    """
    begun_s = time.monotonic() if tried is None else tried.since_s
    limit_s = client.connection.api_timeout_s if within_s is None else within_s
    found, missing, why = _collect(client, kind, items, limit_s, tried)
    if missing:
        # A second without an answer, where that is all there was, says nothing about the cluster.
        if within_s is None:
            client.note_silence(begun_s)
        raise client.failed(kind.what, f"{why} for {_some(missing)}, time is up")
    return found


def demand(  # noqa: PLR0913  all but three are for few callers
    client: Client,
    kind: BatchedRequest[K, V],
    items: Iterable[K],
    shown: Callable[[K], str] = lambda item: f" {item!r}",
    *,
    within_s: float | None = None,
    tried: Tried | None = None,
) -> dict[K, V]:
    """`exchange`, where an error that is final for an item is one for the caller.

    Args:
        client: Of this process.
        kind: What is asked.
        items: As for `exchange`.
        shown: How an item stands in a message, after what was tried.
        within_s: How long that may take; None for ``default.api.timeout.ms``.
        tried: As for `exchange`.

    Raises:
        KafkaFailedError: As `exchange`, or if an item has an error.
    """
    found: dict[K, V] = {}
    for item, answer in exchange(client, kind, items, within_s, tried).items():
        if isinstance(answer, Exception):
            raise client.failed(f"{kind.what}{shown(item)}", answer)
        found[item] = answer
    return found


def gather(
    client: Client,
    kind: BatchedRequest[K, V],
    items: Iterable[K],
    within_s: float,
    tried: Tried | None = None,
) -> dict[K, V | Exception]:
    """`exchange`, where what has no answer in time is left out, with a warning."""
    found, missing, why = _collect(client, kind, items, within_s, tried)
    if missing:
        what = (client.connection.bootstrap, kind.what, _some(missing), why)
        _log.warning("Kafka at %s: cannot %s %s: %s; going on without", *what)
    return found


def _collect(
    client: Client,
    kind: BatchedRequest[K, V],
    items: Iterable[K],
    within_s: float,
    tried: Tried | None,
) -> tuple[dict[K, V | Exception], list[K], Exception | str]:
    """Ask until each item has an answer, or time is up.

    Returns:
        By item its value, or kafka-python's error that is final for it; which items have no answer;
        and why that is so.

    Raises:
        KafkaFailedError: If the login is refused.
    """
    found: dict[K, V | Exception] = {}
    why: Exception | str = ""
    waiting = list(dict.fromkeys(items))
    if tried is not None:
        kind.forget(client, waiting)
        within_s, why = tried.since_s + within_s - time.monotonic(), tried.why
    # Of an attempt in no time, which is asked for in so many words, there may be an answer.
    for left_s in Backoff(within_s).attempts() if waiting and within_s >= 0 else ():
        answered, why = _ask_once(client, kind, waiting, left_s)
        found |= answered
        waiting = [item for item in waiting if item not in found]
        if not waiting:
            break
        kind.forget(client, waiting)
    return found, waiting, why


def _ask_once(
    client: Client, kind: BatchedRequest[K, V], items: list[K], within_s: float
) -> tuple[dict[K, V | Exception], Exception | str]:
    """Ask about many items, once.

    Returns:
        What has an answer, as in `_collect`; and why the rest has none, if there is a rest.
    """
    from kafka.errors import KafkaError, for_code

    found: dict[K, V | Exception] = {}
    parts, left_out = kind.nodes_for(client, items, within_s)
    why: Exception | str = left_out or "no broker answers"
    responses = client.ask([(node, kind.request(part)) for node, part in parts], within_s)
    for (_, part), response in zip(parts, responses, strict=True):
        if isinstance(response, KafkaError):
            why = _passing(client, kind, response)
            continue
        for item, code, value in kind.answers(response, part):
            error = for_code(code)() if code else None
            if error is None or not is_retriable(error):
                found[item] = value if error is None else error
            why = error or why
    return found, why


def _passing(client: Client, kind: BatchedRequest[K, V], error: Exception) -> Exception:
    from kafka.errors import (
        UnknownBrokerIdError,  # pyright: ignore[reportAttributeAccessIssue]  # stubs of version 2
    )

    if not is_retriable(error):
        raise client.failed(kind.what, error)
    if isinstance(error, UnknownBrokerIdError):
        client.topics([])  # the answer names all brokers
    return error


def _some(items: Collection[object], most: int = 5) -> str:
    listed = ", ".join(str(item) for item in list(items)[:most])
    return listed if len(items) <= most else f"{listed} and {len(items) - most} more"
