"""The rules of docs/design/, each of which can be switched off: a check that cannot fail is none.

A switch replaces one function of the code, or one constant.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

from krishiv_spark.kafka import transactions
from krishiv_spark.lifecycle import epoch_write, identities
from krishiv_spark.offsets import EpochLog
from krishiv_spark.offsets.journal import StoredEntries
from krishiv_spark.sinks import log_checks as logs
from krishiv_spark.sinks.kafka import participant as kafka
from krishiv_spark.sinks.kafka import task as tasks
from krishiv_spark.sinks.kafka.participant import KafkaParticipant
from krishiv_spark.sinks.kafka.writer import KafkaPlan
from krishiv_spark.sinks.logged import LogCommitter
from krishiv_spark.spark.checkpoint import SparkCheckpoint
from simulation import switches
from simulation.histories import Kind, play_history

__all__ = ["MUTATIONS", "Mutation"]


@dataclass(frozen=True)
class Mutation:
    """A rule that is switched off.

    Attributes:
        rule: What the rule is, in words.
        patches: What is replaced: where, which name, by what.
        kind: Of histories in which that matters.
        always: What is replaced whether the rule is in force or not: other rules, behind which
            this one would hardly ever matter.
        within: One of so many of them fails, which does not fail with the rule.
    """

    rule: str
    patches: Sequence[tuple[Any, str, Any]]
    kind: Kind
    always: Sequence[tuple[Any, str, Any]] = ()
    within: int = 20

    @contextlib.contextmanager
    def switched_off(self) -> Iterator[None]:
        """The code as it would be without the rule."""
        with _replaced([*self.always, *self.patches]):
            yield

    def caught(self, seed: int) -> int | None:
        """Return the number of histories that it takes from a seed on; None if over `within`."""
        for tried in range(self.within):
            if self._fails(seed + tried):
                return tried + 1
        return None

    def _fails(self, seed: int) -> bool:
        """Return True if a history fails only without the rule.

        Raises:
            AssertionError: If it fails because the switch no longer fits the code.
        """
        with self.switched_off():
            violation = play_history(seed, self.kind).violation
        if violation is None:
            return False
        assert "TypeError" not in violation, violation
        with _replaced(self.always):
            return play_history(seed, self.kind).violation is None


@contextlib.contextmanager
def _replaced(patches: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for where, name, value in patches:
            stack.enter_context(mock.patch.object(where, name, value))
        yield


_DEATHS = {"kill": 1, "crash": 1}
_RIVALS = {"hold up": 3, "take over": 3, "go first": 2}
_FEW_IDS = [
    (tasks, "_ID_SETS", 1),
    (tasks, "_IDS_PER_TASK", 1),
    (transactions, "pick_transactional_id", switches.pick_first),
]
_UNHELPED = {
    "sink": "kafka",
    "is_helped": False,
    "on_lost": "error",
    "tasks": 2,
    "sizes": (3,),
    "timeout_s": 900,
}
_LOSSES = {"pass time": 2, "kill": 1, "crash": 1, "lose answer": 1, "lose call": 1}


def _rivals(**fixed: Any) -> Kind:
    """Histories of drivers that believe each other dead."""
    return Kind(fixed, _RIVALS, ("create", "list", "EndTxn", "/commits/", ""), (5, 10, 20))


MUTATIONS: dict[str, Mutation] = {
    "fencing": Mutation(
        "An intent is appended only right after its own owner entry.",
        [(EpochLog, "intend", switches.intend_unfenced)],
        _rivals(sink="shelf"),
        within=80,
    ),
    "exclusive": Mutation(
        "Each number is created exclusively.",
        [(EpochLog, "_append", switches.append_overwriting)],
        _rivals(sink="shelf"),
        within=150,
    ),
    "content": Mutation(
        "A name that is taken may be taken by our own first try.",
        [(EpochLog, "_append", switches.append_by_answer)],
        Kind({"sink": "shelf"}, {"double": 1}, ("create",)),
    ),
    "listed again": Mutation(
        "A listing after an entry is repeated if it does not continue the log.",
        [(StoredEntries, "list_after", switches.list_after_once)],
        Kind(
            {"sink": "shelf", "fold_every": 1},
            {"take over": 3, "hold up": 1},
            ("list on",),
            (5, 10, 20),
        ),
        within=300,
    ),
    "snapshot first": Mutation(
        "The snapshot is written before anything is removed.",
        [(EpochLog, "compact", switches.fold_removing_first)],
        Kind({"sink": "shelf", "fold_every": 2}, _DEATHS, ("replace", "remove")),
    ),
    "probe": Mutation(
        "The storage is tried before the first entry.",
        [(EpochLog, "_probe", switches.do_nothing)],
        _rivals(sink="shelf", honest=False),
        within=100,
    ),
    "held": Mutation(
        "An epoch that is held is skipped.",
        [
            (identities, "is_already_committed", switches.return_false),
            (logs, "is_already_committed", switches.return_false),
        ],
        Kind({"sink": "shelf"}, _DEATHS, ("take", "/commits/")),
    ),
    "left behind": Mutation(
        "An epoch before the newest that has begun is refused.",
        [(logs, "_check_follows", switches.check_follows_later)],
        Kind({"sink": "shelf", "sizes": (1, 0, 0, 0), "goal": 5}, _RIVALS, ("/chk/offsets",)),
    ),
    "recover": Mutation(
        "The planner finishes what an earlier generation has logged.",
        [
            (LogCommitter, "_begin", switches.begin_without_recovery),
            (LogCommitter, "roll_forward", switches.return_true),
        ],
        Kind({"sink": "shelf"}, _DEATHS, ("create", "show")),
    ),
    "recover first": Mutation(
        "It does so before it removes what earlier generations have left.",
        [(LogCommitter, "_begin", switches.begin_recovering_late)],
        Kind({"sink": "shelf"}, _DEATHS, ("create", "show")),
    ),
    "failed commit": Mutation(
        "After a failed commit nothing is touched: it may have happened.",
        [(epoch_write.EpochWrite, "_abort", switches.abort_everything)],
        Kind({"sink": "shelf"}, {"lose answer": 1}, ("create", "show")),
    ),
    "sweep": Mutation(
        "Whatever is open and named by no intent is aborted.",
        [
            (kafka, "abort_open", switches.do_nothing),
            (kafka, "abort_other_attempts", switches.do_nothing),
        ],
        Kind(
            {"sink": "kafka", "is_tidy": True, "tasks": 1, "sizes": (2,), "lazy": False},
            _DEATHS,
            ("Produce",),
        ),
    ),
    "prepare": Mutation(
        "Right before the intent, each transaction is found open.",
        [(KafkaParticipant, "prepare", switches.fresh)],
        Kind(
            {"sink": "kafka", "is_helped": False, "on_lost": "error", "tasks": 2, "sizes": (3,)},
            {"pass time": 1},
            ("read rows",),
        ),
    ),
    "settle": Mutation(
        "What a coordinator refuses to commit is looked up.",
        [(KafkaParticipant, "_resolve_refused", switches.settle_blindly)],
        Kind({"sink": "kafka"}, _LOSSES, ("EndTxn", "create")),
    ),
    "settled": Mutation(
        "The log itself says that an intent is finished before its ids are used again.",
        [
            (EpochLog, "is_finished", switches.is_finished_in_process),
            (LogCommitter, "_acquire", switches.take_over_once),
        ],
        Kind({"sink": "kafka"}, _LOSSES | _RIVALS, ("EndTxn", "create")),
    ),
    "commits": Mutation(
        "What Spark has written down as over is finished.",
        [
            (SparkCheckpoint, "is_committed", switches.return_false),
            (LogCommitter, "_mark_previous_finished", switches.do_nothing),
        ],
        Kind({"sink": "kafka", "reuse": False}, _DEATHS, ("Produce", "EndTxn"), (10, 20)),
        always=[*_FEW_IDS, (KafkaParticipant, "_outcome_from_markers", switches.keep_outcome)],
        within=100,
    ),
    "turns": Mutation(
        "Neighbouring generations have different ids.",
        [(tasks, "_ID_SETS", 1)],
        Kind(
            _UNHELPED | {"stragglers": True},
            _RIVALS,
            ("InitProducerId", "EndTxn", "create 0", "read rows"),
            (5, 10),
        ),
        within=200,
    ),
    "slots": Mutation(
        "An attempt takes an id under which nothing is open.",
        _FEW_IDS,
        Kind(
            {"sink": "kafka", "is_smooth": True, "sizes": (3,), "stragglers": True},
            {"copy task": 1},
            ("Produce", "read rows"),
        ),
        within=60,
    ),
    "exact": Mutation(
        "The producer epoch tells whose transaction the coordinator speaks of.",
        [(transactions, "judge_outcome", switches.outcome_of_state)],
        Kind({"sink": "kafka", "stragglers": True, "tasks": 1}, _RIVALS | {"copy task": 2}),
        always=_FEW_IDS,
        within=300,
    ),
    "fence": Mutation(
        "Whoever is swept cannot write any more, also under TV1.",
        [(transactions, "_abort_once", switches.end_only)],
        Kind(
            {"sink": "kafka", "rules": 1, "verify": False, "stragglers": True, "pieces": True},
            _RIVALS | _DEATHS | {"copy task": 2},
        ),
        within=300,
    ),
    "kept": Mutation(
        "What is visible of a voided epoch is not staged again.",
        [(KafkaPlan, "already_visible", switches.do_nothing)],
        Kind({"sink": "kafka", "tasks": 2, "sizes": (3,)}, _LOSSES, ("EndTxn",), (10, 20)),
        within=40,
    ),
    "same rows": Mutation(
        "Rows of a part that is kept are compared.",
        [(tasks, "check_same", switches.do_nothing)],
        Kind(
            {"sink": "kafka", "tasks": 2, "sizes": (3,), "moving": True},
            _LOSSES,
            ("EndTxn",),
            (10, 20),
        ),
        within=80,
    ),
}
