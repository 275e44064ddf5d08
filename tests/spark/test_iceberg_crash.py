"""Streams from Kafka and from Parquet to Iceberg; their drivers and Python workers are killed."""

import uuid
from collections import Counter
from pathlib import Path

import duckdb
import pytest
from iceberg_life import TABLE, table_of
from java_iceberg import JavaTables
from kafka_topics import fill, make_topic
from killers import Killer, assert_each_once
from tables import make_input

from krishiv_spark.kafka.dev import open_cluster

KILLS = 2  # of the driver, and of a worker
RECORDS = 2_400
FILES, ROWS = 30, 50


def into(folder: Path) -> dict[str, object]:
    """Return the common part of the jobs of both tests."""
    return {
        "format": "krishiv-iceberg",
        "checkpoint": str(folder / "checkpoint"),
        "conf": {"spark.master": "local[2,8]"},  # a task whose worker was killed is tried again
    }


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    return tmp_path / "warehouse"


# --- readers that know nothing of us


def read_by_pyiceberg(warehouse: Path, column: str) -> list:
    return table_of(warehouse).scan().to_arrow()[column].to_pylist()


def read_by_duckdb(warehouse: Path, column: str) -> list:
    """Through its own extension for Iceberg, if that is installed."""
    with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as duck:
        found = duck.sql(f"SELECT {column} FROM {_relation(duck, warehouse)}").fetchall()
    return [row[0] for row in found]


def _relation(duck: duckdb.DuckDBPyConnection, warehouse: Path) -> str:
    table = table_of(warehouse)
    try:
        duck.execute("LOAD iceberg")
    except duckdb.Error:
        print("DuckDB has no extension for Iceberg here: it reads the files that the table names")
        return f"read_parquet({[task.file.file_path for task in table.scan().plan_files()]})"
    return f"iceberg_scan('{table.metadata_location}')"


def assert_exact(warehouse: Path, column: str, numbers: range, java: JavaTables) -> None:
    def read_by_java(warehouse: Path, column: str) -> list:
        return java.values(table_of(warehouse).metadata_location, column)

    for read in (read_by_pyiceberg, read_by_duckdb, read_by_java):
        found = Counter(int(value) for value in read(warehouse, column))
        assert_each_once(found, numbers, read.__name__)


# --- from Kafka


@pytest.fixture
def kafka_job(tmp_path: Path, warehouse: Path):
    with open_cluster() as cluster:
        topic = f"source-{uuid.uuid4().hex}"
        make_topic(cluster.bootstrap, topic, partitions=2)
        yield {
            **into(tmp_path),
            "bootstrap": cluster.bootstrap,
            "source": topic,
            "tasks": 2,
            "sink": {"path": TABLE, "warehouse": str(warehouse)},
        }


@pytest.mark.crash
@pytest.mark.timeout(2400)
@pytest.mark.long  # a sink that is killed as below, and a source that is killed with its own sink
def test_kills_between_kafka_and_iceberg_lose_and_repeat_nothing(kafka_job, warehouse, java):
    from_kafka(kafka_job, RECORDS, 2 * KILLS)
    assert_exact(warehouse, "value", range(1, RECORDS + 1), java)


@pytest.mark.soak
def test_sixty_kills_between_kafka_and_iceberg(kafka_job, warehouse, java):
    from_kafka(kafka_job, 20 * RECORDS, 60)
    assert_exact(warehouse, "value", range(1, 20 * RECORDS + 1), java)


def from_kafka(job, records: int, kills: int) -> None:
    fill(job["bootstrap"], job["source"], records)
    Killer("kafka_copy.py", job).run(kills)


# --- from Parquet


@pytest.fixture
def parquet_job(tmp_path: Path, warehouse: Path) -> dict[str, object]:
    sink = {"warehouse": str(warehouse), "partitionBy": "day", "keepSnapshots": "5"}
    return {
        **into(tmp_path),
        "source": str(tmp_path / "in"),
        "table": TABLE,
        "sink_options": sink,
    }


@pytest.mark.core
@pytest.mark.crash
@pytest.mark.timeout(2400)
def test_kills_between_parquet_and_iceberg_lose_and_repeat_nothing(parquet_job, warehouse, java):
    from_parquet(parquet_job, FILES, KILLS)
    assert_exact(warehouse, "id", range(FILES * ROWS), java)


@pytest.mark.soak
def test_sixty_kills_between_parquet_and_iceberg(parquet_job, warehouse, java):
    from_parquet(parquet_job, 20 * FILES, 60)
    assert_exact(warehouse, "id", range(20 * FILES * ROWS), java)


def from_parquet(job, files: int, kills: int) -> None:
    make_input(Path(job["source"]), files, ROWS)
    Killer("stream_copy.py", job, sign="STARTED", pauses=(0.0, 5.0)).run(kills)
