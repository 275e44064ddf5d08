"""Brokers abort what a driver of ``krishiv-fanout`` has left open: one side of an epoch is lost.

The kit's driver plays Spark; the broker is real.
"""

from contextlib import closing
from functools import partial

import pytest
from fanout_sides import Files, Table, Topic, make_pair
from kafka_topics import Onlooker
from patience import await_none

from krishiv_spark.kafka import transactions
from krishiv_spark.kafka.client import open_client
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.testing import Commit, Crash, Fault
from krishiv_spark.testing.suites.base import GOOD_EPOCH, STAGED, SinkPlayer

pytestmark = pytest.mark.long  # starts a broker; test_kafka_windows.py has those of each topic

SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
LATE = {"kafka.transaction.timeout.ms": "4000"}
INTENT = {"krishiv_spark.offsets.epoch_log:EpochLog.intend": OSError}
ENDS = {"krishiv_spark.kafka.transactions:end_transactions": OSError}
DIES_BEHIND = Fault(0, happened=True, reported=False)


@pytest.fixture(scope="module")
def cluster():
    with open_cluster(ours=True, settings=SETTINGS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def topic(cluster):
    with closing(Onlooker(cluster.bootstrap)) as onlooker:
        yield partial(Topic, cluster=cluster, onlooker=onlooker, **LATE)


@pytest.fixture
def play(topic, tmp_path):
    players = []

    def driver(*sides, outside):
        makes = [side or topic for side in sides]
        player = SinkPlayer(partial(make_pair, makes, outside=outside), tmp_path, "exactly once")
        players.append(player)
        return player.driver()

    yield driver
    for player in players:
        player.close()


def stay_away(cluster):
    """Until the broker has aborted whatever is open."""
    client = open_client(KafkaConfig.from_settings({"bootstrap.servers": cluster.bootstrap}))
    await_none(lambda: transactions.list_open_transactions(client, "krishiv."), "still open")


@pytest.mark.long  # waits for a time-out of the broker
@pytest.mark.parametrize(
    "other",
    [
        Files,
        pytest.param(Table, marks=pytest.mark.long),
        pytest.param(None, marks=pytest.mark.long),
    ],
)
def test_an_epoch_whose_records_were_aborted_is_staged_again_on_both_sides(play, cluster, other):
    with play(other, None, outside=INTENT) as driver:
        driver.run((*GOOD_EPOCH, *STAGED, Commit(trap=DIES_BEHIND), Crash()))
        stay_away(cluster)
        driver.run(GOOD_EPOCH)
        driver.settle()


@pytest.mark.parametrize("other", [Files, Table, None])
def test_what_is_visible_on_one_side_is_not_staged_again(play, cluster, other):
    """Records come first: a file or a table is never ahead of a transaction that may be lost."""
    with play(other, None, outside=ENDS) as driver:
        driver.run((*GOOD_EPOCH, *STAGED, Commit(trap=DIES_BEHIND), Crash()))
        stay_away(cluster)
        driver.run(GOOD_EPOCH)
        driver.settle()
