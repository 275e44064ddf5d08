"""Whether a Kafka cluster lets the sink do what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from krishiv_spark.operate.doctor.findings import Findings
from krishiv_spark.operate.doctor.questions import Questions

if TYPE_CHECKING:
    from krishiv_spark.kafka.client import Client
    from krishiv_spark.sinks.kafka.options import KafkaSinkOptions

__all__ = ["check_brokers", "check_reachable"]

_REACH = "let this machine reach every broker at the address that it advertises"
_TV2 = (
    "with brokers from 4.0 on: kafka-features.sh --bootstrap-server … upgrade --feature "
    "transaction.version=2"
)


def check_reachable(asked: Questions, said: Findings) -> None:
    """A task reaches the cluster. Executor."""
    if not asked.kafka:
        return
    with said.looking_at("Kafka", _REACH) as well:
        client = _client(_options(asked))
        well(f"cluster {client.cluster_id()} answers")


def check_brokers(asked: Questions, said: Findings) -> None:
    """The driver may do what the sink does: begin, see and list transactions, write a topic."""
    if not asked.kafka:
        return
    with said.looking_at("Kafka, from the driver", _REACH):
        options = _options(asked)
        client = _client(options)
        said.ok(f"Kafka, from the driver: cluster {client.cluster_id()} answers")
        is_new = _check_rules(client, said)
        _check_ids(client, options, asked.probe, said)
        _check_topic(client, options, said, reads=not is_new)


def _options(asked: Questions) -> KafkaSinkOptions:
    from krishiv_spark.sinks.kafka.options import KafkaSinkOptions

    return KafkaSinkOptions.parse(asked.kafka, "krishiv-kafka")


def _client(options: KafkaSinkOptions) -> Client:
    from krishiv_spark.kafka.client import open_client

    return open_client(options.kafka)


def _check_rules(client: Client, said: Findings) -> bool:
    """Whether the cluster has the rules of KIP-890."""
    from krishiv_spark.kafka.transactions import TransactionVersion, transaction_version

    is_new = transaction_version(client) is TransactionVersion.TV2
    if is_new:
        said.ok("Kafka: transaction.version is 2")
    else:
        said.note("Kafka: transaction.version is below 2: exact, with more requests", _TV2)
    return is_new


def _check_ids(client: Client, options: KafkaSinkOptions, probe: str, said: Findings) -> None:
    """Initialize a transactional id as tasks do, describe it and list it as drivers do.

    The id has a random part: another doctor, of another team too, would be fenced by the same one.
    Nothing is written under it, so no transaction is open, and brokers let it expire.
    """
    from krishiv_spark.kafka import transactions

    start = f"{options.id_prefix}."
    advice = (
        f"allow WRITE and DESCRIBE on the transactional ids that begin with {start!r} "
        "(kafka-acls.sh --resource-pattern-type prefixed), or give another 'kafka.transactional.id'"
    )
    name = f"{start}doctor-{probe}.0.0"
    with said.looking_at(f"Kafka, transactional ids {start}…", advice) as well:
        transactions.begin(client, name, options.timeout_ms)
        transactions.describe(client, [name])
        transactions.known(client, name)
        well(f"can be begun, for {options.timeout_ms / 1000:g} s, seen and listed")


def _check_topic(client: Client, options: KafkaSinkOptions, said: Findings, *, reads: bool) -> None:
    from krishiv_spark.sinks.kafka.topics import writable_topic

    if options.topic is None:
        return
    advice = "create it, or allow the user to write it"
    with said.looking_at(f"Kafka, topic {options.topic}", advice) as well:
        found = writable_topic(client, options.topic, reads=reads)
        well(f"can be written, {len(found.leaders)} partitions")
