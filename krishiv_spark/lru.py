"""A mapping that holds what was used last."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

__all__ = ["LruCache"]

Key = TypeVar("Key")
Value = TypeVar("Value")


class LruCache(Generic[Key, Value]):
    """Keys with values, as many as are given; what was used longest ago goes. For any thread.

    Args:
        most: How many there are at most.
    """

    def __init__(self, most: int) -> None:
        self._most = most
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
            self._held.pop(key, None)
            self._held[key] = value
            while len(self._held) > self._most:
                del self._held[next(iter(self._held))]
