"""Tables of PostgreSQL, mirrored through Debezium and Kafka, while all but PostgreSQL is killed.

`./run test --all` runs it for a minute. KRISHIV_PIPELINE_SECONDS and KRISHIV_PIPELINE_KILLS set a
longer run, and KRISHIV_PIPELINE_SEED repeats the SQL of one.
"""

import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from changing_rows import SERVER_SETTINGS, Workload, read_rows
from changing_tables import MARKED, TABLES
from debezium_messages import await_key, await_streamed_offset, read_changes, read_log, topic_of
from drivers import Driver
from killers import Killer
from mirrors import assert_mirror_equals, history_name, make_job
from postgres import open_postgres, require_programs
from table_histories import assert_history_equals

from krishiv_spark.errors import KrishivError
from krishiv_spark.kafka.dev import open_cluster
from krishiv_spark.kafka.dev.clusters import Cluster
from krishiv_spark.queries.failures import failure_of
from servers.debezium import postgres_source, running_debezium
from servers.processes import Server

SECONDS = float(os.environ.get("KRISHIV_PIPELINE_SECONDS", "60"))
KILLS = int(os.environ.get("KRISHIV_PIPELINE_KILLS", "4"))
"""Driver, Python worker, Connect and broker: each is killed before the first is killed again."""

KEPT = next(table for table in TABLES if table.name == "documents")
"""The table with a history too: it has large values, which Debezium leaves out."""

pytestmark = [
    pytest.mark.crash,
    pytest.mark.long,  # changes rows for a minute, and starts four systems
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

    def restart_connect(self) -> None:
        await_streamed_offset(self.cluster.bootstrap)
        self.connect.restart()

    def restart_broker(self) -> None:
        (broker,) = self.cluster.brokers
        broker.kill()
        broker.start()
        self.cluster.wait()

    def await_rows(self, number: int) -> None:
        """Wait until each topic has the row with a number."""
        for table in TABLES:
            await_key(self.cluster.bootstrap, topic_of(table), table.key_columns(number))


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    """A pipeline after its snapshot."""
    programs = require_programs()
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


def test_mirrors_equal_their_database_after_kills(pipeline, tmp_path):
    topics = {table.name: topic_of(table) for table in TABLES}
    job = make_job(pipeline.cluster.bootstrap, tmp_path, TABLES, topics, [KEPT])
    change_during(make_killer(pipeline, job), pipeline, Path(job["drained"]))
    assert_topics_equal_log(pipeline)
    for table in TABLES:
        assert_mirror_equals(tmp_path / "warehouse", table, read_rows(table, pipeline.uri))
    assert_history_equals(tmp_path / "warehouse", history_name(KEPT), KEPT, pipeline.uri)


def change_during(killer: Killer, pipeline: Pipeline, drained: Path) -> None:
    """Change rows until the last kill; let the last driver end when all changes are in topics."""
    until, has_failed = time.monotonic() + SECONDS, threading.Event()

    def is_over() -> bool:
        has_time = time.monotonic() < until or killer.kills.total() < KILLS
        return has_failed.is_set() or not has_time

    def change() -> None:
        try:
            print(f"{pipeline.workload.run(is_over)} transactions")
            pipeline.await_rows(MARKED)
        finally:
            drained.touch()

    with ThreadPoolExecutor(1) as pool:
        changes = pool.submit(change)
        try:
            killer.run(KILLS)
        except BaseException:
            has_failed.set()
            raise
        changes.result()


def make_killer(pipeline: Pipeline, job: dict) -> Killer:
    return Killer(
        "mirror_copy.py",
        job,
        pauses=(0.3 * SECONDS / KILLS, SECONDS / KILLS),
        more={"connect": pipeline.restart_connect, "broker": pipeline.restart_broker},
        look=assert_not_failed,
    )


def assert_not_failed(driver: Driver) -> None:
    """Assert that no query failed, except by a killed Python process of Spark."""
    failed = [line.partition(" ")[2] for line in driver.lines if line.startswith("FAILED")]
    others = [line for line in failed if not failure_of(RuntimeError(line)).passes]
    assert not others, "\n".join(others)


def assert_topics_equal_log(pipeline: Pipeline) -> None:
    """Assert that Debezium has written each change: a mirror can only be as good as its topic."""
    for table in TABLES:
        changes, repeats = read_changes(pipeline.cluster.bootstrap, table)
        logged = read_log(pipeline.uri, table)
        print(f"{table.name}: {len(changes)} changes, {repeats} messages twice")
        assert changes == logged, f"the topic of {table.name} differs from PostgreSQL's log"
