"""The transactions of a query for its operators: ``krishiv-spark kafka transactions``."""

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
from krishiv_spark.kafka.transaction_requests import TransactionDescription
from krishiv_spark.kafka.transactions import Outcome, abort_open
from krishiv_spark.sinks.base import OutputMode
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.task import IDS_AFTER_QUERY, StagedTransaction
from krishiv_spark.sinks.kafka.writer import KafkaWriter
from krishiv_spark.spark.checkpoint import BATCH_PREFIX, SparkCheckpoint

__all__ = [
    "TransactionAdmin",
    "TransactionStatus",
    "abort_job",
    "list_open_lines",
    "list_open_lines_of",
    "read_kafka_settings",
]


@dataclass(frozen=True)
class TransactionStatus:
    """A transaction, its state and its intent.

    Attributes:
        transactional_id: The id under which it was opened.
        now: Current state of the id at its coordinator.
        intent: Epoch of the newest intent if that names it; otherwise None.
        outcome: Outcome of the transaction if an intent names it.
    """

    transactional_id: str
    now: TransactionDescription
    intent: int | None = None
    outcome: Outcome | None = None

    @property
    def resolution(self) -> str:
        """The action of `resolve`."""
        if self.intent is None:
            return "abort"
        return {
            Outcome.OPEN: "commit",
            Outcome.COMMITTED: "nothing, it is committed",
            Outcome.ABORTED: "nothing, it was aborted: the epoch is written again",
            Outcome.UNKNOWN: "nothing, its outcome is unknown",
        }[self.outcome or Outcome.UNKNOWN]


def _list_open(client: KafkaClient, start: str) -> list[TransactionStatus]:
    """Return the open transactions of ids with a prefix, without ids that this sink did not create.

    Raises:
        KafkaFailedError: If a broker refuses, or does not answer in time.
    """
    # This sink's are `<prefix>.<query id>.<task>.<slot>`, and a prefix may have dots as well.
    listed = transactions.list_open_transactions(client, start)
    ids = [name for name in listed if name.count(".") >= 3]  # noqa: PLR2004
    return [
        TransactionStatus(name, now)
        for name, now in sorted(transactions.describe(client, ids).items())
    ]


def _inspect(
    client: KafkaClient, named: Mapping[str, StagedTransaction], epoch: int | None, start: str
) -> list[TransactionStatus]:
    """Return the transactions that the newest intent names, and other open ones.

    Args:
        client: The client of this process.
        named: Transactions of the newest intent, if it may not be finished, by transactional id.
        epoch: Epoch of that intent.
        start: Prefix of the query's transactional ids.

    Raises:
        KafkaFailedError: If a broker refuses, or does not answer in time.
    """
    now = transactions.describe(client, list(named))
    found = []
    for name, item in named.items():
        outcome = transactions.judge_outcome(item.transaction, now[name])
        found.append(TransactionStatus(name, now[name], epoch, outcome))
    others = [each for each in _list_open(client, start) if each.transactional_id not in named]
    return [*found, *others]


def list_open_lines(bootstrap: str, config: Path | None, prefix: str, query: str) -> list[str]:
    """Return a line for each open transaction.

    Raises:
        OptionError: If a setting is invalid.
        KafkaFailedError: If the cluster refuses, or does not answer.
    """
    client = open_client(KafkaConfig.from_settings(read_kafka_settings(bootstrap, config)))
    return list_open_lines_of(client, f"{prefix}.{query}." if query else f"{prefix}.")


def list_open_lines_of(client: KafkaClient, start: str) -> list[str]:
    """Return a line for each open transaction.

    Args:
        client: The client of this process.
        start: Prefix of the transactional ids.

    Raises:
        KafkaFailedError: If the cluster refuses, or does not answer.
    """
    return [_format(found) for found in _list_open(client, start)]


def abort_job(bootstrap: str, config: Path | None, prefix: str, query: str) -> None:
    """Abort the open transactions of a batch job.

    Raises:
        OptionError: If it is no batch job, or a setting is invalid.
        KafkaFailedError: If the cluster refuses, or does not answer.
    """
    if not query.startswith(BATCH_PREFIX):
        raise OptionError(
            f"{query!r} is not a batch job, whose id starts with {BATCH_PREFIX!r}: open "
            "transactions of a streaming query are for its next driver, or for 'resolve'"
        )
    client = open_client(KafkaConfig.from_settings(read_kafka_settings(bootstrap, config)))
    abort_open(client, f"{prefix}.{query}.", (), lambda: True, rest=IDS_AFTER_QUERY)


@dataclass(frozen=True)
class TransactionAdmin:
    """One query's sink, from the point of view of its next driver.

    Attributes:
        writer: A writer with the options of the command line.
        query: Id of the query.
    """

    writer: KafkaWriter
    query: str

    @classmethod
    def from_options(
        cls,
        bootstrap: str,
        command_config: Path | None,
        prefix: str,
        checkpoint: str,
        given: Mapping[str, str] = MappingProxyType({}),
    ) -> TransactionAdmin:
        """Return the sink for the options of the command line.

        Args:
            bootstrap: Brokers to contact first.
            command_config: File with Kafka's settings.
            prefix: The query's ``kafka.transactional.id``.
            checkpoint: Its ``checkpointLocation``.
            given: Other options of it: ``epochLog``, and those of stores.

        Raises:
            OptionError: If there is no checkpoint or no epoch log, or a setting is invalid.
        """
        values = {
            **given,
            **read_kafka_settings(bootstrap, command_config),
            "checkpointLocation": checkpoint,
            "kafka.transactional.id": prefix,
        }
        options = KafkaSinkOptions.parse(values, "krishiv-spark kafka")
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

    def list_lines(self) -> list[str]:
        """Return a line for each transaction, with what `resolve` does with it."""
        start = f"{self.writer.options.id_prefix}.{self.query}."
        epoch, staged = self.writer.committer().find_unfinished(self.query)
        named = {item.transaction.transactional_id: item for item in staged}
        listed = _inspect(self._client, named, epoch, start)
        return [f"{_format(one)}  {_format_intent(one)}  -> {one.resolution}" for one in listed]

    def resolve(self) -> None:
        """Take the query over: finish its intent, abort other transactions.

        Raises:
            LogError: If the epochs in the log went to another cluster.
            CommitUnknown: If the outcome of a transaction cannot be determined.
            KafkaFailedError: If the cluster refuses, or does not answer.
        """
        self.writer.committer().resolve(self.query)


def read_kafka_settings(bootstrap: str, config: Path | None) -> dict[str, str]:
    """Return options of source and sink for the options of the command line.

    Args:
        bootstrap: Brokers to contact first.
        config: File with Kafka's settings, a ``name=value`` in a line.
    """
    lines = config.read_text().splitlines() if config else []
    named = [line.split("=", 1) for line in lines if "=" in line and not line.startswith("#")]
    given = {f"kafka.{key.strip()}": text.strip() for key, text in named}
    return {**given, "kafka.bootstrap.servers": bootstrap}


def _format(status: TransactionStatus) -> str:
    now = status.now
    partitions = ", ".join(str(tp) for tp in now.partitions[:5])
    return f"{status.transactional_id}  {now.state}  {_format_start(now.started_ms)}  {partitions}"


def _format_start(started_ms: int) -> str:
    if started_ms < 0:
        return "-"
    start = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(started_ms / 1000))
    return f"since {start} UTC"


def _format_intent(status: TransactionStatus) -> str:
    return "no intent" if status.intent is None else f"intent of epoch {status.intent}"
