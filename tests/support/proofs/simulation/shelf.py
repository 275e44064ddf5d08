"""The simplest sink over an epoch log: rows lie in a back room until they are put on a shelf.

It keeps the contract of `Participant` as files in a folder do, each of its steps a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from krishiv_spark.errors import CommitRejected, CommitUnknown
from krishiv_spark.offsets import EpochLog
from krishiv_spark.offsets.offset import Value
from krishiv_spark.options import Options
from krishiv_spark.sinks.base import Epoch, Guarantee, OutputMode, Task, Writer
from krishiv_spark.sinks.logged import LogCommitter, Participant
from simulation.history import Event
from simulation.present import get_present_play
from simulation.world import CallKind, World

__all__ = ["Parcel", "Shelf", "ShelfWriter"]

SHELF = CallKind("shelf", lambda what: OSError(5, "the shelf does not answer", what))
SCHEMA = pa.schema([("value", pa.string())])


class Parcel(Value):
    """The staged data of a task."""

    name: str
    generation: int


class Shelf:
    """The visible and the staged data of a target.

    Attributes:
        rooms: Staged rows of each generation, by the name of the parcel.
        shown: Rows that readers see, by the name of the parcel.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.rooms: dict[int, dict[str, tuple[int, ...]]] = {}
        self.shown: dict[str, tuple[int, ...]] = {}

    def call(self, what: str, work: Callable[[], Any]) -> Any:
        """Anything of this, as a call."""
        return self._world.call(SHELF, what, work)

    def put(self, parcel: Parcel, rows: tuple[int, ...]) -> None:
        """Stage rows; a room that was taken away is not made anew."""
        if parcel.generation not in self.rooms:
            raise FileNotFoundError(2, "no such room", str(parcel.generation))
        self.rooms[parcel.generation][parcel.name] = rows

    def show(self, parcel: Parcel) -> bool:
        """Move a parcel out of its room; whether it was there."""
        rows = self.rooms.get(parcel.generation, {}).pop(parcel.name, None)
        if rows is None:
            return False
        self.shown[parcel.name] = rows
        self._tell("visible", rows)
        return True

    def hide(self, name: str) -> None:
        """Take a parcel away from readers."""
        rows = self.shown.pop(name, None)
        if rows is not None:
            self._tell("gone", rows)

    def _tell(self, kind: str, rows: tuple[int, ...]) -> None:
        self._world.history.add(Event(self._world.steps, kind, rows=rows))


class ShelfWriter(Writer[Parcel]):
    """Exactly once, onto the shelf of the history that is played: writers are pickled."""

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, *, streaming: bool = True) -> None:
        super().__init__(Options(), SCHEMA, OutputMode.APPEND, streaming=streaming)

    def stage(self, batches: Iterator[pa.RecordBatch], task: Task, plan: None) -> Parcel | None:
        del plan
        rows = tuple(int(each) for batch in batches for each in batch.column(0).to_pylist())
        if not rows:
            return None
        parcel = Parcel(
            name=f"{task.epoch}-{task.partition}-{task.nonce}", generation=task.generation or 0
        )
        shelf = get_present_play().shelf
        shelf.call(f"stage {parcel.name}: {rows}", lambda: shelf.put(parcel, rows))
        return parcel

    def committer(self) -> LogCommitter[Parcel]:
        return LogCommitter(self.log, ShelfParticipant(), streaming=self.streaming)

    def log(self, query: str) -> EpochLog:
        return get_present_play().open_log(query)


class ShelfParticipant(Participant[Parcel]):
    """Puts parcels on the shelf."""

    staged_type = Parcel

    @property
    def _shelf(self) -> Shelf:
        return get_present_play().shelf

    def prepare(
        self, epoch: Epoch, staged: Sequence[Parcel], salvaged: Sequence[Parcel]
    ) -> Sequence[Parcel]:
        del salvaged
        room = self._room(epoch)
        there = self._shelf.call(f"look into {room}", lambda: set(self._shelf.rooms.get(room, {})))
        missing = [parcel.name for parcel in staged if parcel.name not in there]
        if missing:
            raise CommitRejected(f"epoch {epoch.number}: {missing} are gone")
        return staged

    def finish(self, epoch: Epoch, staged: Sequence[Parcel]) -> None:
        for parcel in staged:
            found = self._shelf.call(f"show {parcel.name}", partial(self._shelf.show, parcel))
            if not found and self._is_missing(parcel):
                raise CommitUnknown(f"epoch {epoch.number}: {parcel.name} is gone")
        self._clear(self._room(epoch))

    def _is_missing(self, parcel: Parcel) -> bool:
        shelf = self._shelf
        return not shelf.call(
            f"look for {parcel.name}",
            lambda: parcel.name in shelf.shown or parcel.generation not in shelf.rooms,
        )

    def force_outcome(self, epoch: Epoch, staged: Sequence[Parcel], *, committed: bool) -> None:
        for parcel in staged:
            work: Callable[[], Any] = partial(self._shelf.show, parcel)
            if not committed:
                work = partial(self._shelf.hide, parcel.name)
            self._shelf.call(f"assume {parcel.name} {committed}", work)
        self._clear(self._room(epoch))

    def is_finished(self, epoch: Epoch) -> bool:
        room = self._room(epoch)
        return not self._shelf.call(f"is {room} there", lambda: room in self._shelf.rooms)

    def sweep(self, query: str, generation: int, *, clean: bool) -> None:
        del query, clean
        self._shelf.call(f"make {generation}", lambda: self._shelf.rooms.setdefault(generation, {}))
        for room in self._shelf.call("list rooms", lambda: sorted(self._shelf.rooms)):
            if room < generation:
                self._clear(room)

    def discard(self, staged: Sequence[Parcel]) -> None:
        for parcel in staged:
            room = self._shelf.rooms.get(parcel.generation, {})
            self._shelf.call(f"discard {parcel.name}", partial(room.pop, parcel.name, None))

    def _clear(self, room: int) -> None:
        self._shelf.call(f"take {room} away", lambda: self._shelf.rooms.pop(room, None))

    def _room(self, epoch: Epoch) -> int:
        return epoch.generation or 0
