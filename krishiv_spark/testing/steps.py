"""The language of the kit: what Spark does to a connector, and what may go wrong, as values.

A sequence of steps prints itself as the Python that makes it, so a failure can be copied into
`SinkConformance.sequences` and is a test from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

from typing_extensions import Self

__all__ = [
    "Abort",
    "Add",
    "BackUp",
    "Begin",
    "Commit",
    "Crash",
    "Ends",
    "Expire",
    "Fault",
    "Faults",
    "Kill",
    "OtherQuery",
    "Overwrite",
    "PutBack",
    "Reorder",
    "Resume",
    "RollBack",
    "Sequence",
    "SetClock",
    "Sleep",
    "Stage",
    "Step",
    "Stop",
    "Straggler",
    "Switch",
    "TakeOver",
    "Trap",
    "TrapAt",
    "Trigger",
]


class _Printed:
    """Prints as the call that makes it, without what is default."""

    def __repr__(self) -> str:
        given = ((f.name, getattr(self, f.name), f.default) for f in fields(self))  # type: ignore[arg-type]  # every subclass is a dataclass
        changed = ", ".join(
            f"{name}={value!r}" for name, value, default in given if value != default
        )
        return f"{type(self).__name__}({changed})"


@dataclass(frozen=True, repr=False)
class Fault(_Printed):
    """Something goes wrong at one call to the outside. The model is two bits.

    Attributes:
        call: Which call of the step, from 0; a step that makes fewer calls goes well. -1 is the
            step itself: all of it is done, but its answer is lost.
        happened: Whether the call takes effect.
        reported: Whether the caller lives to get an error; otherwise its process dies there.
        lasting: Whether every later call of the step fails too, and does not happen: an outage,
            which outlives whoever only tries again.
    """

    call: int = -1
    happened: bool = False
    reported: bool = True
    lasting: bool = False


@dataclass(frozen=True, repr=False)
class Faults(_Printed):
    """Several calls of one step go wrong: one that fails, say, and then the look whether it did.

    Attributes:
        each: One after the other; whoever dies at one meets no later one.
    """

    each: tuple[Fault, ...] = ()


@dataclass(frozen=True, repr=False)
class Sleep(_Printed):
    """The process falls asleep before one call to the outside, until `Resume`.

    Attributes:
        call: Which call of the step, from 0.
    """

    call: int = 0


@dataclass(frozen=True, repr=False)
class Kill(_Printed):
    """The process is killed from outside, wherever it is: for calls that nobody can count.

    Attributes:
        after_ms: How long the step has run by then; one that is done earlier goes well.
    """

    after_ms: float = 0.0


Trap: TypeAlias = Fault | Faults | Sleep | Kill
Ends: TypeAlias = Literal["well", "lost", "fails", "dies", "straggles"]
TrapAt: TypeAlias = Literal["latest", "plan", "read", "all"]


class Step(_Printed):
    """One thing that happens. Steps apply to the driver that is awake, of the chosen query."""


@dataclass(frozen=True, repr=False)
class Begin(Step):
    """The planner begins an epoch: the one that was not committed, with its rows, or a new one.

    Attributes:
        rows: How many rows the epoch has, if it is new.
        tasks: Over how many tasks they are spread.
        trap: What goes wrong in the planner.
    """

    rows: int = 4
    tasks: int = 2
    trap: Trap | None = None


@dataclass(frozen=True, repr=False)
class Stage(Step):
    """One attempt at a task.

    Attributes:
        task: Number of the task within the epoch.
        ends: "well"; "lost": a twin or retry that nobody hears of; "fails" or "dies" (kill -9)
            after half of the rows; "straggles": falls asleep there, until `Straggler`.
        trap: What goes wrong at a call to the outside.
    """

    task: int = 0
    ends: Ends = "well"
    trap: Trap | None = None


@dataclass(frozen=True, repr=False)
class Commit(Step):
    """All tasks have succeeded. If it fails, `abort` follows with every message, as in Spark."""

    trap: Trap | None = None


@dataclass(frozen=True, repr=False)
class Abort(Step):
    """Tasks have failed for good: `abort` with None for those without a message."""

    trap: Trap | None = None


@dataclass(frozen=True, repr=False)
class Stop(Step):
    """``query.stop()``: no method is called, and Spark's driver-side processes live on."""


@dataclass(frozen=True, repr=False)
class Crash(Step):
    """``kill -9`` of the driver and its executors."""


@dataclass(frozen=True, repr=False)
class TakeOver(Step):
    """A second driver starts on the same checkpoint; the first one sleeps."""


@dataclass(frozen=True, repr=False)
class Switch(Step):
    """The sleeping driver wakes, the other one sleeps."""


@dataclass(frozen=True, repr=False)
class Resume(Step):
    """The step that fell asleep goes on."""


@dataclass(frozen=True, repr=False)
class Straggler(Step):
    """An attempt that straggled goes on to its end; nobody hears of it."""


@dataclass(frozen=True, repr=False)
class RollBack(Step):
    """The query is stopped, and its checkpoint restored from a copy of some epochs ago.

    The rows of the epochs that it has forgotten are planned again, in the next one.

    Attributes:
        epochs: How many epochs it forgets, of those that it knows.
    """

    epochs: int = 1


@dataclass(frozen=True, repr=False)
class SetClock(Step):
    """The wall clocks of all machines of the query are wrong from here on, or right again.

    Python's ``time.time()``, ``time_ns()``, ``gmtime()`` and ``localtime()`` return another time.
    ``datetime.now()``, names that a module has imported from `time`, and the clocks of the file
    system and of the external system stay right.

    Attributes:
        ahead_s: By how many seconds they are ahead; negative if they are behind.
    """

    ahead_s: int = 0


@dataclass(frozen=True, repr=False)
class BackUp(Step):
    """An operator copies something between two epochs.

    Attributes:
        what: "log": the checkpoint with the epoch log; "target": what `SinkUnderTest.backup`
            copies.
    """

    what: Literal["log", "target"] = "log"


@dataclass(frozen=True, repr=False)
class PutBack(Step):
    """The query is stopped, and the copy that `BackUp` has made is put back.

    Attributes:
        what: As for `BackUp`.
    """

    what: Literal["log", "target"] = "log"


@dataclass(frozen=True, repr=False)
class Expire(Step):
    """The external system throws away what is staged, or of a source all rows that are there.

    `SinkUnderTest.expire` and `SourceUnderTest.expire` do it.
    """


@dataclass(frozen=True, repr=False)
class OtherQuery(Step):
    """The following steps are those of another query into the same target."""


@dataclass(frozen=True, repr=False)
class Overwrite(Step):
    """A batch job of somebody else takes the place of all rows in the target.

    Attributes:
        rows: How many it writes.
    """

    rows: int = 4


@dataclass(frozen=True, repr=False)
class Reorder(Step):
    """The query is stopped, and starts again with its columns in the opposite order."""


@dataclass(frozen=True, repr=False)
class Add(Step):
    """Rows are added to what a source reads, in one unit (a file, a push, a transaction).

    Attributes:
        rows: How many.
    """

    rows: int = 3


@dataclass(frozen=True, repr=False)
class Trigger(Step):
    """Spark looks for new rows, and runs a batch if there are some; or repeats the last batch.

    Attributes:
        ends: "well"; "unread": the end is logged, then the driver is killed; "unlogged": the rows
            are read, but the driver is killed before Spark knows.
        unplanned: So many rows are added after the end was chosen, before the batch is planned.
        unread: So many rows are added after that, before the batch is read.
        at: What the trap is for; "all" is each of them.
        trap: What goes wrong at a call to the outside; the driver is restarted.
    """

    ends: Literal["well", "unread", "unlogged"] = "well"
    unplanned: int = 0
    unread: int = 0
    at: TrapAt = "latest"
    trap: Fault | Kill | None = None


class Sequence(tuple[Step, ...]):  # noqa: SLOT001  a tuple that carries more has no slots
    """Steps in their order.

    Attributes:
        how: Arguments of the player, as `SinkPlayer.driver` and `SourcePlayer` take them:
            ``writing`` for a sink, ``options`` for a source.
    """

    how: Mapping[str, Any]

    def __new__(cls, *steps: Step, **how: Any) -> Self:
        """Make a sequence from its steps, in the form in which it prints itself."""
        made = super().__new__(cls, steps)
        made.how = how
        return made

    def __repr__(self) -> str:
        how = (f"{name}={value!r}" for name, value in self.how.items())
        return f"Sequence({', '.join([*map(repr, self), *how])})"
