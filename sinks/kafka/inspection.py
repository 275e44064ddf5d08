"""What a sink has open, and what its epoch log says of it: for people who look after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from krishiv_spark.kafka import transactions
from krishiv_spark.kafka.client import Client
from krishiv_spark.kafka.coordinators import Described
from krishiv_spark.kafka.transactions import Outcome
from krishiv_spark.sinks.kafka.attempts import StagedTransaction

__all__ = ["Found", "inspect", "open_transactions"]


@dataclass(frozen=True)
class Found:
    """A transaction, with what is known of it.

    Attributes:
        transactional_id: Of it.
        now: What its coordinator says.
        intent: Epoch of the newest intent, if that names it; else None.
        outcome: What became of it, if an intent names it.
    """

    transactional_id: str
    now: Described
    intent: int | None = None
    outcome: Outcome | None = None

    @property
    def will(self) -> str:
        """What `resolve` does with it."""
        if self.intent is None:
            return "abort"
        return {
            Outcome.OPEN: "commit",
            Outcome.COMMITTED: "nothing, it is committed",
            Outcome.ABORTED: "nothing, it was aborted: the epoch is written again",
            Outcome.UNKNOWN: "nothing, its outcome is unknown",
        }[self.outcome or Outcome.UNKNOWN]


def open_transactions(client: Client, start: str) -> list[Found]:
    """What is open under ids that begin so; ids that this sink did not make are left out.

    Raises:
        KafkaFailedError: If a broker refuses, or does not answer in time.
    """
    ids = [name for name in transactions.unfinished(client, start) if name.count(".") >= 3]  # noqa: PLR2004
    return [Found(name, now) for name, now in sorted(transactions.describe(client, ids).items())]


def inspect(
    client: Client, named: Mapping[str, StagedTransaction], epoch: int | None, start: str
) -> list[Found]:
    """The transactions that the newest intent names, and whatever else is open.

    Args:
        client: Of this process.
        named: What the newest intent names, if it may not be finished, by transactional id.
        epoch: Of that intent.
        start: Of the query's transactional ids.

    Raises:
        KafkaFailedError: If a broker refuses, or does not answer in time.
    """
    now = transactions.describe(client, list(named))
    found = [
        Found(name, now[name], epoch, transactions.outcome(item.transaction, now[name]))
        for name, item in named.items()
    ]
    others = [
        each for each in open_transactions(client, start) if each.transactional_id not in named
    ]
    return [*found, *others]
