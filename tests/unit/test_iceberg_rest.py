"""A REST catalog that does not answer: given up soon if it never has, and in words."""

import socket
import time
from contextlib import closing

import pytest

from krishiv_spark.iceberg import rest
from krishiv_spark.iceberg.catalogs import CatalogFailedError, open_catalog
from krishiv_spark.reached import note_reached
from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions


@pytest.fixture
def silent():
    """The port of who takes connections, and says nothing."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield listener.getsockname()[1]


def refusal(uri):
    """What is said, and after how many seconds."""
    given = {"table": "db.t", "catalog.uri": uri, "catalog.token": "hunter2"}
    options = IcebergSinkOptions.parse(given, "krishiv-iceberg")
    begun_s = time.monotonic()
    with pytest.raises(CatalogFailedError) as caught:
        open_catalog(options)
    assert "hunter2" not in str(caught.value)
    return str(caught.value), time.monotonic() - begun_s


def test_the_first_contact_is_short_and_later_ones_are_not(silent, monkeypatch):
    assert rest._FIRST_CONNECT_S <= rest._FIRST_READ_S < 10 < rest._READ_S
    monkeypatch.setattr(rest, "_FIRST_READ_S", 0.2)
    monkeypatch.setattr(rest, "_READ_S", 3.0)
    text, took_s = refusal(f"http://127.0.0.1:{silent}")
    assert f"http://127.0.0.1:{silent} does not answer: correct 'catalog.uri'" in text
    assert took_s < 2.5
    note_reached(f"catalog 127.0.0.1:{silent}")
    assert refusal(f"http://127.0.0.1:{silent}")[1] >= 3


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("http://user:hunter2@127.0.0.1:1", "nobody listens at http://127.0.0.1:1: correct"),
        ("http://nowhere.invalid/api", "the host of http://nowhere.invalid is not known: correct"),
    ],
)
def test_who_is_not_there_is_told_in_words(uri, says):
    assert says in refusal(uri)[0]
