"""The functions that an author may name in ``outside``: each kind is counted, and still works."""

import sqlite3
import sys
from types import ModuleType

import pytest

from krishiv_spark.testing import OUTSIDE, Fault
from krishiv_spark.testing.processes.pool import Pool
from krishiv_spark.testing.processes.seam import NamedFunction
from krishiv_spark.testing.suites.base import SinkPlayer


class Client:
    closed = 0

    def send(self, value):
        return self, value

    @staticmethod
    def size(value):
        return value

    @classmethod
    def named(cls, value):
        return cls, value


class SpecialClient(Client):
    pass


@pytest.fixture(autouse=True)
def _client(monkeypatch):
    """A module of an author's, which is there only here."""
    module = ModuleType("a_client")
    module.Client, module.SpecialClient = Client, SpecialClient
    module.open_client = Client
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.fixture
def called():
    """Call something in a process of the kit that watches some functions."""
    pools = []

    def call(names, function, trap=None):
        pools.append(Pool({**OUTSIDE, **dict.fromkeys(names, TimeoutError)}))
        return pools[-1].take().call(function, trap=trap)

    yield call
    for pool in pools:
        pool.close()


def use_all_kinds():
    client = SpecialClient()
    sent = client.send(1)
    assert sent == (client, 1)
    assert (SpecialClient.size(2), client.size(3)) == (2, 3)
    assert (SpecialClient.named(4), client.named(5)) == ((SpecialClient, 4), (SpecialClient, 5))


def test_methods_static_and_class_methods_are_counted_and_still_work(called):
    names = ["a_client:Client.send", "a_client:Client.size", "a_client:Client.named"]
    answer = called(names, use_all_kinds)
    assert answer.outcome == "returned", answer.trace
    counted = [call.text.partition("(")[0].split(".")[1] for call in answer.calls]
    assert counted == ["send", "size", "size", "named", "named"]


def test_methods_of_types_that_are_written_in_c_go_wrong(called):
    names = ["_sqlite3:Connection.commit"]
    answer = called(names, commit_in_c, Fault(0))
    assert answer.outcome == "raised"
    assert "TimeoutError: injected: Connection.commit" in answer.error


def commit_in_c():
    import _sqlite3

    _sqlite3.connect(":memory:").commit()


def select_in_duckdb():
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t (id INT)")
        return connection.execute("SELECT 1").fetchall()


def commit_in_postgresql():
    from psycopg2.extensions import connection

    connection.commit(None)  # no server: it does not come so far


def test_the_clients_that_the_guide_names_are_seen(called):
    names = ["duckdb:DuckDBPyConnection.execute", "psycopg2.extensions:connection.commit"]
    answer = called(names, select_in_duckdb)
    assert answer.value == [(1,)]
    assert [call.reads for call in answer.calls] == [False, True]
    assert called(names, commit_in_postgresql, Fault(0)).sprung == "connection.commit()"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a_client:Client.sent", "'send'"),
        ("a_client:Clients.send", "'Client'"),
        ("a_client:Client.closed", "no function but of type int"),
        ("a_client:open_client", "the class Client: .*test_kit_functions:Client.__init__'"),
    ],
)
def test_a_name_that_means_no_function_is_an_error(name, said):
    with pytest.raises((ValueError, TypeError), match=said):
        NamedFunction.of(name)


def test_the_error_is_that_of_the_client(called):
    answer = called([], lambda: sqlite3.connect(":memory:"), Fault(0))
    assert "OperationalError" in answer.kinds


@pytest.mark.parametrize("one_in", [1, 3, 1000])
def test_a_case_that_is_thinned_tries_something(tmp_path, one_in):
    play = SinkPlayer(lambda _: None, tmp_path, "promise")
    play.thin(one_in, 0)
    drawn = play.drawn(range(10))
    assert 1 <= len(drawn) <= 10
    assert len(drawn) == {1: 10, 1000: 1}.get(one_in, len(drawn))
    assert not play.drawn([])
