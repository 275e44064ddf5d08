"""Streams of Spark with tables and checkpoints in one bucket, reached by one set of options."""

from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from drivers import Driver
from iceberg_life import numbered
from iceberg_places import new_place
from patience import PATIENCE

from servers.spark_clients import spark_settings


@pytest.mark.once
@pytest.mark.timeout(PATIENCE * 2)
@pytest.mark.parametrize(
    ("server", "catalog"),
    [
        pytest.param("versity", "sql", marks=pytest.mark.xdist_group("versity")),
        pytest.param("s3", "glue", marks=[pytest.mark.xdist_group("s3"), pytest.mark.long]),
    ],
)
def test_rows_are_appended_read_back_and_upserted(server, catalog, servers, tmp_path):
    place = new_place(catalog, servers(server), tmp_path)
    counts = replace(place, name=place.name.replace("rows", "counts"))
    for number in range(3):
        pq.write_table(numbered(number), tmp_path / f"{number}.parquet")
    options = {"appended": place.name, "upserted": counts.name, "reached": place.options}
    job = {"source": str(tmp_path), "url": place.url, "options": options}
    for _ in range(2):  # the second one finds everything done
        with Driver("bucket_tables.py", {**job, "conf": spark_settings(place.store)}) as driver:
            driver.wait_for("DONE")
    assert place.ids() == list(range(30))
    found = {row["rest"]: row["count"] for row in counts.rows().to_pylist()}
    assert found == {0: 10, 1: 10, 2: 10}
