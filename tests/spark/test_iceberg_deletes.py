"""Iceberg's own library, and DuckDB, read tables whose rows our upserts deleted by position."""

import random
from collections import Counter

import pyarrow as pa
import pytest
from duck_iceberg import read_by_duckdb
from iceberg_life import TABLE, IcebergLife, table_of

from krishiv_spark.sinks.iceberg.maintenance.compaction import Compaction, CompactionRequest
from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions
from krishiv_spark.sinks.iceberg.table_copies import open_own_table


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_others_read_the_last_row_of_each_key(java, tmp_path, codec):
    given = {"mode": "upsert", "keyColumns": "id", "partitionBy": "bucket(2, id)"}
    given["tableProperty.write.metadata.compression-codec"] = codec
    life = IcebergLife(tmp_path / "w", checkpointLocation=str(tmp_path / "ck"), **given)
    rng, expected = random.Random(1), {}
    for epoch in range(14):
        ids = rng.sample(range(200), 60 if epoch == 0 else 15)
        life.epoch(epoch, pa.table({"id": ids, "text": [f"{epoch}"] * len(ids)}))
        expected.update(dict.fromkeys(ids, f"{epoch}"))
        if epoch == 9:
            compact(tmp_path / "w")
    assert table_of(tmp_path / "w").inspect.delete_files().num_rows
    location = table_of(tmp_path / "w").metadata_location
    assert location.endswith(".gz.metadata.json") == (codec == "gzip")
    assert_read_alike(java, table_of(tmp_path / "w"), expected)
    compact(tmp_path / "w")
    table = table_of(tmp_path / "w")
    assert table.inspect.delete_files().num_rows == 0
    assert_read_alike(java, table, expected)


def compact(warehouse):
    texts = {"table": TABLE, "warehouse": str(warehouse)}
    options = IcebergSinkOptions.parse(texts, "krishiv-iceberg")
    table = open_own_table(options)
    assert Compaction(options).run(table, CompactionRequest().find_groups(table, options)).groups


def assert_read_alike(java, table, expected):
    totals = table.current_snapshot().summary.additional_properties
    location = table.metadata_location
    # Each scan has an order of its own.
    assert sorted(int(number) for number in java.values(location, "id")) == sorted(expected)
    texts = Counter(str(text) for text in java.values(location, "text"))
    assert texts == Counter(expected.values())
    assert sorted(read_by_duckdb(table, "id, text")) == sorted(expected.items())
    remaining = int(totals["total-records"]) - int(totals["total-position-deletes"])
    assert remaining == len(expected)
