"""A driver of the Kafka sink dies in each window between two steps; the broker restarts, or waits.

The kit's driver plays Spark; the broker is real.
"""

import pickle
import re
import shutil
import uuid

import pyarrow as pa
import pytest
from click.testing import CliRunner
from kafka_topics import Onlooker, make_topic
from patience import await_none
from producer_epochs import LAST_EPOCH, raise_epochs
from pyspark.sql.types import StructType

from krishiv_spark.cli import main
from krishiv_spark.formats import KafkaDataSource
from krishiv_spark.kafka import transactions
from krishiv_spark.kafka.client import open_client
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.kafka.topic_partition import TopicPartition
from krishiv_spark.lifecycle.plans import PlanningFailed
from krishiv_spark.sinks.kafka.participant import find_truncated
from krishiv_spark.testing import (
    BackUp,
    Begin,
    Broken,
    Commit,
    Crash,
    Fault,
    PutBack,
    SinkUnderTest,
    Stage,
    Switch,
    TakeOver,
    back_up_folder,
)
from krishiv_spark.testing.processes.write_roles import in_foreach_batch
from krishiv_spark.testing.suites.base import GOOD_EPOCH, STAGED, SinkPlayer

TIMEOUT_MS = 4_000
SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    "transactional.id.expiration.ms": "3600000",
}
INTENT = {"krishiv_spark.offsets.epoch_log:EpochLog.intend": OSError}
ENDS = {"krishiv_spark.kafka.transactions:end_transactions": OSError}
DIES_BEFORE = Fault(0, happened=False, reported=False)
DIES_BEHIND = Fault(0, happened=True, reported=False)
DIES_AT_THE_END = Fault(-1, happened=True, reported=False)

WINDOWS = {
    "before staging": (INTENT, (Begin(), Crash())),
    "half staged": (INTENT, (Begin(), Stage(0), Stage(1, "dies"), Crash())),
    "staged": (INTENT, (*STAGED, Commit(trap=DIES_BEFORE), Crash())),
    "intent written": (INTENT, (*STAGED, Commit(trap=DIES_BEHIND), Crash())),
    "all ended": (ENDS, (*STAGED, Commit(trap=DIES_BEHIND), Crash())),
    "before Spark's commit log": (INTENT, (*STAGED, Commit(DIES_AT_THE_END), Crash())),
}


class Bench:
    """A broker, and sinks on new topics of it."""

    def __init__(self, cluster) -> None:
        self.cluster = cluster
        self.onlooker = Onlooker(cluster.bootstrap)
        self.client = open_client(
            KafkaConfig.from_settings({"bootstrap.servers": cluster.bootstrap})
        )
        self.topic = ""

    def sink(self, outside, source=KafkaDataSource, **options):
        self.topic = f"t-{uuid.uuid4().hex}"
        topic = self.topic
        make_topic(self.cluster.bootstrap, topic, partitions=2)
        given = {"kafka.bootstrap.servers": self.cluster.bootstrap, "topic": topic, **options}
        return SinkUnderTest(
            source=source,
            options=given,
            schema=pa.schema([("value", pa.string())]),
            row=lambda n: (f"row {n}",),
            oracle=lambda: [(each.value.decode(),) for each in self.onlooker.records(topic)],
            whole_epochs=False,
            backup=self.back_up,
            outside=outside,
        )

    def back_up(self):
        """Copy all that the broker has on its disk, as a snapshot of that disk does."""
        broker = self.cluster.brokers[0]
        put_back = self._while_it_is_down(lambda: back_up_folder(broker.folder / "data"))
        return lambda: self._while_it_is_down(put_back)

    def _while_it_is_down(self, work):
        broker = self.cluster.brokers[0]
        broker.kill()
        done = work()
        broker.start()
        self.cluster.wait()
        self._look_anew()
        return done

    def make_topic_anew(self) -> None:
        self.onlooker.remove(self.topic)
        make_topic(self.cluster.bootstrap, self.topic, partitions=2)

    def restart(self) -> None:
        broker = self.cluster.brokers[0]
        broker.kill()
        broker.start()
        self.cluster.wait()
        self._look_anew()

    def raise_epochs(self, epoch: int) -> None:
        """Of all producers that have nothing open."""
        ended = transactions.list_transactions(
            self.client, "krishiv.", ("CompleteCommit", "CompleteAbort")
        )
        raise_epochs(self.cluster, dict.fromkeys(ended, epoch))
        self._look_anew()

    def producers(self) -> set[int]:
        """Return the producers with open transactions."""
        found = transactions.describe(self.client, self.open_ids())
        return {now.producer_id for now in found.values()}

    def _look_anew(self) -> None:
        self.onlooker.close()
        self.onlooker = Onlooker(self.cluster.bootstrap)  # its clients give up early

    def open_ids(self) -> list[str]:
        """Return the ids whose end was not requested.

        Brokers may still write the markers of others.
        """
        listed = transactions.list_open_transactions(self.client, "krishiv.")
        return sorted(name for name, state in listed.items() if state == transactions.ONGOING)

    def commit_one(self, number: int = 0) -> None:
        """End one transaction, as a driver does that dies before it has ended the next."""
        name = self.open_ids()[number]
        now = transactions.describe(self.client, [name])[name]
        found = transactions.build_transaction(
            self.client, name, now.producer_id, now.producer_epoch
        )
        assert not transactions.end_transactions(self.client, [found], commit=True)

    def stay_away(self) -> None:
        """Until the broker has aborted whatever is open."""
        await_none(
            lambda: transactions.list_open_transactions(self.client, "krishiv."), "still open"
        )


@pytest.fixture(scope="module")
def bench():
    with open_cluster(ours=True, settings=SETTINGS) as cluster:
        bench = Bench(cluster)
        yield bench
        bench.onlooker.close()


@pytest.fixture
def play(bench, tmp_path):
    players = []

    def driver(outside=INTENT, **options):
        player = SinkPlayer(lambda _: bench.sink(outside, **options), tmp_path, "exactly once")
        players.append(player)
        return player.driver()

    yield driver
    for player in players:
        player.close()


IN_DOUBT = ["half staged", "intent written"]
"""A restart of the broker matters most in these. Where it stays, the kit's suite kills anywhere."""


def dies_in(play, window, then=lambda: None):
    outside, steps = WINDOWS[window]
    with play(outside) as driver:
        driver.run((*GOOD_EPOCH, *steps))
        then()
        driver.settle()


@pytest.mark.long  # 12 s; test_kafka_crash.py kills the broker of real queries
@pytest.mark.parametrize(
    "window",
    [pytest.param(w, marks=[] if w in IN_DOUBT else [pytest.mark.long]) for w in WINDOWS],
)
def test_death_in_a_window_while_the_broker_restarts(bench, play, window):
    dies_in(play, window, bench.restart)


@pytest.mark.long
@pytest.mark.parametrize("window", WINDOWS)
def test_death_in_a_window(play, window):
    dies_in(play, window)


@pytest.mark.long
def test_death_between_the_first_and_the_last_end(bench, play):
    with play() as driver:
        driver.run((*GOOD_EPOCH, *STAGED, Commit(trap=DIES_BEHIND), Crash()))
        bench.commit_one()
        driver.settle()


@pytest.mark.long
def test_an_id_that_somebody_takes_over_before_the_commit(bench, play):
    with play() as driver:
        driver.run((*GOOD_EPOCH, *STAGED))
        transactions.begin_transaction(bench.client, bench.open_ids()[0], 60_000)
        driver.do(Commit())
        assert "CommitRejected" in driver.story[-1]
        driver.settle()


@pytest.mark.long  # two more clusters
def test_a_cluster_that_was_restored_from_a_snapshot_is_refused(play):
    """Its topics end before the records that it has acknowledged for the newest epoch."""
    with play() as driver:
        driver.run((*GOOD_EPOCH, BackUp("target"), *GOOD_EPOCH, PutBack("target")))
        driver.do(Begin())
        assert re.search("CheckpointMismatch: Kafka cluster .* lacks epoch 1", driver.story[-1])
        driver.settle()


def test_a_topic_that_was_made_anew_between_two_epochs_is_no_older_cluster(bench):
    bench.sink(INTENT)
    places = {TopicPartition(bench.topic, 0): 5}
    before = {bench.topic: bench.client.fetch_topics([bench.topic])[bench.topic].id}
    bench.make_topic_anew()
    after = {bench.topic: bench.client.fetch_topics([bench.topic])[bench.topic].id}
    assert find_truncated(bench.client, places, before) == set()
    assert find_truncated(bench.client, places, {}) == set()  # a cluster without ids
    assert find_truncated(bench.client, places, after) == {*places}


ENDED_AT_THE_LAST, BEGUN_AT_THE_LAST = LAST_EPOCH - 3, LAST_EPOCH - 4


@pytest.mark.long  # test_kafka_epoch_rollover.py goes step by step
@pytest.mark.parametrize("first", [BEGUN_AT_THE_LAST, ENDED_AT_THE_LAST])
@pytest.mark.parametrize("ended", [0, 1], ids=["none ended", "one ended"])
def test_drivers_die_while_producer_epochs_come_to_their_end(bench, play, first, ended):
    producers = set()
    with play() as driver:
        driver.run(GOOD_EPOCH * 2)
        bench.raise_epochs(first)
        for _ in range(4):
            driver.run((*STAGED, Commit(trap=DIES_BEHIND), Crash()))
            producers |= bench.producers()
            for number in range(ended):
                bench.commit_one(number)
            driver.run(GOOD_EPOCH)
        driver.settle()
    assert len(producers) == 4  # two tasks, each before and after


LATE = {"kafka.transaction.timeout.ms": str(TIMEOUT_MS)}


@pytest.mark.long  # waits for a time-out of the broker
@pytest.mark.parametrize(
    "trap",
    [
        pytest.param(DIES_BEFORE, id="no intent", marks=pytest.mark.long),
        pytest.param(DIES_BEHIND, id="intent"),
    ],
)
def test_a_driver_that_stays_away_for_longer_than_the_time_out(bench, play, trap):
    with play(**LATE) as driver:
        driver.run((*GOOD_EPOCH, *STAGED, Commit(trap=trap), Crash()))
        bench.stay_away()
        driver.settle()


IN_FOREACH_BATCH = in_foreach_batch(KafkaDataSource)


@pytest.mark.long  # waits for a time-out of the broker
def test_a_batch_of_foreach_batch_is_written_again_after_the_time_out(bench, play):
    with play(**LATE, source=IN_FOREACH_BATCH) as driver:
        driver.run((*GOOD_EPOCH, *STAGED, Commit(trap=DIES_BEHIND), Crash()))
        bench.stay_away()
        driver.settle()


@pytest.mark.long  # waits for a time-out of the broker
def test_a_later_batch_takes_no_place_of_one_that_the_time_out_has_aborted(bench, play, tmp_path):
    with play(**LATE, source=IN_FOREACH_BATCH) as driver:
        driver.run((*GOOD_EPOCH, *STAGED, Commit(trap=DIES_BEHIND), Crash()))
        bench.stay_away()
        checkpoint = next(tmp_path.glob("**/krishiv")).parent
        kafka = {"kafka.bootstrap.servers": bench.cluster.bootstrap, "topic": bench.topic}
        rows = StructType().add("value", "string")
        source = IN_FOREACH_BATCH({**kafka, "checkpointLocation": str(checkpoint)})
        with pytest.raises(PlanningFailed, match="LostIntentError: epoch 1: brokers have aborted"):
            pickle.dumps(source.streamWriter(rows, overwrite=False)._job(2))
        driver.settle()


@pytest.mark.long
def test_a_batch_that_outlives_its_transactions_is_refused(bench, play):
    with play(**LATE) as driver:
        driver.run(STAGED)
        bench.stay_away()
        driver.do(Commit())
        assert "CommitRejected" in driver.story[-1]
        assert "kafka.transaction.timeout.ms" in driver.story[-1]
        driver.settle()


def test_a_stale_driver_is_told_of_its_successor_and_not_of_a_time_out(play):
    """The successor aborts what the stale one has open before that one looks."""
    with play() as driver:
        driver.run((*STAGED, TakeOver(), Begin(), Stage(0), Switch()))
        driver.do(Commit())
        assert "Fenced" in driver.story[-1]
        driver.settle()


def half_committed(bench, driver, task: int = 0) -> None:
    driver.run((*GOOD_EPOCH, *STAGED, Commit(trap=DIES_BEHIND), Crash()))
    bench.commit_one(task)
    bench.stay_away()


def test_an_epoch_that_was_committed_in_part_is_completed(bench, play):
    with play(**LATE) as driver:
        half_committed(bench, driver)
        driver.run(GOOD_EPOCH)
        driver.settle()


@pytest.mark.long
def test_an_epoch_in_part_survives_more_deaths(bench, play):
    with play(**LATE) as driver:
        half_committed(bench, driver)
        driver.run((*STAGED, Crash(), *STAGED, Commit(trap=DIES_BEHIND), Crash()))
        bench.stay_away()
        driver.run((*STAGED, Commit(DIES_AT_THE_END), Crash(), *GOOD_EPOCH))
        driver.settle()


@pytest.mark.long
def test_an_epoch_in_part_is_not_completed_with_other_rows(bench, play):
    with play(**LATE) as driver:
        half_committed(bench, driver)
        with pytest.raises(Broken, match="committed in part"):
            driver.settle()  # in three tasks instead of two
    assert len(bench.onlooker.records(bench.topic)) == 6  # four rows, and half of four


@pytest.mark.long
def test_an_epoch_in_part_is_not_completed_without_its_task(bench, play):
    with play(**LATE) as driver:
        half_committed(bench, driver, task=1)
        driver.run((Begin(tasks=1), Stage(0), Commit()))
        assert "there are no tasks [1]" in driver.story[-1]
        driver.run(GOOD_EPOCH)
        driver.settle()


@pytest.mark.long
def test_the_topic_tells_what_coordinators_no_longer_know(bench, play):
    with play() as driver:
        driver.run((*GOOD_EPOCH, *STAGED, Commit(trap=DIES_BEHIND), Crash()))
        names = bench.open_ids()
        bench.commit_one()
        for name in names:  # hides that the first was committed, and aborts the second
            transactions.begin_transaction(bench.client, name, 60_000)
        driver.run(GOOD_EPOCH)
        driver.settle()


@pytest.mark.long
def test_a_log_that_is_lost_is_noticed(play, tmp_path):
    with play() as driver:
        driver.run((*GOOD_EPOCH, *STAGED, Commit(DIES_AT_THE_END), Crash()))
        (log,) = tmp_path.glob("**/krishiv")
        shutil.rmtree(log)
        driver.do(Begin())
        assert "LogError: query " in driver.story[-1]
        assert "log adopt" in driver.story[-1]


def resolve(bench, checkpoint, assumed: str) -> None:
    place = f"kafka.bootstrap.servers={bench.cluster.bootstrap}"
    given = ["--format", "kafka", "--checkpoint", str(checkpoint), "-o", place]
    words = ["log", "resolve", *given, "-o", f"topic={bench.topic}", "--assume", assumed]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output


@pytest.mark.long
def test_an_epoch_whose_topic_was_made_anew_is_not_passed_over(bench, play, tmp_path):
    """Nobody has seen a row of it: the intent is logged, and its transactions are open."""
    with play() as driver:
        driver.run((*STAGED, Commit(trap=DIES_BEHIND), Crash()))
        bench.make_topic_anew()
        driver.do(Begin())
        assert "has since been removed or recreated" in driver.story[-1]
        resolve(bench, next(tmp_path.glob("**/krishiv")).parent, "aborted")
        driver.run(GOOD_EPOCH)
        driver.settle()


@pytest.mark.long  # 8 s
def test_an_operator_says_what_became_of_an_epoch(bench, play, tmp_path):
    """One of its transactions is ended, as a driver does that dies then; the other one is open."""
    with play() as driver:
        driver.run((*GOOD_EPOCH, *STAGED, Commit(trap=DIES_BEHIND), Crash()))
        bench.commit_one()
        resolve(bench, next(tmp_path.glob("**/krishiv")).parent, "committed")
        assert bench.open_ids() == []
        driver.settle()


@pytest.mark.long  # waits for a transaction's time-out
def test_an_epoch_in_part_may_be_an_error(bench, play):
    with play(**LATE, onLostTransactions="error") as driver:
        half_committed(bench, driver)
        driver.do(Begin())
        assert "CommitUnknown" in driver.story[-1]
        assert "the rows of the tasks" in driver.story[-1]
