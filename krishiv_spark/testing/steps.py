"""The language of the kit: the steps of Spark and of operators, and the faults, as values.

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
    """A value that prints as the call that creates it, without defaults."""

    def __repr__(self) -> str:
        given = ((f.name, getattr(self, f.name), f.default) for f in fields(self))  # type: ignore[arg-type]  # every subclass is a dataclass
        changed = ", ".join(
            f"{name}={value!r}" for name, value, default in given if value != default
        )
        return f"{type(self).__name__}({changed})"


@dataclass(frozen=True, repr=False)
class Fault(_Printed):
    """A fault at one call to the outside. The model is two bits.

    Attributes:
        call: The index of the call in the step, from 0; a step with fewer calls succeeds. -1 is the
            step itself: it is done completely, but its answer is lost.
        happened: True if the call takes effect.
        reported: True if the caller gets an error; otherwise its process dies there.
        lasting: True if every later call of the step fails too, without effect: an outage,
            which outlives a caller that only tries again.
    """

    call: int = -1
    happened: bool = False
    reported: bool = True
    lasting: bool = False


@dataclass(frozen=True, repr=False)
class Faults(_Printed):
    """Several faults in one step, such as a failed call and then the check of its outcome.

    Attributes:
        each: The faults in order; a process that dies at one meets no later one.
    """

    each: tuple[Fault, ...] = ()


@dataclass(frozen=True, repr=False)
class Sleep(_Printed):
    """The process sleeps before one call to the outside, until `Resume`.

    Attributes:
        call: The index of the call in the step, from 0.
    """

    call: int = 0


@dataclass(frozen=True, repr=False)
class Kill(_Printed):
    """The process is killed from outside, at any point: for calls that cannot be counted.

    Attributes:
        after_ms: Milliseconds after the start of the step; a step that ends earlier succeeds.
    """

    after_ms: float = 0.0


Trap: TypeAlias = Fault | Faults | Sleep | Kill
Ends: TypeAlias = Literal["well", "lost", "fails", "dies", "straggles"]
TrapAt: TypeAlias = Literal["latest", "plan", "read", "all"]


class Step(_Printed):
    """One step. Steps apply to the driver that is awake, of the chosen query."""


@dataclass(frozen=True, repr=False)
class Begin(Step):
    """The planner begins an epoch: the one that was not committed, with its rows, or a new one.

    Attributes:
        rows: The number of rows of a new epoch.
        tasks: The number of tasks.
        trap: The fault in the planner.
    """

    rows: int = 4
    tasks: int = 2
    trap: Trap | None = None


@dataclass(frozen=True, repr=False)
class Stage(Step):
    """One attempt at a task.

    Attributes:
        task: The number of the task within the epoch.
        ends: "well"; "lost": a twin or retry whose message is lost; "fails" or "dies" (kill -9)
            after half of the rows; "straggles": falls asleep there, until `Straggler`.
        trap: The fault at a call to the outside.
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
    """Tasks have failed permanently: `abort` with None for tasks without a message."""

    trap: Trap | None = None


@dataclass(frozen=True, repr=False)
class Stop(Step):
    """``query.stop()``: no method is called, and Spark's driver-side processes continue to run."""


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
    """An attempt that straggled goes on to its end; its message is ignored."""


@dataclass(frozen=True, repr=False)
class RollBack(Step):
    """The query is stopped, and its checkpoint restored from a copy that is some epochs old.

    The rows of the missing epochs are planned again, in the next epoch.

    Attributes:
        epochs: The number of epochs missing in the copy.
    """

    epochs: int = 1


@dataclass(frozen=True, repr=False)
class SetClock(Step):
    """The wall clocks of all machines of the query are wrong from now on, or right again.

    Python's ``time.time()``, ``time_ns()``, ``gmtime()`` and ``localtime()`` return another time.
    ``datetime.now()``, names that a module has imported from `time`, and the clocks of the file
    system and of the external system stay right.

    Attributes:
        ahead_s: Seconds by which they are ahead; negative if they are behind.
    """

    ahead_s: int = 0


@dataclass(frozen=True, repr=False)
class BackUp(Step):
    """An operator copies something between two epochs.

    Attributes:
        what: "log": the checkpoint with the epoch log; "target": all that `SinkUnderTest.backup`
            copies.
    """

    what: Literal["log", "target"] = "log"


@dataclass(frozen=True, repr=False)
class PutBack(Step):
    """The query is stopped, and the copy made by `BackUp` is restored.

    Attributes:
        what: As for `BackUp`.
    """

    what: Literal["log", "target"] = "log"


@dataclass(frozen=True, repr=False)
class Expire(Step):
    """The external system deletes all staged data, or all rows of a source.

    `SinkUnderTest.expire` and `SourceUnderTest.expire` do it.
    """


@dataclass(frozen=True, repr=False)
class OtherQuery(Step):
    """The following steps are those of another query into the same target."""


@dataclass(frozen=True, repr=False)
class Overwrite(Step):
    """Another user's batch job replaces all rows in the target.

    Attributes:
        rows: The number of rows that it writes.
    """

    rows: int = 4


@dataclass(frozen=True, repr=False)
class Reorder(Step):
    """The query is stopped, and starts again with its columns in the opposite order."""


@dataclass(frozen=True, repr=False)
class Add(Step):
    """Rows are added to what a source reads, in one unit (a file, a push, a transaction).

    Attributes:
        rows: The number of rows.
    """

    rows: int = 3


@dataclass(frozen=True, repr=False)
class Trigger(Step):
    """Spark checks for new rows, and runs a batch if there are some; or repeats the last batch.

    Attributes:
        ends: "well"; "unread": the end is logged, then the driver is killed; "unlogged": the rows
            are read, but the driver is killed before Spark logs the batch.
        unplanned: The number of rows added after the end was chosen, before the batch is planned.
        unread: The number of rows added after that, before the batch is read.
        at: The role to which the trap applies; "all" is each of them.
        trap: The fault at a call to the outside; the driver is restarted.
    """

    ends: Literal["well", "unread", "unlogged"] = "well"
    unplanned: int = 0
    unread: int = 0
    at: TrapAt = "latest"
    trap: Fault | Kill | None = None


class Sequence(tuple[Step, ...]):  # noqa: SLOT001  a tuple that carries more has no slots
    """Steps in order.

    Attributes:
        how: Arguments of the player, as `SinkPlayer.driver` and `SourcePlayer` take them:
            ``writing`` for a sink, ``options`` for a source.
    """

    how: Mapping[str, Any]

    def __new__(cls, *steps: Step, **how: Any) -> Self:
        """Create a sequence from its steps, in the form in which it prints itself."""
        made = super().__new__(cls, steps)
        made.how = how
        return made

    def __repr__(self) -> str:
        how = (f"{name}={value!r}" for name, value in self.how.items())
        return f"Sequence({', '.join([*map(repr, self), *how])})"
