"""Requests about many items, such as partitions or transactional ids, each answered by some broker.

One message goes to each broker, side by side, and is repeated for the items without an answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, overload

from krishiv_spark.kafka.client import KafkaClient, is_retriable
from krishiv_spark.kafka.transport import Node
from krishiv_spark.runtime.retry import Backoff

__all__ = ["BatchedRequest", "Parts", "PreviousAttempt", "Routing", "send_all"]

_log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
Parts: TypeAlias = Sequence[tuple[Node, list[K]]]
"""Items, by the node that is asked about them in one message."""

Routing: TypeAlias = tuple[Parts[K], Exception | str | None]
"""The nodes of items, and the reason why some have none, if there are such items."""


class PreviousAttempt(NamedTuple):
    """A failed attempt at the same items in another way; its time counts.

    Attributes:
        since_s: Its start, by the monotonic clock.
        why: The reason of the failure.
    """

    since_s: float
    why: Exception | str


class BatchedRequest(Protocol[K, V_co]):
    """A kind of request about many items, each of which some node answers for."""

    @property
    def what(self) -> str:
        """The action of the request, for messages."""
        ...

    def nodes_for(self, client: KafkaClient, items: Collection[K], within_s: float) -> Routing[K]:
        """Return the node of each item; items that are left out are tried again.

        Args:
            client: The client of this process.
            items: Items without an answer.
            within_s: Time limit for finding the nodes.
        """
        ...

    def request(self, items: list[K]) -> Any:
        """Return the message about the items of one node."""
        ...

    def answers(self, response: Any, items: list[K]) -> Iterator[tuple[K, int, V_co]]:
        """Return for each item the number of an error, 0 for none, and its value."""
        ...

    def forget(self, client: KafkaClient, items: Collection[K]) -> None:
        """Drop the cached nodes of these items, which may be stale."""
        ...


def _format_item(item: object) -> str:
    return f" {item!r}"


@overload
def send_all(
    client: KafkaClient,
    kind: BatchedRequest[K, V],
    items: Iterable[K],
    *,
    format_item: Callable[[K], str] = ...,
    on_error: Literal["raise"] = ...,
    on_timeout: Literal["raise"] = ...,
    within_s: float | None = ...,
    previous: PreviousAttempt | None = ...,
) -> dict[K, V]: ...


@overload
def send_all(
    client: KafkaClient,
    kind: BatchedRequest[K, V],
    items: Iterable[K],
    *,
    on_error: Literal["return"],
    on_timeout: Literal["raise", "skip"] = ...,
    within_s: float | None = ...,
    previous: PreviousAttempt | None = ...,
) -> dict[K, V | Exception]: ...


def send_all(  # noqa: PLR0913  all but three are for few callers
    client: KafkaClient,
    kind: BatchedRequest[K, V],
    items: Iterable[K],
    *,
    format_item: Callable[[K], str] = _format_item,
    on_error: Literal["raise", "return"] = "raise",
    on_timeout: Literal["raise", "skip"] = "raise",
    within_s: float | None = None,
    previous: PreviousAttempt | None = None,
) -> dict[K, V] | dict[K, V | Exception]:
    """Send a request about many items until each has an answer.

    Args:
        client: The client of this process.
        kind: The kind of request.
        items: Keys of the items, as the kind of request groups them by node.
        format_item: Returns the text of an item in a message, after the text of the kind.
        on_error: With "return", an error that is final for an item is its value.
        on_timeout: With "skip", items without an answer in time are left out, with a warning.
        within_s: Time limit; None for ``default.api.timeout.ms``.
        previous: A failed attempt at the same items, whose time counts.

    Returns:
        By item its value, or kafka-python's error that is final for it.

    Raises:
        KafkaFailedError: If an item has an error, or no answer in time, and the caller does not
            take that as a result; or if the login is refused.
    """
    start_s = time.monotonic() if previous is None else previous.since_s
    limit_s = client.config.api_timeout_s if within_s is None else within_s
    found, missing, why = _collect(client, kind, items, limit_s, previous)
    if missing and on_timeout == "skip":
        what = (client.config.bootstrap, kind.what, _list_some(missing), why)
        _log.warning("Kafka at %s: cannot %s %s: %s; continuing without", *what)
    elif missing:
        # A short time limit without an answer does not show that the cluster is elsewhere.
        if within_s is None:
            client.record_silence(start_s)
        raise client.make_error(kind.what, f"{why} for {_list_some(missing)}, time is up")
    for item, answer in found.items() if on_error == "raise" else ():
        if isinstance(answer, Exception):
            raise client.make_error(f"{kind.what}{format_item(item)}", answer)
    return found


def _collect(
    client: KafkaClient,
    kind: BatchedRequest[K, V],
    items: Iterable[K],
    within_s: float,
    previous: PreviousAttempt | None,
) -> tuple[dict[K, V | Exception], list[K], Exception | str]:
    """Send until each item has an answer, or time is up.

    Returns:
        By item its value, or kafka-python's error that is final for it; the items without an
        answer; and the reason why they have none.

    Raises:
        KafkaFailedError: If the login is refused.
    """
    found: dict[K, V | Exception] = {}
    why: Exception | str = ""
    waiting = list(dict.fromkeys(items))
    if previous is not None:
        kind.forget(client, waiting)
        within_s, why = previous.since_s + within_s - time.monotonic(), previous.why
    # A time limit of zero allows one attempt, which may be answered.
    for left_s in Backoff(within_s).attempts() if waiting and within_s >= 0 else ():
        answered, why = _send_round(client, kind, waiting, left_s)
        found |= answered
        waiting = [item for item in waiting if item not in found]
        if not waiting:
            break
        kind.forget(client, waiting)
    return found, waiting, why


def _send_round(
    client: KafkaClient, kind: BatchedRequest[K, V], items: list[K], within_s: float
) -> tuple[dict[K, V | Exception], Exception | str]:
    """Send one message to each node.

    Returns:
        The answers, as in `_collect`; and why other items have none, if there are such.
    """
    from kafka.errors import KafkaError, for_code

    found: dict[K, V | Exception] = {}
    parts, left_out = kind.nodes_for(client, items, within_s)
    why: Exception | str = left_out or "no broker responds"
    responses = client.ask([(node, kind.request(part)) for node, part in parts], within_s)
    for (_, part), response in zip(parts, responses, strict=True):
        if isinstance(response, KafkaError):
            why = _check_retriable(client, kind, response)
            continue
        for item, code, value in kind.answers(response, part):
            error = for_code(code)() if code else None
            if error is None or not is_retriable(error):
                found[item] = value if error is None else error
            why = error or why
    return found, why


def _check_retriable(
    client: KafkaClient, kind: BatchedRequest[K, V], error: Exception
) -> Exception:
    from kafka.errors import (
        UnknownBrokerIdError,  # pyright: ignore[reportAttributeAccessIssue]  # stubs of version 2
    )

    if not is_retriable(error):
        raise client.make_error(kind.what, error)
    if isinstance(error, UnknownBrokerIdError):
        client.fetch_topics([])  # the response names all brokers
    return error


def _list_some(items: Collection[object], most: int = 5) -> str:
    listed = ", ".join(str(item) for item in list(items)[:most])
    return listed if len(items) <= most else f"{listed} and {len(items) - most} more"
