"""Streams from Kafka and from Parquet to Iceberg; their drivers and Python workers are killed."""

import uuid
from collections import Counter
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

import pytest
from duck_iceberg import read_by_duckdb
from iceberg_life import TABLE, table_of
from java_iceberg import JavaTables
from kafka_topics import fill, make_topic
from killers import Killer, assert_each_once
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from tables import make_input

from krishiv_spark.iceberg.property_keys import EPOCH_KEY
from krishiv_spark.kafka.dev import open_cluster
from servers.forwarding import forwarding
from servers.rest_catalog import open_rest_catalog, refuse_properties

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


def assert_exact(table: Table, column: str, numbers: Collection[int], java: JavaTables) -> None:
    readers = {
        "PyIceberg": table.scan().to_arrow()[column].to_pylist(),
        "DuckDB": [value for (value,) in read_by_duckdb(table, column)],
        "Iceberg-Java": java.values(table.metadata_location, column),
    }
    for name, values in readers.items():
        assert_each_once(Counter(map(int, values)), numbers, name)


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
    assert_exact(table_of(warehouse), "value", range(1, RECORDS + 1), java)


@pytest.mark.soak
def test_sixty_kills_between_kafka_and_iceberg(kafka_job, warehouse, java):
    from_kafka(kafka_job, 20 * RECORDS, 60)
    assert_exact(table_of(warehouse), "value", range(1, 20 * RECORDS + 1), java)


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
    assert_exact(table_of(warehouse), "id", range(FILES * ROWS), java)


@pytest.mark.soak
def test_sixty_kills_between_parquet_and_iceberg(parquet_job, warehouse, java):
    from_parquet(parquet_job, 20 * FILES, 60)
    assert_exact(table_of(warehouse), "id", range(20 * FILES * ROWS), java)


def from_parquet(job, files: int, kills: int) -> None:
    make_input(Path(job["source"]), files, ROWS)
    Killer("stream_copy.py", job, sign="STARTED", pauses=(0.0, 5.0)).run(kills)


# --- upserts

KEYS = 997  # so many that most files keep rows that are not replaced
DELETES = "id % 7 = 3"


@pytest.fixture(params=["merge-on-read", "copy-on-write", "compacted"])
def upsert_job(parquet_job, request) -> dict[str, object]:
    """Each key comes again in other epochs, in other partitions, and as a deletion."""
    is_compacted = request.param == "compacted"
    columns = {"keyColumns": "key", "orderColumn": "id", "opColumn": "op"}
    mode = {"mode": "upsert", "compact": "auto" if is_compacted else "off"}
    mode["upsertMode"] = "merge-on-read" if is_compacted else request.param
    return {
        **parquet_job,
        "select": [f"id % {KEYS} AS key", "id", "day", f"IF({DELETES}, 'd', 'u') AS op"],
        "sink_options": {**parquet_job["sink_options"], **columns, **mode, "keepSnapshots": "1000"},
    }


@pytest.mark.crash
@pytest.mark.timeout(2400)
def test_kills_between_parquet_and_upserts_leave_the_newest_row_of_each_key(
    upsert_job, warehouse, java
):
    from_parquet(upsert_job, FILES, 2 * KILLS)
    assert_exact(table_of(warehouse), "id", newest_ids(FILES * ROWS), java)
    assert_epochs_once(table_of(warehouse))


@pytest.mark.soak
def test_sixty_kills_between_parquet_and_upserts(upsert_job, warehouse, java):
    from_parquet(upsert_job, 20 * FILES, 60)
    assert_exact(table_of(warehouse), "id", newest_ids(20 * FILES * ROWS), java)
    assert_epochs_once(table_of(warehouse))


def newest_ids(rows: int) -> list[int]:
    newest = {number % KEYS: number for number in range(rows)}
    return [number for number in newest.values() if number % 7 != 3]


def assert_epochs_once(table: Table) -> None:
    """Rows with keys hide that an epoch was committed twice: its number does not."""
    summaries = [s.summary.additional_properties for s in table.snapshots()]
    epochs = [int(s[EPOCH_KEY]) for s in summaries if EPOCH_KEY in s]  # a compaction has none
    assert epochs
    assert len({*epochs}) == len(epochs), epochs


@pytest.fixture
def restricted_catalog(tmp_path: Path):
    """A REST catalog, and a proxy before it that refuses all properties of tables."""
    (folder := tmp_path / "rest").mkdir()
    with open_rest_catalog(folder) as uri, forwarding(uri, refuse_properties) as refusing:
        yield uri, refusing


@pytest.mark.crash
@pytest.mark.timeout(2400)
@pytest.mark.long  # as above, with the record of the epochs in another place, and a server
def test_kills_of_upserts_where_the_catalog_keeps_no_properties(
    upsert_job, restricted_catalog, java
):
    uri, refusing = restricted_catalog
    upsert_job["sink_options"] |= {"catalog.type": "rest", "catalog.uri": refusing}
    from_parquet(upsert_job, FILES, 2 * KILLS)
    with closing(load_catalog("krishiv", type="rest", uri=uri)) as catalog:
        table = catalog.load_table(TABLE)
    assert_exact(table, "id", newest_ids(FILES * ROWS), java)
    assert_epochs_once(table)
    assert not [name for name in table.properties if name.startswith("krishiv.")]


# --- a history


@pytest.fixture
def history_job(parquet_job) -> dict[str, object]:
    """Each key has several versions, some of them ended by a deletion."""
    columns = {"keyColumns": "key", "orderColumn": "id", "timeColumn": "at", "opColumn": "op"}
    operation = f"IF({DELETES}, 'd', 'u') AS op"
    return {
        **parquet_job,
        "select": [f"id % {KEYS} AS key", "id", "timestamp_seconds(id) AS at", operation],
        "sink_options": {
            "warehouse": parquet_job["sink_options"]["warehouse"],
            **columns,
            "mode": "scd2",
            "compact": "auto",
            "keepSnapshots": "1000",
            "partitionBy": "is_current",
        },
    }


@pytest.mark.crash
@pytest.mark.timeout(2400)
def test_kills_between_parquet_and_a_history_leave_each_version_once(history_job, warehouse, java):
    rows = 2 * FILES * ROWS
    from_parquet(history_job, 2 * FILES, 2 * KILLS)
    assert_exact(
        table_of(warehouse), "id", [number for number in range(rows) if number % 7 != 3], java
    )
    assert read_spans(warehouse) == list_spans(rows)
    assert_epochs_once(table_of(warehouse))


def read_spans(warehouse: Path) -> list[tuple[int, int | None]]:
    """Return number and end of each version, in seconds, and assert the other columns."""
    found = []
    for row in table_of(warehouse).scan().to_arrow().to_pylist():
        end = row["valid_to"]
        assert row["valid_from"].timestamp() == row["id"]
        assert row["is_current"] == (end is None)
        found.append((row["id"], None if end is None else int(end.timestamp())))
    return sorted(found)


def list_spans(rows: int) -> list[tuple[int, int | None]]:
    upserts = (number for number in range(rows) if number % 7 != 3)
    return [(n, n + KEYS if n + KEYS < rows else None) for n in upserts]
