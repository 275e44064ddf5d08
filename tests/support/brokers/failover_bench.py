"""Queries of the Kafka sink, played by the kit, while something happens to brokers of theirs."""

import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import pyarrow as pa
from broker_troubles import Harm, Trouble
from kafka import KafkaConsumer, TopicPartition
from kafka_topics import Onlooker, make_topic
from linked_brokers import STATE_TOPIC, LinkedCluster
from patience import PATIENCE

from krishiv_spark.formats import KafkaDataSource
from krishiv_spark.kafka import transactions
from krishiv_spark.kafka.client import KafkaClient
from krishiv_spark.kafka.config import KafkaConfig
from krishiv_spark.kafka.transactions import ONGOING, UNFINISHED
from krishiv_spark.testing import Crash, EpochDriver, SinkUnderTest
from krishiv_spark.testing.processes.pool import Pool
from krishiv_spark.testing.steps import Step
from krishiv_spark.testing.suites.base import GOOD_EPOCH

BROKERS, PARTITIONS = 3, 3
SHORT_S, LONG_S = 1, 6
"""Shorter and longer than the time-out of requests, and than a cluster waits for a broker."""

PATIENT = {"kafka.request.timeout.ms": "2000", "kafka.default.api.timeout.ms": "60000"}
HASTY = {"kafka.request.timeout.ms": "1000", "kafka.default.api.timeout.ms": "2000"}

POINTS = {
    "krishiv_spark.offsets.epoch_log:EpochLog.intend": OSError,
    "krishiv_spark.kafka.transactions:end_transactions": OSError,
}
"""Points at which the kit's processes can be put to sleep."""

Victim: TypeAlias = Literal["coordinator", "leader", "any"]


class Spark(EpochDriver):
    """Looks at the topic while all brokers are there.

    Attributes:
        is_calm: Whether they are.
        is_hasty: Whether steps may fail for want of time.
    """

    is_calm = True
    is_hasty = False

    @property
    def _can_look(self) -> bool:
        return self.is_calm and super()._can_look

    def expect_well(self, *wanted: Step) -> None:
        """As the kit does, unless it is hasty."""
        if self.is_hasty:
            self.run(wanted)
        else:
            super().expect_well(*wanted)

    def expect_fenced(self) -> None:
        """The last step was refused since another driver has taken over, unless it is hasty."""
        assert self.is_hasty or "Fenced" in self.story[-1], self.story[-1]

    def hurry(self) -> None:
        """From here on time may be up in any step: then the next driver makes it good."""
        self.is_hasty = True
        self._restart_with(HASTY)

    def settle(self, epochs: int = 1) -> None:
        """As the kit does, with time enough."""
        self._restart_with(PATIENT)
        super().settle(epochs)

    def _restart_with(self, limits: Mapping[str, str]) -> None:
        self.sink = replace(self.sink, options={**self.sink.options, **limits})
        self.run((Crash(),))


Moment: TypeAlias = Callable[[Spark, Trouble], None]


@dataclass(frozen=True)
class Round:
    """One trouble of some brokers, and the moment of it.

    Attributes:
        moment: Writes the next epoch, and starts the trouble meanwhile.
        harm: See `Trouble`.
        victim: The role of the broker in the write.
        seconds: See `Trouble`.
        brokers: Number of brokers that are harmed, including the victim.
    """

    moment: Moment
    harm: Harm
    victim: Victim
    seconds: float
    brokers: int = 1

    @classmethod
    def drawn(
        cls, rng: random.Random, moment: Moment, harm: Harm, seconds: Sequence[float]
    ) -> "Round":
        """A round with whatever victim, for one of some times."""
        return cls(moment, harm, rng.choice(get_args(Victim)), rng.choice(seconds))

    def __str__(self) -> str:
        more = f" and {self.brokers - 1} more" if self.brokers > 1 else ""
        return f"{self.harm} {self.victim}{more} for {self.seconds} s, {self.moment.__name__}"


class Bench:
    """A cluster, and queries that write into topics of it.

    Args:
        cluster: Of three brokers.
        folder: For the checkpoints.
    """

    def __init__(self, cluster: LinkedCluster, folder: Path) -> None:
        self.cluster = cluster
        self.client = KafkaClient(
            KafkaConfig.from_settings({"bootstrap.servers": cluster.bootstrap})
        )
        transactions.list_transactions(
            self.client, "krishiv."
        )  # makes the topic of the coordinators
        self._pool = Pool(POINTS)
        self._folder = folder

    def close(self) -> None:
        self._pool.close()
        self.client.close()

    def query(self) -> Spark:
        """A query into a new topic, whose transactional ids begin with the topic's name."""
        self.topic = f"t-{uuid.uuid4().hex}"
        make_topic(self.cluster.bootstrap, self.topic, PARTITIONS, BROKERS)
        sink = SinkUnderTest(
            source=KafkaDataSource,
            options={
                "kafka.bootstrap.servers": self.cluster.by_links,
                **PATIENT,
                "kafka.transactional.id": self.topic,
                "topic": self.topic,
            },
            schema=pa.schema([("value", pa.string())]),
            row=lambda n: (f"row {n}",),
            oracle=self.rows,
            whole_epochs=False,  # until somebody has finished them
            outside=POINTS,
        )
        return Spark(sink, self._folder / self.topic, pool=self._pool)

    def rows(self) -> list[tuple[str]]:
        """Return the rows that a consumer of committed records gets."""
        with closing(Onlooker(self.cluster.bootstrap)) as onlooker:
            return [(each.value.decode(),) for each in onlooker.records(self.topic)]

    def nodes(self, chosen: Round, rng: random.Random) -> list[int]:
        """The brokers that are harmed: the victim, and others if there are to be more."""
        first = self._node(chosen.victim, rng)
        others = [node for node in range(1, 1 + BROKERS) if node != first]
        return [first, *rng.sample(others, chosen.brokers - 1)]

    def _node(self, victim: Victim, rng: random.Random) -> int:
        """The id of a broker that has this part in what the query writes next."""
        if victim == "leader":
            leaders = self.client.fetch_topics([self.topic])[self.topic].leaders
            return leaders[rng.randrange(PARTITIONS)]
        if victim == "coordinator":
            name = rng.choice(sorted(transactions.list_transactions(self.client, f"{self.topic}.")))
            self.client.coordinators.clear()
            transactions.describe(self.client, [name])
            return self.client.coordinators[name].node
        return 1 + rng.randrange(BROKERS)

    def play(self, driver: Spark, chosen: Round, rng: random.Random) -> None:
        """One round: something happens, and then all brokers are back."""
        nodes = self.nodes(chosen, rng)
        driver.tell(f"{chosen}: {nodes}")
        trouble = Trouble(self.cluster, nodes, chosen.harm, chosen.seconds)
        driver.is_calm = False
        try:
            chosen.moment(driver, trouble)
            if driver.is_hasty:  # the next driver does not wait until it is over
                driver.run(GOOD_EPOCH)
        finally:
            has_begun = trouble.await_end()
        assert has_begun or driver.is_hasty, f"{chosen}: nothing has happened"
        self.cluster.await_replicas([self.topic, STATE_TOPIC])
        driver.is_calm = True

    def assert_nothing_hangs(self) -> None:
        """No transaction is open, and readers of committed records get to the end."""
        until = time.monotonic() + PATIENCE
        while left := transactions.list_transactions(self.client, f"{self.topic}.", UNFINISHED):
            assert ONGOING not in left.values(), left
            assert time.monotonic() < until, left
        assert self._ends("read_committed") == self._ends("read_uncommitted")

    def _ends(self, level: str) -> dict[TopicPartition, int]:
        given = {"bootstrap_servers": self.cluster.bootstrap, "isolation_level": level}
        with closing(KafkaConsumer(**given)) as consumer:
            return consumer.end_offsets([TopicPartition(self.topic, n) for n in range(PARTITIONS)])
