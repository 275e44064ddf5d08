"""The requests of an epoch to its catalog, from processes that have just started."""

from contextlib import contextmanager

import pytest
from iceberg_catalogs import ALL, REST
from iceberg_life import IcebergLife, numbered
from sqlalchemy import Engine, event

from krishiv_spark.iceberg import catalogs
from krishiv_spark.sinks.base import Epoch
from servers.forwarding import forwarding

PLAN = ["GET config", "GET table"]
COMMIT = [*PLAN, "POST table"]


def run_epoch(life, epoch, made):
    """Return the requests of the planner and of the committer, each in a process of its own."""
    rows, found = numbered(epoch), []
    catalogs._CATALOGS.clear()
    made.clear()
    planned, _ = life.plan(rows)
    found.append([*made])
    staged = [life._staged(planned, *given) for given in life._tasks(epoch, rows, 1)]
    catalogs._CATALOGS.clear()
    made.clear()
    life.writer(rows).committer().publish(Epoch(life.query, epoch), staged)
    found.append([*made])
    return found


@pytest.mark.long  # a catalog in a JVM
@pytest.mark.parametrize("place", [REST], indirect=True)
@pytest.mark.parametrize("mode", [{}, {"mode": "upsert", "keyColumns": "id"}], ids=str)
def test_the_commit_of_an_epoch_is_one_request(place, mode):
    made = []

    def record(request, _answer):
        made.append(f"{request.method} {'config' if 'config' in request.path else 'table'}")

    with forwarding(place.uri, told=record) as uri:
        given = {**place.options, "catalog.uri": uri, **mode}
        life = IcebergLife(place.warehouse, **given)
        life.epoch(0, numbered(0))
        for epoch in (1, 2):
            assert run_epoch(life, epoch, made) == [PLAN, COMMIT]


@contextmanager
def recorded_statements():
    made = []

    def record(_connection, _cursor, statement, *_):
        made.append(statement.split()[0])

    event.listen(Engine, "before_cursor_execute", record)
    try:
        yield made
    finally:
        event.remove(Engine, "before_cursor_execute", record)


@pytest.mark.parametrize("place", [one for one in ALL if one is not REST], indirect=True)
def test_the_commit_of_an_epoch_in_sql_is_one_update(place):
    life = place.life()
    life.epoch(0, numbered(0))
    with recorded_statements() as made:
        for epoch in (1, 2):
            planned, committed = run_epoch(life, epoch, made)
            print(planned, committed)
            assert "UPDATE" not in planned
            assert committed[-2:] == ["SELECT", "UPDATE"]
            assert committed.count("UPDATE") == 1
