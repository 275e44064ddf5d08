"""Traces of TLC in ``model/Journal.tla``, played with the code: the same requests in turn."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]  # it ships no stubs

from krishiv_spark.errors import Fenced
from krishiv_spark.offsets import EpochLog, State
from krishiv_spark.offsets.entries import entry_name, snapshot_name
from krishiv_spark.offsets.journal import Listing
from simulation.storage import Store

__all__ = ["DivergedError", "Replay"]

_REQUESTS = {
    "ListEnd": "list",
    "ReadKnown": "read",
    "ReadSnapshot": "read",
    "ReadEntry": "read",
    "ReadNext": "read",
    "ReadBack": "read",
    "Create": "create",
    "LookAfter": "list",
    "FoldList": "list",
    "Snapshot": "replace",
    "Remove": "remove",
    "RemoveSnapshot": "remove",
}
"""Requests of the code to its journal in a step of the model; there are none in other steps."""


class DivergedError(AssertionError):
    """The code asks for something else than the model does in that step."""


class Replay:
    """Processes of the model, over one store.

    Args:
        store: What they share.
        fold_every: The constant ``FoldEvery`` of the trace.

    Attributes:
        deceived: Entries that a process believes to be its own, and that the log never had: their
            numbers had been used before.
        epochs: Numbers for those that are published.
    """

    def __init__(self, store: Store, fold_every: int) -> None:
        self.deceived: set[int] = set()
        self.epochs = itertools.count()
        self._store = store
        self._fold_every = fold_every
        self._creators: dict[int, _Process] = {}
        self._processes: dict[str, _Process] = {}

    def play(self, steps: Sequence[str]) -> None:
        """Play a trace, and let everybody finish.

        Raises:
            DivergedError: If the code does not follow the model.
        """
        said = [dict(re.findall(r'(\w+) \|-> "?(\w+)"?', step)) for step in steps]
        for number, (step, each) in enumerate(zip(steps, said, strict=True)):
            later = (more for more in said[number + 1 :] if more["process"] == each.get("process"))
            if each.get("op") == "begin" and next(later, each)["action"] == "ReadNext":
                each["op"] = "expect"
            if each["action"] != "Init":
                self._do(step, **each)
        for process in self._processes.values():
            process.finish()

    def _do(self, step: str, *, action: str, process: str, **said: str) -> None:
        if action == "Die" or process not in self._processes:
            self._processes[process] = _Process(self, self._fold_every)
        actor = self._processes[process]
        if action in {"Accept", "Call"}:  # the code may have a rule more than the trace
            actor.finish()
        if action == "Call":
            actor.call(said["op"])
        elif action == "ReadEntry" and actor.asks != "read":
            return  # in the model, to find no more entries is a step
        elif action in _REQUESTS:
            if actor.asks != _REQUESTS[action]:
                raise DivergedError(f"{step}: the code asks for {actor.asks}")
            actor.go_on(_listing(step), said.get("number"))

    # --- what the store does for a process

    def create(self, creator: _Process, name: str, data: bytes) -> bool:
        """As a store does; remembers who was first where no snapshot says that it is too late."""
        listing = Listing(dict.fromkeys(self._store.objects, ""))
        number = int(name.partition(".")[0])
        if number > listing.newest_snapshot:
            self._creators.setdefault(number, creator)
        return self._store.create(name, data)

    def believes(self, process: _Process, number: int) -> None:
        """A process has appended an entry of that number."""
        if self._creators.get(number) is not process:
            self.deceived.add(number)

    @property
    def objects(self) -> dict[str, bytes]:
        """Return the objects in the store."""
        return self._store.objects


class _Log(EpochLog):
    """A log whose planner expects its committer's intent only where the trace does."""

    expects = False

    def _expect_end(self, check: Callable[[State], object] | None) -> State | None:
        return super()._expect_end(check) if self.expects else None


class _Process:
    """One process: it stops before each request, until it is its turn. It is its own `Journal`.

    Attributes:
        asks: What it is about to ask for; None if it does nothing.
    """

    def __init__(self, replay: Replay, fold_every: int) -> None:
        self.asks: str | None = None
        self._replay = replay
        self._log = _Log(self, fold_every)
        self._log._probed = True
        self._planned = ""
        self._hub = getcurrent()
        self._work: Any = None
        self._generation = 0
        self._listing: Listing | None = None
        self._number: str | None = None

    def call(self, op: str) -> None:
        """Begin a call of its log, up to its first request."""
        verbs = {
            "begin": self._begin,
            "expect": self._expect,
            "intend": self._intend,
            "fold": self._fold,
        }
        self._work = greenlet(verbs[op])
        self.go_on()

    def go_on(self, listing: Listing | None = None, number: str | None = None) -> None:
        """Make the request, and go on to the next one.

        Args:
            listing: What a listing finds; None for what is there.
            number: What is removed; None for the first.
        """
        self._listing, self._number = listing, number
        self.asks = self._work.switch()

    def finish(self) -> None:
        """Go on until there are no more requests."""
        while self.asks is not None:
            self.go_on()

    def _begin(self) -> None:
        self._generation = self._log.begin().owner
        self._planned = self._log.export_state()
        self._replay.believes(self, self._generation)

    def _expect(self) -> None:
        """Begin as a planner that does not know the intent of its committer."""
        self._log.import_state(self._planned)
        self._log.expects = True
        self._begin()
        self._log.expects = False

    def _intend(self) -> None:
        with suppress(Fenced):
            state = self._log.intend(self._generation, next(self._replay.epochs), [])
            self._replay.believes(self, state.number)

    def _fold(self) -> None:
        self._log.import_state(self._planned)  # a planner folds what its own entry ends
        self._log.compact(self._log._known)

    # --- Journal

    def _ask(self, kind: str, work: Callable[[], Any]) -> Any:
        self._hub.switch(kind)
        return work()

    def list(self) -> Listing:
        listing: Listing = self._ask("list", lambda: self._listing)
        return listing or Listing(dict.fromkeys(self._replay.objects, ""))

    def read(self, name: str) -> bytes | None:
        data: bytes | None = self._ask("read", lambda: self._replay.objects.get(name))
        return data

    def read_each(self, names: Sequence[str]) -> Sequence[bytes | None]:
        return [self.read(name) for name in names]

    def create(self, name: str, data: bytes) -> bool:
        created: bool = self._ask("create", lambda: self._replay.create(self, name, data))
        return created

    def replace(self, name: str, data: bytes) -> None:
        self._ask("replace", partial(self._replay.objects.__setitem__, name, data))

    def remove(self, names: Sequence[str]) -> None:
        left = dict.fromkeys(names)

        def remove_one() -> None:
            is_asked = (
                name for name in left if int(name.partition(".")[0]) == int(self._number or 0)
            )
            name = next(is_asked, next(iter(left)))
            del left[name]
            self._replay.objects.pop(name, None)

        while left:
            self._ask("remove", remove_one)

    def destroy(self) -> None:
        raise NotImplementedError("the model destroys no log")


def _listing(step: str) -> Listing | None:
    """Return the result of a listing, which need not be the state at one moment."""
    entries, snapshots = (_numbers(step, kind) for kind in ("entries", "snapshots"))
    names = [*map(entry_name, entries), *map(snapshot_name, snapshots)]
    return Listing(dict.fromkeys(names, "")) if "found |->" in step else None


def _numbers(step: str, kind: str) -> tuple[int, ...]:
    listed = re.search(rf"{kind} \|-> {{([\d, ]*)}}", step)
    return tuple(map(int, re.findall(r"\d+", listed[1] if listed else "")))
