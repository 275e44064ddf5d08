"""Journals that tests look into: a model in memory, a counter, a faulty one, and a scheduler."""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from krishiv_spark.offsets.epoch_log import Entry
from krishiv_spark.offsets.journal import Journal, Listing


def entry(number: int) -> str:
    """The name of an entry."""
    return f"{number:020d}.json"


def snapshot(number: int) -> str:
    """The name of a snapshot."""
    return f"{number:020d}.snapshot.json"


@dataclass(frozen=True)
class Created:
    """One entry that was created, and whether readers pay attention to it.

    Attributes:
        driver: Who created it.
        number: Its number.
        entry: What it says.
        counts: Whether its number was above every snapshot at that moment.
    """

    driver: int
    number: int
    entry: Entry
    counts: bool


def listing_of(entries: Iterable[int] = (), snapshots: Iterable[int] = ()) -> Listing:
    """As on a disk: without versions."""
    return Listing(dict.fromkeys([*map(entry, entries), *map(snapshot, snapshots)], ""))


def make_listing(names: Mapping[str, bytes]) -> Listing:
    """Return the names and versions that a store lists for some contents."""
    return Listing({name: f"{zlib.crc32(data)}" for name, data in names.items()})


class ModelJournal:
    """The simplest journal, which remembers all that ever happened to it."""

    def __init__(self) -> None:
        self.names: dict[str, bytes] = {}
        self.history: list[Created] = []
        self.driver = 0

    def listing(self) -> Listing:
        return make_listing(self.names)

    def list(self) -> Listing:
        return self.listing()

    def read(self, name: str) -> bytes | None:
        return self.names.get(name)

    def read_each(self, names: Sequence[str]) -> Sequence[bytes | None]:
        return [self.read(name) for name in names]

    def create(self, name: str, data: bytes) -> bool:
        if name in self.names:
            return False
        if name.startswith("probe-"):
            self.names[name] = data
            return True
        number = int(name.split(".", maxsplit=1)[0])
        counts = number > max(self.listing().snapshots, default=0)
        entry = Entry.model_validate_json(data)
        self.history.append(Created(self.driver, number, entry, counts))
        self.names[name] = data
        return True

    def replace(self, name: str, data: bytes) -> None:
        self.names[name] = data

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            self.names.pop(name, None)

    def destroy(self) -> None:
        self.names.clear()

    @property
    def counting(self) -> list[Created]:
        """The entries that make up the log, in their order."""
        return [created for created in self.history if created.counts]


class Unversioned(ModelJournal):
    """As on a disk: a listing does not tell in which version anything is."""

    def listing(self) -> Listing:
        return Listing(dict.fromkeys(self.names, ""))


class Around:
    """A journal around another: `called` sees every call before it is made.

    A removal of many names is many calls, as it is on a disk.
    """

    def __init__(self, inner: Journal) -> None:
        self.inner = inner

    def called(self, call: str, work: Callable[[], Any]) -> Any:
        raise NotImplementedError

    def list(self) -> Listing:
        return self.called("list", self.inner.list)

    def read(self, name: str) -> bytes | None:
        return self.called("read", lambda: self.inner.read(name))

    def read_each(self, names: Sequence[str]) -> Sequence[bytes | None]:
        return [self.read(name) for name in names]

    def create(self, name: str, data: bytes) -> bool:
        return self.called("create", lambda: self.inner.create(name, data))

    def replace(self, name: str, data: bytes) -> None:
        self.called("replace", lambda: self.inner.replace(name, data))

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            self.called("remove", lambda name=name: self.inner.remove([name]))

    def destroy(self) -> None:
        self.called("destroy", self.inner.destroy)


class Counting(Around):
    """A counter of the calls of each kind."""

    def __init__(self, inner: Journal) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()

    def called(self, call: str, work: Callable[[], Any]) -> Any:
        self.calls[call] += 1
        return work()

    def during(self, work: Callable[[], Any]) -> Counter[str]:
        """The calls that some work makes."""
        before = self.calls.copy()
        work()
        return self.calls - before


class Fault(Enum):
    """The fault of one call of a storage: whether it takes effect, and whether that is reported."""

    FINE = "happens, reported"
    LOST_ANSWER = "happens, not reported"
    LOST_CALL = "does not happen, not reported"
    TAKEN = "happens, and a retry inside the client reports the name as taken"

    def __repr__(self) -> str:
        return f"Fault.{self.name}"

    def apply(self, work: Callable[[], Any]) -> Any:
        result = None if self is Fault.LOST_CALL else work()
        if self in (Fault.LOST_ANSWER, Fault.LOST_CALL):
            raise ConnectionResetError(f"the storage went away: {self.value}")
        return False if self is Fault.TAKEN and result is True else result


class Faulty(Around):
    """A storage that fails by a script, one fault for each call; then it is fine."""

    def __init__(self, inner: Journal, faults: Iterable[Fault]) -> None:
        super().__init__(inner)
        self._faults = iter(faults)

    def called(self, call: str, work: Callable[[], Any]) -> Any:
        fault = next(self._faults, Fault.FINE)
        return (Fault.FINE if fault is Fault.TAKEN and call != "create" else fault).apply(work)


class FaultyAt(Around):
    """A storage that fails once, at the n-th call of a kind."""

    def __init__(self, inner: Journal, call: str, fault: Fault, at: int = 0) -> None:
        super().__init__(inner)
        self._call, self._fault, self._left = call, fault, at

    def called(self, call: str, work: Callable[[], Any]) -> Any:
        if call == self._call:
            self._left -= 1
        return (self._fault if call == self._call and self._left == -1 else Fault.FINE).apply(work)


class Interrupted(Around):
    """Something else happens right before the n-th call of a kind."""

    def __init__(self, inner: Journal, call: str, event: Callable[[], None], at: int = 0) -> None:
        super().__init__(inner)
        self._call, self._event, self._left = call, event, at

    def called(self, call: str, work: Callable[[], Any]) -> Any:
        if call == self._call:
            self._left -= 1
            if self._left == -1:
                self._event()
        return work()


class Slow(ModelJournal):
    """Something happens once while the names are listed, of which the listing shows nothing new."""

    def __init__(self, inner: ModelJournal, event: Callable[[], object]) -> None:
        super().__init__()
        self.names, self._events = inner.names, [event]

    def list(self) -> Listing:
        before = set(self.names)
        while self._events:
            self._events.pop()()
        return make_listing({name: data for name, data in self.names.items() if name in before})


class _Stepped(Around):
    """One driver's way to the model: it waits for its turn before each call.

    A listing is two steps: one half of the names is read before the other. Which half a name is
    in has nothing to do with its order, as in a folder on a disk.
    """

    def __init__(self, inner: ModelJournal, driver: int, wait: Callable[[], None]) -> None:
        super().__init__(inner)
        self._driver = driver
        self._wait = wait

    def called(self, call: str, work: Callable[[], Any]) -> Any:
        del call
        self._wait()
        self.inner.driver = self._driver
        return work()

    def list(self) -> Listing:
        self._wait()
        first = self._half(1)
        self._wait()
        return make_listing({**first, **self._half(0)})

    def _half(self, which: int) -> dict[str, bytes]:
        names = self.inner.names
        return {name: names[name] for name in names if zlib.crc32(name.encode()) % 2 == which}


def interleave(
    journal: ModelJournal, works: Sequence[Callable[[Journal], None]], schedule: Iterable[int]
) -> None:
    """Run drivers against one journal, call by call, in the order of a schedule.

    Args:
        journal: What they share.
        works: What each driver does with it.
        schedule: Whose turn it is; a driver that is done is passed over, and when the schedule
            ends, the drivers finish one after another.
    """
    turns = [threading.Semaphore(0) for _ in works]
    paused = threading.Semaphore(0)
    live = set(range(len(works)))
    failures: list[BaseException] = []

    def drive(driver: int) -> None:
        def wait() -> None:
            paused.release()
            turns[driver].acquire()

        turns[driver].acquire()
        try:
            works[driver](_Stepped(journal, driver, wait))
        except BaseException as error:  # noqa: BLE001  shown by the test's own thread
            failures.append(error)
        live.discard(driver)
        paused.release()

    threads = [threading.Thread(target=drive, args=(i,), daemon=True) for i in range(len(works))]
    for thread in threads:
        thread.start()
    for driver in _all_turns(schedule, live):
        turns[driver].release()
        paused.acquire()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _all_turns(schedule: Iterable[int], live: set[int]) -> Iterator[int]:
    yield from (driver for driver in schedule if driver in live)
    while live:
        with contextlib.suppress(ValueError):
            yield min(live)
