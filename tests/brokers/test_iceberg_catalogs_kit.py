"""The kit's driver on real catalogs: what goes wrong at any call to them."""

import uuid
from dataclasses import replace

import psycopg2
import pytest
import requests
from iceberg_catalogs import REMOTE

from krishiv_spark.formats import IcebergDataSource
from krishiv_spark.testing import Resume, SinkConformance, SinkUnderTest
from krishiv_spark.testing.suites.base import (
    BEGIN,
    COMMIT,
    GOOD_EPOCH,
    OVERTAKEN,
    STAGED,
    SinkPlayer,
    Suite,
    trap_deaths,
    trap_errors,
    trap_late_deaths,
    trap_sleeps,
)

pytestmark = pytest.mark.long  # the kit on two more catalogs; tests/kit has it on the embedded one


def _answered(text: str) -> Exception:
    return psycopg2.OperationalError(text)


def _unreachable(text: str) -> Exception:
    return requests.ConnectionError(text)


OUTSIDE = {
    "postgresql": {
        "psycopg2:connect": _answered,
        "sqlalchemy.engine.default:DefaultDialect.do_execute": _answered,
        "sqlalchemy.engine.default:DefaultDialect.do_commit": _answered,
    },
    "rest": {"requests.sessions:Session.send": _unreachable},
}


@pytest.mark.parametrize("place", REMOTE, indirect=True)
class TestKit(Suite):
    """Cases of `SinkConformance` that depend on the catalog."""

    @pytest.fixture
    def play(self, promise, one_in, place, tmp_path):
        self.place = place
        player = SinkPlayer(self.sink, tmp_path, promise)
        player.one_in = one_in
        yield player
        player.close()

    def sink(self, folder):
        del folder  # another warehouse would be another catalog, with connections of its own
        place = replace(self.place, name=f"n{uuid.uuid4().hex}.rows")
        # A driver that sleeps inside of a transaction holds its locks: others give up soon.
        uri = place.uri + "?options=-clock_timeout%3D200ms" * (place.kind == "postgresql")
        given = {"catalog.uri": uri, "commitTimeout": "1 s", "warehouse": str(place.warehouse)}
        return SinkUnderTest(
            source=IcebergDataSource,
            options={**place.options, **given},
            oracle=place.rows,
            outside=OUTSIDE[place.kind],
        )

    def test_a_commit_is_killed(self, play):
        """The driver may die before or after any call to the catalog."""
        play.at_every_call(COMMIT, trap_deaths, before=STAGED)

    def test_a_planner_is_killed(self, play):
        """The planner may die while it makes the table."""
        play.at_every_call(BEGIN, trap_late_deaths)

    def test_an_unknown_outcome_is_looked_up(self, play):
        """Any call to the catalog may report an error although it happened, or because not."""
        play.at_every_call(COMMIT, trap_errors, lambda _: GOOD_EPOCH, before=STAGED)

    test_a_replayed_epoch_adds_nothing = SinkConformance.test_a_replayed_epoch_adds_nothing

    def test_a_stale_driver_cannot_publish(self, play):
        """A driver that was believed dead wakes up at any call to the catalog."""
        woken = (*OVERTAKEN, Resume(), *GOOD_EPOCH)
        play.at_every_call(COMMIT, trap_sleeps, lambda _: woken, before=STAGED)
