"""A stream from Kafka to Parquet, its table and its checkpoint in a store.

Its driver, its Python workers and, where it keeps on a disk what it has, the store's server are
killed at random moments. Somebody who knows nothing of the sink looks at the table all the time.
"""

from collections import Counter

import pytest
from drivers import Driver
from kafka_topics import fill, make_topic
from killers import Killer, assert_each_once
from lookers import StoreLooker
from store_tables import make_onlooker
from store_weather import in_weather

from krishiv_spark.kafka.dev import open_cluster
from servers.spark_clients import spark_settings
from servers.stores import OPENED

ROWS, AT_A_TIME = 2_000, 50

pytestmark = [pytest.mark.crash, pytest.mark.once, pytest.mark.timeout(5400)]


everywhere = pytest.mark.parametrize("store", OPENED, indirect=True)


@pytest.fixture
def bootstrap():
    with open_cluster(ours=True) as cluster:  # each test fills its topics
        make_topic(cluster.bootstrap, "source", partitions=2)
        yield cluster.bootstrap


@pytest.mark.long  # a minute or two each; the kit dies at each call without Spark
@everywhere
def test_kills_lose_and_repeat_no_row_of_a_table_in_a_store(store, bootstrap):
    kill_again_and_again(store, bootstrap, 2)


@pytest.mark.soak
@everywhere
def test_tens_of_kills_lose_and_repeat_no_row_of_a_table_in_a_store(store, bootstrap):
    kill_again_and_again(store, bootstrap, 30)


@pytest.mark.long  # what our clients do is tried without Spark
@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_rows_are_exact_while_the_store_throttles(store, bootstrap):
    fill(bootstrap, "source", ROWS)
    with (
        in_weather(store, one_in=20) as (throttled, weather),
        Driver("kafka_copy.py", copy_job(throttled, bootstrap)) as driver,
    ):
        driver.wait_for("EPOCH")
        weather.be_busy(30)
        driver.wait_for("DONE")
    assert set(weather.refused) == {"busy", "done, busy"}
    assert_exact(store, ROWS)


@pytest.mark.long
@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_rows_are_exact_when_credentials_expire(store, bootstrap):
    fill(bootstrap, "source", ROWS)
    with in_weather(store) as (expiring, weather):
        for _ in range(2):
            weather.renew()
            with Driver("kafka_copy.py", copy_job(expiring, bootstrap)) as driver:
                driver.wait_for("EPOCH")
                weather.expired_from = weather.asked
                driver.wait_for("FAILED")
                assert "expired" in driver.lines[-1], driver.lines[-1]
        weather.renew()
        with Driver("kafka_copy.py", copy_job(expiring, bootstrap)) as driver:
            driver.wait_for("DONE")
    assert_exact(store, ROWS)


def kill_again_and_again(store, bootstrap, each: int) -> None:
    """Kill the driver so often, and everything else as often."""
    table, rows = f"{store.url}/table", 0
    more = {} if store.restart is None else {"store": store.restart}
    killer = Killer(
        "kafka_copy.py", copy_job(store, bootstrap), sign="STARTED", pauses=(0.0, 6.0), more=more
    )
    kills = each * (2 + len(more))
    with StoreLooker(make_onlooker(table, store.options), "value") as looker:
        while killer.kills.total() < kills:
            fill(bootstrap, "source", ROWS, first=rows)
            rows += ROWS
            killer.run(kills)
    looker.once()
    print(
        f"{looker.looks} looks, {len(looker.failures)} failed, {looker.epochs} epochs, {rows} rows"
    )
    assert looker.looks > kills
    assert more or not looker.failures, looker.failures[:5]  # or the server was just killed
    assert not looker.problems, looker.problems[:5]
    assert_exact(store, rows)


def copy_job(store, bootstrap) -> dict[str, object]:
    return {
        "bootstrap": bootstrap,
        "source": "source",
        "rows": AT_A_TIME,
        "tasks": 2,
        "format": "krishiv-parquet",
        "sink": {"path": f"{store.url}/table", **store.options},
        "checkpoint": f"{store.url}/checkpoint",
        "conf": spark_settings(store),
    }


def assert_exact(store, rows: int) -> None:
    """A reader of the table finds every number, once."""
    table = make_onlooker(f"{store.url}/table", store.options)
    found = Counter(int(row["value"]) for row in table.rows())
    assert_each_once(found, range(1, rows + 1), store.url)
