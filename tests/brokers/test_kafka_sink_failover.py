"""The Kafka sink over three brokers, of which one is killed, stands still or is cut off.

The kit's driver plays Spark and reaches the brokers by links of its own; what counts is what
Kafka's consumer of committed records is given once all brokers are back.
"""

import os
import random
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import pytest
from broker_troubles import END_TXN, HARMS, PRODUCE, Trouble
from failover_bench import BROKERS, LONG_S, SHORT_S, Bench, Moment, Round, Spark
from kafka_topics import set_transaction_version
from linked_brokers import open_linked

from krishiv_spark.testing import Begin, Commit, Crash, Fault, Sleep, Stage, Switch, TakeOver
from krishiv_spark.testing.steps import Resume
from krishiv_spark.testing.suites.base import GOOD_EPOCH, STAGED

SEED = int(os.environ.get("KRISHIV_SEED", "0"))
REPLICATED = {"default.replication.factor": "3", "min.insync.replicas": "2"}
QUERIES, ROUNDS = 60, 8
"""Of the soak: an hour and a half for each set of rules."""

AT_THE_INTENT, AT_THE_ENDS = Commit(trap=Sleep(0)), Commit(trap=Sleep(1))
DIES_BEHIND_THE_INTENT = Commit(trap=Fault(0, happened=True, reported=False))
RECOVERS = Begin(trap=Sleep(0))


# --- moments: a driver has written two epochs, and is about to write the third


def before_staging(driver: Spark, trouble: Trouble) -> None:
    driver.expect_well(Begin())
    trouble.begin()
    driver.expect_well(Stage(0), Stage(1), Commit())


def while_tasks_write(driver: Spark, trouble: Trouble) -> None:
    trouble.begin_after(PRODUCE)
    driver.expect_well(*GOOD_EPOCH)


def before_the_intent(driver: Spark, trouble: Trouble) -> None:
    driver.expect_well(*STAGED)
    driver.run((AT_THE_INTENT,))
    trouble.begin()
    driver.expect_well(Resume())


def before_the_ends(driver: Spark, trouble: Trouble) -> None:
    driver.expect_well(*STAGED)
    driver.run((AT_THE_ENDS,))
    trouble.begin()
    driver.expect_well(Resume())


def amid_the_ends(driver: Spark, trouble: Trouble) -> None:
    driver.expect_well(*STAGED)
    trouble.begin_after(END_TXN)
    driver.expect_well(Commit())


def while_a_successor_recovers(driver: Spark, trouble: Trouble) -> None:
    driver.expect_well(*STAGED)
    driver.run((DIES_BEHIND_THE_INTENT, Crash(), RECOVERS))
    trouble.begin()
    driver.expect_well(Resume(), Stage(0), Stage(1), Commit())


def while_two_drivers_run(driver: Spark, trouble: Trouble) -> None:
    driver.expect_well(*STAGED)
    driver.run((TakeOver(),))
    driver.expect_well(Begin(), Stage(0))
    trouble.begin()
    driver.run((Switch(), Commit()))
    driver.expect_fenced()
    driver.run((Switch(),))
    driver.expect_well(Stage(1), Commit())


MOMENTS: tuple[Moment, ...] = (
    before_staging,
    while_tasks_write,
    before_the_intent,
    before_the_ends,
    amid_the_ends,
    while_a_successor_recovers,
    while_two_drivers_run,
)
STAGED_BEFORE: tuple[Moment, ...] = (before_the_intent, before_the_ends, amid_the_ends)
"""A task that starts a transaction during the trouble may be fenced by its own first
InitProducerId, which a paused broker handles late. Then the epoch is refused, and written again."""


@pytest.fixture(scope="module")
def bench(request, tmp_path_factory) -> Iterator[Bench]:
    with open_linked(BROKERS, REPLICATED) as cluster:
        if request.param == 1:
            set_transaction_version(cluster.bootstrap, 1)
        with closing(Bench(cluster, tmp_path_factory.mktemp("queries"))) as bench:
            yield bench


def write_while(
    bench: Bench, rounds: Sequence[Round], rng: random.Random, *, hasty: bool = False
) -> None:
    """A new query, which meets a trouble in each round."""
    print(f"KRISHIV_SEED={SEED}")
    with bench.query() as driver:
        driver.expect_well(*GOOD_EPOCH, *GOOD_EPOCH)
        if hasty:
            driver.hurry()
        for chosen in rounds:
            begun = time.monotonic()
            bench.play(driver, chosen, rng)
            print(f"{chosen}: {time.monotonic() - begun:.1f} s")
            if not hasty:  # then it is the same driver that goes on
                driver.expect_well(*GOOD_EPOCH)
        driver.settle()
        bench.assert_nothing_hangs()


newest_rules = pytest.mark.parametrize("bench", [2], indirect=True)
both_rules = pytest.mark.parametrize("bench", [2, 1], indirect=True, ids=["TV2", "TV1"])

SOME = (
    Round(before_the_ends, "kill", "coordinator", 0),
    Round(before_the_intent, "pause", "leader", LONG_S),
    Round(amid_the_ends, "hold answers", "coordinator", LONG_S),
)


@pytest.mark.long  # three brokers; test_kafka_crash.py kills the one of real queries
@newest_rules
def test_a_kill_a_pause_and_a_cut_fail_nothing(bench):
    write_while(bench, SOME, random.Random(SEED))


@both_rules
@pytest.mark.long
@pytest.mark.parametrize("moment", STAGED_BEFORE, ids=lambda moment: moment.__name__)
@pytest.mark.parametrize("harm", HARMS)
def test_whatever_happens_to_a_broker_after_staging_fails_nothing(bench, moment, harm):
    rng = random.Random(f"{SEED} {moment.__name__} {harm}")
    write_while(bench, [Round.drawn(rng, moment, harm, [SHORT_S, LONG_S])], rng)


@both_rules
@pytest.mark.long
@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
@pytest.mark.parametrize("harm", HARMS)
def test_what_fails_meanwhile_is_made_good(bench, moment, harm):
    """The brokers are away for longer than anybody waits for them."""
    rng = random.Random(f"{SEED} {moment.__name__} {harm}")
    write_while(bench, [Round.drawn(rng, moment, harm, [LONG_S])], rng, hasty=True)


@pytest.mark.long
@newest_rules
def test_a_cluster_is_ready_when_each_broker_answers(bench):
    """The one that was not killed lists the others before they are back."""
    for broker in bench.cluster.brokers[1:]:
        broker.kill()
        broker.start()
    bench.cluster.wait()
    for server in bench.cluster.bootstrap.split(","):
        host, port = server.split(":")
        socket.create_connection((host, int(port))).close()


@both_rules
@pytest.mark.soak
def test_troubles_at_random_lose_and_repeat_nothing(bench):
    """Also of all brokers at once."""
    for number in range(QUERIES):
        rng = random.Random(f"{SEED} {number}")
        print(f"query {number}")
        write_while(bench, [anything(rng) for _ in range(ROUNDS)], rng, hasty=True)


def anything(rng: random.Random) -> Round:
    drawn = Round.drawn(rng, rng.choice(MOMENTS), rng.choice(HARMS), [SHORT_S, LONG_S])
    return replace(drawn, brokers=rng.choice([1, 1, 2, BROKERS]))
