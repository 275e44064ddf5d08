"""Numbers that a driver copies from a topic to three targets while it is killed."""

from collections import Counter
from contextlib import closing

import duckdb
from iceberg_life import table_of
from kafka_topics import Onlooker, fill
from killers import Killer, assert_each_once


def kill_again_and_again(script, bootstrap, folder, rows, kills):
    """All numbers must be in a Parquet table, even ones in a topic, odd ones in an Iceberg table.

    Args:
        script: Of the driver.
        bootstrap: Of a cluster with the topics "source" and "target", both empty.
        folder: Of the driver.
        rows: How many numbers.
        kills: How often a driver or a worker is killed.
    """
    fill(bootstrap, "source", rows)
    places = {"bootstrap": bootstrap, "folder": str(folder), "source": "source"}
    killer = Killer(script, {**places, "target": "target", "rows": 40})
    killer.run(kills)
    assert killer.kills["driver"], "everything was copied before anything was killed"
    table = duckdb.sql(f"SELECT id FROM read_parquet('{folder}/table/*.parquet')").fetchall()
    assert_each_once(Counter(n for (n,) in table), range(rows), "Parquet")
    with closing(Onlooker(bootstrap)) as onlooker:
        even = Counter(int(record.value) for record in onlooker.records("target"))
    assert_each_once(even, range(0, rows, 2), "Kafka")
    odd = Counter(table_of(folder / "warehouse").scan().to_arrow()["id"].to_pylist())
    assert_each_once(odd, range(1, rows, 2), "Iceberg")
