"""The world of one history: its time, its actors, and the calls that they make."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from greenlet import GreenletExit  # type: ignore[import-untyped]  # it ships no stubs

from simulation.clock import BEGIN_MS, Clock
from simulation.history import History
from simulation.incidents import Incident, Incidents
from simulation.inshort import shorten
from simulation.scheduler import Actor, Process, Scheduler

_WIDTH = 200

__all__ = ["Call", "CallKind", "World"]

_MOST_STEPS = 30_000


@dataclass(frozen=True)
class CallKind:
    """A kind of call, and its failure.

    Attributes:
        name: Such as "journal".
        error: Makes the error that the caller gets if an answer is missing.
        repeats: True if a lower layer repeats the call without the caller's knowledge.
    """

    name: str
    error: Callable[[str], Exception]
    repeats: bool = False


@dataclass(frozen=True)
class Call:
    """A call that is about to happen.

    Attributes:
        kind: What is called.
        what: For the story.
        work: Makes it happen; returns the answer, or raises what the other side says.
    """

    kind: CallKind
    what: object
    work: Callable[[], Any]

    @property
    def name(self) -> str:
        """The name of the call, in a word or two."""
        return self.what if isinstance(self.what, str) else str(getattr(self.what, "name", ""))


class World:
    """The state that all parts of a history share.

    Args:
        incidents: The incidents.
        disturb: Applies one; called with the world, an incident and the call at which it happens.
        tale: Receives each call; None for no report.

    Attributes:
        steps: Calls so far.
        violation: The violation, once there is one.
        is_over: True from the moment on when nothing happens any more.
    """

    def __init__(
        self,
        incidents: Incidents,
        disturb: Callable[[World, Incident, Call], Any],
        tale: list[str] | None = None,
    ) -> None:
        self.clock = Clock()
        self.scheduler = Scheduler()
        self.history = History()
        self.steps = 0
        self.violation: str | None = None
        self.is_over = False
        self.tale = tale
        self._incidents = incidents
        self._disturb = disturb
        self._later: list[tuple[int, int, Callable[[], Any]]] = []
        self._numbers = 0
        self._plan_next()

    # --- what production code calls

    def call(self, kind: CallKind, what: object, work: Callable[[], Any]) -> Any:
        """Something outside of a process is called: others may go first, and things go wrong."""
        if self.is_over:
            raise GreenletExit
        self.steps += 1
        self.clock.pass_ms(1)
        if self.tale is not None:
            return self._tell(kind, what, work)
        return work() if self.steps < self._next else self._disturbed(kind, what, work)

    def sleep(self, seconds: float) -> None:
        """The current actor waits; others go on."""
        if self.is_over:
            raise GreenletExit
        self.steps += 1
        self.current.until_ms = self.clock.now_ms + int(seconds * 1000) + 1
        self.scheduler.give_way()

    def wait(self, condition: Callable[[], bool]) -> None:
        """The current actor waits until a condition is met."""
        if not condition():
            self.current.condition = condition
            self.scheduler.give_way()
            self.current.condition = None

    def new_number(self) -> int:
        """One that was not there before."""
        self._numbers += 1
        return self._numbers

    @property
    def current(self) -> Actor:
        """The actor whose turn it is."""
        actor = self.scheduler.current
        assert actor is not None
        return actor

    # --- actors

    def begin(
        self, name: str, process: Process, work: Callable[[], Any], context: Any = None
    ) -> Actor:
        """Somebody begins, as important as whoever begins it."""
        by = self.scheduler.current
        actor = Actor(name, process, work, 0.0 if by is None else by.priority, context)
        return self.scheduler.add(actor)

    def kill(self, process: Process) -> None:
        """``kill -9``: its actor goes on no more, and cleans nothing up."""
        process.alive = False
        self.say(f"{process} is killed")

    def run(self, until: Callable[[], bool]) -> None:
        """Let everybody go on until a condition is met, or nobody ever can again."""
        while True:
            next_ms = self.scheduler.run(
                lambda: self.violation is not None or until(), lambda: self.clock.now_ms
            )
            if next_ms is not None:
                self.clock.pass_until(next_ms)
            elif self._later and not until() and self.violation is None:
                self.steps = max(self.steps, self._later[0][0])
                self._do_late()
            else:
                return

    # --- what goes wrong

    def later(self, steps: int, work: Callable[[], Any]) -> None:
        """Something happens some steps later, whoever is still there."""
        heapq.heappush(self._later, (self.steps + steps, self.new_number(), work))
        self._plan_next()

    def calm_down(self) -> None:
        """Nothing goes wrong any more, and whatever is late arrives."""
        self._incidents.end()
        while self._later and self.violation is None:
            self.steps = max(self.steps, self._later[0][0])
            self._do_late()
        self._plan_next()
        self.say("from here on nothing goes wrong any more")

    def _plan_next(self) -> None:
        late = self._later[0][0] if self._later else self._incidents.at
        self._next = min(late, self._incidents.at)

    def _do_late(self) -> None:
        while self._later and self._later[0][0] <= self.steps:
            _, _, work = heapq.heappop(self._later)
            try:
                work()
            except Exception as error:  # noqa: BLE001  nobody waits for it
                self.say(f"what came late is refused: {error!r}")
            except GreenletExit:  # a violation; there may be no actor that it ends
                break
        self._plan_next()

    def _disturbed(self, kind: CallKind, what: object, work: Callable[[], Any]) -> Any:
        self._do_late()
        if self.steps >= _MOST_STEPS:
            self.violate(f"after {self.steps} steps it is still not over")
        call = Call(kind, what, work)
        incident = None
        if self.steps >= self._incidents.at:
            incident = self._incidents.take(self.steps, call.name)
            self._plan_next()
        if incident is None:
            return work()
        self.say(f"*** {incident.kind} {incident.number}")
        return self._disturb(self, incident, call)

    # --- what must not happen, and what did

    def violate(self, text: str) -> NoReturn:
        """Something has happened that must not happen: the history ends here."""
        self.violation = text
        self.is_over = True
        self.say(f"VIOLATION: {text}")
        raise GreenletExit

    def fail(self, text: str) -> None:
        """The same, said by nobody of the history itself."""
        self.violation = self.violation or text
        self.is_over = True

    def close(self) -> None:
        """The end: everybody goes, and nothing happens any more."""
        self.is_over = True
        self.scheduler.close()

    def say(self, text: str) -> None:
        """A line of the story."""
        if self.tale is not None:
            who = self.scheduler.current
            seconds = (self.clock.now_ms - BEGIN_MS) / 1000
            self.tale.append(f"{self.steps:6} {seconds:9.3f} s  {who or '-'}: {text}"[:_WIDTH])

    def _tell(self, kind: CallKind, what: object, work: Callable[[], Any]) -> Any:
        def told() -> Any:
            try:
                answer = work()
            except Exception as error:
                self.say(f"{what} -> {error!r}")
                raise
            self.say(f"{what} -> {shorten(answer)}")
            return answer

        return told() if self.steps < self._next else self._disturbed(kind, what, told)
