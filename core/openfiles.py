"""The files that one attempt of a task writes: few of them open, none left when it fails."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Protocol, TypeVar, cast

from typing_extensions import Self

__all__ = ["GrowingFile", "OpenFiles"]

_MOST_OPEN = 64

Key = TypeVar("Key")
Closed = TypeVar("Closed")
Closed_co = TypeVar("Closed_co", covariant=True)


class GrowingFile(Protocol[Closed_co]):
    """A file that is open for more rows."""

    def close(self) -> Closed_co:
        """Complete it, and say what it has become."""
        ...

    def drop(self) -> None:
        """Give it up and remove it; called at most once, instead of `close`."""
        ...


Growing = TypeVar("Growing", bound=GrowingFile[object])


class OpenFiles(ABC, Generic[Key, Growing, Closed]):
    """Files by the partition that they belong to, at most 64 of them open. Executor.

    As a context, it removes all of them, also those that are complete, when the task fails.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[Key, Growing] = OrderedDict()
        self._closed: list[Closed] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._drop_all()

    @abstractmethod
    def remove(self, closed: Closed) -> None:
        """Remove a file that is complete."""

    def close(self) -> tuple[Closed, ...]:
        """Complete what is open, and say what all files have become; empty without rows."""
        for key in list(self._open):
            self.complete(key)
        return tuple(self._closed)

    def growing(self, key: Key, make: Callable[[], Growing]) -> Growing:
        """The open file of a partition, or a new one.

        Where too many are open, the one that was written to longest ago is completed.
        """
        if key not in self._open:
            if len(self._open) >= _MOST_OPEN:
                self.complete(next(iter(self._open)))
            self._open[key] = make()
        self._open.move_to_end(key)
        return self._open[key]

    def complete(self, key: Key) -> None:
        """Complete the open file of a partition."""
        closed = self._open[key].close()
        self._closed.append(cast("Closed", closed))  # no bound can name another variable
        del self._open[key]

    def _drop_all(self) -> None:
        for file in self._open.values():
            file.drop()
        for closed in self._closed:
            self.remove(closed)
