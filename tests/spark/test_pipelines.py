"""Declarative pipelines whose flows write to each sink that is exactly once."""

import shutil
import uuid
from importlib.util import find_spec

import pyarrow.parquet as pq
import pytest
from connect_server import connect_server
from iceberg_life import table_of
from kafka_topics import Onlooker, make_topic
from pipelines import Pipeline

from krishiv_spark import memory_table
from krishiv_spark.kafka.dev import open_cluster

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        find_spec("pyspark.pipelines") is None, reason="PySpark 4.0 has no pipelines"
    ),
]


@pytest.fixture(scope="module")
def server_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("connect") / "server"


@pytest.fixture(scope="module")
def server(server_folder):
    with connect_server(server_folder) as address:
        yield address


@pytest.fixture(scope="module")
def cluster():
    with open_cluster(ours=True) as found:
        yield found


@pytest.fixture(scope="module")
def onlooker(cluster):
    onlooker = Onlooker(cluster.bootstrap)
    yield onlooker
    onlooker.close()


@pytest.fixture
def pipeline(tmp_path, server):
    return Pipeline(tmp_path / "pipeline", server)


@pytest.fixture
def targets(tmp_path, cluster, onlooker, server_folder, monkeypatch):
    monkeypatch.setenv("KRISHIV_MEMORY_DIR", str(server_folder / "memory"))
    return lambda: Targets(tmp_path, cluster.bootstrap, onlooker)


class Targets:
    """A new target of each format, as a pipeline names it, and what it holds."""

    def __init__(self, folder, bootstrap, onlooker):
        name = f"t-{uuid.uuid4().hex}"
        self._name, self._folder, self._onlooker = name, folder / name, onlooker
        self._bootstrap = bootstrap
        make_topic(bootstrap, name)

    def sinks(self, **more):
        kafka = {"kafka.bootstrap.servers": self._bootstrap, "topic": self._name, **more}
        iceberg = {"warehouse": str(self._folder / "w"), "table": "db.rows", **more}
        return {
            "parquet": sink("krishiv-parquet", {"path": str(self._folder / "p"), **more}),
            "iceberg": sink("krishiv-iceberg", iceberg),
            "kafka": sink("krishiv-kafka", kafka, column="value"),
            "memory": sink("krishiv-memory", {"name": self._name}),
        }

    def held(self):
        """The numbers in all targets, which have the same ones."""
        found = {
            "parquet": pq.read_table(self._folder / "p").column("id").to_pylist(),
            "iceberg": table_of(self._folder / "w").scan().to_arrow().column("id").to_pylist(),
            "kafka": [int(record.value) for record in self._onlooker.records(self._name)],
            "memory": memory_table(self._name).column("id").to_pylist(),
        }
        held = {name: sorted(numbers) for name, numbers in found.items()}
        assert len(set(map(tuple, held.values()))) == 1, held
        return held["parquet"]


def sink(name, options, column="id"):
    return {"format": name, "options": options, "column": column}


def test_runs_and_a_full_refresh_that_nobody_meant_write_each_row_once(pipeline, targets):
    to = targets()
    pipeline.write_to(to.sinks())
    pipeline.feed(range(10))
    pipeline.run()
    assert to.held() == list(range(10))
    assert "a second time" in pipeline.fail("--full-refresh-all")
    assert to.held() == list(range(10))
    for name in ("parquet", "iceberg", "kafka"):  # as the error says
        shutil.rmtree(pipeline.checkpoints(name) / "1")
    pipeline.feed(range(10, 15))
    pipeline.run()
    assert to.held() == list(range(15))


def test_a_full_refresh_that_is_meant_writes_all_rows_into_new_targets(pipeline, targets):
    pipeline.write_to(targets().sinks())
    pipeline.feed(range(10))
    pipeline.run()
    again = targets()
    pipeline.write_to(again.sinks(fullRefresh="1"))
    pipeline.run("--full-refresh-all")
    assert again.held() == list(range(10))
