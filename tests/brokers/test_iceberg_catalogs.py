"""The Iceberg sink on the catalogs that people run: SQLite, PostgreSQL, Iceberg's REST catalog.

Answers are lost, requests are lost and connections are refused by a proxy between the sink and the
real server.
"""

import json
import logging
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg2
import pytest
import sqlalchemy
from iceberg_catalogs import ALL, POSTGRESQL, REMOTE, REST
from iceberg_life import IcebergLife, assert_appends, assert_upserts, numbered, race_of_three
from postgres import PASSWORD
from pyiceberg.catalog.sql import SqlCatalogBaseTable
from pyiceberg.exceptions import CommitFailedException
from tenacity import retry, retry_if_result, stop_after_delay

from krishiv_spark.errors import CommitRejected, CommitUnknown, KrishivError, OptionError
from krishiv_spark.iceberg.catalogs import CatalogFailedError
from krishiv_spark.sinks.base import CommittedEpoch, Epoch
from servers.threads import serve_in_thread

pytestmark = pytest.mark.long  # starts servers; tests/unit has the embedded catalog

SECRET = "hunter3-very-secret"

everywhere = pytest.mark.parametrize("place", ALL, indirect=True)
remote = pytest.mark.parametrize("place", REMOTE, indirect=True)


@everywhere
def test_epochs(place):
    assert_appends(place)


@everywhere
def test_upserts(place):
    assert_upserts(place)


@pytest.mark.long  # starts three drivers
@remote  # on SQLite: unit/test_iceberg_sink.py
@pytest.mark.once
def test_three_drivers_race_on_one_query_in_a_catalog_that_is_empty(place):
    race_of_three(place.warehouse, 6, 40, **place.options)
    assert place.ids() == list(range(240))


@everywhere
def test_a_foreign_writer_between_stage_and_publish(place):
    life = place.life()
    life.epoch(0, numbered(0))
    staged = life.stage(1, numbered(1))
    with place.table() as table:
        table.append(numbered(50))
    life.publish(1, staged, numbered(1))
    assert place.ids() == [*range(20), *range(500, 510)]


@everywhere
def test_a_foreign_writer_who_never_pauses(place):
    """It may be faster each time: then the error says so, and the restarted query goes on."""
    life = place.life(commitTimeout="3 s")
    life.epoch(0, numbered(0, 1))
    with storm_of_commits(place) as written, suppress(CommitRejected):
        run_to(5, life)
    run_to(5, life)
    assert place.ids() == [*range(5), *written]


def run_to(end: int, life: IcebergLife) -> None:
    """Write the epochs below a number that the table lacks."""
    _, held = life.plan(numbered(0, 1))
    for epoch in range(held + 1, end):
        life.epoch(epoch, numbered(epoch, 1))


@contextmanager
def storm_of_commits(place) -> Iterator[list[int]]:
    """Another program appends one row after the other: their ids."""
    enough, written = threading.Event(), []

    def write() -> None:
        with place.table() as table:
            while not enough.is_set():
                with suppress(CommitFailedException):  # we were faster, again and again
                    table.refresh().append(numbered(1000 + len(written), 1))
                    written.append(1000 + len(written))

    foreign = threading.Thread(target=write)
    foreign.start()
    try:
        yield written
    finally:
        enough.set()
        foreign.join()


FAULTS = (
    ["lost answer"],
    ["lost request"],
    ["cut"],
    ["lost request", "cut", "lost answer"],
)


@remote
@pytest.mark.parametrize("faults", FAULTS, ids=" then ".join)
def test_an_answer_or_a_request_is_lost(place, faults):
    with place.behind_proxy() as (proxy, given):
        life = IcebergLife(place.warehouse, **given, commitTimeout="30 s")
        life.epoch(0, numbered(0))
        staged = life.stage(1, numbered(1))
        proxy.cut(place.is_commit, *faults)
        life.publish(1, staged, numbered(1))
        assert proxy.cuts[:1] == faults[:1]
    assert place.ids() == list(range(20))
    with place.table() as table:
        assert len(table.snapshots()) == 2


@remote
def test_connections_that_were_cut_between_two_epochs(place):
    with place.behind_proxy() as (proxy, given):
        life = IcebergLife(place.warehouse, **given)
        life.epoch(0, numbered(0))
        proxy.refuse()
        proxy.allow()
        life.epoch(1, numbered(1))
    assert place.ids() == list(range(20))


def about_to_publish(life):
    """The committer of epoch 1, which has found epoch 0 in the table, and what it is to publish."""
    life.epoch(0, numbered(0))
    staged = life.stage(1, numbered(1))
    committer = life.writer(numbered(1)).committer()
    assert committer.last_committed("query-1") == CommittedEpoch(0)
    return committer, staged


@remote
def test_a_catalog_that_is_away_while_an_epoch_is_committed(place):
    with place.behind_proxy() as (proxy, given):
        life = IcebergLife(place.warehouse, **given, commitTimeout="30 s")
        committer, staged = about_to_publish(life)
        proxy.refuse()
        back = threading.Timer(1, proxy.allow)
        back.start()
        committer.publish(Epoch("query-1", 1), staged)
        back.join()
    assert place.ids() == list(range(20))


@remote
def test_a_catalog_that_stays_away(place):
    with place.behind_proxy() as (proxy, given):
        life = IcebergLife(place.warehouse, **given, commitTimeout="1 s")
        committer, staged = about_to_publish(life)
        proxy.refuse()
        with pytest.raises(CommitUnknown, match="may or may not be in the table"):
            committer.publish(Epoch("query-1", 1), staged)
        with pytest.raises(CatalogFailedError, match=r"cannot (open the catalog|load table)"):
            life.plan(numbered(1))
        proxy.allow()
        life.epoch(1, numbered(1))  # the restarted query
    assert place.ids() == list(range(20))


@pytest.mark.parametrize("place", [REST], indirect=True)
def test_a_catalog_that_takes_a_commit_and_says_nothing(place, monkeypatch):
    monkeypatch.setattr("krishiv_spark.iceberg.rest_catalog._READ_S", 5.0)
    with place.behind_proxy() as (proxy, given):
        life = IcebergLife(place.warehouse, **given, commitTimeout="30 s")
        life.epoch(0, numbered(0))
        proxy.cut(place.is_commit, "silence")
        life.epoch(1, numbered(1))
        assert proxy.cuts == ["silence"]
    assert place.ids() == list(range(20))


@pytest.mark.parametrize("place", [POSTGRESQL], indirect=True)
def test_a_process_that_comes_second_with_the_tables_of_a_catalog(place):
    life = place.life()
    engine = sqlalchemy.create_engine(place.uri)
    with ThreadPoolExecutor() as pool, engine.connect() as first:
        SqlCatalogBaseTable.metadata.create_all(first)
        second = pool.submit(life.plan, numbered(0))
        _await_lock(place.uri, second)
        first.commit()
        assert second.result()[1] is None
    engine.dispose()
    life.epoch(0, numbered(0))
    assert place.ids() == list(range(10))


@retry(retry=retry_if_result(lambda waiting: not waiting), stop=stop_after_delay(30))
def _await_lock(uri: str, work: Future) -> bool:
    """Until somebody in the database waits for somebody else, or the work is done."""
    text = "SELECT 1 FROM pg_locks WHERE NOT granted"
    with closing(psycopg2.connect(uri.replace("+psycopg2", ""))) as connection:
        cursor = connection.cursor()
        cursor.execute(text)
        return cursor.fetchone() is not None or work.done()


# --- secrets


def shown(life: IcebergLife, caplog) -> tuple[Exception, str]:
    """The error that a user gets, and all that is shown of it anywhere."""
    with caplog.at_level(logging.DEBUG), pytest.raises(KrishivError) as caught:
        life.plan(numbered(0))
    trace = "".join(traceback.format_exception(caught.value))
    return caught.value, trace + caplog.text + repr(life.writer(numbered(0)).options)


@pytest.mark.parametrize("place", [POSTGRESQL], indirect=True)
def test_a_wrong_password_of_postgresql_is_shown_nowhere(place, caplog):
    wrong = {**place.options, "catalog.uri": place.uri.replace(PASSWORD, SECRET)}
    error, text = shown(IcebergLife(place.warehouse, **wrong), caplog)
    assert "password authentication failed" in str(error)
    assert SECRET not in text


class _Echo(BaseHTTPRequestHandler):
    """Refuses everybody, and says what they sent."""

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        said = f"who is that? {self.path} {sent} {dict(self.headers)}"
        body = json.dumps({"error": {"message": said, "type": "x", "code": 401}}).encode()
        self.send_response(401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST  # noqa: N815  the name that the class looks for

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def echo():
    with serve_in_thread(ThreadingHTTPServer(("127.0.0.1", 0), _Echo)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


@pytest.mark.filterwarnings("ignore:.*OAuth.*:DeprecationWarning")
@pytest.mark.parametrize("setting", ["token", "credential"])
def test_what_a_rest_catalog_repeats_of_a_secret_is_not_shown(echo, tmp_path, caplog, setting):
    given = {"catalog.uri": echo, f"catalog.{setting}": f"us:{SECRET}"}
    error, text = shown(IcebergLife(tmp_path, **given), caplog)
    assert isinstance(error, OptionError)
    assert "who is that?" in str(error)
    assert SECRET not in text
