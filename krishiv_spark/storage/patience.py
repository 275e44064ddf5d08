"""How long a store is waited for: seconds before it has answered, minutes after that.

A wrong endpoint is an error soon, and before a row moves. A store that was reached once is in
trouble if it does not answer: then it is waited for (`krishiv_spark.runtime.contacts`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from krishiv_spark.runtime.contacts import was_reached

__all__ = ["Patience", "be_patient", "patience_with"]

# Together less than 10 s: a request that begins at the end of the first is given the second.
_FIRST_CONTACT_S = 5.0
_FIRST_REQUEST_S = 4.0

_PATIENCE_S = 180.0


@dataclass(frozen=True)
class Patience:
    """How long a store is waited for.

    Attributes:
        total_s: For so long requests that failed are sent again.
        request_s: So long one request may take.
        is_short: Whether the store has not answered yet.
    """

    total_s: float
    request_s: float
    is_short: bool


_patient: set[int] = set()
"""The id of this process, once it waits for each store. In a set, for tests to put another one."""


def be_patient() -> None:
    """Wait for each store as if it had answered. Executor and commit process.

    The planner has reached them, and what they are asked for first may be large.
    """
    _patient.add(os.getpid())


def patience_with(store: str, timeout_ms: int, *, is_given: bool) -> Patience:
    """How long a store is waited for now.

    Args:
        store: The name by which it is noted that it has answered.
        timeout_ms: How long one request may take.
        is_given: Whether a user has said so; then it holds for the first one, too.
    """
    request_s = timeout_ms / 1000
    if os.getpid() in _patient or was_reached(store):
        return Patience(_PATIENCE_S, request_s, is_short=False)
    first_s = request_s if is_given else min(request_s, _FIRST_REQUEST_S)
    return Patience(_FIRST_CONTACT_S, first_s, is_short=True)
