"""A broker of its own for the benchmarks, its topics, and what they should hold."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import each_once, expect

__all__ = [
    "MOST_AT_ONCE",
    "NUMBER",
    "OURS",
    "PARTITIONS",
    "PLAIN",
    "SINKS",
    "THEIRS",
    "Topics",
    "columns",
    "format_of",
    "open_topics",
]

OURS, THEIRS = "krishiv-kafka", "kafka"
PLAIN = f"{OURS}, at least once"
SINKS: Mapping[str, Mapping[str, str]] = {
    THEIRS: {},
    OURS: {},
    PLAIN: {"delivery": "at-least-once"},
}
"""By what they are called, which begins with the format: the options of the writer."""

PARTITIONS = 4
NUMBER = "cast(substring(cast(value AS string), 1, 10) AS bigint)"
"""The number that a value begins with."""

_DIGITS = 10
_JAVA = "-XX:TieredStopAtLevel=4 -Xmx1g"
"""A broker for tests is there quickly; one that is measured has to be compiled to the end."""

_SETTINGS = {"log.segment.delete.delay.ms": "500", "log.initial.task.delay.ms": "500"}
_PATIENCE_MS = 120_000
MOST_AT_ONCE = 5_000  # partitions, made by one request
_ENDING = ("PrepareCommit", "PrepareAbort")
_LIMITS: dict[str, Any] = {"bootstrap_timeout_ms": 30_000, "request_timeout_ms": _PATIENCE_MS}


@dataclass(frozen=True)
class Topics:
    """Topics on one broker.

    Attributes:
        bootstrap: Where it is.
    """

    bootstrap: str

    @property
    def cluster(self) -> dict[str, str]:
        """The option that names the broker, in Spark's connector and in ours."""
        return {"kafka.bootstrap.servers": self.bootstrap}

    @contextmanager
    def topic(self, partitions: int = PARTITIONS) -> Iterator[str]:
        """Create a temporary topic."""
        name = self.make(partitions)
        try:
            yield name
        finally:
            self._admin("delete_topics", [name])

    def make(self, partitions: int) -> str:
        """Create a new topic."""
        name = f"bench-{uuid.uuid4().hex[:8]}"
        self._admin("create_topics", _spec(name, partitions))
        self._admin("wait_for_topics", [name], timeout_ms=_PATIENCE_MS)
        return name

    @contextmanager
    def several(self, count: int, partitions: int) -> Iterator[list[str]]:
        """So many new topics that are gone afterwards."""
        names = [f"bench-{uuid.uuid4().hex[:8]}" for _ in range(count)]
        for together in _requests(names, partitions):
            given = {
                name: spec for one in together for name, spec in _spec(one, partitions).items()
            }
            self._admin("create_topics", given)
        self._admin("wait_for_topics", names, timeout_ms=_PATIENCE_MS)
        yield names
        # Not after an error: the broker may be what has failed, and that shall be seen.
        self._admin("delete_topics", names)

    def put_one(self, names: Mapping[str, int]) -> None:
        """Add a record to each partition of some topics, which have so many."""
        from kafka import KafkaProducer

        producer = KafkaProducer(bootstrap_servers=self.bootstrap, max_block_ms=_PATIENCE_MS)
        try:
            for name, partitions in names.items():
                for number in range(partitions):
                    producer.send(name, b"one", partition=number)
            producer.flush(_PATIENCE_MS / 1000)
        finally:
            producer.close()

    def put(self, name: str, records: int) -> None:
        """So many records into the first partition of a topic."""
        from kafka import KafkaProducer

        producer = KafkaProducer(bootstrap_servers=self.bootstrap, max_block_ms=_PATIENCE_MS)
        try:
            for number in range(records):
                producer.send(name, b"%010d" % number, partition=0)
            producer.flush(_PATIENCE_MS / 1000)
        finally:
            producer.close()

    def settle(self) -> None:
        """Wait until the broker has written to the partitions of each transaction how it ended."""
        until = time.monotonic() + _PATIENCE_MS / 1000
        while any(self._admin("list_transactions", state_filters=_ENDING).values()):
            expect("transactions end to the end", time.monotonic() < until, wanted=True)
            time.sleep(0.05)

    def _admin(self, work: str, *args: Any, **more: Any) -> Any:
        from kafka import KafkaAdminClient

        client = KafkaAdminClient(bootstrap_servers=self.bootstrap, **_LIMITS)
        try:
            return getattr(client, work)(*args, **more)
        finally:
            client.close()

    def fill(self, spark: Any, name: str, rows: int, size: int) -> None:
        """Fill a topic as other programs do: with the batches of Java's producer, by default."""
        source = spark.range(0, rows, 1, 2).selectExpr(*columns("id", size))
        source.write.format(THEIRS).options(**self.cluster, topic=name).mode("append").save()
        self.verify(spark, name, rows)

    def verify(self, spark: Any, name: str, rows: int, *, exactly: bool = True) -> None:
        """Check that a topic holds the numbers up to `rows`, each once, for Spark's own reader.

        Args:
            spark: The session.
            name: The topic.
            rows: How many rows.
            exactly: Whether none may be there twice.
        """
        found = self._read(spark, name).selectExpr(f"{NUMBER} AS n")
        found = found if exactly else found.distinct()
        row = found.selectExpr("count(*)", "coalesce(sum(n), 0)").first()
        expect(f"{name}, rows and sum", tuple(row), each_once(rows))

    def stream(self, spark: Any, kind: str, name: str, **more: str) -> Any:
        """Rows of committed transactions in a topic, from the first one on."""
        given = {"subscribe": name, "startingOffsets": "earliest", **self.cluster, **more}
        reader = spark.readStream.format(kind).options(**given)
        return reader.option("kafka.isolation.level", "read_committed").load()

    def count(self, spark: Any, name: str) -> int:
        """Return the number of different numbers that a topic holds, for Spark's own reader."""
        return int(self._read(spark, name).selectExpr(NUMBER).distinct().count())

    def _read(self, spark: Any, name: str) -> Any:
        reader = spark.read.format(THEIRS).options(**self.cluster, subscribe=name)
        return reader.option("kafka.isolation.level", "read_committed").load()


def _spec(name: str, partitions: int) -> Mapping[str, Any]:
    return {name: {"num_partitions": partitions, "replication_factor": 1}}


def _requests(names: Sequence[str], partitions: int) -> Iterator[Sequence[str]]:
    """Topics that are made by one request each: a broker takes long for more partitions."""
    each = max(MOST_AT_ONCE // partitions, 1)
    for begin in range(0, len(names), each):
        yield names[begin : begin + each]


def format_of(name: str) -> str:
    """Return the format of a sink in `SINKS`."""
    return name.partition(",")[0]


def columns(number: str, size: int) -> tuple[str, str]:
    """Return a key of ten bytes and a value of so many, which starts with its number."""
    digits = f"lpad(cast({number} AS string), {_DIGITS}, '0')"
    text = "a customer and where they live, what they bought, and when; ".ljust(size, ".")
    return f"{digits} AS key", f"concat({digits}, '{text[: size - _DIGITS]}') AS value"


@contextmanager
def open_topics(folder: Path, **settings: str) -> Iterator[Topics]:
    """Bring a broker up, as it would run elsewhere, and end it.

    Args:
        folder: Its data lie there.
        settings: More server properties, with ``_`` for ``.``.
    """
    from krishiv_spark.kafka.dev import open_cluster

    given = {key.replace("_", "."): value for key, value in settings.items()}
    home = folder / f"kafka-{uuid.uuid4().hex[:8]}"
    with ExitStack() as stack:
        made = open_cluster(ours=True, folder=home, settings={**_SETTINGS, **given})
        with _java_options():
            cluster = stack.enter_context(made)
        yield Topics(cluster.bootstrap)


@contextmanager
def _java_options() -> Iterator[None]:
    os.environ["_JAVA_OPTIONS"] = _JAVA  # these go before those of the command line
    try:
        yield
    finally:
        del os.environ["_JAVA_OPTIONS"]
