"""The state that live systems report of a query: its lag, its schemas and its invisible rows.

This module only reads. A state that cannot be determined is reported, and is not an error, since
the other states are still useful.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from krishiv_spark.errors import KrishivError
from krishiv_spark.operate.inspection.pinned_schemas import compare_schemas
from krishiv_spark.operate.inspection.positions import offsets_by_topic
from krishiv_spark.operate.inspection.query_status import (
    CheckpointStatus,
    EpochStatus,
    list_file_sizes,
)
from krishiv_spark.parquet.layout import DONE_SUFFIX, META
from krishiv_spark.storage import Storage, StoreUrl

if TYPE_CHECKING:
    from krishiv_spark.sources.kafka.options import KafkaSourceOptions

__all__ = ["LiveStatus", "TopicLag", "inspect_live_systems", "topic_options"]

_TOPICS_SAID = {"subscribe", "subscribepattern", "assign", "topic", "kafka.topic"}
_ID, _ID_BY_DEFAULT = "kafka.transactional.id", "krishiv"
_CLUSTER = ("kafka.bootstrap.servers", "bootstrap.servers")


@dataclass(frozen=True)
class TopicLag:
    """The number of records by which a topic is ahead of a query.

    Attributes:
        source: The name or index of the source.
        topic: A topic that the source reads.
        partitions: Number of partitions that the query has read.
        waiting: Number of offsets after the query's newest epoch in these partitions.
        held_back: Number of offsets after those, which open transactions block.
    """

    source: str
    topic: str
    partitions: int
    waiting: int
    held_back: int = 0


@dataclass(frozen=True)
class LiveStatus:
    """The reports of live systems.

    Attributes:
        lags: The lag of sources that read topics of Kafka, if the options connect to the cluster.
        transactions: A line for each open transaction of the query; None if it was not requested.
        staged_files: Number of files in the table that are invisible to readers; None if it was not
            requested.
        staged_bytes: Size of these files.
        schemas: A line for each schema of a registry with which the query reads.
        unknown: States that could not be determined, with the reason.
    """

    lags: tuple[TopicLag, ...] = ()
    transactions: tuple[str, ...] | None = None
    staged_files: int | None = None
    staged_bytes: int | None = None
    schemas: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def inspect_live_systems(
    status: CheckpointStatus, given: Mapping[str, str], *, table: str | None = None
) -> LiveStatus:
    """Read the state from the live systems. Any process that reaches them.

    Args:
        status: The state of the query by its folders.
        given: Options of its source and sink, with the connection to Kafka, the schema registry
            and the store of the table.
        table: The folder of the table, if the sink is krishiv-parquet.

    Raises:
        OptionError: If an option is unknown, or its reference cannot be resolved.
    """
    unknown: list[str] = []
    lags: tuple[TopicLag, ...] = ()
    transactions = None
    if _CLUSTER[0] in _lower(given) or _CLUSTER[1] in _lower(given):
        try:
            lags = () if status.newest is None else tuple(_lags(status.newest, given))
            transactions = _transactions(status, given)
        except KrishivError as error:
            if isinstance(error, ValueError):  # an option
                raise
            unknown.append(f"Kafka: {error}")
    schemas: tuple[str, ...] = ()
    if status.newest is not None:
        try:
            schemas = tuple(compare_schemas(status.newest.offsets, given))
        except KrishivError as error:
            if isinstance(error, ValueError):  # an option
                raise
            unknown.append(f"schemas: {error}")
    staged = (
        None
        if table is None
        else _list_staged_sizes(Storage.for_query(given).also_at(table), table, status.query)
    )
    return LiveStatus(
        lags,
        transactions,
        None if staged is None else len(staged),
        None if staged is None else sum(staged),
        schemas,
        tuple(unknown),
    )


def _lags(epoch: EpochStatus, given: Mapping[str, str]) -> Iterator[TopicLag]:
    from krishiv_spark.kafka.client import open_client
    from krishiv_spark.kafka.list_offsets import list_offsets
    from krishiv_spark.kafka.topic_partition import LATEST, TopicPartition

    for source, text in epoch.offsets.items():
        at = _parse_offsets(text)
        if not at:
            continue
        options = topic_options(given, at)
        places = {
            TopicPartition(topic, p): n for topic, each in at.items() for p, n in each.items()
        }
        client = open_client(options.kafka, at_start=True)
        asked = dict.fromkeys(places, LATEST)
        newest = list_offsets(client, asked, committed=options.committed)
        ends = list_offsets(client, asked, committed=False) if options.committed else newest
        for topic, each in sorted(at.items()):
            read = {TopicPartition(topic, p): n for p, n in each.items()}
            waiting = sum(max(newest[tp].offset - n, 0) for tp, n in read.items())
            held = sum(max(ends[tp].offset - newest[tp].offset, 0) for tp in read)
            yield TopicLag(source, topic, len(each), waiting, held)


def _parse_offsets(text: str) -> dict[str, dict[int, int]]:
    try:
        return offsets_by_topic(json.loads(text))
    except ValueError:
        return {}


def topic_options(
    given: Mapping[str, str], at: Mapping[str, Mapping[int, int]] | None = None
) -> KafkaSourceOptions:
    """Return the options of a source that reads the topics of a position.

    Args:
        given: Options with the connection to the cluster. Topics among them are ignored.
        at: Offsets by topic and partition; None for a client that reads no topic.

    Raises:
        OptionError: If an option is invalid.
    """
    from krishiv_spark.sources.kafka.options import KafkaSourceOptions

    left_out = {*_TOPICS_SAID, _ID}
    own = {key: text for key, text in given.items() if key.lower() not in left_out}
    assigned = {topic: list(each) for topic, each in (at or {"-": {0: 0}}).items()}
    said = {**KafkaSourceOptions.select(own), "assign": json.dumps(assigned)}
    return KafkaSourceOptions.parse(said, "krishiv-spark status")


def _transactions(status: CheckpointStatus, given: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return lines for open transactions; None if the query does not write to this cluster."""
    from krishiv_spark.kafka.client import open_client
    from krishiv_spark.sinks.kafka.admin import list_open_lines_of

    if status.log is None or "Kafka cluster" not in (status.log.target or ""):
        return None
    client = open_client(topic_options(given).kafka, at_start=True)
    if client.fetch_cluster_id() not in (status.log.target or ""):
        return None
    prefix = _lower(given).get(_ID, _ID_BY_DEFAULT)
    return tuple(list_open_lines_of(client, f"{prefix}.{status.query}."))


def _list_staged_sizes(storage: Storage, table: str, query: str) -> list[int] | None:
    """Return the sizes of staged files; None in stores where staged data is not a file."""
    place = StoreUrl.parse(table) / META / query / "staged"
    if place.kind != "disk":
        return None
    try:
        names = [entry.name for entry in storage.files(place).entries(str(place))]
    except FileNotFoundError:
        return []
    # Their files are visible.
    generations = (name for name in names if not name.endswith(DONE_SUFFIX))
    return [size for name in generations for size in list_file_sizes(storage, place / name)]


def _lower(given: Mapping[str, str]) -> dict[str, str]:
    return {key.lower(): text for key, text in given.items()}
