"""Changes of tables in PostgreSQL that Debezium writes to Kafka while Connect and Kafka are killed.

KRISHIV_PIPELINE_SECONDS and KRISHIV_PIPELINE_KILLS set a longer run, and KRISHIV_PIPELINE_SEED
repeats the SQL of one.
"""

import itertools
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from changing_rows import MARKED, SERVER_SETTINGS, Workload
from changing_tables import TABLES
from debezium_messages import await_key, read_changes, read_log
from postgres import find_programs, open_postgres

from krishiv_spark.errors import KrishivError
from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.kafka.dev.clusters import Cluster
from servers.debezium import postgres_source, running_debezium
from servers.processes import Server

SECONDS = float(os.environ.get("KRISHIV_PIPELINE_SECONDS", "20"))
KILLS = int(os.environ.get("KRISHIV_PIPELINE_KILLS", "2"))

pytestmark = [
    pytest.mark.crash,
    pytest.mark.long,  # changes rows for 20 seconds, and starts three systems
    pytest.mark.timeout(2400 + 10 * SECONDS),
]


@dataclass(frozen=True)
class Pipeline:
    """A database whose changes Debezium writes to topics.

    Attributes:
        uri: The database.
        workload: The transactions on it.
        cluster: The broker.
        connect: The worker of Kafka Connect.
    """

    uri: str
    workload: Workload
    cluster: Cluster
    connect: Server

    def restart_broker(self) -> None:
        (broker,) = self.cluster.brokers
        broker.kill()
        broker.start()
        self.cluster.wait()

    def await_rows(self, number: int) -> None:
        """Wait until each topic has the row with a number."""
        for table in TABLES:
            await_key(self.cluster.bootstrap, table, table.key(number))


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    """A pipeline after its snapshot."""
    programs = find_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    seed = int(os.environ.get("KRISHIV_PIPELINE_SEED", random.randrange(2**32)))
    with ExitStack() as stack:
        uri = stack.enter_context(open_postgres(programs, **SERVER_SETTINGS))
        workload = Workload(uri, seed)
        workload.prepare()
        cluster = stack.enter_context(open_cluster(ours=True))
        folder = tmp_path / "connect"
        folder.mkdir()
        running = running_debezium(folder, cluster.bootstrap, postgres_source(uri))
        try:
            connect = stack.enter_context(running)
        except KrishivError as error:
            pytest.skip(f"Debezium: {str(error).splitlines()[0]}")
        found = Pipeline(uri, workload, cluster, connect)
        found.await_rows(0)
        yield found


def test_topics_have_each_change_after_kills(pipeline):
    until = time.monotonic() + SECONDS
    victims = itertools.cycle([pipeline.connect.restart, pipeline.restart_broker])
    with ThreadPoolExecutor(1) as pool:
        changes = pool.submit(pipeline.workload.run, lambda: time.monotonic() > until)
        for restart in itertools.islice(victims, KILLS):
            time.sleep(random.uniform(0.3, 1) * SECONDS / KILLS)
            restart()
        print(f"{changes.result()} transactions")
    pipeline.await_rows(MARKED)
    assert_topics_equal_log(pipeline)


def assert_topics_equal_log(pipeline: Pipeline) -> None:
    """Assert that Debezium has written each change: a mirror can only be as good as its topic."""
    for table in TABLES:
        changes, repeats = read_changes(pipeline.cluster.bootstrap, table)
        logged = read_log(pipeline.uri, table)
        print(f"{table.name}: {len(changes)} changes, {repeats} messages twice")
        assert changes == logged, f"the topic of {table.name} differs from PostgreSQL's log"
