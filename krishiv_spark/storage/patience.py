"""How long a store is waited for: seconds before it has answered this process, minutes after that.

A wrong endpoint is an error soon, and before a row moves. A store that was reached once is in
trouble if it does not answer: then it is waited for.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

__all__ = ["Patience", "be_patient", "note_answer", "patience_with"]

# Together less than 15 s: a request that begins at the end of the first is given the second.
_FIRST_CONTACT_S = 8.0
_FIRST_REQUEST_S = 5.0

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


_ALL = object()
_answered: set[Hashable] = set()
"""The stores that have answered this process."""


def be_patient() -> None:
    """Wait for each store as if it had answered. Executor and commit process.

    The planner has reached them, and what they are asked for first may be large.
    """
    _answered.add(_ALL)


def note_answer(store: Hashable) -> None:
    """A store has answered: it is waited for longer from now on."""
    _answered.add(store)


def patience_with(store: Hashable, timeout_ms: int, *, is_given: bool) -> Patience:
    """How long a store is waited for now.

    Args:
        store: How it is reached.
        timeout_ms: How long one request may take.
        is_given: Whether a user has said so; then it holds for the first one, too.
    """
    request_s = timeout_ms / 1000
    if store in _answered or _ALL in _answered:
        return Patience(_PATIENCE_S, request_s, is_short=False)
    first_s = request_s if is_given else min(request_s, _FIRST_REQUEST_S)
    return Patience(_FIRST_CONTACT_S, first_s, is_short=True)
