"""Asking about many items, again and again, until each has an answer."""

# pyright: reportAttributeAccessIssue=false
# It carries stubs of kafka-python 2.

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from krishiv_spark.kafka.exchanges import Exchange, K, V
from krishiv_spark.kafka.failures import is_passing
from krishiv_spark.kafka.pauses import Pauses

if TYPE_CHECKING:
    from krishiv_spark.kafka.client import Client

__all__ = ["ask_once", "collect"]


def collect(
    client: Client, kind: Exchange[K, V], items: Iterable[K], within_s: float
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
    pauses = Pauses(within_s)
    while waiting:
        answered, why = ask_once(client, kind, waiting, pauses.left_s)
        found |= answered
        waiting = [item for item in waiting if item not in found]
        if waiting:
            kind.forget(client, waiting)
            if not pauses.pause() or not pauses.left_s:  # in no time nothing is found out
                break
    return found, waiting, why


def ask_once(
    client: Client, kind: Exchange[K, V], items: list[K], within_s: float
) -> tuple[dict[K, V | Exception], Exception | str]:
    """Ask about many items, once.

    Returns:
        What has an answer, as in `collect`; and why the rest has none, if there is a rest.
    """
    from kafka.errors import KafkaError, for_code

    found: dict[K, V | Exception] = {}
    parts, left_out = kind.route(client, items, within_s)
    why: Exception | str = left_out or "no broker answers"
    responses = client.ask([(node, kind.request(part)) for node, part in parts], within_s)
    for (_, part), response in zip(parts, responses, strict=True):
        if isinstance(response, KafkaError):
            why = _passing(client, kind, response)
            continue
        for item, code, value in kind.answers(response, part):
            error = for_code(code)() if code else None
            if error is None or not is_passing(error):
                found[item] = value if error is None else error
            why = error or why
    return found, why


def _passing(client: Client, kind: Exchange[K, V], error: Exception) -> Exception:
    from kafka.errors import UnknownBrokerIdError

    if not is_passing(error):
        raise client.failed(kind.what, error) from error
    if isinstance(error, UnknownBrokerIdError):
        client.topics([])  # the answer names all brokers
    return error
