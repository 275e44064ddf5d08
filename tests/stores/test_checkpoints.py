"""Spark's checkpoints on each store, as the planner of a sink reads them."""

import json
import pickle
import uuid

import pytest
from click.testing import CliRunner
from forgetting_proxy import forgetting
from pyspark.sql.types import LongType, StructField, StructType

from krishiv_spark.cli import main
from krishiv_spark.errors import CheckpointMismatch
from krishiv_spark.formats import ParquetDataSource
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.offsets import open_log
from krishiv_spark.sinks.kafka.options import KafkaSinkOptions
from krishiv_spark.sinks.kafka.participant import KafkaParticipant
from krishiv_spark.spark.checkpoint import SparkCheckpoint
from krishiv_spark.storage import Storage

SCHEMA = StructType([StructField("id", LongType())])
QUERY = str(uuid.uuid4())


def begun(store) -> str:
    """A checkpoint of which Spark has planned the first epoch; two files that it writes."""
    folder, url = Storage.of(store.options), f"{store.url}/a checkpoint"
    folder.folder(url).create("metadata", json.dumps({"id": QUERY}).encode())
    folder.folder(f"{url}/offsets").create("0", b'v1\n{}\n{"end":1}')
    return url


def planned(store, table, options) -> bytes:
    """Return the plan of Spark's planner before the first task of an epoch."""
    given = {"path": str(table), "checkpointLocation": begun(store), **options}
    source = ParquetDataSource({**given, "epochLog": f"{store.url}/log"})
    return pickle.dumps(source.streamWriter(SCHEMA, overwrite=False))


def test_a_query_is_known_by_its_checkpoint(store):
    checkpoint = SparkCheckpoint(begun(store), Storage.of(store.options))
    assert checkpoint.query_id() == QUERY
    assert checkpoint.planned_offsets().epoch == 0
    assert checkpoint.is_committed(0) is False
    assert checkpoint.has_commits() is False


def test_the_id_of_a_query_is_stored_and_another_one_is_refused(store, tmp_path):
    checkpoint = SparkCheckpoint(begun(store), Storage.of(store.options))
    assert planned(store, tmp_path / "table", store.options)
    assert checkpoint.folder("krishiv").read("query-id.json") == f'{{"id":"{QUERY}"}}\n'.encode()
    checkpoint.folder().replace("metadata", b'{"id":"made-by-spark"}')
    with pytest.raises(CheckpointMismatch, match=f'one line is {{"id":"{QUERY}"}}'):
        checkpoint.query_id()


def test_an_epoch_is_planned(store, tmp_path):
    assert planned(store, tmp_path / "table", store.options)
    log = Storage.of(store.options).folder(f"{store.url}/log/{QUERY}")
    assert list(log.names()) == [f"{1:020}.json"]


@pytest.mark.xdist_group("s3")
def test_a_store_that_forgets_the_condition_is_refused_before_the_first_row(servers, tmp_path):
    store = servers("s3")
    with forgetting("If-None-Match", store.options["storage.s3.endpoint"]) as proxy:
        forgetful = {**store.options, "storage.s3.endpoint": proxy}
        with pytest.raises(PlanningFailed, match=r"LogError: .*does not create exclusively"):
            planned(store, tmp_path / "table", forgetful)
    assert not list(Storage.of(store.options).folder(f"{store.url}/log/{QUERY}").names())
    assert not list((tmp_path / "table").glob("**/*.parquet"))


def test_an_operator_reaches_it(store):
    command = ["kafka", "transactions", "show", "--bootstrap", "127.0.0.1:9"]
    options = [text for pair in store.options.items() for text in ("-o", "=".join(pair))]
    said = CliRunner().invoke(main, [*command, "--checkpoint", begun(store), *options])
    assert f"query {QUERY} has no epoch log in {store.url}" in said.output


def test_logs_of_dead_jobs_are_removed(store, monkeypatch):
    monkeypatch.setattr("krishiv_spark.sinks.kafka.participant._DEAD_AFTER_S", -1.0)
    base, storage = f"{store.url}/logs", Storage.of(store.options)
    open_log(f"{base}/batch-dead", storage=storage).begin()
    given = {"kafka.bootstrap.servers": "127.0.0.1:9", "epochLog": base, **store.options}
    options = KafkaSinkOptions.parse(given, "krishiv-kafka")
    participant = KafkaParticipant(options, lambda _: True, streaming=False)
    participant.sweep("batch-next", 1, clean=True)
    assert not list(storage.folder(base).names())
