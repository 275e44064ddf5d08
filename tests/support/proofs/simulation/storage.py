"""Folders and buckets in memory, as the epoch log and Spark's checkpoint see them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from krishiv_spark.offsets.journal import Listing
from simulation.world import CallKind, World

__all__ = ["Checkpoint", "SimulatedJournal", "Store"]


def _lost(what: str) -> Exception:
    return ConnectionResetError(f"no answer: {what}")


JOURNAL = CallKind("journal", _lost, repeats=True)
CHECKPOINT = CallKind("checkpoint", _lost)


class Store:
    """Objects by name, whole or absent.

    Attributes:
        objects: What is there.
        knows_exclusive: Whether it knows "if absent"; otherwise it passes over it.
        pages: Whether a listing goes by the names; otherwise by nothing that anybody knows.
    """

    def __init__(self, *, knows_exclusive: bool = True, pages: bool = False) -> None:
        self.objects: dict[str, bytes] = {}
        self.knows_exclusive = knows_exclusive
        self.pages = pages

    def create(self, name: str, data: bytes) -> bool:
        """Put an object if it is absent; whether it was."""
        if name in self.objects and self.knows_exclusive:
            return False
        self.objects[name] = data
        return True

    def first_half(self) -> tuple[dict[str, str], str]:
        """Return the first part of a listing, each name with its version, and its end."""
        names = sorted(self.objects)
        end = names[len(names) // 2] if names else ""
        return self._versions(name for name in names if self._is_early(name, end)), end

    def second_half(self, end: str) -> dict[str, str]:
        """Return the rest of a listing."""
        return self._versions(name for name in self.objects if not self._is_early(name, end))

    def _versions(self, names: Iterable[str]) -> dict[str, str]:
        return {name: f"{zlib.crc32(self.objects[name])}" for name in names}

    def _is_early(self, name: str, end: str) -> bool:
        return name < end if self.pages else zlib.crc32(name.encode()) % 2 == 1


class SimulatedJournal:
    """A `Journal` upon a store; each of its requests is a call."""

    def __init__(self, world: World, store: Store) -> None:
        self._world = world
        self._store = store

    def __repr__(self) -> str:
        return "sim://log"

    def _call(self, what: str, work: Callable[[], Any]) -> Any:
        return self._world.call(JOURNAL, what, work)

    def list(self) -> Listing:
        first, end = self._call("list", self._store.first_half)
        second = self._call("list on", lambda: self._store.second_half(end))
        return Listing({**first, **second})

    def read(self, name: str) -> bytes | None:
        found: bytes | None = self._call(f"read {name}", lambda: self._store.objects.get(name))
        return found

    def read_each(self, names: Sequence[str]) -> Sequence[bytes | None]:
        return [self.read(name) for name in names]

    def create(self, name: str, data: bytes) -> bool:
        created: bool = self._call(f"create {name}", lambda: self._store.create(name, data))
        return created

    def replace(self, name: str, data: bytes) -> None:
        self._call(f"replace {name}", lambda: self._store.objects.__setitem__(name, data))

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            self._call(f"remove {name}", partial(self._store.objects.pop, name, None))

    def destroy(self) -> None:
        self.remove(sorted(self._store.objects))


class Checkpoint:
    """Spark's folder: ``offsets`` and ``commits``, each with a file for an epoch."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.files: dict[str, str] = {}

    # --- for the sink, as `krishiv_spark.spark.checkpoint` reads it

    def read(self, path: str) -> bytes | None:
        """The content of a file; None if it is not there."""
        text: str | None = self._world.call(
            CHECKPOINT, f"read {path}", lambda: self.files.get(path)
        )
        return None if text is None else text.encode()

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        names: list[str] = self._world.call(
            CHECKPOINT, f"list {folder}", lambda: self._names(folder)
        )
        return names

    def _names(self, folder: str) -> list[str]:
        return [p.removeprefix(f"{folder}/") for p in self.files if p.startswith(f"{folder}/")]

    # --- for Spark

    def create(self, path: str, text: str) -> bool:
        """Put a file there if it is absent (``CheckpointFileManager``, without overwriting)."""

        def put() -> bool:
            if path in self.files:
                return False
            self.files[path] = text
            return True

        created: bool = self._world.call(CHECKPOINT, f"create {path}", put)
        return created

    def newest(self, folder: str) -> int | None:
        """The highest number in one of Spark's logs."""
        return max(map(int, self._names(folder)), default=None)
