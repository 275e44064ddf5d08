"""The rules, each defined once, and the error of a connector that breaks one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import Enum

__all__ = ["Broken", "Rule", "Violation"]


class Rule(Enum):
    """A property of a connector on which users may rely."""

    NO_ROW_LOST = "every row of an epoch whose commit returned is visible from then on"
    NO_ROW_TWICE = "no row is visible twice"
    NOTHING_EARLY = "nothing of an epoch is visible before its commit is called"
    NOTHING_INVENTED = "every visible row is one that was written"
    VALUES_KEPT = "values are read as they were written: nulls, all digits, in any time zone"
    NOTHING_TAKEN_BACK = "a row that a reader has read stays visible"
    WHOLE_EPOCHS = "an epoch is visible whole or not at all"
    NOTHING_COMES_BACK = "rows that an overwrite has replaced do not return"
    NO_IS_NO = "a commit that raises CommitRejected has not happened"
    NEWEST_EPOCH_ONLY = "in complete mode, readers see exactly the newest committed epoch"
    NEWEST_OF_KEY = "with keys, readers see exactly the newest committed row of each key"
    RESULT_OF_EPOCHS = "readers see exactly what the committed epochs make, one after the other"
    READABLE = "readers can read the target after every failure"
    GOES_ON = "a driver that starts after a failure continues the query"
    WORKS = "an operation without a fault raises no error"
    NOTHING_LEFT = "everything staged is published, discarded, or deleted with a later epoch"
    BOUNDED_MEMORY = "a task of any length reads and writes with a bounded amount of memory"
    NO_SECRET_SHOWN = "no error, cause of an error, log line or message contains a secret"  # noqa: S105
    STAYS_INSIDE = "an entry of the epoch log that names a path outside of the target is refused"
    GAP_IS_SAID = "a target that lacks a batch which was committed into it is refused"
    NAMES_APART = "batches under a name that another query uses are refused"
    SEEN = "the kit counts the calls at which faults can occur"

    EVERY_ROW_ONCE = "every row that was added is read in exactly one batch"
    TASKS_APART = "no row is read by two tasks of a batch"
    SAME_REPLAY = "a repeated batch has the same rows"
    NOTHING_NEWER = "a batch contains no row that was added after its end was chosen"
    LOSS_IS_SAID = "rows that were deleted before they were read fail the query"
    STANDS_STILL = "the text of the offset does not change while no row is added"
    NEVER_BACK = "an offset never moves back, so no row before it is missed"
    CONSTANT_START = "the initial offset is the same at every call"
    ONE_TEXT = "a position has one JSON text in every process and under every hash seed"
    LIMITS = "a batch stays within its limits, and reads rows if there are any"
    ENDS = "with availableNow the query ends, and the next run reads rows added meanwhile"
    WATERMARK = "a watermark never moves back, and is never ahead of the event times"


class Violation(Exception):  # noqa: N818  it is no error of the program, and never leaves the kit
    """A rule, and the observation that breaks it."""

    def __init__(self, rule: Rule, seen: str) -> None:
        super().__init__(rule.value, seen)
        self.rule = rule
        self.seen = seen


class Broken(AssertionError):  # noqa: N818  it reads as a sentence with its rule
    """A broken rule of a connector, printed with the promise, the steps and the observation.

    Attributes:
        rule: The rule.
        seen: The observation.
        again: The steps, as a value that can be run again.
    """

    def __init__(
        self,
        found: Violation,
        promise: str,
        story: Sequence[str],
        again: object = None,
    ) -> None:
        rule = self.rule = found.rule
        self.seen, self.again = found.seen, again
        parts = {
            "PROMISED": promise,
            "RULE": f"{rule.name}: {rule.value}",
            "DONE": "\n".join(story),
            "SEEN": found.seen,
            "AGAIN": "\n".join(filter(None, [_this_test(), _kept(again)])),
        }
        body = "\n".join(f"{name}\n{_indent(text)}" for name, text in parts.items() if text)
        super().__init__(f"\n{body}")


def _this_test() -> str:
    current = os.environ.get("PYTEST_CURRENT_TEST", "")
    return f'pytest "{current.rsplit(" ", 1)[0]}"' if current else ""


def _kept(again: object) -> str:
    return "" if again is None else f"or add to the class: sequences = [{again!r}]"


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
