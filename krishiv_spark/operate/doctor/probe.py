"""The data source that runs the checks in the planner and in tasks, and the checks.

A Kafka cluster has to let the sink write transactions; checkpoint and target have to be reachable
from each machine.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from krishiv_spark.errors import KrishivError, StorageError
from krishiv_spark.offsets.journal import check_exclusive, open_journal
from krishiv_spark.operate.doctor.findings import (
    SYNCHRONISE,
    FindingList,
    Questions,
    Report,
    report,
)
from krishiv_spark.storage import StoreUrl

if TYPE_CHECKING:
    from krishiv_spark.kafka.client import KafkaClient
    from krishiv_spark.sinks.kafka.options import KafkaSinkOptions

__all__ = [
    "DoctorSource",
    "check_brokers",
    "check_checkpoint",
    "check_shared",
    "clean",
    "prepare_target",
]


_REACH_STORES = (
    "give 'storage.…' options (--option), or set the environment on this machine; "
    "docs/storage.md has both"
)
_PROBE = "probe"
_CLOCK = "clock"
_TOLERATED_S = 60  # stores refuse signatures when a clock is 5 to 15 minutes off
_LEAST_FREE = 2**30


def check_checkpoint(asked: Questions, said: FindingList) -> None:
    """Check that the driver can create files exclusively at the checkpoint's location; planner."""
    if asked.checkpoint is None:
        return
    what = f"checkpoint {asked.checkpoint}, from the driver"
    with said.looking_at(what, _REACH_STORES) as well:
        journal = open_journal(str(asked.folder(asked.checkpoint)), asked.storage)
        check_exclusive(journal)
        well("can be written, and creates files exclusively")
        _check_clock(asked, asked.checkpoint, said)
    _check_path(asked.checkpoint, said)


def _check_clock(asked: Questions, location: str, said: FindingList) -> None:
    """Check that the clocks of store and driver agree to a minute."""
    place = asked.folder(location)
    if place.kind == "disk":
        return
    begun_s = time.time()
    asked.storage.folder(place).replace(_CLOCK, b"")
    ended_s = time.time()
    found = asked.storage.files(place).identity(f"{place}/{_CLOCK}")
    if found is None:
        raise StorageError(f"{place}/{_CLOCK} was written, but does not exist")
    written_s = found.modified_ns // 10**9  # smaller units may not be a time (`Identity`)
    behind_s, ahead_s = written_s - ended_s, begun_s - written_s - 1
    if max(behind_s, ahead_s) > _TOLERATED_S:
        off = f"{behind_s:.0f} s behind" if behind_s > 0 else f"{ahead_s:.0f} s ahead of"
        said.wrong(f"{location}: the driver's clock is {off} the store's", SYNCHRONISE)


def _check_path(checkpoint: str, said: FindingList) -> None:
    """Check a checkpoint on a path: its disk may be local to this machine, or full."""
    with suppress(KrishivError, OSError):  # the error is reported already
        url = StoreUrl.parse(checkpoint)
        if url.kind != "disk":
            return
        said.note(
            f"checkpoint {checkpoint} is a path: a driver that is started again on another machine "
            "finds none there unless the folder is mounted on it",
            "where drivers move (YARN, Kubernetes, --supervise), use a store",
        )
        free = shutil.disk_usage(_existing(Path(url.path))).free
        if free < _LEAST_FREE:
            said.wrong(
                f"checkpoint {checkpoint}: {free >> 20} MiB are free", "make room, or use a store"
            )


def _existing(path: Path) -> Path:
    return next(each for each in (path, *path.parents) if each.exists())


def prepare_target(asked: Questions, said: FindingList) -> None:
    """Write a file for the tasks to read, and check that uploads are allowed. Planner."""
    if asked.target is None:
        return
    with said.looking_at(f"target {asked.target}, from the driver", _REACH_STORES) as well:
        place = asked.folder(asked.target)
        asked.storage.folder(place).replace(_PROBE, asked.probe.encode())
        if place.kind != "disk":
            asked.storage.uploads(place).verify()
        well("can be written")
        _check_clock(asked, asked.target, said)


def check_shared(asked: Questions, said: FindingList) -> None:
    """Check that a task finds the driver's file, and can write next to it; executor."""
    if asked.target is None:
        return
    with said.looking_at(f"target {asked.target}", _REACH_STORES) as well:
        folder = asked.storage.folder(asked.folder(asked.target))
        if folder.read(_PROBE) != asked.probe.encode():
            raise StorageError("the file that the driver has written does not exist")
        well("files of the driver are visible")


def clean(asked: Questions) -> None:
    """Remove the temporary folders. Planner; unreachable locations are reported already."""
    for place in (asked.checkpoint, asked.target):
        with suppress(KrishivError, OSError):
            if place is not None:
                asked.storage.folder(asked.folder(place)).destroy()


_REACH_BROKERS = "let this machine reach every broker at the address that it advertises"
_TV2 = (
    "with brokers from 4.0 on: kafka-features.sh --bootstrap-server … upgrade --feature "
    "transaction.version=2"
)


def check_reachable(asked: Questions, said: FindingList) -> None:
    """Check that a task reaches the cluster; executor."""
    if not asked.kafka:
        return
    with said.looking_at("Kafka", _REACH_BROKERS) as well:
        client = _client(_options(asked))
        well(f"cluster {client.fetch_cluster_id()} answers")


def check_brokers(asked: Questions, said: FindingList) -> None:
    """Check the driver's rights: to start, describe and list transactions, and to write a topic."""
    if not asked.kafka:
        return
    with said.looking_at("Kafka, from the driver", _REACH_BROKERS):
        options = _options(asked)
        client = _client(options)
        said.ok(f"Kafka, from the driver: cluster {client.fetch_cluster_id()} responds")
        is_new = _check_rules(client, said)
        _check_ids(client, options, asked.probe, said)
        _check_topic(client, options, said, reads=not is_new)


def _options(asked: Questions) -> KafkaSinkOptions:
    from krishiv_spark.sinks.kafka.options import KafkaSinkOptions

    return KafkaSinkOptions.parse(asked.kafka, "krishiv-kafka")


def _client(options: KafkaSinkOptions) -> KafkaClient:
    from krishiv_spark.kafka.client import open_client

    return open_client(options.kafka)


def _check_rules(client: KafkaClient, said: FindingList) -> bool:
    """Report whether the cluster supports the transactions of KIP-890."""
    from krishiv_spark.kafka.transaction_requests import TransactionVersion
    from krishiv_spark.kafka.transactions import get_transaction_version

    is_new = get_transaction_version(client) is TransactionVersion.TV2
    if is_new:
        said.ok("Kafka: transaction.version is 2")
    else:
        said.note("Kafka: transaction.version is below 2: exact, with more requests", _TV2)
    return is_new


def _check_ids(
    client: KafkaClient, options: KafkaSinkOptions, probe: str, said: FindingList
) -> None:
    """Initialize a transactional id as tasks do; describe and list it as drivers do.

    The id has a random part, since an id in use by another doctor would be fenced. Nothing is
    written under it, so no transaction is open, and brokers let it expire.
    """
    from krishiv_spark.kafka import transactions

    start = f"{options.id_prefix}."
    advice = (
        f"allow WRITE and DESCRIBE on the transactional ids that start with {start!r} "
        "(kafka-acls.sh --resource-pattern-type prefixed), or set another "
        "'kafka.transactional.id'"
    )
    name = f"{start}doctor-{probe}.0.0"
    with said.looking_at(f"Kafka, transactional ids {start}…", advice) as well:
        transactions.begin_transaction(client, name, options.timeout_ms)
        transactions.describe(client, [name])
        transactions.list_transactions(client, name)
        well(f"can be started, for {options.timeout_ms / 1000:g} s, described and listed")


def _check_topic(
    client: KafkaClient, options: KafkaSinkOptions, said: FindingList, *, reads: bool
) -> None:
    from krishiv_spark.sinks.kafka.target_topics import fetch_writable_topic

    if options.topic is None:
        return
    advice = "create it, or allow the user to write it"
    with said.looking_at(f"Kafka, topic {options.topic}", advice) as well:
        found = fetch_writable_topic(client, options.topic, reads=reads)
        well(f"can be written, {len(found.leaders)} partitions")


_HELD_S = 1.0
"""Time for which a task occupies its core, so that one executor does not run all tasks."""


class DoctorSource(DataSource):
    """A source of reports as JSON, one per row: of the planner, and of each task."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format. Spark."""
        return "krishiv-doctor"

    def schema(self) -> str:
        """Return the schema: one column. Spark."""
        return "report string"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader. Spark: planner."""
        del schema
        return _DoctorReader(Questions.of(self.options))


@dataclass
class _Asked(InputPartition):
    planner: str | None = None


class _DoctorReader(DataSourceReader):
    def __init__(self, asked: Questions) -> None:
        self._asked = asked

    def partitions(self) -> Sequence[InputPartition]:
        if self._asked.cleans:
            clean(self._asked)
            return [_Asked("")]
        others = [_Asked() for _ in range(self._asked.tasks - 1)]
        return [_Asked(_of_driver(self._asked).model_dump_json()), *others]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        assert isinstance(partition, _Asked)
        if partition.planner:
            yield (partition.planner,)
        if not self._asked.cleans:
            yield (_of_task(self._asked).model_dump_json(),)


def _of_driver(asked: Questions) -> Report:
    begun_s, said = time.time(), FindingList()
    check_checkpoint(asked, said)
    prepare_target(asked, said)
    check_brokers(asked, said)
    return report("driver", begun_s, said.found)


def _of_task(asked: Questions) -> Report:
    begun_s, said = time.time(), FindingList()
    check_shared(asked, said)
    check_reachable(asked, said)
    time.sleep(max(0.0, begun_s + _HELD_S - time.time()))
    return report("task", begun_s, said.found)
