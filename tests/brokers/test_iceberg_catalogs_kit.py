"""The kit's driver on real catalogs: what goes wrong at any call to them."""

import uuid
from dataclasses import replace

import psycopg2
import pyarrow as pa
import pytest
import requests
from iceberg_catalogs import REMOTE, REST
from keyed_rows import KEYED_ROWS

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
from servers.forwarding import forwarding
from servers.rest_catalog import refuse_properties

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


class CatalogCases(Suite):
    """Cases of `SinkConformance` that depend on the catalog."""

    more = {}  # noqa: RUF012  further options

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
        given |= self.more
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


@pytest.mark.parametrize("place", REMOTE, indirect=True)
class TestKit(CatalogCases):
    """The catalogs as they are."""


@pytest.mark.parametrize("place", [REST], indirect=True)
class TestKitWithoutProperties(CatalogCases):
    """The same where a tag records the epochs; every other snapshot expires at once."""

    @pytest.fixture
    def play(self, promise, one_in, place, tmp_path):
        self.place = place
        with forwarding(place.uri, refuse_properties) as uri:
            self.more = {"catalog.uri": uri, "keepSnapshots": "1"}
            player = SinkPlayer(self.sink, tmp_path, promise)
            player.one_in = one_in
            yield player
            player.close()


class TestUpsertsWithoutProperties(TestKitWithoutProperties):
    """The same with keys: the summary at the tag has the key too."""

    def sink(self, folder):
        given = {"mode": "upsert", "keyColumns": "id", "opColumn": "op", "orderColumn": "number"}
        made = super().sink(folder)
        rows = made.oracle
        return replace(
            made,
            options={**made.options, **given, "upsertMode": "merge-on-read"},
            oracle=lambda: add_operations(rows()),
            **KEYED_ROWS,
        )


def add_operations(rows):
    """Return the rows with an operation, which is not in the table."""
    return rows and rows.append_column("op", pa.array(["u"] * rows.num_rows, pa.string()))
