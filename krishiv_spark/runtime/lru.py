"""A mapping that holds what was used last."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["LruCache"]

Key = TypeVar("Key")
Value = TypeVar("Value")


class LruCache(Generic[Key, Value]):
    """Keys with values, as many as are given; what was used longest ago goes. For any thread.

    Args:
        most: How many there are at most; or how much they weigh, but for the newest one, which is
            held whatever it weighs.
        weight: Of a value, at least 1; None if each weighs 1.
    """

    def __init__(self, most: int, weight: Callable[[Value], int] | None = None) -> None:
        self._most = most
        self._weight = weight or (lambda _: 1)
        self._whole = 0
        self._held: dict[Key, Value] = {}  # the one that was used last is the last one
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: Key) -> Value | None:
        """The value of a key, or None if it is not held, or not any more."""
        with self._lock:
            if key in self._held:
                self._held[key] = self._held.pop(key)
            return self._held.get(key)

    def put(self, key: Key, value: Value) -> None:
        """Hold a value, in the place of another one of its key."""
        with self._lock:
            self._drop(key)
            self._held[key] = value
            self._whole += self._weight(value)
            while self._whole > self._most and len(self._held) > 1:
                self._drop(next(iter(self._held)))

    def _drop(self, key: Key) -> None:
        if key in self._held:
            self._whole -= self._weight(self._held.pop(key))
