"""A standby of PostgreSQL takes over while epochs are committed: real streaming replication."""

import contextlib
import threading
import time

import pyarrow as pa
import pytest
from pg_server import open_killable
from postgres import require_programs

from krishiv_spark.errors import KrishivError
from krishiv_spark.sinks.base import Epoch, OutputMode, Task
from krishiv_spark.sinks.postgresql.options import PostgresqlSinkOptions
from krishiv_spark.sinks.postgresql.writer import PostgresqlWriter

pytestmark = pytest.mark.long  # two servers

QUERY = "8503b910-b624-45a4-85db-fcb79eac7740"
ROWS = 10


@pytest.fixture
def pair():
    programs = require_programs()
    with (
        open_killable(programs, fsync="on") as primary,
        open_killable(programs, primary=primary, fsync="on") as standby,
    ):
        yield primary, standby


def make_writer(database):
    given = database.options(table="orders", lockTimeout="1s", commitTimeout="1s")
    options = PostgresqlSinkOptions.parse(given, "krishiv-postgresql")
    return PostgresqlWriter(options, pa.schema([("epoch", pa.int64())]), OutputMode.APPEND)


def stage(writer, number):
    writer.check()
    rows = pa.table({"epoch": [number] * ROWS}, writer.schema)
    task = Task(QUERY, number, 0, 0)
    return [writer.stage(iter(rows.to_batches()), task, writer.plan(None))]


def commit(database, number):
    """Commit an epoch as Spark does: not if the mark has it."""
    writer = make_writer(database)
    found = writer.committer().last_committed(QUERY) if number else None
    if found is None or found.epoch < number:
        writer.committer().publish(Epoch(QUERY, number), stage(writer, number))


def count(database):
    return dict(database.run("SELECT epoch, count(*) FROM orders GROUP BY 1 ORDER BY 1"))


def commit_until_it_fails(database):
    """Return the number of the epoch that has failed."""
    number = 1
    with contextlib.suppress(KrishivError):
        while True:
            commit(database, number)
            number += 1
    return number


def promote(standby):
    standby.promote()
    assert standby.database.run("SELECT pg_is_in_recovery()") == [(False,)]


@pytest.mark.parametrize("pause", [0.02, 0.3, 0.7])
def test_with_synchronous_replication_no_epoch_is_lost_or_repeated(pair, pause):
    primary, standby = pair
    database = primary.database
    database.run("ALTER SYSTEM SET synchronous_standby_names = '*'")
    database.run("SELECT pg_reload_conf()")
    commit(database, 0)
    before = make_writer(database).describe_target()
    killer = threading.Timer(pause, primary.kill)
    killer.start()
    number = commit_until_it_fails(database)
    killer.join()
    promote(standby)
    after = standby.database
    assert before.is_same(make_writer(after).describe_target())
    for each in range(number, number + 3):  # the first one may have been committed
        commit(after, each)
    assert count(after) == dict.fromkeys(range(number + 3), ROWS)


def test_without_it_the_last_epochs_are_missing_and_later_ones_are_written(pair):
    primary, standby = pair
    for number in range(3):
        commit(primary.database, number)
    _await_replay(primary, standby)
    standby.database.run("ALTER SYSTEM SET primary_conninfo = ''")  # the network is cut
    standby.database.run("SELECT pg_reload_conf()")
    time.sleep(1)
    for number in range(3, 6):
        commit(primary.database, number)
    primary.kill()
    promote(standby)
    commit(standby.database, 6)
    assert count(standby.database) == dict.fromkeys((0, 1, 2, 6), ROWS)


def test_rows_that_were_staged_before_it_are_staged_again(pair):
    primary, standby = pair
    commit(primary.database, 0)
    staged = stage(make_writer(primary.database), 1)
    _await_replay(primary, standby)
    primary.kill()
    promote(standby)
    committer = make_writer(standby.database).committer()
    with pytest.raises(KrishivError, match="a failover since rows were staged"):
        committer.publish(Epoch(QUERY, 1), staged)
    commit(standby.database, 1)
    assert count(standby.database) == {0: ROWS, 1: ROWS}


def _await_replay(primary, standby):
    ((end,),) = primary.database.run("SELECT pg_current_wal_lsn()::text")
    deadline = time.monotonic() + 30
    while standby.database.run("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", [end]) != [(True,)]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
