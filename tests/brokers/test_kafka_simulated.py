"""The broker that histories are played with answers as a real one does.

The same random messages go to both, and every answer and every state after it is compared.
"""

import random
import time
import uuid

import pytest
from kafka_topics import make_topic, set_transaction_version
from simulation.clock import Clock
from simulation.cluster.brokers import Cluster
from simulation.conversation import Conversation

from krishiv_spark.kafka import transactions
from krishiv_spark.kafka.client import KafkaClient
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.dev import open_cluster

pytestmark = pytest.mark.long

MESSAGES = 120
KINDS = ("begin", "fence", "add", "produce", "produce", "produce", "end", "end", "describe")
_PATIENCE_S = 60


def double(rules, topic):
    def decided(ended):
        for tp in ended.partitions:
            cluster.write_marker(ended, tp)
        cluster.coordinator.complete(ended)

    cluster = Cluster(
        *(Clock(), 1, 2, rules),
        verify=True,
        top=2**15 - 1,
        decided=decided,
        shown=lambda _: None,
        topic=topic,
    )
    return Conversation(lambda request: cluster.answer(1, request), lambda: None, topic, rules)


def real(client, rules, topic, names):
    def send(request):
        (answer,) = client.ask([(1, request)])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def settle():
        until = time.monotonic() + _PATIENCE_S
        while not all(talk.is_settled(name) for name in names):
            assert time.monotonic() < until

    talk = Conversation(send, settle, topic, rules)
    return talk


def say(talk, kind, rng, rules, names):
    """One message; the same numbers say the same to both."""
    name, partition = rng.choice(names), rng.randrange(2)
    commit, again, back = rng.random() < 0.5, rng.random() < 0.15, 1 + rng.randrange(3)
    ticket = talk.tickets[-min(back, len(talk.tickets))] if talk.tickets else None
    if kind == "begin" or ticket is None:
        return talk.begin(name)
    return {
        "fence": lambda: talk.fence(ticket),
        "add": lambda: talk.add(ticket, partition),
        "produce": lambda: talk.produce(ticket, partition, again=again),
        "end": lambda: talk.end(ticket, rules, commit=commit),
        "describe": lambda: talk.describe(name),
    }[kind]()


def state(talk, names):
    return [talk.describe(name) for name in names], talk.ends(0), talk.ends(1)


@pytest.mark.parametrize("rules", [2, 1])
def test_it_answers_as_a_real_broker_does(rules):
    with open_cluster(ours=True) as cluster:
        if rules == 1:
            set_transaction_version(cluster.bootstrap, 1)
        client = KafkaClient(KafkaConfig.from_settings({"bootstrap.servers": cluster.bootstrap}))
        transactions.begin_transaction(
            client, "first", 60_000
        )  # makes the topic of the coordinators
        for seed in range(3):
            compare(client, cluster.bootstrap, rules, seed)
        client.close()


def compare(client, bootstrap, rules, seed):
    topic = f"t-{uuid.uuid4().hex}"
    make_topic(bootstrap, topic, 2)
    names = [f"{topic}-{number}" for number in range(2)]
    talks = double(rules, topic), real(client, rules, topic, names)
    kinds = random.Random(seed).choices(KINDS, k=MESSAGES)
    for number, kind in enumerate(kinds):
        said = [say(talk, kind, random.Random(f"{seed} {number}"), rules, names) for talk in talks]
        found = [state(talk, names) for talk in talks]
        assert (said[0], found[0]) == (said[1], found[1]), (seed, number, kind)
