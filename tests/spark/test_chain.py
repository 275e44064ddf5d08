"""A topic, the table in which it is landed, and a query that reads the table first."""

import json
import uuid
from collections import Counter
from pathlib import Path

import duckdb
import pytest
from drivers import Driver
from kafka_topics import fill, make_topic
from killers import Killer, assert_each_once

from krishiv_spark.kafka.dev import open_cluster

ROWS = 200
"""Of a batch."""


@pytest.fixture
def cluster():
    with open_cluster() as found:
        yield found


@pytest.fixture
def job(cluster, tmp_path: Path) -> dict[str, object]:
    source = f"source-{uuid.uuid4().hex}"  # the broker is shared
    make_topic(cluster.bootstrap, source, partitions=3)
    return {
        "bootstrap": cluster.bootstrap,
        "source": source,
        "rows": ROWS,
        **{name: str(tmp_path / name) for name in ("warehouse", "landing", "checkpoint", "target")},
    }


def copied(job) -> Counter[int]:
    """By DuckDB, which knows nothing of us."""
    files = f"{job['target']}/*.parquet"
    with duckdb.connect() as duck:
        return Counter(n for (n,) in duck.sql(f"SELECT number FROM '{files}'").fetchall())


def positions(job) -> list[dict]:
    """Return the position of the query at the end of each epoch."""
    folder = Path(job["checkpoint"], "offsets")
    epochs = sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    texts = [(folder / str(epoch)).read_text().split("\n", 2)[2] for epoch in epochs]
    return [json.loads(text[text.index("{") :]) for text in texts]


def sum_of(position) -> int:
    return sum(sum(each.values()) for each in position["then"]["topics"].values())


def assert_has_read_both(job, rows: int) -> None:
    """A part of the rows was read from the table, and a part from the topic."""
    first, *_, last = positions(job)
    assert first["first"]["spot"]["snapshot"] == last["first"]["spot"]["snapshot"]
    assert 0 < sum_of(first) < sum_of(last) == rows


# --- on Spark, in good order


def options(job) -> dict[str, str]:
    return {
        "first.warehouse": job["warehouse"],
        "then.kafka.bootstrap.servers": job["bootstrap"],
        "then.subscribe": job["source"],
    }


def land(spark, job) -> None:
    """All that the topic has now."""
    query = (
        spark.readStream.format("krishiv-kafka")
        .option("kafka.bootstrap.servers", job["bootstrap"])
        .options(subscribe=job["source"], startingOffsets="earliest")
        .load()
        .writeStream.format("krishiv-iceberg")
        .options(warehouse=job["warehouse"], checkpointLocation=job["landing"])
        .trigger(availableNow=True)
        .start("db.landed")
    )
    query.awaitTermination()


def follow(spark, job, **more: str) -> None:
    """Copies what there is, from where it stood, and ends."""
    query = (
        spark.readStream.format("krishiv-chain")
        .options(**options(job), **more)
        .load("db.landed")
        .selectExpr("cast(cast(value AS string) AS long) AS number")
        .writeStream.format("krishiv-parquet")
        .option("checkpointLocation", job["checkpoint"])
        .start(job["target"])
    )
    query.processAllAvailable()
    query.stop()


@pytest.mark.core
def test_a_query_reads_the_table_and_goes_on_with_the_topic(spark, job):
    fill(job["bootstrap"], job["source"], 500)
    land(spark, job)
    fill(job["bootstrap"], job["source"], 300, 500)
    follow(spark, job, maxRowsPerTrigger="100")
    assert_each_once(copied(job), range(800), "with restarts")
    land(spark, job)
    fill(job["bootstrap"], job["source"], 50, 800)
    follow(spark, job)
    assert_each_once(copied(job), range(850), "with restarts")
    assert_has_read_both(job, 850)


def test_a_batch_reads_the_table_and_what_follows(spark, job):
    fill(job["bootstrap"], job["source"], 100)
    land(spark, job)
    fill(job["bootstrap"], job["source"], 20, 100)
    rows = spark.read.format("krishiv-chain").options(**options(job)).load("db.landed")
    assert rows.columns == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    ]
    found = rows.selectExpr("cast(cast(value AS string) AS long) AS n").collect()
    assert_each_once(Counter(row.n for row in found), range(120), "a batch")


def test_the_columns_of_the_table_say_where_it_ends(spark, job):
    """The recipe of docs/backfill.md, for a table that does not say it."""
    fill(job["bootstrap"], job["source"], 100)
    land(spark, job)
    table = {"warehouse": job["warehouse"]}
    snapshot = read_snapshot(job)
    rows = spark.read.format("krishiv-iceberg").options(**table)
    ends = (
        rows.option("snapshot-id", snapshot)
        .load("db.landed")
        .groupBy("topic", "partition")
        .agg({"offset": "max"})
        .collect()
    )
    starts: dict[str, dict[str, int]] = {}
    for topic, partition, newest in ends:
        starts.setdefault(topic, {})[str(partition)] = newest + 1
    fill(job["bootstrap"], job["source"], 20, 100)
    land(spark, job)
    given = {"snapshot": str(snapshot), "then.startingOffsets": json.dumps(starts)}
    follow(spark, job, **given)
    assert_each_once(copied(job), range(120), "by the columns")


def read_snapshot(job) -> int:
    from pyiceberg.catalog.sql import SqlCatalog

    place = job["warehouse"]
    catalog = SqlCatalog("krishiv", uri=f"sqlite:///{place}/catalog.db", warehouse=place)
    return catalog.load_table("db.landed").current_snapshot().snapshot_id


# --- with kills


@pytest.mark.crash
@pytest.mark.timeout(2400)
def test_kills_while_the_table_grows_lose_and_repeat_nothing(job):
    torment(job, 3_000, 3)


@pytest.mark.soak
def test_sixty_kills_while_the_table_grows(job):
    torment(job, 60_000, 60)


def torment(job, rows: int, kills: int) -> None:
    """Both queries are killed together, and more comes into the topic each time."""
    sent = rows // 2
    fill(job["bootstrap"], job["source"], sent)
    each = (rows - sent) // kills

    def look(driver: Driver) -> None:
        nonlocal sent
        if not driver.says("DONE", 0):  # nobody would copy it
            fill(job["bootstrap"], job["source"], each, sent)
            sent += each

    Killer("chain_copy.py", job, look=look).run(kills)
    assert_each_once(copied(job), range(sent), "DuckDB")
    assert_has_read_both(job, sent)
