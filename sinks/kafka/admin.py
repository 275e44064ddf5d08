"""Transactions for people who look after them: ``krishiv-spark kafka transactions``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa

from krishiv_spark.errors import OptionError
from krishiv_spark.kafka import transactions
from krishiv_spark.kafka.client import KafkaClient, open_client
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.coordinators import TransactionDescription
from krishiv_spark.kafka.transactions import Outcome
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.kafka.attempts import StagedTransaction
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.sweeping import abort_open
from krishiv_spark.sinks.kafka.writer import KafkaWriter
from krishiv_spark.spark.checkpoint import BATCH_PREFIX, SparkCheckpoint

__all__ = [
    "TransactionAdmin",
    "TransactionStatus",
    "abort_job",
    "kafka_settings",
    "open_lines",
    "open_lines_of",
]


@dataclass(frozen=True)
class TransactionStatus:
    """A transaction, with what is known of it.

    Attributes:
        transactional_id: Under which the transaction was begun.
        now: What its coordinator says.
        intent: Epoch of the newest intent, if that names it; else None.
        outcome: What became of it, if an intent names it.
    """

    transactional_id: str
    now: TransactionDescription
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


def _open_transactions(client: KafkaClient, start: str) -> list[TransactionStatus]:
    """What is open under ids that begin so; ids that this sink did not make are left out.

    Raises:
        KafkaFailedError: If a broker refuses, or does not answer in time.
    """
    # Ours are `<prefix>.<query id>.<task>.<slot>`, and a prefix may have dots as well.
    ids = [name for name in transactions.unfinished(client, start) if name.count(".") >= 3]  # noqa: PLR2004
    return [
        TransactionStatus(name, now)
        for name, now in sorted(transactions.describe(client, ids).items())
    ]


def _inspect(
    client: KafkaClient, named: Mapping[str, StagedTransaction], epoch: int | None, start: str
) -> list[TransactionStatus]:
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
        TransactionStatus(name, now[name], epoch, transactions.outcome(item.transaction, now[name]))
        for name, item in named.items()
    ]
    others = [
        each for each in _open_transactions(client, start) if each.transactional_id not in named
    ]
    return [*found, *others]


def open_lines(bootstrap: str, config: Path | None, prefix: str, query: str) -> list[str]:
    """A line for each transaction that is open.

    Raises:
        OptionError: If a setting is not understood.
        KafkaFailedError: If the cluster refuses, or does not answer.
    """
    client = open_client(KafkaConfig.from_settings(kafka_settings(bootstrap, config)))
    return open_lines_of(client, f"{prefix}.{query}." if query else f"{prefix}.")


def open_lines_of(client: KafkaClient, start: str) -> list[str]:
    """A line for each transaction that is open.

    Args:
        client: Of this process.
        start: How the transactional ids begin.

    Raises:
        KafkaFailedError: If the cluster refuses, or does not answer.
    """
    return [_line(found) for found in _open_transactions(client, start)]


def abort_job(bootstrap: str, config: Path | None, prefix: str, query: str) -> None:
    """Abort what a batch job has open.

    Raises:
        OptionError: If it is no batch job, or a setting is not understood.
        KafkaFailedError: If the cluster refuses, or does not answer.
    """
    if not query.startswith(BATCH_PREFIX):
        raise OptionError(
            f"{query!r} is not a batch job, whose id starts with {BATCH_PREFIX!r}: open "
            "transactions of a streaming query are for its next driver, or for 'resolve'"
        )
    client = open_client(KafkaConfig.from_settings(kafka_settings(bootstrap, config)))
    abort_open(client, f"{prefix}.{query}.", (), lambda: True)


@dataclass(frozen=True)
class TransactionAdmin:
    """One query's sink, as if its next driver looked at it.

    Attributes:
        writer: Made from what the user of the command said.
        query: Id of the query.
    """

    writer: KafkaWriter
    query: str

    @classmethod
    def of(
        cls,
        bootstrap: str,
        command_config: Path | None,
        prefix: str,
        checkpoint: str,
        given: Mapping[str, str] = MappingProxyType({}),
    ) -> TransactionAdmin:
        """From what was said on the command line.

        Args:
            bootstrap: Brokers that are asked first.
            command_config: File with Kafka's settings.
            prefix: The query's ``kafka.transactional.id``.
            checkpoint: Its ``checkpointLocation``.
            given: Further options of it: ``epochLog``, and how stores are reached.

        Raises:
            OptionError: If there is no checkpoint or no epoch log, or a setting is not understood.
        """
        said = {
            **given,
            **kafka_settings(bootstrap, command_config),
            "checkpointLocation": checkpoint,
            "kafka.transactional.id": prefix,
        }
        options = KafkaSinkOptions.parse(said, "krishiv-spark kafka")
        writer = KafkaWriter(options, pa.schema([]), OutputMode.APPEND, streaming=True)
        query = options.query_id or SparkCheckpoint(checkpoint, options.storage).query_id()
        log = writer.committer().log(query)
        if log.state().number == 0:
            raise OptionError(
                f"query {query} has no epoch log in {log}: if it runs with the option "
                "'epochLog', give that value as --epoch-log"
            )
        return cls(writer, query)

    @property
    def _client(self) -> KafkaClient:
        return open_client(self.writer.options.kafka)

    def lines(self) -> list[str]:
        """A line for each transaction, with what `resolve` does with it."""
        start = f"{self.writer.options.id_prefix}.{self.query}."
        epoch, staged = self.writer.committer().unfinished(self.query)
        named = {item.transaction.transactional_id: item for item in staged}
        listed = _inspect(self._client, named, epoch, start)
        return [f"{_line(found)}  {_named(found)}  -> {found.will}" for found in listed]

    def resolve(self) -> None:
        """Take the query over: finish its intent, abort the rest.

        Raises:
            LogError: If the epochs in the log went to another cluster.
            CommitUnknown: If what became of a transaction cannot be found out.
            KafkaFailedError: If the cluster refuses, or does not answer.
        """
        self.writer.committer().resolve(self.query)


def kafka_settings(bootstrap: str, config: Path | None) -> dict[str, str]:
    """Options of source and sink, from what was said on the command line.

    Args:
        bootstrap: Brokers that are asked first.
        config: File with Kafka's settings, a ``name=value`` in a line.
    """
    lines = config.read_text().splitlines() if config else []
    named = [line.split("=", 1) for line in lines if "=" in line and not line.startswith("#")]
    given = {f"kafka.{key.strip()}": text.strip() for key, text in named}
    return {**given, "kafka.bootstrap.servers": bootstrap}


def _line(status: TransactionStatus) -> str:
    now = status.now
    partitions = ", ".join(str(tp) for tp in now.partitions[:5])
    return f"{status.transactional_id}  {now.state}  {_since(now.started_ms)}  {partitions}"


def _since(started_ms: int) -> str:
    if started_ms < 0:
        return "-"
    begun = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(started_ms / 1000))
    return f"since {begun} UTC"


def _named(status: TransactionStatus) -> str:
    return "no intent" if status.intent is None else f"intent of epoch {status.intent}"
