"""Streams whose checkpoints and epoch logs lie on stores, by Spark's own clients and by ours.

The driver is killed, and a second one takes over from one that sleeps.
"""

import re
import signal
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import duckdb
import pytest
from drivers import Driver
from iceberg_life import TABLE, table_of
from kafka_topics import Onlooker, fill, make_topic
from killers import assert_each_once
from patience import PATIENCE

from krishiv_spark.kafka.dev import open_cluster
from servers.spark_clients import spark_settings
from servers.stores import OPENED, Store

ROWS, AT_A_TIME = 400, 100
SINKS = ("kafka", "iceberg", "parquet")
TWO_DRIVERS = (
    "two drivers",
    "another driver",
    "CONCURRENT_STREAM_LOG_UPDATE",
    "Multiple streaming queries are concurrently using",
    # An entry of Spark's log, to a name that is taken: by Hadoop's `FileSystem.rename`, for Azure.
    r"rename from \S.*/(offsets|commits)/\.(\d+)\.\S+\.tmp to \S.*/\1/\2 failed\.",
)
"""Patterns of the errors of a driver that another one has overtaken, of this package or of
Spark."""

TIMED_OUT = "perform latestOffset"
"""Of a source that was asking the brokers when its driver fell asleep: the clock ran on."""


class Copies:
    """Three streams from one topic, by one driver, with their checkpoints on a store."""

    def __init__(self, bootstrap: str, folder: Path, store: Store) -> None:
        self.bootstrap, self.folder, self.store = bootstrap, folder, store
        for topic in ("source", "target"):
            make_topic(bootstrap, topic, partitions=2)
        fill(bootstrap, "source", ROWS)

    def driver(self, **more: str) -> Driver:
        """One driver; what is given goes before the options by which the store is reached."""
        job = {
            "bootstrap": self.bootstrap,
            "source": "source",
            "rows": AT_A_TIME,
            "conf": spark_settings(self.store),
            "sinks": {name: self._sink(name, more) for name in SINKS},
        }
        return Driver("kafka_copies.py", job)

    def _sink(self, name: str, more: Mapping[str, str]) -> dict[str, str]:
        log = f"{self.store.url}/logs/{name}"
        own = {
            "kafka": {"kafka.bootstrap.servers": self.bootstrap, "topic": "target"},
            "iceberg": {"path": TABLE, "warehouse": str(self.folder / "warehouse")},
            "parquet": {"path": str(self.folder / "table"), "epochLog": log},
        }
        where = {"checkpointLocation": f"{self.store.url}/checkpoints of/{name}"}
        return {"format": f"krishiv-{name}", **own[name], **self.store.options, **more, **where}

    def found(self) -> dict[str, list[int]]:
        """By sink, the rows that anybody can read."""
        readers = (self._of_topic, self._of_iceberg, self._of_parquet)
        return {name: read() for name, read in zip(SINKS, readers, strict=True)}

    def _of_topic(self) -> list[int]:
        with closing(Onlooker(self.bootstrap)) as onlooker:
            return [int(record.value) for record in onlooker.records("target")]

    def _of_iceberg(self) -> list[int]:
        if not (self.folder / "warehouse").exists():
            return []
        return [int(n) for n in table_of(self.folder / "warehouse").scan().to_arrow()["value"]]

    def _of_parquet(self) -> list[int]:
        if not any((self.folder / "table").glob("**/*.parquet")):
            return []
        glob = f"{self.folder}/table/**/*.parquet"
        return [int(n) for (n,) in duckdb.sql(f"FROM read_parquet('{glob}')").fetchall()]

    def assert_exact(self) -> None:
        for name, found in self.found().items():
            assert_each_once(Counter(found), range(ROWS), name)


class NamedCopies(Copies):
    """Their checkpoints lie where Spark alone can read them: S3 by a scheme that nobody knows."""

    _place = "checkpoints"

    def driver(self, **more: str) -> Driver:
        self.store.hadoop["fs.cosn.impl"] = "org.apache.hadoop.fs.s3a.S3AFileSystem"
        return super().driver(**more)

    def forget_checkpoints(self) -> None:
        """The next ones lie elsewhere, as those of new queries."""
        self._place = "new checkpoints"

    def _sink(self, name: str, more: Mapping[str, str]) -> dict[str, str]:
        found = super()._sink(name, {"queryId": f"copy-{name}", **more})
        if name == "kafka":
            found["epochLog"] = f"{self.store.url}/logs/{name}"
        found["checkpointLocation"] = f"cosn://box/{self._place}/{name}"
        return found


def failed(driver: Driver) -> dict[str, str]:
    """By sink, why its stream failed."""
    lines = (line.split(" ", 2) for line in driver.lines if line.startswith("FAILED"))
    return {name: why.partition("terminated with exception: ")[2] for _, name, why in lines}


@pytest.fixture
def bootstrap():
    with open_cluster(ours=True) as cluster:  # each test fills its topics
        yield cluster.bootstrap


@pytest.fixture
def copies(bootstrap, store, tmp_path):
    return Copies(bootstrap, tmp_path, store)


@pytest.fixture
def named_copies(bootstrap, store, tmp_path):
    return NamedCopies(bootstrap, tmp_path, store)


@pytest.mark.crash
@pytest.mark.once
@pytest.mark.long  # 100 s; the rest of it is in tests/unit/test_named_queries.py
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_rows_are_exact_when_only_spark_can_read_the_checkpoint(named_copies):
    with named_copies.driver() as killed:
        killed.wait_for("EPOCH")
        killed.kill()
    with named_copies.driver() as successor:
        successor.wait_for("DONE")
        assert failed(successor) == {}
    named_copies.assert_exact()
    named_copies.forget_checkpoints()
    with named_copies.driver() as new:
        new.wait_for("DONE")
        why = failed(new)
    assert set(why) == set(SINKS), why
    assert all("is taken" in text for text in why.values()), why
    named_copies.assert_exact()


@pytest.mark.crash
@pytest.mark.once
@pytest.mark.long  # 100 s of a processor for each store; what the planner reads is in tests/stores
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("store", OPENED, indirect=True)
def test_rows_are_exact_when_drivers_die_or_sleep(copies):
    with copies.driver() as killed:
        killed.wait_for("EPOCH")
        killed.kill()
    with copies.driver() as sleeper:
        sleeper.wait_for("EPOCH")
        sleeper.signal(signal.SIGSTOP)
        with copies.driver() as successor:
            successor.wait_for("DONE")
            assert failed(successor) == {}
        copies.assert_exact()
        sleeper.signal(signal.SIGCONT)
        sleeper.wait_for("DONE", PATIENCE)
        refused = failed(sleeper)
    assert set(refused) == set(SINKS), refused
    for why in refused.values():
        assert any(re.search(words, why) for words in (*TWO_DRIVERS, TIMED_OUT)), why
    copies.assert_exact()
