"""The constant properties of a history; drawn from a seed, or given."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from typing import Any, Literal

__all__ = ["Scenario"]


@dataclass(frozen=True)
class Scenario:
    """One of many settings in which histories are played.

    Attributes:
        sink: "shelf", the simplest sink over an epoch log, or "kafka".
        goal: The query is done when this epoch is over.
        sizes: Rows of epochs; which one is used depends on the epoch, and on how often Spark has
            planned one.
        tasks: How many a batch has.
        moving: Whether rows fall into other tasks when a batch is run again.
        fold_every: Of the epoch log.
        honest: Whether the log's store knows "if absent".
        pages: Whether it lists in the order of names.
        reuse: Whether Spark uses its Python workers again.
        stragglers: Whether attempts that have lost go on.
        lenient: Whether Spark passes over a file in ``commits/`` that is there already.
        rules: Of transactions, 1 or 2.
        verify: TV1: whether leaders ask the coordinator.
        top: The highest producer epoch; a broker's is 32 767.
        brokers: How many.
        partitions: Of the topic.
        pieces: Whether each row is a message of its own.
        lazy: Whether markers are written later than transactions are decided.
        on_lost: The option ``onLostTransactions``.
        timeout_s: Of transactions.
        sleepers_first: Whether, when nothing goes wrong any more, those who were held up go on
            before a fresh driver begins.
        is_helped: Whether an operator does what an error says.
        is_tidy: Whether nothing may be left open, not even for brokers to end.
        is_smooth: Whether no driver may stop with an error.
    """

    sink: Literal["shelf", "kafka"] = "shelf"
    goal: int = 3
    sizes: tuple[int, ...] = (2,)
    tasks: int = 2
    moving: bool = False
    fold_every: int = 64
    honest: bool = True
    pages: bool = False
    reuse: bool = True
    stragglers: bool = False
    lenient: bool = False
    rules: Literal[1, 2] = 2
    verify: bool = True
    top: int = 2**15 - 1
    brokers: int = 1
    partitions: int = 1
    pieces: bool = False
    lazy: bool = False
    on_lost: Literal["repair", "error"] = "repair"
    timeout_s: int = 60
    sleepers_first: bool = False
    is_helped: bool = True
    is_tidy: bool = False
    is_smooth: bool = False

    @classmethod
    def drawn(cls, rng: random.Random, **fixed: Any) -> Scenario:
        """At random, but for what is given."""
        picked = {
            "goal": rng.choice((1, 2, 3, 5)),
            "sizes": tuple(rng.choices((0, 1, 2, 3), (1, 3, 3, 1), k=rng.choice((1, 3, 4)))),
            "tasks": rng.choice((1, 2, 2, 3)),
            "moving": rng.random() < 0.1,
            "fold_every": rng.choice((1, 2, 3, 5, 64)),
            "pages": rng.random() < 0.3,
            "reuse": rng.random() < 0.7,
            "stragglers": rng.random() < 0.4,
            "lenient": rng.random() < 0.3,
            "rules": rng.choice((1, 2)),
            "verify": rng.random() < 0.6,
            "top": rng.choice((3, 4, 6, 2**15 - 1, 2**15 - 1)),
            "brokers": rng.choice((1, 1, 2, 3)),
            "partitions": rng.choice((1, 2)),
            "pieces": rng.random() < 0.3,
            "lazy": rng.random() < 0.4,
            "on_lost": rng.choice(("repair", "repair", "error")),
            "sleepers_first": rng.random() < 0.3,
        }
        return cls(**{**picked, **fixed})

    def changes(self) -> dict[str, Any]:
        """Return the properties that differ from their defaults."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != f.default}
