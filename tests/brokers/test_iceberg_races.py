"""Commits against writers that are faster, on real catalogs: how many races a commit can lose."""

import threading
import time
from contextlib import contextmanager

import pytest
from iceberg_catalogs import ALL, REST
from iceberg_life import IcebergLife, numbered
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import BadRequestError, CommitFailedException

from krishiv_spark.errors import CommitRejected
from krishiv_spark.iceberg.catalogs import CatalogFailedError
from krishiv_spark.iceberg.sql_catalog import CachingSqlCatalog
from krishiv_spark.sinks.base import Epoch
from krishiv_spark.sinks.iceberg.committer import EpochCommit
from servers.forwarding import forwarding

everywhere = pytest.mark.parametrize("place", ALL, indirect=True)
on_rest = pytest.mark.parametrize("place", [REST], indirect=True)

LATENCY_S = 1.0


@contextmanager
def slow_commits(place):
    """A life whose commits arrive late."""

    def delay(message):
        if message.method == "POST" and "/tables/" in message.path:
            time.sleep(LATENCY_S)
        return message

    with forwarding(place.uri, delay) as uri:
        there = {**place.options, "catalog.uri": uri}
        yield lambda **given: IcebergLife(place.warehouse, **there, **given)


@contextmanager
def writing(place, branch, pause_s):
    """Another program appends to a branch, again and again."""
    stop, made = threading.Event(), []

    def write():
        while not stop.wait(pause_s):
            with place.table() as table:
                try:
                    table.append(numbered(100 + len(made), 1), branch=branch)
                    made.append(branch)
                except CommitFailedException:
                    pass

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        stop.set()
        thread.join(60)


def make_branch(place):
    with place.table() as table:
        head = table.current_snapshot().snapshot_id
        table.manage_snapshots().create_branch(head, "other").commit()


@pytest.fixture
def attempts(monkeypatch):
    """The requests of commits of epochs."""
    made, real = [], EpochCommit._compare_and_set

    def compare_and_set(commit, transaction):
        made.append(transaction)
        real(commit, transaction)

    monkeypatch.setattr(EpochCommit, "_compare_and_set", compare_and_set)
    return made


UPSERT = {"mode": "upsert", "keyColumns": "id"}


@pytest.mark.long  # a catalog in a JVM
@on_rest
@pytest.mark.parametrize(
    "given",
    [{}, UPSERT, {"keepSnapshots": "2"}],
    ids=["append", "upsert", "expiry"],
)
def test_a_writer_on_another_branch_costs_a_commit_few_races(place, attempts, given):
    """Its snapshots take the sequence numbers; three come while a commit is under way."""
    place.life(**given).epoch(0, numbered(0))
    make_branch(place)
    attempts.clear()
    with slow_commits(place) as life, writing(place, "other", LATENCY_S / 4) as made:
        for epoch in (1, 2, 3):
            while not made:
                time.sleep(0.1)
            life(commitTimeout="60 s", **given).epoch(epoch, numbered(epoch))
            made.clear()
    assert len(attempts) <= 3 * 4
    assert place.ids() == list(range(40))
    with place.table() as table:
        numbers = [one.sequence_number for one in table.snapshots()]
        assert sorted({*numbers}) == sorted(numbers)
        assert table.scan(snapshot_id=table.refs()["other"].snapshot_id).to_arrow().num_rows > 10


@pytest.mark.long  # 25 s
@on_rest
@pytest.mark.parametrize("kind", ["fan-out", "view"])
def test_it_costs_members_of_a_fan_out_and_views_as_few(place, attempts, kind):
    """A member of a fan-out finishes an intent; a view upserts if its base is the newest still."""
    place.life(**UPSERT).epoch(0, numbered(0))
    make_branch(place)
    attempts.clear()
    with slow_commits(place) as life, writing(place, "other", LATENCY_S / 4) as made:
        for epoch in (1, 2, 3):
            while not made:
                time.sleep(0.1)
            given = {**UPSERT, "commitTimeout": "60 s"}
            if kind == "view":
                with place.table() as table:
                    base = str(table.metadata.current_snapshot_id)
                more = {"txnAppId": "view", "txnVersion": str(epoch), "ifSnapshot": base}
                job = life(**given, **more, allowMixedKeys="true", streaming=False, query="view")
                job.publish(epoch, job.stage(epoch, numbered(epoch)), numbered(epoch))
            else:
                fan = life(**given)
                staged = fan.stage(epoch, numbered(epoch))
                committer = fan.writer(numbered(epoch)).committer()
                committer.finish(Epoch(fan.query, epoch), staged)
            made.clear()
    assert len(attempts) <= 3 * 4
    assert place.ids() == list(range(40))


@pytest.mark.long
@on_rest
def test_a_writer_on_the_same_branch_is_named(place):
    place.life().epoch(0, numbered(0))
    with slow_commits(place) as life, writing(place, "main", 0.05) as made:
        while not made:
            time.sleep(0.1)
        staged = life().stage(1, numbered(1))
        named = (
            r"faster writers during \d+ lost races: a writer without a name, by append on branch"
        )
        with pytest.raises(
            CommitRejected, match=named + r" main \(\d+ commits\)\. Let them commit"
        ):
            life(commitTimeout="5 s").publish(1, staged, numbered(1))


@pytest.mark.long
@on_rest
def test_a_writer_that_keeps_a_new_query_out_is_named(place):
    """The first commit of a query sets its property, and must not be late."""
    place.life().epoch(0, numbered(0))
    with slow_commits(place) as life, writing(place, "main", 0.05) as made:
        while not made:
            time.sleep(0.1)
        with pytest.raises(CatalogFailedError, match=r"faster writers .* on branch main"):
            life(query="new", commitTimeout="4 s").stage(0, numbered(9))


@pytest.mark.long
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_catalog_that_wants_the_next_number_gets_it(place, attempts, monkeypatch):
    place.life().epoch(0, numbered(0))
    make_branch(place)
    real = SqlCatalog.commit_table

    def commit_table(catalog, table, requirements, updates):
        numbers = [one.snapshot.sequence_number for one in updates if hasattr(one, "snapshot")]
        if len(attempts) == 1:
            with place.table() as newest:
                newest.append(numbered(50), branch="other")
        elif any(number != table.metadata.next_sequence_number() for number in numbers):
            raise BadRequestError("the sequence number must be the next one")
        return real(catalog, table, requirements, updates)

    staged = place.life().stage(1, numbered(1))
    attempts.clear()
    monkeypatch.setattr(CachingSqlCatalog, "commit_table", commit_table)
    place.life(commitTimeout="60 s").publish(1, staged, numbered(1))
    assert [transaction.skipped for transaction in attempts] == [0, 2, 0]
    assert place.ids() == list(range(20))


@pytest.mark.long
@everywhere
def test_one_commit_to_another_branch_costs_one_race(place, attempts, monkeypatch):
    """The numbers that the second attempt leaves out are for commits that come beside it."""
    place.life().epoch(0, numbered(0))
    make_branch(place)
    real, left = EpochCommit._compare_and_set, [2]

    def compare_and_set(commit, transaction):
        if left[0]:
            with place.table() as table:
                for number in range(left[0]):
                    table.append(numbered(50 + number), branch="other")
            left[0] -= 1
        real(commit, transaction)

    monkeypatch.setattr(EpochCommit, "_compare_and_set", compare_and_set)
    life = IcebergLife(place.warehouse, **place.options)
    staged = life.stage(1, numbered(1))
    attempts.clear()
    life.publish(1, staged, numbered(1))
    assert [transaction.skipped for transaction in attempts] == [0, 4]
    life.epoch(1, numbered(1))  # a replay
    life.epoch(2, numbered(2))
    assert place.ids() == list(range(30))
