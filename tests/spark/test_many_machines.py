"""Streams on a cluster whose machines share no folder: all that is kept lies in a store.

What runs on the machines is killed, and the store's server too; each driver begins on a new one.
"""

import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from clusters import ManyMachines
from drivers import Driver
from fault_cases import SPECULATION
from iceberg_catalogs import Place, new_place, postgresql  # noqa: F401  a fixture
from kafka_topics import Onlooker, fill, make_topic
from killers import Killer, assert_each_once
from machines import Machine
from pyiceberg.catalog import load_catalog
from store_objects import Objects
from store_tables import make_onlooker

from krishiv_spark.kafka.dev import open_cluster
from servers.spark_clients import spark_settings
from servers.stores import Store

ROWS, FILES, KILLS = 6_000, 30, 10
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.maxExecutors": "4",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.executor.cores": "1",
}
"""Executors come and go all the time."""


def test_what_a_machine_writes_is_there_on_no_other():
    with Machine("one", "127.0.0.2") as one, Machine("other", "127.0.0.3") as other:
        subprocess.run(one.command("touch", "/tmp/here"), check=True)
        assert [each.path("/tmp/here").exists() for each in (one, other)] == [True, False]
        assert not Path("/tmp/here").exists()
        touched = one.command("touch", __file__)
        said = subprocess.run(touched, check=False, stderr=subprocess.PIPE, text=True).stderr
        assert "Read-only" in said


@dataclass
class Copy:
    """A stream that copies numbers.

    Attributes:
        script: Of its driver.
        job: What the driver is to do.
        numbers: Those that have to arrive.
        found: Those that anybody can read.
        conf: More settings of Spark's.
    """

    script: str
    job: Mapping[str, Any]
    numbers: range
    found: Callable[[], Iterable[int]]
    conf: Mapping[str, str] = field(default_factory=dict)

    def torment(self, store: Store) -> None:
        """Kill all that there is, again and again, until everything is copied; then look."""
        with ManyMachines() as machines:
            conf = {**machines.conf(), **spark_settings(store), **self.conf}
            more = {"executor": machines.kill_executor, "machine": machines.restart_worker}
            if store.restart is not None:
                more["store"] = store.restart
            job = {**self.job, "checkpoint": f"{store.url}/checkpoint", "conf": conf}
            Killer(self.script, job, more=more, machines=machines).run(KILLS)
        assert_each_once(Counter(self.found()), self.numbers, self.script)


@pytest.fixture
def bootstrap():
    """Of a cluster with numbers in a topic."""
    with open_cluster(ours=True) as cluster:  # each test fills its topics
        make_topic(cluster.bootstrap, "source", partitions=4)
        fill(cluster.bootstrap, "source", ROWS)
        yield cluster.bootstrap


def from_kafka(bootstrap: str, **job: Any) -> Mapping[str, Any]:
    return {"bootstrap": bootstrap, "source": "source", "tasks": 4, **job}


def into_parquet(bootstrap: str, store: Store) -> Copy:
    table = f"{store.url}/table"
    sink = {"path": table, **store.options}
    return Copy(
        "kafka_copy.py",
        from_kafka(bootstrap, format="krishiv-parquet", sink=sink),
        range(1, ROWS + 1),
        lambda: [int(row["value"]) for row in make_onlooker(table, store.options).rows()],
    )


def into_kafka(bootstrap: str, store: Store) -> Copy:
    def found() -> list[int]:
        with closing(Onlooker(bootstrap)) as reader:
            return [int(record.value) for record in reader.records("target")]

    make_topic(bootstrap, "target", partitions=4)
    job = from_kafka(bootstrap, target="target", sink=dict(store.options))
    return Copy("kafka_copy.py", job, range(1, ROWS + 1), found, {**DYNAMIC, **SPECULATION})


def into_iceberg(place: Place, store: Store) -> Copy:
    """From files in the store into a table with its files there, and a catalog in a database."""
    files = Objects(store, "in")
    for number in range(FILES):
        ids = pa.array(range(number * ROWS // FILES, (number + 1) * ROWS // FILES), pa.int64())
        files.put_table(f"{number:05}.parquet", pa.table({"id": ids}))
    given = {key: text for key, text in place.options.items() if key != "path"}
    catalog = {**given, "warehouse": f"{store.url}/warehouse", **_client(store)}
    job = {
        "source": files.url,
        "source_options": store.options,
        "files": 1,
        "format": "krishiv-iceberg",
        "table": place.name,
        "sink_options": {**catalog, **store.options},
    }
    return Copy("stream_copy.py", job, range(ROWS), lambda: _ids(place.name, catalog))


def _client(store: Store) -> dict[str, str]:
    """Settings of PyIceberg, by which it reaches the store."""
    said = {name.removeprefix("storage.s3."): text for name, text in store.options.items()}
    names = {"endpoint": "endpoint", "region": "region"}
    names |= {"access-key-id": "accessKeyId", "secret-access-key": "secretAccessKey"}
    return {f"catalog.s3.{name}": said[ours] for name, ours in names.items()}


def _ids(name: str, options: Mapping[str, str]) -> list[int]:
    own = {key.removeprefix("catalog."): text for key, text in options.items()}
    with closing(load_catalog("krishiv", **own)) as catalog:
        return catalog.load_table(name).scan().to_arrow()["id"].to_pylist()


pytestmark = [pytest.mark.crash, pytest.mark.once, pytest.mark.timeout(3600)]


@pytest.mark.long  # four minutes each; what depends on stores and kills is tried without machines
@pytest.mark.parametrize("store", ["versity", "hdfs"], indirect=True)
def test_kills_lose_and_repeat_no_row_of_a_parquet_table(bootstrap, store):
    into_parquet(bootstrap, store).torment(store)


@pytest.mark.long
@pytest.mark.parametrize("store", ["versity"], indirect=True)
def test_kills_lose_and_repeat_no_record_while_executors_come_and_go(bootstrap, store):
    into_kafka(bootstrap, store).torment(store)


@pytest.mark.long
@pytest.mark.parametrize("store", ["versity"], indirect=True)
def test_kills_lose_and_repeat_no_row_of_an_iceberg_table(postgresql, tmp_path, store):  # noqa: F811
    place = new_place("postgresql", tmp_path, {"postgresql": postgresql}.get)
    into_iceberg(place, store).torment(store)


@pytest.mark.long  # what each of them looks at is tried without Spark
@pytest.mark.parametrize("name", ["parquet", "iceberg"])
def test_a_folder_that_each_machine_has_for_itself_is_refused(bootstrap, name):
    own = {"parquet": {"path": "/tmp/work/table"}, "iceberg": {"path": "rows", "warehouse": "/tmp"}}
    given = {"format": f"krishiv-{name}", "sink": own[name], "checkpoint": "/tmp/work/checkpoint"}
    with ManyMachines() as machines:
        job = from_kafka(bootstrap, conf=machines.conf(), **given)
        with Driver("kafka_copy.py", job, machines.new_driver()) as driver:
            driver.wait_for("FAILED")
    assert "that all machines share, or in a store" in driver.lines[-1]
