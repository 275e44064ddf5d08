"""Catalogs that do not respond: short timeouts at first contact, and clear errors."""

import socket
import time
from contextlib import closing

import pytest

from krishiv_spark.iceberg import catalogs, glue_catalog, rest_catalog
from krishiv_spark.iceberg.catalogs import CatalogFailedError, open_catalog, open_table
from krishiv_spark.runtime.contact import record_contact
from krishiv_spark.sinks.iceberg.options import IcebergSinkOptions


@pytest.fixture
def silent():
    """Return the port of a server that accepts connections and sends nothing."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield listener.getsockname()[1]


def parsed(uri="", **properties):
    catalog = {"uri": uri, "token": "hunter2", **properties}
    given = {"table": "db.t", **{f"catalog.{key}": text for key, text in catalog.items() if text}}
    return IcebergSinkOptions.parse(given, "krishiv-iceberg")


def refusal(uri="", **properties):
    """Return the error text, and the seconds until the error."""
    options = parsed(uri, **properties)
    begun_s = time.monotonic()
    with pytest.raises(CatalogFailedError) as caught:
        open_catalog(options)
    assert "hunter2" not in str(caught.value)
    return str(caught.value), time.monotonic() - begun_s


def test_the_first_contact_is_short_and_later_ones_are_not(silent, monkeypatch):
    assert rest_catalog._FIRST_CONNECT_S <= rest_catalog._FIRST_READ_S < 10 < rest_catalog._READ_S
    monkeypatch.setattr(rest_catalog, "_FIRST_READ_S", 0.2)
    text, took_s = refusal(f"http://127.0.0.1:{silent}")
    assert f"http://127.0.0.1:{silent} does not respond: correct 'catalog.uri'" in text
    assert took_s < 30  # of the 60 for later ones
    monkeypatch.setattr(rest_catalog, "_READ_S", 3.0)
    record_contact(f"catalog 127.0.0.1:{silent}")
    assert refusal(f"http://127.0.0.1:{silent}")[1] >= 3


def glue_at(endpoint):
    names = ("access-key-id", "secret-access-key", "region")
    keys = {
        f"glue.{name}": text for name, text in zip(names, ("AK", "hunter2", "eu-1"), strict=True)
    }
    return {"type": "glue", "glue.endpoint": endpoint, **keys}


@pytest.mark.long
def test_glue_is_given_up_soon_if_it_never_has_answered(silent, monkeypatch):
    assert glue_catalog._FIRST_CONNECT_S <= glue_catalog._FIRST_READ_S < 10 < glue_catalog._READ_S
    monkeypatch.setattr(glue_catalog, "_FIRST_READ_S", 0.2)
    monkeypatch.setattr(glue_catalog, "_READ_S", 60)
    endpoint = f"http://127.0.0.1:{silent}"
    text, took_s = refusal(**glue_at(endpoint))
    assert f'Read timeout on endpoint URL: "{endpoint}/"' in text
    assert took_s < 30

    monkeypatch.setattr(glue_catalog, "_READ_S", 1.5)
    record_contact(f"catalog {endpoint}")
    options = parsed(**glue_at(endpoint), **{"glue.max-retries": "1"})
    begun_s = time.monotonic()
    with pytest.raises(CatalogFailedError, match="Read timeout"):
        open_table(options)
    assert time.monotonic() - begun_s >= 3  # twice, as long as befits


def test_postgresql_is_given_up_soon(monkeypatch):
    assert int(catalogs._LIBPQ_SETTINGS["connect_timeout"]) < 10
    monkeypatch.setitem(catalogs._LIBPQ_SETTINGS, "connect_timeout", "2")  # the least of libpq
    with closing(socket.create_server(("127.0.0.1", 0), backlog=8)) as silent:
        port = silent.getsockname()[1]
        text, took_s = refusal(f"postgresql+psycopg2://us:hunter2@127.0.0.1:{port}/db")
        assert "timeout expired" in text
        assert took_s > 1.5
        silent.settimeout(0)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):  # it was asked once
            silent.accept()


def test_what_a_user_has_set_for_postgresql_stays(monkeypatch):
    add = catalogs.add_libpq_timeouts
    assert add("postgresql://h/d").startswith("postgresql://h/d?connect_timeout=8&tcp_user")
    given = add("postgresql://h/d?connect_timeout=99&keepalives_idle=")
    assert given.count("connect_timeout") == given.count("keepalives_idle") == 1
    assert "connect_timeout=99&" in given
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "70")
    assert "connect_timeout" not in add("postgresql://h/d")


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("http://user:hunter2@127.0.0.1:1", "no server listens at http://127.0.0.1:1: correct"),
        ("postgresql+psycopg2://us:hunter2@127.0.0.1:1/db", "port 1 failed: Connection refused"),
        ("http://nowhere.invalid/api", "the host of http://nowhere.invalid is not known: correct"),
    ],
)
def test_who_is_not_there_is_told_in_words(uri, says):
    assert says in refusal(uri)[0]
